# SPDX-License-Identifier: BSD-3-Clause
#
# The kernel's nvme driver reads what ours wrote, and ours what the kernel's wrote.
# MODULES: nvme

hugepages 40
uri="nvme:$BDF"
random_bytes 5000001 >sent
gpunvme write --quiet "$uri" --offset 12345 --input sent
drive=$(kernel_drive)
dd if="$drive" bs=1M iflag=skip_bytes,count_bytes skip=12345 count=5000001 of=got
cmp sent got

random_bytes 3000000 >sent
dd if=sent of="$drive" bs=1M oflag=seek_bytes seek=8192 conv=fsync
unbind
gpunvme read --quiet "$uri" --offset 8192 --length 3000000 --output got
cmp sent got

# SPDX-License-Identifier: BSD-3-Clause
#
# The kernel's own nvme driver finds the drive and reads back what it wrote.
# MODULES: nvme

drive=$(kernel_drive)
grep -q GUEST0001 "/sys/bus/pci/devices/$BDF"/nvme/nvme*/serial
random_bytes 1048576 >sent
dd if=sent of="$drive" bs=64k seek=3 conv=fsync
echo 3 >/proc/sys/vm/drop_caches
dd if="$drive" of=got bs=64k skip=3 count=16
cmp sent got

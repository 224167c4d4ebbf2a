# SPDX-License-Identifier: BSD-3-Clause
#
# The kernel module behind an IOMMU: no huge pages are needed, no right but the file's, and the
# controller reaches only what is mapped.
# MODULES: nvme vgem
# IOMMU: yes

modprobe vgem
bind_to gpunvme
device=/dev/gpunvme/$BDF
for check in refusals second limit dmabuf reset threads; do
    kmod_check "$device" $check || [ $? = 77 ]
done
random_bytes 1048576 >sent
gpunvme write "nvme:$BDF" --input sent --offset 64K
gpunvme read "nvme:$BDF" --offset 64K --length 1M --output got --interrupts
cmp sent got
gpunvme bench "nvme:$BDF" --time 60s >/dev/null 2>&1 &
victim=$!
sleep 2
kill -9 $victim
wait $victim || true
drive=$(kernel_drive)
dd if="$drive" of=got bs=64k skip=1 count=16
cmp sent got
if dmesg | grep -e 'WARNING:' -e 'BUG:' -e 'BUG ' -e Oops -e 'DMAR:.*fault'; then
    fail "the kernel complained"
fi

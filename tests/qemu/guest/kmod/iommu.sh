# SPDX-License-Identifier: BSD-3-Clause
#
# The kernel module behind an IOMMU: no huge pages are needed, no right but the file's, and the
# controller reaches only what is mapped. An IOMMU that translates nothing protects nothing.
# MODULES: nvme vgem
# IOMMU: yes

modprobe vgem
bind_to gpunvme
device=/dev/gpunvme/$BDF
[ "$(kmod_check "$device" info | head -n 1)" = "behind an IOMMU" ]
for check in refusals second limit dmabuf reset threads; do
    kmod_check "$device" $check || [ $? = 77 ]
done
chown 1000 "$device"
as_user "kmod_check $device refusals"
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

# iommu_type TYPE: how the IOMMU treats the function from now on.
iommu_type() {
    unbind
    echo "$1" >"/sys/bus/pci/devices/$BDF/iommu_group/type"
    bind_to gpunvme
    chown 1000 "$device"
}

# With iommu=pt all functions have this type: bus addresses are those of memory.
iommu_type identity
[ "$(kmod_check "$device" info | head -n 1)" = "no IOMMU" ]
expect_fail "errno 1)" as_user "kmod_check $device info"
dmesg | grep "opened without an IOMMU by kmod_check"

# A kernel that is locked down keeps even root from its memory, and leaves the IOMMU's ways open.
mount -t securityfs securityfs /sys/kernel/security
echo integrity >/sys/kernel/security/lockdown
expect_fail "errno 1)" kmod_check "$device" info
dmesg | grep "Lockdown: kmod_check"
iommu_type DMA
as_user "kmod_check $device info" | grep "behind an IOMMU"

if dmesg | grep -e 'WARNING:' -e 'BUG:' -e 'BUG ' -e Oops -e 'DMAR:.*fault'; then
    fail "the kernel complained"
fi

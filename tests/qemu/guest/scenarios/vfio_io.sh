# SPDX-License-Identifier: BSD-3-Clause
#
# Through vfio: polling, MSI-X and the interrupt pin, and the kernel's driver reads what we wrote.
# MODULES: vfio-pci vfio_iommu_type1 nvme
# PROGRAMS: tests/qemu/guest/vfio_guest
# IOMMU: yes
# CPUS: 2

modprobe vfio_iommu_type1
bind_to vfio-pci
gpunvme identify "nvme:$BDF" >identify
grep -q GUEST0001 identify
vfio_guest io "nvme:$BDF" poll
vfio_guest io "nvme:$BDF" msix
vfio_guest io "nvme:$BDF" pin
vfio_guest map "nvme:$BDF"
random_bytes 5000192 >sent
gpunvme write "nvme:$BDF" --quiet -i sent --offset 1M
gpunvme read "nvme:$BDF" --quiet -o got --offset 1M --length 5000192
cmp sent got

drive=$(kernel_drive)
dd if="$drive" of=kernels bs=512 skip=2048 count=9766
cmp sent kernels
random_bytes 1048576 >sent
dd if=sent of="$drive" bs=64k conv=fsync
bind_to vfio-pci
gpunvme read "nvme:$BDF" --quiet -o got --length 1M
cmp sent got

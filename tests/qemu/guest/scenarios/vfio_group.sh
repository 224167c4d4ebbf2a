# SPDX-License-Identifier: BSD-3-Clause
#
# Two functions in one IOMMU group: neither is opened while the kernel's driver has the other.
# MODULES: vfio-pci vfio_iommu_type1 nvme
# IOMMU: yes
# NVME: nvme,id=nv0,drive=d0,serial=GUEST0001,addr=5.0,multifunction=on
# NVME: nvme,id=nv1,serial=GUEST0002,addr=5.1

modprobe vfio_iommu_type1
other=${BDF%.0}.1
bind_to nvme "$other"
bind_to vfio-pci "$BDF"
expect_fail "functions that other drivers have: $other (nvme)" gpunvme identify "nvme:$BDF"
unbind "$other"
gpunvme identify "nvme:$BDF"
bind_to vfio-pci "$other"
gpunvme identify "nvme:$BDF"

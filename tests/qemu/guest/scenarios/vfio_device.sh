# SPDX-License-Identifier: BSD-3-Clause
#
# Through vfio: function reset, a mapped BAR, limits, and what is refused with which words.
# MODULES: vfio-pci vfio_iommu_type1 nvme
# PROGRAMS: tests/qemu/guest/vfio_guest
# IOMMU: yes
# NVME: nvme,id=nv0,drive=d0,serial=GUEST0001,cmb_size_mb=4,legacy-cmb=on

modprobe vfio_iommu_type1
bind_to nvme
expect_fail "belongs to the kernel's nvme driver" gpunvme identify "nvme:$BDF"
bind_to vfio-pci
vfio_guest file "nvme:$BDF"
vfio_guest reset "nvme:$BDF"
vfio_guest bar "nvme:$BDF" 2

group=$(basename "$(readlink "/sys/bus/pci/devices/$BDF/iommu_group")")
vfio_guest hold "nvme:$BDF" >held &
wait_for grep -q holding held
expect_fail "another process has it open" gpunvme identify "nvme:$BDF"
kill $!
wait_for eval "gpunvme identify nvme:$BDF"

mkdir -p /etc
chmod 755 /
echo "user:x:1000:1000::/tmp:/bin/sh" >/etc/passwd
expect_fail "chown USER /dev/vfio/$group" su user -c "gpunvme identify nvme:$BDF"
chown 1000 "/dev/vfio/$group"
su user -c "gpunvme identify nvme:$BDF"
su user -c "vfio_guest limit nvme:$BDF"

#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# gpunvme info, on this machine and on one made of files.
. "$(dirname "$0")/lib.sh"

promise "this machine is described, and the software controller works on it"
gpunvme info
expect 0
expect_out '^  kernel  '
expect_out '^  sim  '
gpunvme info --json
expect 0
expect_json

# A machine with two drives: one of the kernel's, one in user space behind the IOMMU.
make_device() {
    local device=root/sys/bus/pci/devices/$1
    mkdir -p "$device"
    echo "$2" >"$device/class"
    echo 0x144d >"$device/vendor"
    echo 0xa80c >"$device/device"
}
make_device 0000:02:00.0 0x010802
make_device 0000:01:00.0 0x010802
make_device 0000:03:00.0 0x020000 # a network card
mkdir -p root/sys/bus/pci/devices/0000:01:00.0/nvme/nvme0
echo "Example Drive 2TB   " >root/sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/model
mkdir -p root/sys/bus/pci/drivers/nvme root/sys/bus/pci/drivers/vfio-pci
mkdir -p root/sys/kernel/iommu_groups/17
ln -s ../../drivers/nvme root/sys/bus/pci/devices/0000:01:00.0/driver
ln -s ../../drivers/vfio-pci root/sys/bus/pci/devices/0000:02:00.0/driver
ln -s ../../../../kernel/iommu_groups/17 root/sys/bus/pci/devices/0000:02:00.0/iommu_group
mkdir -p root/sys/kernel/mm/hugepages/hugepages-2048kB root/proc root/dev/vfio
echo 512 >root/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
echo 500 >root/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages
touch root/dev/vfio/vfio
printf 'processor\t: 0\nmodel name\t: Example CPU 3000\n' >root/proc/cpuinfo
printf 'MemTotal:       16384000 kB\nMemAvailable:   8192000 kB\n' >root/proc/meminfo

promise "drives are shown with their driver and IOMMU group, in order"
gpunvme info --root "$work/root"
expect 0
expect_out 'Example CPU 3000'
expect_out 'NVMe drives 0000:01:00.0  144d:a80c  nvme0, Example Drive 2TB$'
expect_out 'driver nvme, no IOMMU group'
expect_out '0000:02:00.0  144d:a80c$'
expect_out 'driver vfio-pci, IOMMU group 17'
expect_out '512 of 2 MiB, 500 free'
check test "$(grep -c 0000:03:00.0 out)" -eq 0
gpunvme info --root "$work/root" --json
expect 0
expect_json
expect_out '"iommu_group": 17'

promise "a drive that vfio-pci has can be opened; where it can't, what is missing is told"
gpunvme info --root "$work/root" --json
expect 0
expect_out '"why": "nvme:0000:02:00.0"'
rm root/dev/vfio/vfio
gpunvme info --root "$work/root"
expect 0
expect_out 'modprobe vfio-pci'

promise "each transport to a drive is listed"
for way in vfio kmod uio sysfs vfio-user; do
    expect_out "^  $way  *[a-z]"
done

promise "a machine of which nothing can be read is no trouble"
gpunvme info --root "$work/nowhere"
expect 0
expect_out 'none on the PCI bus'
expect_out 'vfio .*this machine has no NVMe'

promise "where kernels would have their queues is told for a controller, with the reason"
gpunvme info --kernels sim:size=1M,queues=3
expect 0
expect_out '^  placement   tier [123]: queues'
expect_out '^  queues      3 of 1024 entries, 128 KiB a command'
gpunvme info --kernels sim:size=1M --json
expect 0
expect_json
expect_out '"placement": [123]'
expect_out '"why_not_higher": '
gpunvme info --kernels sim:size=oops
expect 2

promise "an argument is refused"
gpunvme info sim:
expect 2

finish

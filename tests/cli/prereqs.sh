#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# scripts/check-prereqs.sh over trees like /sys, /proc and /dev: what is missing is told with the
# way to get it, and decides the exit code.
. "$(dirname "$0")/lib.sh"
export GPUNVME_SYSFS=$work/sys GPUNVME_PROC=$work/proc GPUNVME_DEV=$work/dev

function_at() { # BDF CLASS VENDOR DRIVER
    local d=sys/bus/pci/devices/$1
    mkdir -p "$d" "sys/bus/pci/drivers/$4" sys/kernel/iommu_groups/12
    echo "$2" >"$d/class"
    echo "$3" >"$d/vendor"
    ln -s "../../drivers/$4" "$d/driver"
    ln -s ../../../../kernel/iommu_groups/12 "$d/iommu_group"
    printf '0x00000000f0000000 0x00000000f0003fff 0x0000000000140204\n%s\n' \
        '0x0000380000000000 0x00003807ffffffff 0x000000000014220c' >"$d/resource"
}
machine() {
    rm -rf sys proc dev
    mkdir -p proc/driver/nvidia dev/vfio sys/kernel/mm/hugepages/hugepages-2048kB sys/module/nvidia_fs
    printf 'vendor_id\t: GenuineIntel\nflags\t\t: fpu vme\n' >proc/cpuinfo
    echo 'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.1' >proc/driver/nvidia/version
    touch dev/vfio/vfio dev/iommu
    echo 64 >sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
    echo 60 >sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages
    function_at 0000:01:00.0 0x010802 0x144d nvme
    function_at 0000:02:00.0 0x030200 0x10de nvidia
    mkdir -p sys/bus/pci/drivers/vfio-pci
}
script() {
    (
        ulimit -l "${1:-unlimited}" 2>/dev/null || ulimit -S -l "$(ulimit -H -l)"
        timeout 300 "$source_dir/scripts/check-prereqs.sh" "${@:2}"
    ) >out 2>err </dev/null
    code=$?
}

promise "a machine that has everything is told so"
machine
mkdir proc/self
printf 'CapEff:\t0000000000004000\n' >proc/self/status
script 64
expect 0
expect_out 'ok    on, 1 groups'
expect_out '0000:01:00.0: nvme, IOMMU group 12, BAR0 16 KiB'
expect_out '0000:02:00.0: driver nvidia, BAR1 32 GiB'
expect_out 'open kernel modules'
check test -z "$(grep -E '^  no ' out)"

promise "each thing that is missing is told with a way to get it"
machine
rm -r sys/kernel/iommu_groups
script
expect 1
expect_out '  no    off'
expect_out 'intel_iommu=on'
machine
script 64
expect 1
expect_out 'no    locked memory: only 64 KiB'
expect_out memlock
machine
rm -r sys/bus/pci/devices/0000:01:00.0
script
expect 1
expect_out 'no    none on the PCI bus'

machine
mkdir bin
for tool in bash basename dirname readlink sed head grep tr od id timeout; do
    ln -s "$(command -v $tool)" bin/
done
if [ -e /usr/sbin/perl ] || [ -e /sbin/perl ]; then
    skip "perl is in root's path: its absence can't be tested"
else
    PATH=$work/bin script
    expect 1
    expect_out '  no    no perl'
    expect_out 'perl-interpreter'
fi

promise "what only a faster path needs is a note"
machine
echo 0 >sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages
rm -r sys/module/nvidia_fs
echo 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1' >proc/driver/nvidia/version
sed -i 's/0x00003807ffffffff/0x000038000fffffff/' sys/bus/pci/devices/0000:02:00.0/resource
mkdir -p sys/firmware/efi/efivars
mkdir -p sys/kernel/security
echo 'none [integrity] confidentiality' >sys/kernel/security/lockdown
printf '\6\0\0\0\1' >sys/firmware/efi/efivars/SecureBoot-8be4df61
script
expect_out 'note  no free huge pages'
expect_out 'note  nvidia-fs'
expect_out 'closed kernel modules'
expect_out 'Resizable BAR'
expect_out 'note  the kernel is locked down'
expect_out 'note  on: the kernel loads signed modules only'

promise "the BAR of a GPU that shows its memory is found wherever it is"
machine
printf '0x00000000f0000000 0x00000000f0ffffff 0x000000000014220c\n0x0 0x0 0x0\n%s\n' \
    '0x0000380000000000 0x0000381fffffffff 0x000000000014220c' >sys/bus/pci/devices/0000:02:00.0/resource
script
expect_out '0000:02:00.0: driver nvidia, BAR1 128 GiB'

promise "emulated drives and virtual machines are told"
machine
echo 0x1b36 >sys/bus/pci/devices/0000:01:00.0/vendor
echo 'flags : fpu hypervisor' >>proc/cpuinfo
script
expect_out 'note  a virtual machine'
expect_out 'note  emulated'

promise "arguments are refused"
script unlimited --now
check test $code -eq 2
finish

#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# scripts/vfio-bind.sh and vfio-unbind.sh over trees like /sys and /proc: what is refused, what is
# done, and that it is undone.
. "$(dirname "$0")/lib.sh"
bdf=0000:01:00.0
here=$source_dir/tests/cli
PATH=$work/bin:$PATH # for programs that the scripts ask
mkdir "$work/bin"
export GPUNVME_SYSFS=$work/sys GPUNVME_PROC=$work/proc GPUNVME_RUN=$work/run
export GPUNVME_KERNEL="$work/kernel" FAKE_MODULES="vfio-pci uio_pci_generic"
printf '#!/bin/sh\nexec bash "%s/fake_kernel.sh" "$@"\n' "$here" >kernel
chmod +x kernel
pci=$GPUNVME_SYSFS/bus/pci dev=$GPUNVME_SYSFS/bus/pci/devices/$bdf

# function BDF CLASS DRIVER GROUP
function_at() {
    local d=$pci/devices/$1
    mkdir -p "$d" "$pci/drivers/$3" "$GPUNVME_SYSFS/kernel/iommu_groups/$4/devices"
    echo "$2" >"$d/class"
    : >"$d/driver_override"
    ln -s "../../drivers/$3" "$d/driver"
    ln -s "../../../../kernel/iommu_groups/$4" "$d/iommu_group"
    ln -s "../../../../bus/pci/devices/$1" "$GPUNVME_SYSFS/kernel/iommu_groups/$4/devices/$1"
}

# A machine: a drive with a namespace and two partitions, free to take.
machine() {
    rm -rf sys proc run bin/*
    mkdir -p proc/self proc/123 sys/fs sys/class/nvme-subsystem
    : >proc/self/mountinfo
    : >proc/mounts
    printf 'Filename Type Size Used Priority\n' >proc/swaps
    function_at $bdf 0x010802 nvme 12
    : >"$pci/drivers_probe"
    : >"$pci/drivers/nvme/unbind"
    disk "$dev/nvme/nvme0/nvme0n1" 259:0
}

disk() { # DIRECTORY MAJ:MIN
    local name=${1##*/} p
    mkdir -p "$1/holders"
    echo "$2" >"$1/dev"
    for p in 1 2; do
        mkdir -p "$1/${name}p$p/holders"
        echo $p >"$1/${name}p$p/partition"
        echo "${2%:*}:$p" >"$1/${name}p$p/dev"
    done
}

script() {
    timeout -k 5 300 "$source_dir/scripts/vfio-$1.sh" "${@:2}" >"$work/out" 2>"$work/err" </dev/null
    code=$?
}
bound_to() {
    checks=$((checks + 1))
    local now
    now=$(basename "$(readlink "$dev/driver" || echo none)")
    [ "$now" = "$1" ] || fail "bound to $now, not $1"
}
refused() { # TEXT…
    local text
    script bind $bdf
    for text in "$@"; do
        expect 1 "$text"
    done
    bound_to nvme
    check test ! -e run/$bdf
    script bind --dry-run $bdf
    expect 1
}

promise "a free drive goes to vfio-pci and comes back as it was"
machine
script bind $bdf
expect 0
expect_out 'goes from nvme to vfio-pci'
expect_out 'echo "0000:01:00.0" > .*drivers/nvme/unbind'
bound_to vfio-pci
check grep -q driver=nvme run/$bdf
script bind $bdf
expect 0
expect_out "already"
script unbind $bdf
expect 0
bound_to nvme
check test ! -s "$dev/driver_override"
check test ! -e run/$bdf
script unbind $bdf
expect 0
expect_out "already"

promise "a short address is taken, another one is told"
script bind 01:00.0
expect 0
bound_to vfio-pci
script unbind 1:0.0
expect 0
for bad in 01:00 nonsense 0000:01:00.8 '../../x' ''; do
    script bind "$bad"
    check test $code -ne 0
done
script bind 0000:77:00.0
expect 1 "there is no PCI function"

promise "other drivers are taken as well, one after the other, and the first one comes back"
mkdir -p "$pci/drivers/gpunvme"
for driver in vfio-pci uio_pci_generic gpunvme none; do
    script bind --driver $driver $bdf
    expect 0
    bound_to $driver
done
script unbind $bdf
expect 0
bound_to nvme
script bind --driver ext4 $bdf
expect 1 "ext4"
bound_to nvme

promise "--dry-run says what would be done and does nothing"
machine
cp -a sys sys.before
script bind --dry-run $bdf
expect 0
expect_out 'driver_override'
expect_out 'nothing was changed'
check diff -r --no-dereference sys sys.before
check test ! -e run
rm -rf sys.before

promise "what is mounted is refused, by device number and by name"
machine
echo '30 1 259:2 / /data rw - ext4 /dev/whatever rw' >proc/self/mountinfo
refused "nvme0n1p2 is mounted on /data" "in use"
machine
echo '30 1 0:44 / /data rw - btrfs /dev/nvme0n1 rw' >proc/self/mountinfo
echo '/dev/nvme0n1 /pool btrfs rw 0 0' >proc/mounts
refused "nvme0n1 is mounted on /pool"
promise "the boot drive is refused, and named as such"
machine
echo '30 1 259:1 / /boot/efi rw - vfat /dev/nvme0n1p1 rw' >proc/self/mountinfo
refused "nvme0n1p1 is mounted on /boot/efi: this is the boot drive"
promise "what another mount namespace has mounted is refused"
machine
echo '30 1 259:1 / /inner rw - ext4 /dev/nvme0n1p1 rw' >proc/123/mountinfo
refused "nvme0n1p1 is mounted on /inner"
promise "swap is refused"
machine
echo '/dev/nvme0n1p2 partition 8388604 0 -2' >>proc/swaps
refused "nvme0n1p2 is used as swap"
promise "a member of a RAID or a volume group is refused"
machine
mkdir -p "$dev/nvme/nvme0/nvme0n1/nvme0n1p1/holders/dm-3/dm"
echo vg-root >"$dev/nvme/nvme0/nvme0n1/nvme0n1p1/holders/dm-3/dm/name"
refused "nvme0n1p1 is part of dm-3 (vg-root)"
machine
mkdir -p "$dev/nvme/nvme0/nvme0n1/holders/md0"
refused "nvme0n1 is part of md0"
promise "a second device of a btrfs is refused"
machine
mkdir -p sys/fs/btrfs/1234/devices
ln -s ../../../../nowhere sys/fs/btrfs/1234/devices/nvme0n1p2
refused "nvme0n1p2 is part of a mounted btrfs file system"
promise "a member of a ZFS pool is refused"
machine
printf '#!/bin/sh\necho "  /dev/nvme0n1p1  ONLINE  0 0 0"\n' >bin/zpool
chmod +x bin/zpool
refused "nvme0n1p1 is part of a ZFS pool"

promise "with multipath the namespace of the subsystem is looked at"
machine
rm -rf "$dev/nvme/nvme0/nvme0n1"
mkdir -p "$dev/nvme/nvme0/nvme0c0n1" sys/class/nvme-subsystem/nvme-subsys0
ln -s ../../../nowhere/nvme0 sys/class/nvme-subsystem/nvme-subsys0/nvme0
disk sys/class/nvme-subsystem/nvme-subsys0/nvme7n1 259:5
echo '30 1 259:5 / /data rw - ext4 /dev/nvme7n1 rw' >proc/self/mountinfo
refused "nvme7n1 is mounted on /data"
promise "another subsystem's namespace is not"
mv sys/class/nvme-subsystem/nvme-subsys0/nvme0 sys/class/nvme-subsystem/nvme-subsys0/nvme1
script bind $bdf
expect 0

promise "what is no NVMe controller is refused"
machine
echo 0x030000 >"$dev/class"
refused "is no NVMe controller"

promise "without an IOMMU vfio-pci is refused and the way out is named"
machine
rm "$dev/iommu_group"
refused "IOMMU" "uio_pci_generic"
script bind --driver uio_pci_generic $bdf
expect 0
bound_to uio_pci_generic

promise "an IOMMU group with another device in it is refused, one with a bridge is not"
machine
function_at 0000:00:01.0 0x060400 pcieport 12
script bind $bdf
expect 0
machine
function_at 0000:01:00.1 0x0c0330 xhci_hcd 12
refused "0000:01:00.1 (bound to xhci_hcd)"

promise "a driver that is not there, or does not take the drive, leaves it with the old one"
machine
FAKE_MODULES="" script bind $bdf
expect 1 "there is no driver vfio-pci"
bound_to nvme
machine
FAKE_REFUSES=vfio-pci script bind $bdf
expect 1
bound_to nvme
check test ! -s "$dev/driver_override"
check test ! -e run/$bdf

promise "a drive that a program has open is not taken from it"
machine
script bind $bdf
: >"$pci/drivers/vfio-pci/unbind"
mkdir -p proc/123/fd
ln -s /dev/vfio/12 proc/123/fd/7
script unbind $bdf
expect 1 "open in process 123"
bound_to vfio-pci
rm proc/123/fd/7
script unbind $bdf
expect 0
bound_to nvme

promise "what was not bound here goes back only to a driver that is named"
machine
script bind $bdf
rm -r run
script unbind $bdf
expect 1 "--driver nvme"
script unbind --driver nvme $bdf
expect 0
bound_to nvme

promise "a drive that nobody drove goes back to nobody"
machine
rm "$dev/driver"
mv "$dev/nvme" "$dev/.nvme"
script bind $bdf
expect 0
bound_to vfio-pci
script unbind $bdf
expect 0
bound_to none
finish

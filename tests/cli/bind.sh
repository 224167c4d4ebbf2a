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
export GPUNVME_SYSFS=$work/sys GPUNVME_PROC=$work/proc GPUNVME_DEV=$work/dev GPUNVME_RUN=$work/run
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
    rm -rf sys proc dev run bin/*
    mkdir -p proc/self proc/123/fd proc/123/map_files dev sys/fs sys/class/nvme-subsystem
    echo a_program >proc/123/comm
    : >proc/self/mountinfo
    blkid "exit 2"
    printf 'Filename Type Size Used Priority\n' >proc/swaps
    function_at $bdf 0x010802 nvme 12
    : >"$pci/drivers_probe"
    : >"$pci/drivers/nvme/unbind"
    disk "$dev/nvme/nvme0/nvme0n1" 259:0
}

# blkid SCRIPT: what plays blkid, whose last argument is a device; 2 is "nothing is known of it".
blkid() {
    printf '#!/bin/sh\nfor last; do :; done\n%s\n' "$1" >bin/blkid
    chmod +x bin/blkid
}

disk() { # DIRECTORY MAJ:MIN
    local name=${1##*/} p
    mkdir -p "$1/holders"
    echo "$2" >"$1/dev"
    : >"dev/$name"
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

promise "without root, --dry-run says what it could not look at, and nothing is changed"
machine
rm "$pci/drivers_probe"
script bind --dry-run $bdf
expect 0 "only root can see"
script bind $bdf
expect 1 "this needs root"
bound_to nvme

promise "--user gets the group and the device, of a drive that is bound already as well"
machine
for node in vfio/12 vfio/devices/vfio3; do
    folder=sys/class/vfio/12
    [ $node = vfio/12 ] || folder=$dev/vfio-dev/vfio3
    mkdir -p "$folder"
    echo 511:0 >"$folder/dev"
    echo "DEVNAME=$node" >"$folder/uevent"
done
for turn in first second; do
    script bind --user somebody $bdf
    expect 0
    expect_out "chown somebody /dev/vfio/12$"
    expect_out "chown somebody /dev/vfio/devices/vfio3$"
done

promise "what is mounted is refused, by device number and by name"
machine
echo '30 1 259:2 / /data rw - ext4 /dev/whatever rw' >proc/self/mountinfo
refused "nvme0n1p2 is mounted on /data" "in use"
machine
echo '30 1 0:44 / /pool rw shared:1 - btrfs /dev/nvme0n1 rw' >proc/self/mountinfo
refused "nvme0n1 is mounted on /pool: umount /pool"
promise "--dry-run refuses likewise"
script bind --dry-run $bdf
expect 1 "nvme0n1 is mounted on /pool: umount /pool"
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
mkdir -p sys/module/zfs
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

promise "a binding that fails forgets nothing of the one before"
machine
script bind $bdf
FAKE_REFUSES=uio_pci_generic script bind --driver uio_pci_generic $bdf
expect 1 "is with vfio-pci again"
script unbind $bdf
expect 0
bound_to nvme

# Device numbers can't be made up in a tree of files: /dev/null and /dev/zero stand in.
null=1:3 zero=1:5
promise "a drive whose character device a process has open or mapped is not taken"
for place in fd/7 map_files/7f0000000000-7f0000001000; do
    for node in nvme0 ng0n1; do
        machine
        mkdir -p "$dev/nvme/nvme0/ng0n1"
        echo $zero >"$dev/nvme/nvme0/ng0n1/dev"
        echo $zero >"$dev/nvme/nvme0/dev"
        echo $null >"$dev/nvme/nvme0/${node#nvme0}/dev"
        ln -s /dev/null proc/123/$place
        refused "/dev/$node is open in process 123 (a_program): end that first"
    done
done
promise "another function's is"
echo $zero >"$dev/nvme/nvme0/ng0n1/dev"
script bind $bdf
expect 0

promise "a drive that a process drives is neither taken nor given back, whatever its driver"
drives() { # NODE DIRECTORY
    machine
    script bind --driver none $bdf
    mkdir -p "$2"
    echo $null >"$2/dev"
    echo "DEVNAME=$1" >"$2/uevent"
    ln -s /dev/null proc/123/fd/7
    for how in bind unbind; do
        script $how $bdf
        expect 1 "/dev/$1 is open in process 123 (a_program): end that first"
        bound_to none
    done
    rm proc/123/fd/7
    script unbind $bdf
    expect 0
    bound_to nvme
}
drives vfio/12 sys/class/vfio/12
drives vfio/noiommu-12 sys/class/vfio/noiommu-12
drives vfio/devices/vfio3 "$dev/vfio-dev/vfio3"
drives uio0 "$dev/uio/uio0"
drives gpunvme/$bdf "$dev/misc/gpunvme-$bdf"
promise "a process that has its registers mapped drives it"
machine
: >"$dev/resource0"
ln -s "$dev/resource0" proc/123/map_files/7f0000000000-7f0000001000
refused "resource0 of $bdf is open in process 123 (a_program): end that first"
echo gpunvme-guard >proc/123/comm
refused "resource0 of $bdf is open in process 123 (gpunvme-guard), which ends when its program has"

promise "a disk that can't be opened exclusively is refused, with the kernel's reason"
machine
rm dev/nvme0n1
refused "$work/dev/nvme0n1: No such file or directory (this must be opened exclusively"

promise "a drive that is exported, or backs a loop device, is refused"
nvmet=sys/kernel/config/nvmet/subsystems/s
for place in namespaces/1 passthru; do
    machine
    mkdir -p $nvmet/$place
    echo 1 >$nvmet/$place/enable
    echo /dev/nvme0n1 >$nvmet/$place/device_path
    echo 259:0 >"$dev/nvme/nvme0/dev"
    [ $place != passthru ] || echo /dev/nvme0 >$nvmet/$place/device_path
    refused "is exported: echo 0 > $GPUNVME_SYSFS/kernel/config/nvmet/subsystems/s/$place/enable"
done
machine
mkdir -p sys/block/loop3/loop
echo /dev/nvme0n1p2 >sys/block/loop3/loop/backing_file
refused "nvme0n1p2 backs loop3: losetup -d /dev/loop3"

# doubted TEXT: refused, but taken by --force.
doubted() {
    refused "$1" "--force takes $bdf all the same"
    script bind --force $bdf
    expect 0 "$1"
    bound_to vfio-pci
}
promise "a boot partition and an inactive member of a set are taken by --force only"
while read -r output text; do
    machine
    blkid "[ \$last != $work/dev/nvme0n1 ] || printf '$output\n'"
    doubted "nvme0n1 is $text"
done <<'END'
TYPE=vfat\nUSAGE=filesystem\nPART_ENTRY_TYPE=c12a7328-f81f-11d2-ba4b-00a0c93ec93b an EFI system partition
PART_ENTRY_TYPE=0xef an EFI system partition
PART_ENTRY_TYPE=21686148-6449-6e6f-744e-656564454649 a BIOS boot partition
PART_ENTRY_TYPE=bc13c2ff-59e6-4262-a352-b275fd6f7172 an extended boot partition
USAGE=raid\nTYPE=linux_raid_member an inactive member of a set (linux_raid_member)
USAGE=raid\nTYPE=LVM2_member an inactive member of a set (LVM2_member)
USAGE=filesystem\nTYPE=zfs_member an inactive member of a set (zfs_member)
END
promise "a file system that is not mounted is told, and no reason to refuse"
machine
blkid "echo USAGE=filesystem; echo TYPE=ext4"
script bind $bdf
expect 0
expect_out "nvme0n1p2 holds ext4, and nothing uses it"

promise "what can't be found out is refused, and says why"
machine
blkid "exit 8"
doubted "what nvme0n1 holds could not be found out (blkid failed with 8)"
machine
mkdir -p sys/module/nvmet
doubted "mount -t configfs"
promise "without perl nothing is taken"
machine
printf '#!/bin/sh\nexit 1\n' >bin/perl
chmod +x bin/perl
refused "did not find out who has $bdf open"
rm bin/perl
for tool in bash basename dirname readlink awk cat sed sort stat timeout; do
    ln -sf "$(command -v $tool)" bin/$tool
done
if [ -e /usr/sbin/perl ] || [ -e /sbin/perl ]; then
    skip "perl is in root's path: its absence can't be tested"
else
    PATH=$work/bin script bind $bdf
    expect 1 "perl is not here"
    bound_to nvme
fi

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

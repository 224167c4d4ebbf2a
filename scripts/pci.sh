# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What vfio-bind.sh and vfio-unbind.sh share: a PCI function in sysfs, who uses the drive behind
# it, and writes that say what they are. Sourced; the caller has set `set -euo pipefail` and me=.
#
# For tests, GPUNVME_SYSFS, GPUNVME_PROC and GPUNVME_RUN put other folders in the place of /sys,
# /proc and /run/gpunvme, and GPUNVME_KERNEL names a program that plays the kernel: it is called
# after each write with the file and the value, or with "modprobe" and the module.
sysfs=${GPUNVME_SYSFS:-/sys}
proc=${GPUNVME_PROC:-/proc}
# shellcheck disable=SC2034 # used by whoever sources this
run=${GPUNVME_RUN:-/run/gpunvme}
kernel=""
[ "$sysfs" = /sys ] || kernel=${GPUNVME_KERNEL:-}
dry_run=no
deadline_s=30 # of one write: the kernel waits for whoever has the device open

: "${me:=pci.sh}" # who is speaking
say() { printf '%s: %s\n' "$me" "$*"; }
die() {
    printf '%s: %s\n' "$me" "$*" >&2
    exit 1
}

# "1:0.0", "01:00.0", "0000:01:00.0" as the kernel writes it, or nothing if it is no address.
normal_bdf() {
    local h='[0-9a-fA-F]'
    if [[ $1 =~ ^(($h{1,8}):)?($h{1,2}):($h{1,2})\.([0-7])$ ]]; then
        printf '%04x:%02x:%02x.%x\n' "0x${BASH_REMATCH[2]:-0}" "0x${BASH_REMATCH[3]}" \
            "0x${BASH_REMATCH[4]}" "0x${BASH_REMATCH[5]}"
    fi
}

# The name that a link points to; nothing if there is no link.
link_name() {
    [ -L "$1" ] || return 0
    basename "$(readlink "$1")"
}

line_of() { { read -r line <"$1" && printf '%s\n' "$line"; } 2>/dev/null || true; }

driver_of() { link_name "$sysfs/bus/pci/devices/$1/driver"; }

# put VALUE FILE: a write to sysfs, told; the kernel's own word if it refuses.
put() {
    printf '  echo "%s" > %s\n' "$1" "$2"
    [ "$dry_run" = no ] || return 0
    # shellcheck disable=SC2016 # expanded by the inner shell
    timeout "$deadline_s" bash -c 'printf "%s\n" "$1" >"$2"' put "$1" "$2" || return 1
    [ -z "$kernel" ] || "$kernel" "$2" "$1"
}

need_root() {
    [ "$dry_run" = yes ] || [ -w "$sysfs/bus/pci/drivers_probe" ] ||
        die "this needs root: sudo $0 …, or --dry-run to see what it would do"
}

# Checks that $1 is an NVMe function.
need_nvme() {
    local dir=$sysfs/bus/pci/devices/$1 class
    [ -d "$dir" ] || die "there is no PCI function $1 (gpunvme topology lists the drives)"
    class=$(line_of "$dir/class")
    [ $((class)) -eq $((0x010802)) ] || die "$1 is no NVMe controller: its class is $class"
}

# The block devices of a function: namespaces and their partitions, by name. With multipath the
# namespace that is used belongs to the subsystem, and other controllers may lead to it as well.
block_devices() {
    local ctrl subsystem place
    for ctrl in "$sysfs/bus/pci/devices/$1"/nvme/nvme*; do
        [ -d "$ctrl" ] || continue
        list_disks "$ctrl"
        for subsystem in "$sysfs"/class/nvme-subsystem/*; do
            place=$subsystem/$(basename "$ctrl")
            if [ -e "$place" ] || [ -L "$place" ]; then
                list_disks "$subsystem"
            fi
        done
    done | sort -u
}

# "name directory" of each disk in a folder and of each of its partitions.
list_disks() {
    local disk partition
    for disk in "$1"/nvme*n*; do
        [ -e "$disk/dev" ] || [ -d "$disk/holders" ] || continue
        echo "$(basename "$disk") $disk"
        for partition in "$disk"/nvme*; do
            [ ! -e "$partition/partition" ] || echo "$(basename "$partition") $partition"
        done
    done
}

# Where block device NAME (MAJ:MIN) is mounted, in any mount namespace that can be seen.
mounts_of() {
    local name=$1 number=$2 source where
    {
        cat "$proc"/self/mountinfo "$proc"/[0-9]*/mountinfo 2>/dev/null |
            awk -v n="$number" '$3 == n { print $5 }'
        while read -r source where _; do
            [[ $source == /* ]] || continue
            [ "$(basename "$(readlink -f -- "$source" || echo "$source")")" != "$name" ] ||
                echo "$where"
        done < <(cat "$proc/mounts" "$proc"/[0-9]*/mounts 2>/dev/null | sort -u)
    } | sort -u
}

is_swap() {
    local source
    while read -r source _; do
        [ "$(basename "$(readlink -f -- "$source" || echo "$source")")" != "$1" ] || return 0
    done < <(tail -n +2 "$proc/swaps" 2>/dev/null)
    return 1
}

# One line for each use of block device NAME at DIRECTORY; nothing if it is free.
uses_of() {
    local name=$1 dir=$2 where holder link
    while read -r where; do
        case $where in
            / | /boot | /boot/* | /usr) echo "$name is mounted on $where: this is the boot drive" ;;
            *) echo "$name is mounted on $where" ;;
        esac
    done < <(mounts_of "$name" "$(line_of "$dir/dev")")
    ! is_swap "$name" || echo "$name is used as swap"
    for holder in "$dir"/holders/*; do
        [ -e "$holder" ] || [ -L "$holder" ] || continue
        link=$(line_of "$holder/dm/name")
        echo "$name is part of $(basename "$holder")${link:+ ($link)}"
    done
    for link in "$sysfs"/fs/btrfs/*/devices/"$name"; do
        [ ! -e "$link" ] && [ ! -L "$link" ] ||
            echo "$name is part of a mounted btrfs file system"
    done
    if command -v zpool >/dev/null && timeout 20 zpool status -LP 2>/dev/null |
        awk -v d="/dev/$name" '$1 == d { found = 1 } END { exit !found }'; then
        echo "$name is part of a ZFS pool"
    fi
    # Whoever has claimed the device keeps others from claiming it: file systems, RAID, ZFS, all.
    if [ "$sysfs" = /sys ] && [ -b "/dev/$name" ] && [ -w "/dev/$name" ] &&
        ! dd if=/dev/null of="/dev/$name" count=0 conv=nocreat,notrunc oflag=excl status=none \
            2>/dev/null; then
        echo "$name is in use (the kernel refuses an exclusive open)"
    fi
}

uses() {
    local name dir
    while read -r name dir; do
        uses_of "$name" "$dir"
    done < <(block_devices "$1")
}

# Functions of the same IOMMU group that keep it from programs: a bridge or an idle one does not.
group_others() {
    local dir=$sysfs/bus/pci/devices/$1 other driver
    for other in "$dir"/iommu_group/devices/*; do
        [ "$(basename "$other")" != "$1" ] || continue
        driver=$(link_name "$other/driver")
        case $driver in
            "" | vfio-pci | pci-stub | pcieport) ;;
            *) echo "$(basename "$other") (bound to $driver)" ;;
        esac
    done
}

# Makes sure that driver $1 is there.
need_driver() {
    [ ! -d "$sysfs/bus/pci/drivers/$1" ] || return 0
    echo "  modprobe $1"
    [ "$dry_run" = no ] || return 0
    if [ -n "$kernel" ]; then
        "$kernel" modprobe "$1"
    elif [ "$sysfs" = /sys ]; then
        timeout "$deadline_s" modprobe "$1" || true
    fi
    [ -d "$sysfs/bus/pci/drivers/$1" ] || die "there is no driver $1 (modprobe $1 did not help)"
}

# rebind BDF DRIVER OVERRIDE: gives the function to DRIVER ("none": to nobody) and leaves
# driver_override as OVERRIDE says ("" for none). Fails with what the function is bound to instead.
rebind() {
    local dir=$sysfs/bus/pci/devices/$1 old
    old=$(driver_of "$1")
    put "$3" "$dir/driver_override" || return 1
    if [ -n "$old" ] && [ "$old" != "$2" ]; then
        put "$1" "$sysfs/bus/pci/drivers/$old/unbind" || return 1
    fi
    if [ "$2" != none ] && [ "$old" != "$2" ]; then
        put "$1" "$sysfs/bus/pci/drivers_probe" || return 1
    fi
    [ "$dry_run" = no ] || return 0
    [ "$(driver_of "$1")" = "${2/#none/}" ]
}

# The processes that have the function open by VFIO, as far as they can be seen.
open_by() {
    local group fd target names
    group=$(link_name "$sysfs/bus/pci/devices/$1/iommu_group")
    names=" /dev/vfio/${group:-none} /dev/vfio/noiommu-${group:-none} "
    for fd in "$sysfs/bus/pci/devices/$1"/vfio-dev/*; do
        names+="/dev/vfio/devices/$(basename "$fd") "
    done
    for fd in "$proc"/[0-9]*/fd/*; do
        target=$(readlink "$fd" 2>/dev/null) || continue
        case $names in
            *" $target "*) basename "${fd%/fd/*}" ;;
        esac
    done | sort -u
}

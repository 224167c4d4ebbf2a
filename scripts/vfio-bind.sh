#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Takes an NVMe drive from the kernel's driver and gives it to programs.
#
#   scripts/vfio-bind.sh [--dry-run] [--force] [--user NAME] [--driver DRIVER] BDF
#
#   BDF        the drive's PCI address, 0000:01:00.0
#   --driver   vfio-pci (the default), uio_pci_generic, gpunvme (this project's module), or none
#   --user     with vfio-pci: whom the drive's files in /dev/vfio are given to
#   --force    take a drive that holds a boot partition or an inactive RAID, LVM or ZFS member, or
#              of which not everything could be found out. A drive in use is refused all the same
#   --dry-run  only say what would be done
#
# A drive in use is refused: mounted, swapped to, part of a RAID, a volume group or a pool, exported,
# or open in a process. That holds for the drive that the machine runs from, too. How the drive was
# bound is remembered in /run/gpunvme/BDF; scripts/vfio-unbind.sh BDF puts it back. Nothing is
# written to the drive. It needs bash, perl and util-linux.
set -euo pipefail
me=vfio-bind.sh
. "$(dirname "$0")/pci.sh"

usage() {
    told=yes
    sed -n '4,19s/^# \{0,1\}//p' "$0"
    exit "$1"
}

driver=vfio-pci user="" bdf=""
while [ $# -gt 0 ]; do
    case $1 in
        --driver) driver=${2-} && shift ;;
        --driver=*) driver=${1#*=} ;;
        --user) user=${2-} && shift ;;
        --user=*) user=${1#*=} ;;
        --force) force=yes ;;
        --dry-run | -n) dry_run=yes ;;
        --help | -h) usage 0 ;;
        -*) usage 2 >&2 ;;
        *) [ -z "$bdf" ] || usage 2 >&2; bdf=$1 ;;
    esac
    shift || usage 2 >&2
done
[ -n "$bdf" ] || usage 2 >&2
case $driver in
    vfio-pci | uio_pci_generic | gpunvme | none) ;;
    *) die "--driver $driver: vfio-pci, uio_pci_generic, gpunvme or none" ;;
esac
given=$bdf
bdf=$(normal_bdf "$given")
[ -n "$bdf" ] || die "\"$given\" is no PCI address, such as 0000:01:00.0"
need_nvme "$bdf"
dir=$sysfs/bus/pci/devices/$bdf
old=$(driver_of "$bdf")

# The files by which vfio-pci gives out the function. Without an IOMMU the group appears with it.
give_to_user() {
    local file
    [ "$driver" = vfio-pci ] && [ -n "$user" ] || return 0
    while read -r _ _ file _; do
        case $file in
            vfio/*)
                echo "  chown $user /dev/$file"
                [ "$dry_run" = yes ] || [ -n "$kernel" ] || chown -- "$user" "/dev/$file"
                ;;
        esac
    done < <(devices_of "$bdf")
}

if [ "$old" = "${driver/#none/}" ]; then
    say "$bdf is bound to ${old:-no driver} already"
    [ -z "$user" ] || need_root
    give_to_user
    exit 0
fi
need_root
refuse_if_used "$bdf"

if [ "$driver" = vfio-pci ]; then
    group=$(link_name "$dir/iommu_group")
    [ -n "$group" ] || [ "$(line_of "$sysfs/module/vfio/parameters/enable_unsafe_noiommu_mode")" = Y ] ||
        die "$bdf is in no IOMMU group: the IOMMU is off (scripts/check-prereqs.sh says how to" \
            "turn it on), or there is none: then use --driver uio_pci_generic"
    others=$(group_others "$bdf")
    if [ -n "$others" ]; then
        printf '%s\n' "$others" >&2
        die "IOMMU group $group has these functions as well, and VFIO gives out whole groups:" \
            "unbind them, or move the drive to another slot"
    fi
fi
say "$bdf$(identity_of "$bdf") goes from ${old:-no driver} to $driver"
[ "$driver" = none ] || need_driver "$driver"

# The first binding is the one to go back to.
override=$(line_of "$dir/driver_override")
[ "$override" != "(null)" ] || override=""
first=no
if [ "$dry_run" = no ] && [ ! -e "$run/$bdf" ]; then
    first=yes
    mkdir -p "$run"
    printf 'driver=%s\noverride=%s\n' "$old" "$override" >"$run/$bdf"
fi

if ! rebind "$bdf" "$driver" "$driver"; then
    say "$bdf did not go to $driver: it is bound to $(driver_of "$bdf"), and goes back" >&2
    rebind "$bdf" "${old:-none}" "$override" || die "$bdf could not be given back to ${old:-nobody}"
    [ "$first" = no ] || rm -f "$run/$bdf"
    die "$bdf is with ${old:-no driver} again"
fi
[ "$dry_run" = no ] || { say "nothing was changed: this was --dry-run"; exit 0; }

give_to_user
say "done. Try: gpunvme identify nvme:$bdf"
say "To give it back: scripts/vfio-unbind.sh $bdf"

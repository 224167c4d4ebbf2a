#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Gives an NVMe drive back to the driver that it had before scripts/vfio-bind.sh.
#
#   scripts/vfio-unbind.sh [--dry-run] [--force] [--driver DRIVER] BDF
#
#   BDF        the drive's PCI address, 0000:01:00.0
#   --driver   which driver gets it, whatever was remembered: nvme, for instance, or none
#   --force    although it could not be found out whether a process has it open
#   --dry-run  only say what would be done
#
# It is safe after a crash of a program that used the drive: the kernel resets the drive when a
# program lets go of it, and the driver that gets it brings it up anew. It needs bash and perl.
set -euo pipefail
me=vfio-unbind.sh
. "$(dirname "$0")/pci.sh"

usage() {
    told=yes
    sed -n '4,14s/^# \{0,1\}//p' "$0"
    exit "$1"
}

driver="" bdf=""
while [ $# -gt 0 ]; do
    case $1 in
        --driver) driver=${2-} && shift ;;
        --driver=*) driver=${1#*=} ;;
        --force) force=yes ;;
        --dry-run | -n) dry_run=yes ;;
        --help | -h) usage 0 ;;
        -*) usage 2 >&2 ;;
        *) [ -z "$bdf" ] || usage 2 >&2; bdf=$1 ;;
    esac
    shift || usage 2 >&2
done
[ -n "$bdf" ] || usage 2 >&2
given=$bdf
bdf=$(normal_bdf "$given")
[ -n "$bdf" ] || die "\"$given\" is no PCI address, such as 0000:01:00.0"
need_nvme "$bdf"
old=$(driver_of "$bdf")

override=""
if [ -n "$driver" ]; then
    # Only a driver that would not take an NVMe function by itself needs to be named to it.
    [ "$driver" = nvme ] || override=$driver
elif [ -r "$run/$bdf" ]; then
    driver=$(sed -n 's/^driver=//p' "$run/$bdf")
    override=$(sed -n 's/^override=//p' "$run/$bdf")
    [ -n "$driver" ] || driver=none
else
    case $old in
        nvme) say "$bdf is bound to nvme already"; exit 0 ;;
        *) die "how $bdf was bound before is not known ($run/$bdf is not there):" \
            "say --driver nvme to give it to the kernel's NVMe driver" ;;
    esac
fi
[[ $driver =~ ^[A-Za-z0-9_-]+$ ]] || die "\"$driver\" is no driver's name"

need_root
[ "$old" = "${driver/#none/}" ] || refuse_if_used "$bdf"
say "$bdf goes from ${old:-no driver} back to $driver"
[ "$driver" = none ] || need_driver "$driver"
rebind "$bdf" "$driver" "$override" ||
    die "$bdf did not go to $driver: it is bound to $(driver_of "$bdf") now; see dmesg"
[ "$dry_run" = no ] || { say "nothing was changed: this was --dry-run"; exit 0; }
rm -f "$run/$bdf"
say "done"

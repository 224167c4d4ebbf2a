#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Plays the kernel for the scripts that bind drives: does in a tree like /sys ($GPUNVME_SYSFS) what
# a write to one of its files would do.
#
#   fake_kernel.sh FILE VALUE      after VALUE was written to FILE
#   fake_kernel.sh modprobe NAME   has the driver appear, if it is one of $FAKE_MODULES
#
# $FAKE_REFUSES names a driver that takes no function.
set -eu
pci=$GPUNVME_SYSFS/bus/pci

bind() { # BDF DRIVER
    [ "$2" != "${FAKE_REFUSES:-}" ] || return 0
    ln -s "../../drivers/$2" "$pci/devices/$1/driver"
    if [ "$2" = nvme ] && [ -d "$pci/devices/$1/.nvme" ]; then
        mv "$pci/devices/$1/.nvme" "$pci/devices/$1/nvme"
    fi
}

if [ "$1" = modprobe ]; then
    for module in ${FAKE_MODULES:-}; do
        [ "$module" != "$2" ] || mkdir -p "$pci/drivers/$2"
    done
    exit 0
fi
case $1 in
    */drivers_probe)
        override=$(cat "$pci/devices/$2/driver_override")
        driver=${override:-nvme}
        if [ ! -L "$pci/devices/$2/driver" ] && [ -d "$pci/drivers/$driver" ]; then
            bind "$2" "$driver"
        fi
        ;;
    */unbind)
        rm "$pci/devices/$2/driver"
        [ ! -d "$pci/devices/$2/nvme" ] || mv "$pci/devices/$2/nvme" "$pci/devices/$2/.nvme"
        ;;
    */driver_override)
        [ -n "$2" ] || : >"$1"
        ;;
esac

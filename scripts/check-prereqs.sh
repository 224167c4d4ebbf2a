#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What this machine has of what real drives and GPUs need, what is missing, and how to get it.
# Changes nothing, and needs no root (as root it sees more).
#
#   scripts/check-prereqs.sh
#
# Exit code: 0 a real drive can be driven by VFIO, 1 something that this needs is missing (lines
# with "no"), 2 usage. Lines with "note" do not count: they are about faster paths.
#
# For tests, GPUNVME_SYSFS, GPUNVME_PROC and GPUNVME_DEV put other folders in the place of /sys,
# /proc and /dev.
set -euo pipefail

if [ $# -gt 0 ]; then
    sed -n '4,14s/^# \{0,1\}//p' "$0"
    exit 2
fi
sysfs=${GPUNVME_SYSFS:-/sys}
proc=${GPUNVME_PROC:-/proc}
dev=${GPUNVME_DEV:-/dev}
missing=0

line_of() { { read -r line <"$1" && printf '%s\n' "$line"; } 2>/dev/null || true; }
link_name() { if [ -L "$1" ]; then basename "$(readlink "$1")"; fi; }

title() { printf '\n%s\n' "$*"; }
ok() { printf '  ok    %s\n' "$*"; }
note() { printf '  note  %s\n' "$*"; }
no() {
    printf '  no    %s\n' "$*"
    missing=$((missing + 1))
}
how() { printf '          %s\n' "$@"; }

is_virtual() { grep -qw hypervisor "$proc/cpuinfo" 2>/dev/null; }

check_iommu() {
    local groups=0 dir vendor
    title "IOMMU"
    for dir in "$sysfs"/kernel/iommu_groups/*; do
        [ ! -d "$dir" ] || groups=$((groups + 1))
    done
    if [ $groups -gt 0 ]; then
        ok "on, $groups groups"
    else
        vendor=$(sed -n 's/^vendor_id[^:]*: //p' "$proc/cpuinfo" 2>/dev/null | head -n 1)
        no "off, or there is none"
        how "in the BIOS turn on VT-d (Intel), or AMD-Vi / IOMMU (AMD);"
        case $vendor in
            GenuineIntel) how "then boot Linux with intel_iommu=on" ;;
            *) how "then boot Linux: it turns the IOMMU on by itself" ;;
        esac
        how "without one: scripts/vfio-bind.sh --driver uio_pci_generic BDF, as root, and take care:" \
            "a drive without an IOMMU before it can write anywhere in memory"
    fi
}

check_vfio() {
    title "VFIO"
    if [ -d "$sysfs/bus/pci/drivers/vfio-pci" ]; then
        ok "vfio-pci is loaded"
    else
        note "vfio-pci is not loaded: scripts/vfio-bind.sh does it, or modprobe vfio-pci"
    fi
    if [ -e "$dev/iommu" ]; then
        ok "iommufd is there"
    else
        note "no iommufd ($dev/iommu): the older interface, group and container, does as well"
    fi
    if [ -r "$dev/vfio/vfio" ] && [ -w "$dev/vfio/vfio" ]; then
        ok "$dev/vfio/vfio may be opened"
    elif [ -e "$dev/vfio/vfio" ]; then
        no "$dev/vfio/vfio may not be opened by you: chmod 666 $dev/vfio/vfio (the kernel's default)"
    else
        note "$dev/vfio/vfio is not there: it comes with modprobe vfio-pci"
    fi
}

# What scripts/vfio-bind.sh finds out with who uses a drive. Root's path has blkid.
check_tools() {
    local tool
    title "Tools"
    for tool in perl blkid; do
        if PATH=$PATH:/usr/sbin:/sbin command -v $tool >/dev/null; then
            ok "$tool is there"
        else
            no "no $tool, without which scripts/vfio-bind.sh can't tell whether a drive is in use"
            how "install perl and util-linux (Debian: perl-base; Fedora: perl-interpreter)"
        fi
    done
}

check_memory() {
    local limit caps total=0 free=0
    title "Memory"
    limit=$(ulimit -l)
    caps=$(sed -n 's/^CapEff:[^0-9a-f]*//p' "$proc/self/status" 2>/dev/null || true)
    if [ $(((0x${caps:-0} >> 14) & 1)) -eq 1 ]; then
        ok "locked memory: no limit for this user (CAP_IPC_LOCK)"
    elif [ "$limit" = unlimited ]; then
        ok "locked memory: no limit"
    elif [ "$limit" -ge 1048576 ]; then
        ok "locked memory: $((limit / 1024)) MiB"
    else
        no "locked memory: only $limit KiB, and VFIO locks what a drive may reach"
        how "put '$(id -un) - memlock unlimited' into /etc/security/limits.d/gpunvme.conf and log in anew," \
            "or run as root; systemd units: LimitMEMLOCK=infinity"
    fi
    total=$(line_of "$sysfs/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    free=$(line_of "$sysfs/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
    if [ "${free:-0}" -gt 0 ]; then
        ok "huge pages of 2 MiB: $free of $total free"
    else
        note "no free huge pages: the transports sysfs and uio need some: sysctl vm.nr_hugepages=64"
    fi
}

check_secure_boot() {
    local file value
    title "Secure Boot"
    case $(line_of "$sysfs/kernel/security/lockdown") in
        *"[integrity]"* | *"[confidentiality]"*)
            note "the kernel is locked down: BARs can't be mapped by way of sysfs" ;;
    esac
    for file in "$sysfs"/firmware/efi/efivars/SecureBoot-*; do
        [ -e "$file" ] || continue
        value=$(od -An -t u1 -j 4 -N 1 "$file" 2>/dev/null | tr -d ' ' || true)
        case $value in
            1)
                note "on: the kernel loads signed modules only, and may be locked down"
                how "VFIO works all the same; kmod/ and nvidia's modules must be signed (mokutil --import)," \
                    "and resource0 of sysfs can't be mapped"
                return
                ;;
            0) ok "off" && return ;;
        esac
    done
    if [ -d "$sysfs/firmware/efi" ]; then
        note "its state can't be read"
    else
        ok "none: this machine was not booted by UEFI"
    fi
}

# size_of BDF BAR: bytes of a BAR, from the line "start end flags" of `resource`.
size_of() {
    local start end
    read -r start end _ < <(sed -n "$(($2 + 1))p" "$sysfs/bus/pci/devices/$1/resource" 2>/dev/null) || true
    if [ -n "${end:-}" ] && [ $((end)) -gt 0 ]; then
        echo $((end - start + 1))
    else
        echo 0
    fi
}

# The largest BAR: of a GPU the one that shows its memory, "BAR1" to nvidia. Which line it has
# depends on whether the first BAR takes one place or two.
largest_of() {
    local bar size largest=0
    for bar in 0 1 2 3 4 5; do
        size=$(size_of "$1" $bar)
        [ "$size" -le "$largest" ] || largest=$size
    done
    echo "$largest"
}

human() {
    if [ "$1" -ge 1073741824 ]; then
        echo "$(($1 / 1073741824)) GiB"
    elif [ "$1" -ge 1048576 ]; then
        echo "$(($1 / 1048576)) MiB"
    else
        echo "$(($1 / 1024)) KiB"
    fi
}

# Functions of a PCI class, by the first digits of it.
functions_of() {
    local dir
    for dir in "$sysfs"/bus/pci/devices/*; do
        case $(line_of "$dir/class") in
            "$1"*) basename "$dir" ;;
        esac
    done
}

check_drives() {
    local bdf driver names found=no emulated=no
    title "NVMe drives"
    for bdf in $(functions_of 0x010802); do
        found=yes
        driver=$(link_name "$sysfs/bus/pci/devices/$bdf/driver")
        names=""
        [ ! -d "$sysfs/bus/pci/devices/$bdf/nvme" ] ||
            names=$(cd "$sysfs/bus/pci/devices/$bdf/nvme" && echo *)
        ok "$bdf: ${driver:-no driver}${names:+ ($names)}," \
            "IOMMU group $(link_name "$sysfs/bus/pci/devices/$bdf/iommu_group" | grep . || echo none)," \
            "BAR0 $(human "$(size_of "$bdf" 0)")"
        case $(line_of "$sysfs/bus/pci/devices/$bdf/vendor") in
            0x1b36 | 0x1af4 | 0x15ad) emulated=yes ;;
        esac
    done
    if [ $found = no ]; then
        no "none on the PCI bus"
        how "everything but the hardware can be tried on the software controller: gpunvme quickstart"
    fi
    if [ $emulated = yes ]; then
        note "emulated by a virtual machine: good for tests, not for a GPU (gpunvme check-p2p)"
    fi
}

check_gpus() {
    local bdf bar found=no version
    title "GPUs"
    for bdf in $(functions_of 0x03); do
        [ "$(line_of "$sysfs/bus/pci/devices/$bdf/vendor")" = 0x10de ] || continue
        found=yes
        bar=$(largest_of "$bdf")
        ok "$bdf: driver $(link_name "$sysfs/bus/pci/devices/$bdf/driver" | grep . || echo none), BAR1 $(human "$bar")"
        if [ "$bar" -le 268435456 ]; then
            note "BAR1 is $(human "$bar"): a drive reaches only as much of the GPU's memory at a time"
            how "in the BIOS turn on 'Above 4G decoding' and 'Resizable BAR' ('Re-size BAR support')"
        fi
    done
    if [ $found = no ]; then
        note "no NVIDIA GPU: GPU memory is host memory then, and all else works"
        return
    fi
    version=$(line_of "$proc/driver/nvidia/version")
    case $version in
        "") note "nvidia's driver is not loaded" ;;
        *"Open Kernel Module"*) ok "nvidia's driver with the open kernel modules: GPU memory as dma-buf" ;;
        *)
            note "nvidia's driver with the closed kernel modules: no dma-buf of GPU memory"
            how "install the open ones (Debian: nvidia-open-kernel-dkms; Turing and later)"
            ;;
    esac
    if [ -d "$sysfs/module/nvidia_fs" ]; then
        ok "nvidia-fs is loaded (GPUDirect Storage)"
    else
        note "nvidia-fs is not loaded: cuFile falls back to copies; gpunvme itself does not need it"
    fi
}

check_machine() {
    title "Machine"
    if is_virtual; then
        note "a virtual machine: what it sees of PCI may be emulated"
    else
        ok "no hypervisor"
    fi
    if grep -qw 'iommu=pt' "$proc/cmdline" 2>/dev/null; then
        ok "iommu=pt: the kernel's own devices pay nothing for the IOMMU"
        note "the module of kmod/ then protects no memory, and wants root: docs/HARDWARE.md, section 2"
    fi
}

check_machine
check_iommu
check_vfio
check_tools
check_memory
check_secure_boot
check_drives
check_gpus
if [ $missing -gt 0 ]; then
    printf '\n%d missing: a real drive can not be driven by VFIO yet. docs/HARDWARE.md has it all.\n' $missing
    exit 1
fi
printf '\nA real drive can be driven: scripts/vfio-bind.sh BDF is next. docs/HARDWARE.md has it all.\n'

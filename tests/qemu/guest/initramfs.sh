#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Packs what a guest boots into: busybox, the kernel's modules, the scenario, programs.
#
#   initramfs.sh KERNEL_FOLDER SCENARIO OUT [--module NAME|FILE.ko]... [--program FILE]...
#                [--file FILE PATH]...
#
# A module by NAME is one of the kernel's, and brings those that it needs; a FILE is one built
# out of tree. Programs go to /bin with the shared libraries that ldd names, other files to PATH. In
# the guest all modules are loaded by `modprobe NAME`.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
kernel=$1 scenario=$2 out=$3
shift 3
release=$(cat "$kernel/release")
root=$(mktemp -d)
chmod 755 "$root" # it is the root folder of the guest
trap 'rm -rf "$root"' EXIT

add_module() {
    local file to
    case $1 in
        *.ko)
            install -D -m 644 "$1" "$root/lib/modules/$release/extra/$(basename "$1")"
            return
            ;;
    esac
    # Prints "insmod FILE [options]", or "builtin NAME", for the module and what it needs.
    modprobe -d "$kernel" -S "$release" --show-depends "$1" >"$root/depends" ||
        { echo "initramfs.sh: kernel $release has no module $1" >&2; exit 1; }
    while read -r _ file _; do
        case $file in
            /*)
                to=$root/lib/modules/$release/${file##*/"$release"/}
                [ -e "$to" ] || install -D -m 644 "$file" "$to"
                ;;
        esac
    done <"$root/depends"
    rm "$root/depends"
}

add_program() {
    local library
    install -D -m 755 -s "$1" "$root/bin/$(basename "$1")"
    # "name => /path (address)" or "/path (address)"; nothing for a static program.
    { ldd "$1" 2>/dev/null || true; } | sed -n 's/.*\(=>\|^\)[[:space:]]*\(\/[^ ]*\).*/\2/p' |
        while read -r library; do
            [ -e "$root$library" ] || install -D -m 755 "$library" "$root$library"
        done
}

mkdir -p "$root"/{bin,sbin,dev,proc,sys,tmp,mnt,lib,lib64,"lib/modules/$release"}
busybox=$(command -v busybox)
install -m 755 "$busybox" "$root/bin/busybox"
for applet in $("$busybox" --list); do
    [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
done
ln -s ../bin/busybox "$root/sbin/modprobe" # where the kernel looks for it
install -m 755 "$here/init" "$root/init"
install -m 644 "$here/guest.sh" "$root/lib/guest.sh"
install -m 644 "$scenario" "$root/scenario.sh"

while [ $# -gt 0 ]; do
    case $1 in
        --module) add_module "$2" ;;
        --program) add_program "$2" ;;
        --file)
            install -D -m 755 "$2" "$root$3"
            shift
            ;;
        *) echo "initramfs.sh: unknown option $1" >&2; exit 2 ;;
    esac
    shift 2
done
cp "$kernel/lib/modules/$release"/modules.{order,builtin,builtin.modinfo} \
    "$root/lib/modules/$release/" 2>/dev/null || true
depmod -b "$root" "$release"
rm -f "$root/lib/modules/$release"/modules.*.bin # busybox reads the texts
(cd "$root" && find . | cpio -o -H newc --quiet -R 0:0) >"$out"

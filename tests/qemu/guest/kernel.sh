#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Gets the kernel that guests boot: Debian's own, downloaded by apt-get, unpacked and never
# installed. What is there already is used again, so only the first call needs the network.
#
#   kernel.sh [FOLDER]     prints FOLDER; default: $GPUNVME_QEMU_DIR, else build/qemu
#
# FOLDER then holds
#   release                the kernel's release, "6.1.0-56-amd64"
#   vmlinux                the kernel, not compressed: QEMU boots that fastest (by PVH)
#   lib/modules/RELEASE/   its modules
#
# Ends with 77 and "SKIP: reason" where there is no such package.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
PATH=$PATH:/usr/sbin:/sbin # depmod
folder=${1:-${GPUNVME_QEMU_DIR:-$(cd "$here/../../.." && pwd)/build/qemu}}

skip() {
    echo "SKIP: $*"
    exit 77
}

# Skips, and lets those that ask within some minutes skip at once.
fail() {
    echo "$*" >"$folder/failed"
    skip "$*"
}

# The name of the package changes with each update of the kernel's interface to modules.
package_name() {
    apt-cache search --names-only '^linux-image-6\.1\.0-[0-9]+-amd64$' | sed 's/ .*//' |
        sort -V | tail -n 1
}

# The first compressed part of a boot image that unpacks to an ELF file.
unpack_image() { # IMAGE OUT
    local offset how
    local -x LC_ALL=C
    while read -r offset how; do
        tail -c "+$((offset + 1))" "$1" | { $how 2>/dev/null || true; } >"$2"
        if [ "$(head -c 4 "$2" | tr -d '\177')" = ELF ]; then
            return 0
        fi
    done < <(
        grep -aobP '\xfd7zXZ\x00' "$1" | sed 's/:.*/ xz -dc/'
        grep -aobP '\x1f\x8b\x08' "$1" | sed 's/:.*/ gzip -dc/'
        grep -aobP '\x28\xb5\x2f\xfd' "$1" | sed 's/:.*/ zstd -dc/'
    )
    return 1
}

get() {
    local package release temp
    [ -z "$(find "$folder/failed" -mmin -10 2>/dev/null)" ] || skip "$(cat "$folder/failed")"
    rm -rf "$folder"/getting.* "$folder/failed" # of one that was killed
    for tool in apt-get apt-cache dpkg-deb depmod xz; do
        command -v "$tool" >/dev/null || skip "$tool is not here to get a kernel with"
    done
    package=$(package_name)
    [ -n "$package" ] || skip "apt knows no package linux-image-6.1.0-*-amd64"
    release=${package#linux-image-}
    temp=$(mktemp -d "$folder/getting.XXXXXX")
    # shellcheck disable=SC2064  # the folder of now
    trap "rm -rf '$temp'" EXIT
    (cd "$temp" && timeout 300 apt-get -q download "$package" >apt.log 2>&1) ||
        fail "apt-get download $package failed: $(tail -n 1 "$temp/apt.log")"
    dpkg-deb -x "$temp/$package"_*.deb "$temp/root"
    unpack_image "$temp/root/boot/vmlinuz-$release" "$temp/vmlinux" ||
        fail "the kernel of $package is compressed in a way that can't be undone here"
    depmod -b "$temp/root" "$release"
    rm -rf "$folder/lib"
    mv "$temp/root/lib" "$folder/lib"
    mv "$temp/vmlinux" "$folder/vmlinux"
    echo "$release" >"$folder/release" # last: it says that the rest is there
}

mkdir -p "$folder"
exec 9>"$folder/lock" # tests that run side by side get it once
flock -w 400 9 || skip "somebody else has been getting the kernel for minutes"
[ -e "$folder/release" ] || get
echo "$folder"

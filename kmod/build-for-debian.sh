#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Builds the module for one of Debian's kernels without installing anything: its headers come by
# apt-get download.
#
#   build-for-debian.sh RELEASE FOLDER    RELEASE as uname -r says it, "6.1.0-56-amd64"
#
# Prints the module's path, FOLDER/kmod-RELEASE/gpunvme.ko. What is there is used again; the
# module is built again when its source is another. Ends with 77 and "SKIP: reason" where there is
# no such package or no compiler.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
release=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
headers=$folder/headers-$release
built=$folder/kmod-$release

skip() {
    echo "SKIP: $*"
    exit 77
}

get_headers() {
    local temp common kbuild arch=${release##*-}
    common=linux-headers-${release%-"$arch"}-common
    rm -rf "$folder"/headers.getting.* # of one that was killed
    temp=$(mktemp -d "$folder/headers.getting.XXXXXX")
    # shellcheck disable=SC2064  # the folder of now
    trap "rm -rf '$temp'" EXIT
    kbuild=$(apt-cache depends "linux-headers-$release" 2>/dev/null |
        sed -n 's/^ *|\{0,1\}Depends: \(linux-kbuild-.*\)/\1/p' | head -n 1)
    [ -n "$kbuild" ] || skip "apt knows no package linux-headers-$release"
    (cd "$temp" && timeout 300 apt-get -q download "linux-headers-$release" "$common" "$kbuild" \
        >apt.log 2>&1) || skip "apt-get download linux-headers-$release: $(tail -n 1 "$temp/apt.log")"
    for package in "$temp"/*.deb; do
        dpkg-deb -x "$package" "$temp/root"
    done
    # The one absolute path in them.
    sed -i "s,/usr/src,$headers/usr/src," "$temp/root/usr/src/linux-headers-$release/Makefile"
    rm -rf "$headers"
    mv "$temp/root" "$headers"
    rm -rf "$temp"
}

for tool in apt-get apt-cache dpkg-deb make gcc; do
    command -v "$tool" >/dev/null || skip "$tool is not here to build the module with"
done
exec 9>"$folder/kmod.lock"
flock -w 400 9 || skip "somebody else has been building the module for minutes"
[ -e "$headers" ] || get_headers
sources=("$here"/*.[ch] "$here/Kbuild" "$here/Makefile")
for file in "${sources[@]}"; do
    cmp -s "$file" "$built/${file##*/}" || rm -rf "$built"
done
mkdir -p "$built"
cp -u "${sources[@]}" "$built/"
make -C "$built" KDIR="$headers/usr/src/linux-headers-$release" CC="${CC:-gcc}" \
    >"$built/log" 2>&1 || { cat "$built/log" >&2; exit 1; }
echo "$built/gpunvme.ko"

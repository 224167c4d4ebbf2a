#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Builds the kernel module for the newest kernel of each series that apt knows, 6.1, 6.12 …, and
# says which of those that the module promises could not be had. Nothing may be warned of.
#
#   kmod_builds.sh [FOLDER]     as kernel.sh takes it; headers and builds stay there
#
# Ends with 77 where apt has no headers at all.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-${GPUNVME_QEMU_DIR:-$(cd "$here/../../.." && pwd)/build/qemu}}
promised=(5.15 6.1 6.12)

command -v apt-cache >/dev/null || { echo "SKIP: apt-cache is not here"; exit 77; }
arch=$(dpkg --print-architecture)
# 6.1.0-56-amd64, 6.12.117+deb12-amd64; not the flavours rt and cloud.
releases=$(apt-cache search --names-only "^linux-headers-([0-9]+\.){2}[0-9]+[-+][a-z0-9.~+]+-$arch\$" |
    sed 's/^linux-headers-//; s/ .*//' | sort -V)

readarray -t known < <(cut -d . -f 1-2 <<<"$releases" | sort -Vu)

built=()
for series in "${known[@]}"; do
    dpkg --compare-versions "$series" ge "${promised[0]}" || continue
    release=$(grep "^${series/./\\.}\." <<<"$releases" | tail -n 1)
    if said=$("$here/../../../kmod/build-for-debian.sh" "$release" "$folder"); then
        if grep -i -e warning -e 'skipping btf' "$folder/kmod-$release/log"; then
            exit 1
        fi
        built+=("$series")
        echo "built for $release"
    elif [ $? = 77 ]; then
        echo "$said"
    else
        echo "the build for $release failed"
        exit 1
    fi
done
for series in "${promised[@]}"; do
    [[ " ${built[*]} " = *" $series "* ]] || echo "SKIP: no headers of Linux $series to build for"
done
[ ${#built[@]} -gt 0 ] || exit 77

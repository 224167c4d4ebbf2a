#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The assembler says where it lets wgmma run one after the other, because registers of one are
# touched while it runs (C7510 and its neighbours), or puts registers into memory. Either costs a
# fifth of a product's speed and nothing of its correctness, so no other test sees it. No GPU.
#
#   wgmma.sh OBJECT.notes…     what the assembler said in a build for sm_90a (keep_notes.sh)
#   wgmma.sh SOURCE.cu…        compiles them first; needs nvcc
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# notes FILE: what the assembler says of it.
notes() {
    local nvcc
    if [[ $1 = *.notes ]]; then
        cat "$1"
        return
    fi
    nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    "$nvcc" -std=c++17 -O3 -DOPS_HAVE_SM90A=1 -gencode arch=compute_90a,code=sm_90a \
        -Xptxas=-v -cubin -I "$root/include" -I "$root/src" -o "$work/kernel.cubin" "$1" 2>&1
}

failed=0
for file; do
    said=$(notes "$file") || { echo "$said"; exit 1; }
    # A build may have code of other GPUs, too.
    said=$(awk '/Compiling entry function/ { other = !/sm_90a/ } !other' <<<"$said")
    kernels=$(grep -c 'Compiling entry function' <<<"$said" || true)
    bad=$(grep -E '\(C75[0-9]+\)|[1-9][0-9]* bytes spill' <<<"$said" | sort | uniq -c || true)
    ((kernels)) || bad="no kernel for sm_90a"
    echo "${file##*/}: $kernels kernels; ${bad:-none is serialized or spills}"
    [ -z "$bad" ] || failed=1
done
exit $failed

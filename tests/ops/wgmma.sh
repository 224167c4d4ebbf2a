#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The assembler says where it lets wgmma run one after the other, because registers of one are
# touched while it runs (C7510 and its neighbours), or puts registers into memory. Either costs a
# fifth of a product's speed and nothing of its correctness, so no other test sees it. Needs nvcc,
# no GPU.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
[ -x "$nvcc" ] || { echo "SKIP: no nvcc"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

failed=0
(($#)) || set -- "$root"/src/ops/matmul/hopper*.cu "$root"/src/ops/attention/cuda/hopper.cu \
    "$root"/src/ops/linear/dz_product.cu "$root"/src/ops/moe/hopper.cu
for file; do
    said=$("$nvcc" -std=c++17 -O3 -DOPS_HAVE_SM90A=1 -gencode arch=compute_90a,code=sm_90a \
        -Xptxas -v -cubin -I "$root/include" -I "$root/src" -o "$work/kernel.cubin" "$file" 2>&1) ||
        { echo "$said"; exit 1; }
    kernels=$(grep -c 'Compiling entry function' <<<"$said")
    bad=$(grep -E '\(C75[0-9]+\)|[1-9][0-9]* bytes spill' <<<"$said" | sort | uniq -c || true)
    echo "${file##*/}: $kernels kernels; ${bad:-none is serialized or spills}"
    [ -z "$bad" ] || failed=1
done
exit $failed

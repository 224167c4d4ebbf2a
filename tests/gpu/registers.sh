#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A kernel that reads a block by device.cuh needs at most 48 registers on Hopper and no local memory
# anywhere; earlier GPUs get a few more. Its code is at most 24 KiB there. Its atomics name the global state space: else each of 64
# bits is waited for, while it is found out whether it was one of shared memory. Needs nvcc, no GPU.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
[ -x "$nvcc" ] || { echo "SKIP: no nvcc"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

failed=0
check() { # architecture, most registers
    local said registers stack
    said=$("$nvcc" -std=c++17 -gencode "arch=compute_$1,code=sm_$1" -Xptxas -v -cubin \
        -I "$here/../../include" -o "$work/kernel.cubin" "$here/read_a_block.cu" 2>&1) ||
        { echo "$said"; exit 1; }
    registers=$(sed -n 's/.*Used \([0-9]*\) registers.*/\1/p' <<<"$said")
    stack=$(sed -n 's/^ *\([0-9]*\) bytes stack frame.*/\1/p' <<<"$said")
    echo "sm_$1: $registers registers (at most $2), $stack bytes of local memory (0)"
    [ "$registers" -le "$2" ] && [ "$stack" -eq 0 ] || failed=1
}
check 80 56
check 90a 48
nbytes=$((16#$(readelf -SW "$work/kernel.cubin" 2>/dev/null | awk '/ \.text\.read_a_block / {for (i = 1; i <= NF; i++) if ($i == "PROGBITS") print $(i + 3)}')))
echo "sm_90a: $nbytes bytes of code (at most 24576)"
((nbytes && nbytes <= 24576)) || failed=1

"$nvcc" -std=c++17 -arch=sm_90a -ptx -I "$here/../../include" -o "$work/kernel.ptx" \
    "$here/read_a_block.cu"
atomics=$(grep -oE '\b(atom|red)\.[a-z0-9_.]+' "$work/kernel.ptx")
generic=$(grep -vF .global. <<<"$atomics" || true)
echo "atomics: $(wc -l <<<"$atomics"), without a state space: ${generic:-0}"
[ -z "$generic" ] || failed=1
exit $failed

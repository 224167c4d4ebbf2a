#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# readme_kernel.sh ROOT: each line of the kernel in the README is one of the example that it names.
set -euo pipefail

kernel=$(sed -n '/^```cuda$/,/^```$/{/^```/d;p}' "$1/README.md")
[ -n "$kernel" ] || { echo "README.md has no kernel"; exit 1; }
if grep -vxFf "$1/examples/gpu_read_block.cu" <<<"$kernel"; then
    echo "these lines of README.md are not in examples/gpu_read_block.cu"
    exit 1
fi

#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# From a fresh machine to verified bytes in one command: installs what is missing, builds, and
# runs `gpunvme quickstart`, which writes FILE to a namespace of the software controller, reads it
# back into GPU memory and verifies it. Without FILE it makes one. As a part of an installed gpunvme
# it runs the command that is installed.
#
#   scripts/quickstart.sh [FILE]
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/quickstart # of its own: what is set here stays set in a build folder
log=$build/quickstart.log

if [ ! -e "$root/CMakeLists.txt" ]; then # share/gpunvme
    exec "$root/../../bin/gpunvme" quickstart "$@"
fi
"$root/scripts/install-deps.sh" build

# CUDA code for this machine's GPUs only, since it takes most of the time; none without a GPU.
architectures=$(timeout 30 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
    awk '$1 >= 8 { print $1 == 9.0 ? "90a" : "80" }' | sort -u | paste -sd ';') || true
cuda=(-DGPUNVME_CUDA=AUTO "-DGPUNVME_CUDA_ARCHITECTURES=$architectures")
if [ -z "$architectures" ]; then
    cuda=(-DGPUNVME_CUDA=OFF)
    echo "no GPU of compute capability 8.0 or later was found: CUDA code is not built"
fi

echo "building (log: $log)"
mkdir -p "$build"
if ! (cd "$root" &&
    cmake --preset install -B "$build" -DGPUNVME_USE_SIM=ON "${cuda[@]}" &&
    cmake --build "$build" --target gpunvme_cli) >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    echo "quickstart.sh: the build failed; all of its output is in $log" >&2
    exit 1
fi
sed -n 's/^-- CUDA:/CUDA:/p' "$log"

exec "$build/cli/gpunvme" quickstart "$@"

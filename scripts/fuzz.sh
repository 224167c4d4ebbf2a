#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Runs every fuzz target under libFuzzer with AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   scripts/fuzz.sh [SECONDS]    for each target; default 60
#
# What the targets learn is kept in build/fuzz/corpus/TARGET; an input that breaks one is left in
# build/fuzz/findings and run again with `build/fuzz/tests/fuzz/TARGET FILE`.
set -euo pipefail

cd "$(dirname "$0")/.."
seconds=${1:-60}
build=build/fuzz

if ! command -v clang >/dev/null; then
    echo "SKIP: clang is not here (scripts/install-deps.sh installs it)"
    exit 77
fi
cmake --preset fuzz
cmake --build --preset fuzz -j "$(nproc)"
mkdir -p $build/findings

failed=()
mapfile -t targets < <(ctest --test-dir $build -N -L '^fuzz$' | sed -n 's/^ *Test *#[0-9]*: //p')
if [ ${#targets[@]} -eq 0 ]; then
    echo "fuzz.sh: there are no fuzz targets in $build" >&2
    exit 1
fi
for target in "${targets[@]}"; do
    echo "== $target, $seconds s"
    corpora=("$build/corpus/$target")
    mkdir -p "${corpora[0]}"
    [ ! -d "tests/fuzz/corpus/$target" ] || corpora+=("tests/fuzz/corpus/$target")
    "$build/tests/fuzz/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -verbosity=0 -print_final_stats=1 -artifact_prefix="$build/findings/$target-" \
        "${corpora[@]}" || failed+=("$target")
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "fuzz.sh: FAILED: ${failed[*]}; the inputs are in $build/findings"
    exit 1
fi
echo "fuzz.sh: no findings in ${#targets[@]} targets: ${targets[*]}"

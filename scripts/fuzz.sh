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
mapfile -t targets < <(ctest --test-dir $build -N -L '^fuzz$' | sed -n 's/^ *Test *#[0-9]*: //p')
if [ ${#targets[@]} -eq 0 ]; then
    echo "fuzz.sh: there are no fuzz targets in $build" >&2
    exit 1
fi
cmake --build --preset fuzz -j "$(nproc)" --target "${targets[@]}"
mkdir -p $build/findings

# Runs a target; what it says stays together, and failed/TARGET tells that it found something.
fuzz() {
    local target=$1 corpora=("$build/corpus/$1")
    mkdir -p "${corpora[0]}"
    [ ! -d "tests/fuzz/corpus/$target" ] || corpora+=("tests/fuzz/corpus/$target")
    "$build/tests/fuzz/$target" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 \
        -verbosity=0 -print_final_stats=1 -artifact_prefix="$build/findings/$target-" \
        "${corpora[@]}" >"$said/$target" 2>&1 || touch "$said/$target.failed"
    printf '== %s, %s s\n%s\n' "$target" "$seconds" "$(cat "$said/$target")"
}
said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
export -f fuzz
export build seconds said
# One for each processor at a time: a target has one thread that works.
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}'

mapfile -t failed < <(find "$said" -name '*.failed' -printf '%f\n' | sed 's/\.failed$//')
if [ ${#failed[@]} -gt 0 ]; then
    echo "fuzz.sh: FAILED: ${failed[*]}; the inputs are in $build/findings"
    exit 1
fi
echo "fuzz.sh: no findings in ${#targets[@]} targets: ${targets[*]}"

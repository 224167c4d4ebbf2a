#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# On a fresh machine: installs what is missing, builds, runs every test that this machine can run,
# and says at the end what was skipped and why. Fails if any test failed.
#
#   scripts/test.sh [PRESET [OPTION…]]   a preset of CMakePresets.json, release if none is named, and
#                                        options for cmake
set -euo pipefail

cd "$(dirname "$0")/.."
preset=${1:-release}
build=build/$preset
jobs=$(nproc)

scripts/install-deps.sh test
mkdir -p "$build"
cmake --preset "$preset" "${@:2}" | tee "$build/configure.log"
cmake --build --preset "$preset" -j "$jobs"

# ThreadSanitizer can't live with as much address randomisation as newer kernels do. Where it
# can't be switched off (some containers), the tests run with it.
plain=()
if [ "$preset" = tsan ] && setarch -R true 2>/dev/null; then
    plain=(setarch -R)
fi
failed=0
# Four more than there are processors: many tests wait for guests, for time limits, for other processes.
"${plain[@]}" ctest --preset "$preset" -j $((jobs + 4)) --verbose || failed=1

# "SKIP: reason" comes from programs that skip all or part of themselves; in a cmocka program the
# line before tells which test.
skips=$(awk '
    / Testing: / { sub(/.* Testing: /, ""); test = $0; part = "" }
    /^\[ RUN      \] / { part = " (" substr($0, 14) ")" }
    /^SKIP: / { print "    " test part ": " substr($0, 7) }
' "$build/Testing/Temporary/LastTest.log")
cuda=$(sed -n 's/^-- CUDA: not built, /    CUDA code: not built, /p' "$build/configure.log")

echo
if [ -n "$skips$cuda" ]; then
    echo "Not run here, and why:"
    printf '%s\n' "$cuda" "$skips" | sed '/^$/d'
else
    echo "Nothing was skipped."
fi
if [ "$failed" -ne 0 ]; then
    echo "test.sh: FAILED (preset $preset; full output: $build/Testing/Temporary/LastTest.log)"
    exit 1
fi
echo "test.sh: all tests that this machine can run passed (preset $preset)"

#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Runs the measurements that this machine can run and keeps their JSON.
#
#   bench/run.sh [BUILD-DIR [FOLDER]]     build/release, bench/results/<host name>
#
# Run it on a machine that does nothing else. docs/PERFORMANCE.md says what the numbers mean.
set -uo pipefail

cd "$(dirname "$0")/.." || exit
build=${1:-build/release}
out=${2:-bench/results/$(hostname)}
failed=0
mkdir -p "$out"

measure() { # NAME COMMAND…
    local name=$1
    shift
    echo "== $name: $*"
    if "$@" >"$out/$name.json.new"; then
        mv "$out/$name.json.new" "$out/$name.json"
        cat "$out/$name.json"
    else
        echo "FAILED: $name"
        rm -f "$out/$name.json.new"
        failed=1
    fi
}

without() { # NAME PROGRAM…: whether one of the programs is missing, and says so
    local name=$1 program
    shift
    for program in "$@"; do
        command -v "$program" >/dev/null && continue
        echo "SKIP: $name: $program is not installed"
        return 0
    done
    return 1
}

{
    uname -srm
    lscpu | grep -E '^(Model name|CPU\(s\)|L2 cache|L3 cache)'
} >"$out/machine.txt"

without queue_cost valgrind || measure queue_cost bench/queue_cost.sh "$build"
measure sim_rate "$build/bench/sim_rate" 9 1
measure footprint "$build/bench/footprint"
without image_vs_fio fio jq || measure image_vs_fio bench/image_vs_fio.sh "$build"
measure store_ways bench/store_ways.sh "$build"
bench/store_rate.sh "$build" "$out/store_rate" || failed=1
without disk_vs_fio fio || {
    measure disk_vs_fio bench/disk_vs_fio.py "$build"
    measure disk_vs_fio_write bench/disk_vs_fio.py --op write "$build"
}
measure many_files "$build/bench/many_files"
if [[ -x $build/bench/gpu_io ]]; then
    bench/gpu_sweep.sh --out "$out/gpu_sweep.json" "$build"
    rc=$?
    ((rc == 0 || rc == 77)) || failed=1
fi
exit $failed

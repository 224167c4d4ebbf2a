#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# How much of an image file's speed reaches the driver: random reads through the software
# controller, beside fio (io_uring, O_DIRECT) on the same file, turn about in the same run.
#
#   bench/image_vs_fio.sh [BUILD-DIR [FILE]]     FILE is made (2 GiB of random bytes) if need be
#
# Environment: RUNS (5), SECONDS_EACH (3). Prints JSON; needs fio and jq.
set -euo pipefail

build=${1:-build/release}
file=${2:-$(mktemp --tmpdir=/var/tmp gpunvme-bench-XXXXXX)}
runs=${RUNS:-5}
seconds=${SECONDS_EACH:-3}
size=$((2 << 30))

[ -n "${2:-}" ] || trap 'rm -f "$file"' EXIT
if [ "$(stat -c %s "$file" 2>/dev/null || echo 0)" -ne "$size" ]; then
    head -c "$size" /dev/urandom >"$file"
    sync "$file"
fi

with_fio() { # BLOCK-SIZE DEPTH
    fio --name=read --filename="$file" --rw=randread --bs="$1" --iodepth="$2" --ioengine=io_uring \
        --direct=1 --runtime="$seconds" --time_based --randrepeat=0 --output-format=json |
        jq '.jobs[0].read.iops'
}

with_gpunvme() {
    "$build/cli/gpunvme" bench "sim:image=$file" --block-size "$1" --depth "$2" \
        --time "${seconds}s" --seed "$RANDOM" --quiet --json | jq '.read.iops'
}

stats() { # numbers, one a line
    sort -g | jq -s '{median: .[(length - 1) / 2 | floor], min: .[0], max: .[-1]}'
}

measure() { # BLOCK-SIZE DEPTH
    local ours="" fio="" i
    for i in $(seq "$runs"); do
        fio+=$(with_fio "$1" "$2")$'\n'
        ours+=$(with_gpunvme "$1" "$2")$'\n'
    done
    jq -n --arg bs "$1" --argjson depth "$2" --argjson ours "$(printf %s "$ours" | stats)" \
        --argjson fio "$(printf %s "$fio" | stats)" \
        '{block_size: $bs, depth: $depth, reads_per_s: $ours, fio_reads_per_s: $fio,
          ratio: ($ours.median / $fio.median * 1000 | round / 1000)}'
}

{ measure 4k 128; measure 128k 32; } |
    jq -s --argjson runs "$runs" '{benchmark: "image_vs_fio", runs: $runs, results: .}'

#!/usr/bin/env bash
# Instructions of one 4 KiB read in the driver, under callgrind: bench/queue_cost.sh BUILD-DIR
set -euo pipefail

build=${1:-build/release}
out=$(mktemp)
trap 'rm -f "$out"' EXIT

reads=$("$build/bench/queue_cost" 1000)
instructions=$(valgrind --tool=callgrind --collect-atstart=no --callgrind-out-file="$out" \
    "$build/bench/queue_cost" 1000 2>&1 | sed -n 's/.*Collected : \([0-9]*\).*/\1/p')
awk -v i="$instructions" -v n="$reads" 'BEGIN {
    printf "{\"benchmark\": \"queue_cost\", \"reads\": %d, \"instructions_per_read\": %.1f}\n", n, i / n
}'

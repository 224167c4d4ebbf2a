#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# bench/gpu_ab.sh with programs that only say what they are asked for: builds take turns, medians
# are of the rounds, and what is wrong fails. Needs python3, no GPU.
set -euo pipefail

ab=$(cd "$(dirname "$0")/../../bench" && pwd)/gpu_ab.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "not so: $*" >&2
    exit 1
}

# build NAME RATE ERRORS: a gpu_io that is a tenth faster each time it is called for a measurement.
build() {
    mkdir -p "$work/$1/bench"
    cat >"$work/$1/bench/gpu_io" <<EOF
#!/usr/bin/env bash
[[ \$1 != drives=0 ]] || exit 2
echo "$1" >>"$work/turns"
n=\$(grep -c '^$1\$' "$work/turns")
printf '{"rows": [{"uri": "sim:engine=gpu", "threads": 1024, "lanes": 32, "drives": 1, "queues": 1,
  "errors": $3, "violations": 0, "wrong": 0, "iops": {"median": %d}}]}' \$(($2 * (9 + n) / 10))
EOF
    printf '#!/bin/sh\nexit 3\n' >"$work/$1/bench/gpu_latency"
    chmod +x "$work/$1/bench"/*
}

build a 1000000 0
build b 2000000 0
"$ab" --rounds 3 --only queue "$work/a" "$work/b" >"$work/said" 2>/dev/null || fail "two good builds"
[[ $(tr '\n' ' ' <"$work/turns") == "a b a b a b " ]] || fail "builds take turns"
grep -q ' a .* 1\.10 (1\.00 - 1\.20) n=3$' "$work/said" || fail "the median and spread of a"
grep -q ' b .* 2\.20 (2\.00 - 2\.40) n=3  x 2\.000$' "$work/said" || fail "b as a part of a"
grep -q '"median": 2.2' "$work/ab.json" || fail "the same as JSON"

build c 1000000 7
rc=0 && "$ab" --rounds 1 --only queue "$work/a" "$work/c" >"$work/said" 2>/dev/null || rc=$?
((rc == 1)) || fail "errors fail"
grep -q '^WRONG: .*/c, queue' "$work/said" || fail "and are told"
rc=0 && "$ab" --rounds 1 --only latency "$work/a" >/dev/null 2>&1 || rc=$?
((rc == 1)) || fail "a program that fails, fails"
rc=0 && "$ab" --rounds 1 --only nothing "$work/a" >/dev/null 2>&1 || rc=$?
((rc == 2)) || fail "a point that there is not"
rc=0 && "$ab" >/dev/null 2>&1 || rc=$?
((rc == 2)) || fail "no builds"
printf '#!/bin/sh\necho "SKIP: no GPU"; exit 77\n' >"$work/a/bench/gpu_io"
rc=0 && "$ab" "$work/a" >/dev/null 2>&1 || rc=$?
((rc == 77)) || fail "no GPU"
echo "all so"

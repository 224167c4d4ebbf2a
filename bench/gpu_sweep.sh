#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# All measurements of I/O issued by the GPU, into one JSON file; bench/plot.py draws it.
#
#   bench/gpu_sweep.sh [--quick] [--only SECTION,…] [--out FILE] [BUILD-DIR]
#
# FILE is bench/results/<host name>/gpu_sweep.json, BUILD-DIR build/release. The sections, in the
# order in which they run:
#
#   threads    rate against GPU threads, 16 drives, 512-byte reads      tier 3
#   one_queue  one queue pair of one drive
#   ways       ours (blocking calls, and apart: split phase, no lane waits for its neighbours),
#              lockstep, ticket and lock; without latency, with one that is the same for all
#              commands, and with one that is 10 times as long for 3 in 100
#   tier1      controller on CPU threads: driven by the GPU, and by CPU threads in the same run
#   latency    one thread, one block, beside a bare round trip GPU - CPU - GPU
#   writes     writes beside reads
#   blocks     512 bytes to 64 KiB, reads and writes
#   queues     1 to 128 queue pairs of one drive
#   drives     1 to 16 drives
#   little     10 drives with a P5800X's latency and rate
#   reapers    who takes completions
#   ceiling    what the controller on the GPU can do for the cheapest driver
#   errors     a thousand million reads with errors that must come (--quick: 50 million)
#
# The default takes at most 6 minutes, --quick 90 seconds. Exit code 77: no GPU; 1: some command
# failed, or something was wrong; what there is was written all the same.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

quick=0 only="" out="" build=""
while (($#)); do
    case $1 in
    --quick) quick=1 ;;
    --only) only=$2 && shift ;;
    --out) out=$2 && shift ;;
    -*) sed -n '5,8p' "$0" && exit 2 ;;
    *) build=$1 ;;
    esac
    shift
done
sections=threads,one_queue,ways,tier1,latency,writes,blocks,queues,drives,little,reapers,ceiling,errors
for name in ${only//,/ }; do
    [[ ,$sections, == *,$name,* ]] || { echo "gpu_sweep.sh: no section $name: $sections" >&2; exit 2; }
done
build=${build:-build/release}
out=${out:-bench/results/$(hostname)/gpu_sweep.json}
io=$build/bench/gpu_io
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
failed=0
all=()

if ((quick)); then
    common=(runs=3 ms=20)
    threads=32,256,1024,4096,16384,65536
    few=1024,4096,16384
    queues=1,8,32,128
    drives=1,4,16
    blocks=512,4096,65536
    errors=50000000
else
    common=(runs=5 ms=60)
    threads=32,64,128,256,512,1024,2048,4096,8192,16384,32768,65536
    few=1024,4096,16384,65536
    queues=1,2,4,8,16,32,64,128
    drives=1,2,4,8,16
    blocks=512,1024,2048,4096,8192,16384,32768,65536
    errors=1000000000
fi

"$io" drives=0 >/dev/null 2>&1
if (($? == 77)); then
    "$io"
    exit 77
fi

wanted() { # SECTION
    [[ -z $only || ,$only, == *,$1,* ]]
}

# section NAME COMMAND…: a section may have several commands. The file is written after each.
section() {
    local name=$1 start rc n
    shift
    wanted "$name" || return 0
    n=$(find "$parts" -name "$name.*" | wc -l)
    ((n)) || all+=("$name")
    echo "== $name: $*" >&2
    start=$SECONDS
    # In the foreground, so that who stops this script stops the program.
    timeout --foreground -k 10 150 "$@" >"$parts/result"
    rc=$?
    if ((rc)); then
        echo "   exit code $rc" >&2
        failed=1
    fi
    # gpu_io writes whole rows; one that was stopped has not closed its list.
    if [[ ! -s $parts/result ]]; then
        echo null >"$parts/result"
    elif grep -q '"rows": \[' "$parts/result" && ! tail -n 1 "$parts/result" | grep -q '^\]}$'; then
        printf '\n]}\n' >>"$parts/result"
    fi
    # One that is cut elsewhere would spoil the file for all sections.
    if command -v python3 >/dev/null &&
        ! python3 -c 'import json, sys; json.load(sys.stdin)' <"$parts/result" 2>/dev/null; then
        echo "   its result is not whole: left out" >&2
        echo null >"$parts/result"
        failed=1
    fi
    {
        printf '{"command": "%s", "rc": %d, "seconds": %d, "result":\n' "${*##*/bench/}" "$rc" \
            $((SECONDS - start))
        cat "$parts/result"
        printf '}'
    } >"$parts/$name.$n"
    write_file
}

write_file() {
    local first=1 name part
    mkdir -p "$(dirname "$out")"
    {
        printf '{"benchmark": "gpu_sweep", "quick": %s, "date": "%s", "commit": "%s",\n "sections": {' \
            "$( ((quick)) && echo true || echo false)" "$(date -u +%FT%TZ)" \
            "$(cut -c1-7 "$build/commit" 2>/dev/null || git rev-parse --short HEAD 2>/dev/null)"
        for name in ${all[@]+"${all[@]}"}; do
            ((first)) || printf ','
            first=0
            printf '\n"%s": [' "$name"
            for part in $(find "$parts" -name "$name.*" | sort -t. -k2 -V); do
                [[ $part == *.0 ]] || printf ','
                cat "$part"
            done
            printf ']'
        done
        printf '}}\n'
    } >"$out.new"
    mv "$out.new" "$out"
}

run() { # SECTION PARAMETERS of gpu_io
    local name=$1
    shift
    section "$name" "$io" label="$name" "${common[@]}" "$@"
}

s16=(drives=16 queues=8)
run threads "${s16[@]}" threads=$threads
run threads "${s16[@]}" threads=$few inflight=4

run one_queue drives=1 queues=1 entries=4096 threads=256,512,1024,2048 inflight=1,4

for latency in "" latency=10us "latency=20us,fault=delay=180us:io:p=0.03"; do
    uri=sim:engine=gpu${latency:+,$latency}
    run ways "${s16[@]}" uri="$uri" way=ours,apart,ticket threads=$few
    run ways "${s16[@]}" uri="$uri" way=lockstep threads=$few
done

for n in 1 4 8; do
    run tier1 drives=1 queues=8 tier=1 block=4096 uri=sim:threads=$n,spin cpu=$((n > 7 ? 7 : n)) \
        threads=1024,4096
done

n=$( ((quick)) && echo 500 || echo 2000)
section latency "$build/bench/gpu_latency" label=unlimited n="$n"
section latency "$build/bench/gpu_latency" label=model n="$n" uri=sim:threads=1,spin,latency=10us \
    model=10000
section latency "$build/bench/gpu_latency" label=tier3 n="$n" uri=sim:engine=gpu tier=3

run writes "${s16[@]}" op=read,write threads=4096,16384
run blocks "${s16[@]}" op=read,write block=$blocks threads=4096,16384

run queues drives=1 queues=$queues threads=8192
run drives drives=$drives queues=8 threads=4096,16384
run little drives=10 queues=8 uri=sim:engine=gpu,profile=p5800x threads=$threads

run reapers "${s16[@]}" reaper=waiters,warp threads=4096,16384
run reapers drives=1 queues=4 tier=1 block=4096 uri=sim:threads=4,spin reaper=waiters,warp,cpu \
    threads=1024
section ceiling "$build/bench/gpu_engine_ceiling" "$( ((quick)) && echo 3 || echo 5)"
section errors "$build/bench/gpu_errors" commands=$errors
echo "$out" >&2
exit $failed

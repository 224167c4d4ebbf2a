#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The same measurements with several builds, in turns, so that what changes on the machine meanwhile
# changes for all of them: which build wins where.
#
#   bench/gpu_ab.sh [--rounds 5] [--seconds 230] [--only POINT,…] [--out FILE] BUILD-DIR…
#
# A build is a folder with bench/gpu_io and bench/gpu_latency; the first one is what the others are
# compared with, of another commit for example. The points:
#
#   best     16 drives, 512-byte reads, 4,096 and 65,536 threads          tier 3
#   varied   4 drives, 20 us but 3 in 100 take 200 us, no lane waits for its neighbours (apart)
#   gather   the same by the last build, where 8, 16 or 24 idle lanes submit together, not 4
#   queue    one queue pair of 4,096 entries, 1,024 threads
#   crowd    more threads than slots: 16,384 on 8 queues, 8,192 on one
#   uneven   the first of these, on a drive as with `varied`
#   single   one lane of each warp: 512 lone threads on 4 drives, 256 on one queue
#   tier1    4 KiB, 8 controller threads, 1,024 threads
#   latency  one thread, 4 KiB, tier 1: as fast as can be, with 10 us, and step by step
#   tier3    one thread, 4 KiB, tier 3
#   lockstep the published way at `best` and `varied`, by the first build only: what to beat
#
# A round takes each point of each build once: some 15 s a build. Told are median, smallest and
# largest of the rounds. After --seconds nothing more is begun: what there is then is told, with how
# often it was measured. FILE is written after each round.
# Exit code 77: no GPU; 1: something failed, or was wrong. FILE is ab.json beside the builds.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

rounds=5 seconds=230 only="" out="" builds=()
while (($#)); do
    case $1 in
    --rounds) rounds=$2 && shift ;;
    --seconds) seconds=$2 && shift ;;
    --only) only=$2 && shift ;;
    --out) out=$2 && shift ;;
    -*) sed -n '6,30s/^# \{0,1\}//p' "$0" && exit 2 ;;
    *) builds+=("$1") ;;
    esac
    shift
done
((${#builds[@]})) || { sed -n '6,30s/^# \{0,1\}//p' "$0"; exit 2; }
for build in "${builds[@]}"; do
    for program in gpu_io gpu_latency; do
        [[ -x $build/bench/$program ]] || { echo "gpu_ab.sh: no $build/bench/$program" >&2; exit 2; }
    done
done
points=best,varied,gather,queue,crowd,uneven,single,tier1,latency,tier3,lockstep
for name in ${only//,/ }; do
    [[ ,$points, == *,$name,* ]] || { echo "gpu_ab.sh: no point $name: $points" >&2; exit 2; }
done
out=${out:-$(dirname "${builds[0]}")/ab.json}
"${builds[0]}/bench/gpu_io" drives=0 >/dev/null 2>&1
if (($? == 77)); then
    "${builds[0]}/bench/gpu_io"
    exit 77
fi

rows=$(mktemp)
trap 'rm -f "$rows" "$rows.one"' EXIT
failed=0
varied=sim:engine=gpu,latency=20us,fault=delay=180us:io:p=0.03
s16=(drives=16 queues=8 size=32M) s4=(drives=4 queues=8 size=32M)

# take BUILD POINT COMMAND…: one invocation, whose JSON becomes a line of $rows.
take() {
    local build=$1 point=$2 rc
    shift 2
    [[ -z $only || ,$only, == *,$point,* ]] || return 0
    ((SECONDS < seconds)) || return 0
    timeout --foreground -k 5 30 "$@" >"$rows.one" 2>"$rows.err"
    rc=$?
    if ((rc)); then
        echo "gpu_ab.sh: $build, $point: exit code $rc: $(tail -n 2 "$rows.err" | tr '\n' ' ')" >&2
        failed=1
    fi
    rm -f "$rows.err"
    [[ -s $rows.one ]] || return 0
    printf '{"build": "%s", "point": "%s", "rc": %d, "result": %s}\n' "$build" "$point" "$rc" \
        "$(tr '\n' ' ' <"$rows.one")" >>"$rows"
}

io() { # BUILD POINT PARAMETERS of gpu_io
    local build=$1 point=$2
    shift 2
    take "$build" "$point" "$build/bench/gpu_io" runs=1 ms=40 verify=$((round == 0)) "$@"
}

# What there is so far, into FILE and as text.
tell() {
    python3 - "$rows" "$out" "${builds[@]}" <<'PYTHON'
import json, os, statistics, sys

rows, out, builds = sys.argv[1], sys.argv[2], sys.argv[3:]
values = {}  # (point, what, unit) -> build -> values
wrong = []


def keep(point, what, unit, build, value):
    values.setdefault((point, what, unit), {}).setdefault(build, []).append(value)


for line in open(rows):
    try:
        run = json.loads(line)
    except ValueError:  # it was stopped in the middle
        wrong.append("a result that is cut off")
        continue
    build, point, result = run["build"], run["point"], run["result"]
    for r in result.get("rows", [result]):
        if r.get("skipped"):
            keep(point, "%d threads: %s" % (r["threads"], r["skipped"]), "", build, 0)
            continue
        if r.get("errors") or r.get("violations") or r.get("wrong"):
            wrong.append("%s, %s: errors, wrong data or violations" % (build, point))
        if "iops" in r:
            uri = r["uri"].split("engine=gpu")[-1].split(",size")[0].strip(",")
            what = "%d threads%s, %d x %d queues%s%s" % (
                r["threads"], ", 1 lane" if r["lanes"] == 1 else "", r["drives"], r["queues"],
                ", varied" if "fault" in uri else "",
                ", gather %d" % r["gather"] if point == "gather" else "")
            keep(point, what, "M/s", build, r["iops"]["median"] / 1e6)
        elif "read_ns" in r:
            label = "with %d ns" % r["model_ns"] if r["model_ns"] else "unlimited"
            for key in ("round_trip_ns", "read_ns", "ratio", "reserve_ns", "submit_ns",
                        "completion_ns", "result_ns"):
                if key in r:
                    keep(point, "%s, %s" % (label, key.replace("_ns", "")),
                         "" if key == "ratio" else "ns", build, r[key]["median"])

names = {b: os.path.basename(os.path.normpath(b)) for b in builds}
table = []
for (point, what, unit), by_build in values.items():
    row = {"point": point, "what": what, "unit": unit, "builds": {}}
    for b, v in by_build.items():
        row["builds"][names[b]] = {"median": statistics.median(v), "min": min(v), "max": max(v),
                                   "n": len(v)}
    table.append(row)
with open(out + ".new", "w") as f:
    json.dump({"benchmark": "gpu_ab", "builds": [names[b] for b in builds], "wrong": wrong,
               "rows": table}, f, indent=1)
os.rename(out + ".new", out)

print("median (smallest - largest) [n if not all]; the others beside it as parts of the first")
for row in table:
    first = row["builds"].get(names[builds[0]])
    print("%s: %s%s" % (row["point"], row["what"], " [%s]" % row["unit"] if row["unit"] else ""))
    for b in builds:
        cell = row["builds"].get(names[b])
        if not cell:
            continue
        print("    %-10s %10.2f (%.2f - %.2f) n=%d%s" % (
            names[b], cell["median"], cell["min"], cell["max"], cell["n"],
            "  x %.3f" % (cell["median"] / first["median"])
            if first and first["median"] and b != builds[0] else ""))
for w in sorted(set(wrong)):
    print("WRONG: " + w)
sys.exit(bool(wrong))
PYTHON
}

for ((round = 0; round < rounds; round++)); do
    for build in "${builds[@]}"; do
        io "$build" best "${s16[@]}" threads=4096,65536
        io "$build" varied "${s4[@]}" uri=$varied way=apart threads=256,1024
        io "$build" queue drives=1 queues=1 entries=4096 size=32M threads=1024
        io "$build" crowd drives=1 queues=8 size=32M threads=16384
        io "$build" crowd drives=1 queues=1 size=32M threads=8192
        io "$build" uneven drives=1 queues=8 size=32M uri=$varied threads=16384
        io "$build" single "${s4[@]}" threads=16384 lanes=1
        io "$build" single drives=1 queues=1 size=32M threads=8192 lanes=1
        io "$build" tier1 drives=1 queues=8 tier=1 block=4096 size=32M uri=sim:threads=8,spin \
            threads=1024
        take "$build" latency "$build/bench/gpu_latency" n=1000 runs=1 steps=1 size=32M
        take "$build" latency "$build/bench/gpu_latency" n=1000 runs=1 size=32M \
            uri=sim:threads=1,spin,latency=10us model=10000
        take "$build" tier3 "$build/bench/gpu_latency" n=1000 runs=1 size=32M uri=sim:engine=gpu \
            tier=3
    done
    for gather in 8 16 24; do
        io "$build" gather "${s4[@]}" uri=$varied way=apart threads=1024 gather=$gather
    done
    io "${builds[0]}" lockstep "${s16[@]}" way=lockstep threads=4096,65536
    io "${builds[0]}" lockstep "${s4[@]}" uri=$varied way=lockstep threads=256,1024
    ((SECONDS < seconds)) || break
    tell >/dev/null
    echo "gpu_ab.sh: round $((round + 1)) of $rounds, $SECONDS s" >&2
done

tell || failed=1
echo "$out" >&2
exit $failed

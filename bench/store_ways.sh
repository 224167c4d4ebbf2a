#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The ways of bytes into GPU memory side by side, as JSON; bench/plot.py draws it.
#
#   bench/store_ways.sh [--quick] [--disk] [--dir DIR] [--drive URI]… BUILD-DIR [FILE-SIZE] > JSON
#
#   --quick      few points, 30 seconds at most, and 64M of FILE-SIZE instead of 1G; else 4 minutes
#   --disk       past the page cache where the way has a choice: for a DIR on a drive
#   --dir DIR    where the file is made, and removed (TMPDIR, or /tmp)
#   --drive URI  for the way `driver`, instead of the software controller: nvme:BDF or
#                vfio-user:…, which is only read, or sim:…; may be given several times
#
# bench/store_ways.c says what the ways are and what is measured. Exit code 1: a point failed or
# had wrong bytes; the JSON tells which. A way that this machine or build lacks is no failure.
set -uo pipefail

usage() {
    sed -n '6p' "$0" >&2
    exit 2
}

quick="" dir=${TMPDIR:-/tmp} options=() build="" size=""
command="bench/store_ways.sh $*"
while (($#)); do
    case $1 in
    --quick) quick=quick ;;
    --disk) options+=(medium=disk) ;;
    --dir) [[ -n ${2:-} ]] || usage; dir=$2; shift ;;
    --drive) [[ -n ${2:-} ]] || usage; options+=("drive=$2"); shift ;;
    -*) usage ;;
    *)
        if [[ -z $build ]]; then build=$1; elif [[ -z $size ]]; then size=$1; else usage; fi
        ;;
    esac
    shift
done
[[ -n $build ]] || usage
program=$build/bench/store_ways
[[ -x $program ]] || { echo "store_ways.sh: $program is not built" >&2; exit 2; }
size=${size:-$([[ -n $quick ]] && echo 64M || echo 1G)}

folder=$(mktemp -d "$dir/store_ways.XXXXXX") || exit 2
trap 'rm -rf "$folder"' EXIT
limit=300
[[ -z $quick ]] || limit=100
# In the foreground, so that who stops this script stops the program.
timeout --foreground -k 10 $limit "$program" "file=$folder/data" "size=$size" \
    ${quick:+quick} ${options[@]+"${options[@]}"} >"$folder/result"
rc=$?

text() { # as a JSON string
    local t=${1//\\/\\\\}
    printf '"%s"' "${t//\"/\\\"}"
}
root=$(cd "$(dirname "$0")/.." && pwd)
cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
if ! tail -n 1 "$folder/result" | grep -q '^ \]}$'; then
    echo "store_ways.sh: exit code $rc, and the result is not whole" >&2
    exit 1
fi
printf '{"benchmark": "store_ways", "command": %s, "date": "%s", "commit": "%s",\n' \
    "$(text "$command")" "$(date -u +%FT%TZ)" \
    "$(cut -c1-7 "$build/commit" 2>/dev/null || git -C "$root" rev-parse --short HEAD 2>/dev/null)"
printf ' "machine": {"host": %s, "cpu": %s, "processors": %d, "file_system": %s}, "rc": %d,\n' \
    "$(text "$(hostname)")" "$(text "$cpu")" "$(nproc)" \
    "$(text "$(stat -f -c %T "$folder" 2>/dev/null)")" "$rc"
printf ' "result":\n'
cat "$folder/result"
printf '}\n'
exit $rc

#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# bench/loader_rate.sh BUILD-DIR [gpu|pinned|host] > JSON
#
# Samples of 4 and 110 KiB from 100 shards of 41 MB in /dev/shm, in the orders that training uses:
# bench/loader_rate.c says what is measured. A minute and a half. The exit code is 1 if a way has no result.
set -uo pipefail

program=${1:?a build folder}/bench/loader_rate mem=${2:-gpu} failed=0 comma=
[[ -x $program ]] || { echo "loader_rate.sh: $program is not built" >&2; exit 2; }
folder=$(mktemp -d /dev/shm/gpunvme-loader.XXXXXX) || exit 2
trap 'rm -rf "$folder"' EXIT
"$program" "$folder" make=41451520 || exit 1 # whole samples of both sizes

echo '['
while read -r options; do
    # shellcheck disable=SC2086 # several words
    line=$(timeout --foreground -k 5 30 "$program" "$folder" seconds=2 "mem=$mem" $options) ||
        { failed=1; continue; }
    printf '%s%s' "$comma" "$line"
    comma=$',\n'
done <<END
sample=4K depth=4 on=1
sample=4K depth=16 on=1
sample=4K depth=8
sample=4K shuffle=blocks
sample=4K shuffle=none
sample=112640 depth=4 on=1
sample=112640 depth=8 on=1
sample=4K depth=8 on=1 verify=1
sample=112640 depth=8 on=1 verify=1
sample=4K depth=8 on=1 pace=2000000000
sample=112640 depth=8 on=1 pace=2000000000
END
printf '\n]\n'
exit $failed

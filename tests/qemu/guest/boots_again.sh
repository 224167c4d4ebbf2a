#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A guest that stands still before its first process is booted again, and no more than twice.
#
#   boots_again.sh BUILD_FOLDER
#
# A QEMU in front of the real one starts the first guests paused, as many as the file `paused` says.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

real=$(command -v qemu-system-x86_64) || { echo "SKIP: qemu-system-x86_64 is not here"; exit 77; }
mkdir "$dir/bin"
cat >"$dir/bin/qemu-system-x86_64" <<END
#!/bin/sh
left=\$(cat "$dir/paused")
[ "\$left" -gt 0 ] || exec "$real" "\$@"
echo \$((left - 1)) >"$dir/paused"
exec "$real" -S "\$@"
END
chmod +x "$dir/bin/qemu-system-x86_64"
echo 'echo "the scenario runs"' >"$dir/scenario.sh"

# boot PAUSED [OPTION]...: sets status and output.
boot() {
    echo "$1" >"$dir/paused"
    shift
    status=0
    output=$(PATH=$dir/bin:$PATH "$here/boot.sh" "$dir/scenario.sh" --build "$build" --verbose \
        "$@") || status=$?
    [ "$status" -ne 77 ] || { echo "$output"; exit 77; }
}

fail() {
    printf '%s\n--- boot.sh ended with %s and said:\n%s\n' "$*" "$status" "$output"
    exit 1
}

build=$1
boot 1 --boot 25
[ "$status" -eq 0 ] || fail "the second guest was to run"
grep -q "did not get to its first process within 25 s" <<<"$output" || fail "the first is not told"
grep -q "EIP\|RIP" <<<"$output" || fail "the first's registers are not told"
[ "$(grep -c "^the scenario runs" <<<"$output")" -eq 1 ] || fail "the scenario was to run once"

boot 4 --boot 1
[ "$status" -eq 124 ] || fail "a guest that never starts is one that ran out of time"
[ "$(cat "$dir/paused")" -eq 1 ] || fail "three guests were to be booted"

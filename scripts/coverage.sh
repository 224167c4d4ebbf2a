#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# All tests under AddressSanitizer and UndefinedBehaviorSanitizer, and which lines they run: a table
# of all files, and a failure where the protocol (src/nvme) or the software controller (src/sim) has
# less than 90 % of its lines covered. One build has both, since each costs as much as the tests.
#
#   scripts/coverage.sh          the lines missed are in build/coverage/report/index.html
set -euo pipefail

cd "$(dirname "$0")/.."
build=build/coverage
least=90

[ ! -d $build ] || find $build -name '*.gcda' -delete # counts of earlier runs
failed=0
scripts/test.sh coverage || failed=1

if ! command -v gcovr >/dev/null; then
    echo "SKIP: gcovr is not here (scripts/install-deps.sh installs it), so no lines are counted"
    exit $failed
fi
mkdir -p $build/report
gcovr --root . --object-directory $build --filter src/ --filter include/ --json $build/lines.json
gcovr --root . --add-tracefile $build/lines.json --txt --html-details $build/report/index.html

for room in src/nvme src/sim; do
    echo
    echo "$room: at least $least % of the lines are asked for"
    gcovr --root . --add-tracefile $build/lines.json --filter "$room/" --output $build/room.txt \
        --print-summary --fail-under-line $least || failed=1
done
exit $failed

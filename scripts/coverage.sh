#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Which lines the unit and sim tests run: a table of all files, and a failure where the protocol
# (src/nvme) or the software controller (src/sim) has less than 90 % of its lines covered.
#
#   scripts/coverage.sh          the lines missed are in build/coverage/report/index.html
set -euo pipefail

cd "$(dirname "$0")/.."
build=build/coverage
least=90

if ! command -v gcovr >/dev/null; then
    echo "SKIP: gcovr is not here (scripts/install-deps.sh installs it)"
    exit 77
fi
mkdir -p $build/report
cmake --preset coverage
cmake --build --preset coverage -j "$(nproc)"
find $build -name '*.gcda' -delete # counts of earlier runs
# Few random transfers reach the lines that many reach; and the queue's code with its switches on
# is the same file once more.
GPUNVME_TEST_OPS=2000 ctest --preset coverage -j "$(nproc)" -L '^(unit|sim)$' -E '_tuned$'

gcovr --root . --object-directory $build --filter src/ --filter include/ --json $build/lines.json
gcovr --root . --add-tracefile $build/lines.json --txt --html-details $build/report/index.html

failed=0
for room in src/nvme src/sim; do
    echo
    echo "$room: at least $least % of the lines are asked for"
    gcovr --root . --add-tracefile $build/lines.json --filter "$room/" --output $build/room.txt \
        --print-summary --fail-under-line $least || failed=1
done
exit $failed

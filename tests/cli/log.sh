#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# GPUNVME_LOG: what the library tells on stderr, and that it is silent unless asked.
. "$(dirname "$0")/lib.sh"

# logged LEVELS: each line of stderr is the command's own, or a message of one of these levels.
logged() {
    checks=$((checks + 1))
    if grep -vE "^gpunvme: ($1): .|^gpunvme [a-z]+: " err; then
        fail "a line is no message of level $1"
    fi
}

promise "without GPUNVME_LOG the library says nothing"
gpunvme store --memory host --length 64K sim:size=1M
expect 0
check test ! -s err
export GPUNVME_LOG=off
gpunvme store --memory host --length 64K sim:size=1M
check test ! -s err

promise "info tells what was opened, the path, and why not a faster one"
export GPUNVME_LOG=info
gpunvme store --memory host --length 64K sim:size=1M
expect 0 "gpunvme: info: sim:size=1M: opened, backend nvme, to the GPU by way"
expect 0 "I/O queues of up to"
logged "info"

promise "warn tells of timeouts and resets, and of nothing that is well"
export GPUNVME_LOG=warn
gpunvme bench sim:size=64M -c 100 -q
expect 0
check test ! -s err
gpunvme bench sim:size=64M,fault=lose:read:nth=100 --timeout 200ms -c 2000 -q
expect 1 "did not end in time: the controller was reset"
expect 1 "resets so far: 1"
logged "warn|error"

promise "error tells of a controller that is gone"
export GPUNVME_LOG=error
gpunvme bench sim:size=64M,fault=remove:read:nth=100 -c 2000 -q
expect 1 "gone, all its commands end"
logged "error"

promise "debug tells each failure with its detail"
export GPUNVME_LOG=debug
gpunvme identify sim:image=nowhere.img
expect 1 "gpunvme: debug: GPUNVME_ERR_NOT_FOUND: image nowhere.img does not exist"
logged "debug"

promise "a level that there is not is told once"
export GPUNVME_LOG=loud
gpunvme store --memory host --length 64K sim:size=1M
expect 0 "GPUNVME_LOG=loud: off, error, warn, info and debug are possible"
check test "$(wc -l <err)" -eq 1

finish

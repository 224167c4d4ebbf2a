#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A device that misbehaves under I/O: each fault ends the command in time, with the right words,
# and without a violation of the specification by the driver (which would be exit code 3).
. "$(dirname "$0")/lib.sh"

bench() {
    gpunvme bench "sim:size=64M,$1" -c 2000 -q "${@:2}"
}

promise "an NVMe status is told by name, with the blocks"
bench fault=status=2/81:read:nth=1000
expect 1 GPUNVME_SC_UNRECOVERED_READ
expect 1 "read of blocks"
expect 1 "of namespace 1"
gpunvme store --memory host "sim:size=1M,fault=status=2/81:lba=100:read?chunk=4096"
expect 1 "read of blocks 96 to 103 of namespace 1"
bench fault=status=2/80:write:nth=10 --read-share 0
expect 1 GPUNVME_SC_WRITE_FAULT
gpunvme read sim:size=1M,fault=status=2/81:lba=100-103:read -o out.bin -b 4K
expect 1 "read of blocks 96 to 103"
random_file in.bin 1000000
gpunvme write sim:size=1M,fault=status=0/4:write:nth=3 -i in.bin -q
expect 1 GPUNVME_SC_
gpunvme write sim:size=1M,fault=status=0/6:flush -i in.bin -q
expect 1 GPUNVME_SC_INTERNAL

promise "a lost completion ends by the deadline"
bench fault=lose:read:nth=100 --timeout 200ms
expect 1 GPUNVME_ERR_TIMEOUT

promise "bench counts the commands that fail and goes on to its end"
bench fault=status=2/81:p=0.01 --json
expect 1 "commands failed; the first:"
expect_json
ended=$(awk -F'[:,]' '/"commands"|"errors"/ { sum += $2 } END { print sum }' out)
check test "$ended" -eq 2000
bench fault=status=2/81:read:nth=1000
expect 1 "1 command failed"
expect_out "Errors: 1 command failed"
bench fault=lose:read:nth=100 --timeout 200ms -Q 2
expect 1 "read of blocks"
expect_out "Errors: "
bench fault=cfs:read:nth=100
expect 1 "was reset"
expect_out "Errors: "

promise "late completions are waited for"
bench fault=delay=100ms:read:nth=100 --verify
expect 0

promise "completions in shuffled order are taken as they come"
bench fault=shuffle=16:read --verify --read-share 80
expect 0

promise "a fatal status ends the commands in flight"
bench fault=cfs:read:nth=100
expect 1 GPUNVME_ERR_

promise "a drive that disappears ends everything at once"
bench fault=remove:read:nth=100 -Q 2
expect 1 GPUNVME_ERR_REMOVED
gpunvme read sim:size=64M,fault=remove:read:nth=20 -o out.bin
expect 1 GPUNVME_ERR_REMOVED
gpunvme quickstart --uri sim:fault=remove:read:nth=20 --size 8M
expect 1 GPUNVME_ERR_REMOVED
nothing_left

promise "a power loss ends the commands in flight, and says that the controller was reset"
gpunvme bench sim:size=16M,vwc,fault=powerloss:read:nth=1000 --verify -c 20k -q
expect 1 "was reset"
gpunvme quickstart --size 8M --uri sim:vwc,fault=powerloss:write:nth=10
expect 1 "was reset"
nothing_left

finish

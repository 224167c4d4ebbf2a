#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# gpunvme bench: what it counts, what it verifies, what it refuses.
. "$(dirname "$0")/lib.sh"

promise "it runs exactly the commands that it was asked for"
gpunvme bench sim:size=16M -c 1001 -Q 2 --json
expect 0
expect_json
check test "$(grep -c '"commands": 1001' out)" -eq 1
check test "$(grep -c '"bytes": 4100096' out)" -eq 1

promise "all patterns, sizes, placements and depths pass verification"
for options in "-p sequential" "-p random" "-b 512" "-b 64K -d 3" "--memory pinned" "--memory gpu" \
    "-d 1" "-Q 3 -d 64" "--read-share 50%" "--read-share 0" "-p sequential -b 1M -d 4 -Q 2" \
    "--offset 1M --length 1M" "--seed 7 -b 8K"; do
    promise "verification passes with $options"
    # shellcheck disable=SC2086
    gpunvme bench sim:size=16M --verify -c 500 -q $options
    expect 0
done
gpunvme bench sim:size=16M,block=4096,mdts=1,sgl=off --verify -c 500 -b 8K
expect 0
expect_out 'Verified'
gpunvme bench sim:size=16M,noiob=64 --verify -c 500 -b 4K
expect 0

promise "the example of a fault counts the commands that fail, and goes on"
gpunvme bench --help
example=$(sed -n 's/^  gpunvme bench \(.*fault=.*\)/\1/p' out)
# shellcheck disable=SC2086
gpunvme bench $example --count 10k -q
expect 1 'commands failed; the first:'
expect_out '^  read  '

promise "a run by time ends by time and tells reads and writes apart"
gpunvme bench sim:size=16M -t 2s --read-share 50
expect 0
expect_out '^  read  '
expect_out '^  write '
expect_out '^Latency .*p50 .*p99\.9 .*max'

promise "what is in an image is not overwritten unasked"
random_file disk.img 1048576
cp disk.img before.img
gpunvme bench sim:image=disk.img --verify -c 10
expect 1 "--force"
gpunvme bench sim:image=disk.img --read-share 50 -c 10
expect 1 "--force"
gpunvme bench sim:image=disk.img -c 10
expect 0
same disk.img before.img
gpunvme bench sim:image=disk.img --verify -c 10 --force
expect 0
check test "$(cmp disk.img before.img | wc -l)" -eq 1

# Changes the image under a running bench: the image is locked against others who ask.
bench_while() {
    truncate -s 1M victim.img
    timeout 300 "$program" bench sim:image=victim.img --verify --force --length 64K -t 50s -q \
        >out 2>err &
    local pid=$!
    for _ in $(seq 800); do # until it is filled, which takes long under a sanitizer
        [ "$(od -An -t u8 -j 65024 -N 8 victim.img | tr -d ' ')" = 127 ] && break
        sleep 0.05
    done
    sleep 1 # the last block may be there before others
    "$@" conv=notrunc,fsync status=none
    wait $pid
    code=$?
}

promise "a block that comes from elsewhere is found and told"
bench_while dd if=victim.img of=victim.img bs=512 skip=3 seek=77 count=1
expect 3 "block 77: has the bytes of block 3"
expect 3 GPUNVME_ERR_VERIFY

promise "a changed byte is found and told"
bench_while dd if=/dev/urandom of=victim.img bs=1 seek=$((512 * 90 + 100)) count=4
expect 3 "block 90: wrong from byte 96 on"

promise "nonsense is refused clearly"
gpunvme bench sim: --pattern zigzag
expect 2 "--pattern"
gpunvme bench sim: --memory disk
expect 2 "--memory"
gpunvme bench sim: --read-share 101
expect 2 "--read-share"
gpunvme bench sim: --depth 0
expect 2 "--depth"
gpunvme bench sim: --depth 12Q
expect 2 "--depth"
gpunvme bench sim:size=1M --block-size 1000
expect 1 GPUNVME_ERR_ALIGN
gpunvme bench sim:size=1M --offset 2M
expect 1 GPUNVME_ERR_RANGE
gpunvme bench sim:size=1M --length 2M
expect 1 GPUNVME_ERR_RANGE
gpunvme bench sim:size=16M --block-size 2M
expect 1 GPUNVME_ERR_LIMIT
gpunvme bench sim:size=16M,noiob=24 --block-size 8K
expect 1 GPUNVME_ERR_ALIGN
gpunvme bench sim:size=16M,queues=2 -Q 3
expect 1 GPUNVME_ERR_LIMIT
gpunvme bench sim:size=16M,mqes=7 -d 8
expect 1 GPUNVME_ERR_LIMIT

promise "a time without a unit is refused, not taken for nanoseconds"
gpunvme bench sim: -t 2
expect 2 "'2': a time needs a unit: 2s"

finish

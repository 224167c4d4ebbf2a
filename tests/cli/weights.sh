#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# gpunvme weights: tensors are listed, loaded and verified; what is wrong with a file is told.
. "$(dirname "$0")/lib.sh"

make_weights two.safetensors
if [ "${CLI_TEST_JANSSON:-1}" != 1 ]; then
    promise "without libjansson it says so"
    gpunvme weights ls two.safetensors
    expect 1 "libjansson"
    finish
fi

promise "tensors are listed with dtype, size and shape"
gpunvme weights ls two.safetensors
expect 0
expect_out '^F16 +48 B +\[4, 6\] +a.weight$'
expect_out '^2 tensors, 64 B, 1 files$'
gpunvme weights ls two.safetensors --glob 'b*' --json
expect 0
expect_json
expect_out '"name": "b"'
expect_out '"value": "pt"'
check test "$(grep -c '"dtype"' out)" -eq 1

promise "tensors are loaded, all or slices of them"
gpunvme weights load two.safetensors --json
expect 0
expect_json
expect_out '"bytes": 64,'
gpunvme weights load two.safetensors --slice 1:0:2 --memory host
expect 0
expect_out 'loaded +32 B'
gpunvme weights load two.safetensors --slice 0:2:8
expect 1 "elements 2 to 8 of dimension 0"
gpunvme weights load 'file:two.safetensors?require=p2p'
expect 1 "p2p"

promise "a manifest is written, and a tensor that differs from it is named"
gpunvme weights verify two.safetensors --manifest sums.json --write
expect 0
gpunvme weights verify two.safetensors --manifest sums.json
expect 0
expect_out 'verified +all 2 tensors'
cp two.safetensors changed.safetensors
printf x | dd of=changed.safetensors bs=1 seek=230 conv=notrunc status=none
gpunvme weights verify changed.safetensors --manifest sums.json
expect 3 'tensor "b"'

promise "tensors are converted into a new file, and back"
gpunvme weights convert two.safetensors wide.safetensors --dtype f32
expect 0
expect_out 'converted +1 of 2 tensors to F32'
gpunvme weights ls wide.safetensors
expect_out '^F32 +96 B +\[4, 6\] +a.weight$'
expect_out '^U8 +16 B +\[16\] +b$'
gpunvme weights convert wide.safetensors wide.safetensors --dtype f16 --json
expect 0
expect_json
gpunvme weights verify wide.safetensors --manifest sums.json
expect 0

promise "numbers of eight bits have a scale beside them, and only names that match become some"
gpunvme weights convert two.safetensors small.safetensors --dtype f8_e4m3
expect 0
gpunvme weights ls small.safetensors
expect_out '^F8_E4M3 +24 B +\[4, 6\] +a.weight$'
expect_out '^F32 +4 B +\[\] +a.weight_scale$'
gpunvme weights convert two.safetensors same.safetensors --dtype bf16 --glob 'b*'
expect 0
expect_out 'converted +0 of 2'

promise "a conversion that fails leaves what was there, and nothing else"
cp small.safetensors kept
failed=0
(
    ulimit -f 0 # as a full disk
    gpunvme weights convert two.safetensors small.safetensors --dtype bf16
    exit "$code"
) || failed=$?
check test "$failed" -eq 1
check cmp small.safetensors kept
check test "$(ls -d small.safetensors* | wc -l)" -eq 1
gpunvme weights convert two.safetensors --dtype bf16
expect 2 "IN... OUT --dtype"
gpunvme weights convert two.safetensors x.safetensors
expect 2 "--dtype"
gpunvme weights convert two.safetensors x.safetensors --dtype i8
expect 2 "bf16"
gpunvme weights convert two.safetensors nowhere/x.safetensors --dtype bf16
expect 1 "nowhere"

promise "numbers are converted while they are loaded"
gpunvme weights load two.safetensors --dtype bf16 --checksum
expect 0
gpunvme weights load two.safetensors --dtype f8_e4m3 --memory host --json
expect 0
expect_json
gpunvme weights verify two.safetensors --manifest sums.json --dtype bf16
expect 2

promise "loads are measured, from each file into each kind of memory"
gpunvme weights bench two.safetensors wide.safetensors --rounds 2
expect 0
check test "$(grep -cE '^(host|pinned|gpu) .*(two|wide).safetensors$' out)" -eq 6
gpunvme weights bench two.safetensors --memory host --rounds 1 --checksum --json
expect 0
expect_json
expect_out '"memory": "host"'
gpunvme weights bench two.safetensors --memory host --rounds 1
expect 0
check test "$(grep -c 'Simulated' out)" -eq 0
gpunvme weights bench two.safetensors --rounds 0
expect 2 "1 to 1000"

promise "an index opens its files"
echo '{"weight_map": {"b": "two.safetensors"}}' >model.safetensors.index.json
gpunvme weights ls model.safetensors.index.json
expect 0
expect_out '^1 tensors, 16 B, 1 files$'

# A tensor on all units of a stripe set, with its checksum.
{
    printf '\100\000\000\000\000\000\000\000%-64s' \
        '{"t":{"dtype":"U8","shape":[65536],"data_offsets":[0,65536]}}'
    head -c 65536 /dev/urandom
} >large.safetensors
gpunvme weights verify large.safetensors --manifest large.sums --write
expect 0

promise "a stripe set holds tensors"
truncate -s 2M one.bin two.bin
gpunvme stripe create one.bin two.bin --unit 4K
expect 0
gpunvme write "stripe:one.bin;two.bin" -i large.safetensors -q
expect 0
gpunvme weights verify "stripe:two.bin;one.bin" --manifest large.sums
expect 0
expect_out 'verified +all 1 tensors'

promise "a drive that another process serves holds tensors"
serve drive -- --listen "$work/drive" sim:size=1M
gpunvme write "vfio-user:$work/drive" -i large.safetensors -q
expect 0
gpunvme weights verify "vfio-user:$work/drive" --manifest large.sums
expect 0
expect_out 'verified +all 1 tensors'
stop TERM
check test "$code" -eq 0

promise "what makes no sense is refused"
gpunvme weights ls nowhere.safetensors
expect 1 GPUNVME_ERR_NOT_FOUND
truncate -s 240 two.safetensors
gpunvme weights ls two.safetensors
expect 1 'tensor "b": it ends at byte 64 of the data, which has 62'
gpunvme weights ls two.safetensors --glob x
expect 1
gpunvme weights load
expect 2 "name the files"
gpunvme weights verify two.safetensors
expect 2 "name the manifest"
gpunvme weights load two.safetensors --slice 3
expect 2 "DIM:BEGIN:END"
gpunvme weights lod two.safetensors
expect 2 "did you mean 'load'?"

finish

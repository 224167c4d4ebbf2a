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

promise "an index opens its files"
echo '{"weight_map": {"b": "two.safetensors"}}' >model.safetensors.index.json
gpunvme weights ls model.safetensors.index.json
expect 0
expect_out '^1 tensors, 16 B, 1 files$'

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

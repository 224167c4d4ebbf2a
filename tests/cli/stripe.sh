#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# gpunvme stripe: sets are made, shown, and refused where they would cost data.
. "$(dirname "$0")/lib.sh"

promise "a set of images is made and shown"
truncate -s 4M a.img
truncate -s 5M b.img
gpunvme stripe create sim:image=a.img sim:image=b.img --unit 64K
expect 0
expect_out 'member +1 of 2'
expect_out 'unit +64 KiB'
expect_out '^stripe:sim:image=a.img;sim:image=b.img$'
expect_out 'a whole set of 6 MiB \(6291456 bytes\)'
gpunvme stripe show b.img a.img --json
expect 0
expect_json
expect_out '"whole": true'
expect_out '"index": 1,'
expect_out '"uri": "stripe:b.img;a.img"'

promise "members that are not a whole set are told, with exit code 1"
gpunvme stripe show a.img
expect 1 "member 1 of 2 is missing"
expect_out 'member +0 of 2'
gpunvme stripe show a.img --json
expect 1
expect_json
expect_out '"whole": false'
truncate -s 4M c.img
gpunvme stripe show a.img c.img
expect 1 "no member of a stripe set"

promise "a member of a set is not taken for another one without --force"
cp a.img before.img
gpunvme stripe create c.img a.img
expect 1 "a.img is a member of a stripe set"
expect 1 "--force"
same a.img before.img
gpunvme stripe create c.img a.img --force
expect 0
gpunvme stripe show a.img b.img
expect 1 "of set"

promise "a partition table is not overwritten without --force"
if [ "${CLI_TEST_BLKID:-1}" = 1 ]; then
    truncate -s 4M d.img
    printf '\x83\0\0\0\x01\0\0\0\x64' | dd of=d.img bs=1 seek=450 conv=notrunc status=none
    printf '\x55\xaa' | dd of=d.img bs=1 seek=510 conv=notrunc status=none
    cp d.img before.img
    gpunvme stripe create d.img
    expect 1 "MBR"
    expect 1 "--force"
    gpunvme stripe create sim:image=d.img
    expect 1 "--force"
    same d.img before.img
    gpunvme stripe create sim:image=d.img --force
    expect 0
else
    skip "no libblkid"
fi

promise "files with data are taken for no set without --force, as files and as images"
make_valuables
for file in my.db my.tar my.safetensors; do
    for uri in "$file" "sim:image=$file"; do
        rm -f new.img
        truncate -s 4M "$file" new.img
        cp "$file" before.img
        gpunvme stripe create new.img "$uri" --unit 64K
        expect 1 "$file"
        expect 1 "--force"
        same "$file" before.img
    done
    gpunvme stripe create new.img "sim:image=$file" --unit 64K --force
    expect 0
done

promise "one store twice is refused"
truncate -s 4M e.img
gpunvme stripe create sim:image=e.img sim:image=e.img
expect 1 "are the same store"

promise "nonsense is a usage error"
gpunvme stripe create a.img --unit 5000
expect 2 "--unit"
gpunvme stripe create
expect 2 "name the members"
gpunvme stripe show
expect 2 "name the members"
gpunvme stripe creat a.img
expect 2 "did you mean 'create'?"
gpunvme stripe create nowhere.img
expect 1 GPUNVME_ERR_NOT_FOUND

finish

#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# gpunvme quickstart: files of every size, what it reports, and that it cleans up.
. "$(dirname "$0")/lib.sh"

for size in 0 1 511 512 513 4096 1000003; do
    promise "a file of $size bytes comes back verified"
    random_file in.bin $size
    gpunvme quickstart in.bin
    expect 0
    expect_out '^Verified'
    expect_out 'real drive \(nvme:BDF\)'
    expect_out "\($size bytes\)"
    expect_out '0 violations'
    nothing_left
done

promise "a file of more than one window comes back verified"
random_file big.bin 150000001
gpunvme quickstart big.bin --json -q
expect 0
expect_json
expect_out '"verified": true'
expect_out '"bytes": 150000001'
expect_out '"violations": 0'
check test ! -s err
nothing_left
rm big.bin

promise "without a file it makes a correct safetensors file of the size asked for"
# Kept as the namespace's image, whose first bytes are the file.
for size in 4K 100000 9M; do
    rm -f kept.img
    gpunvme quickstart --size $size --image kept.img --keep
    expect 0
    expect_out 'kept.img'
    nothing_left
    length=$(od -An -t u8 -N 8 kept.img | tr -d ' ')
    tail -c +9 kept.img | head -c "$length" >header.json
    check "$json_check" <header.json
    check grep -q '"__metadata__"' header.json
    check test $((length % 8)) -eq 0
    # The tensors lie back to back, from the header's end to the file's.
    ends=$(grep -o '"data_offsets":\[[0-9]*,[0-9]*\]' header.json | grep -o '[0-9]*,[0-9]*')
    at=0
    for pair in $ends; do
        check test "${pair%,*}" -eq $at
        at=${pair#*,}
    done
    case $size in 4K) whole=4096 ;; 9M) whole=9437184 ;; *) whole=$size ;; esac
    check test $((8 + length + at)) -eq "$whole"
done

promise "the image has the file's bytes, and one that exists is not touched"
random_file in.bin 300001
rm -f kept.img
gpunvme quickstart in.bin --image kept.img --keep
expect 0
same -n 300001 kept.img in.bin
gpunvme quickstart in.bin --image kept.img
expect 1 "exists"
same -n 300001 kept.img in.bin
gpunvme quickstart in.bin --uri sim:image=kept.img
expect 1 "--force"
random_file other.bin 300001
gpunvme quickstart other.bin --uri sim:image=kept.img --force
expect 0
same -n 300001 kept.img other.bin

promise "an image that is kept where temporary files are is all that stays there"
gpunvme quickstart --size 8K --keep
expect 0
check test "$(find "$TMPDIR" -type f)" = "$(grep -o "$TMPDIR/[^']*" out | tail -1)"
check test "$(find "$TMPDIR" -type f | wc -l)" -eq 1
rm -rf "${TMPDIR:?}"/*

promise "without --keep the image is removed"
gpunvme quickstart in.bin --image gone.img
expect 0
check test ! -e gone.img

promise "paths with commas, percent signs and spaces are no trouble"
mkdir "a,b %20 c"
gpunvme quickstart in.bin --image "a,b %20 c/i,m.img" --keep
expect 0
same -n 300001 "a,b %20 c/i,m.img" in.bin

promise "any controller will do"
for uri in sim:block=4096 sim:sgl=off sim:shadow=off sim:mdts=1 sim:noiob=24 sim:threads=2 \
    sim:vwc sim:dstrd=4 sim:ns=4,block=4096; do
    gpunvme quickstart in.bin --uri $uri
    expect 0
    nothing_left
done
gpunvme quickstart in.bin --block-size 511
expect 2 "from 512 to 64M"
gpunvme quickstart in.bin --profile p5800x --depth 3 --block-size 8K
expect 0
expect_out 'p5800x'

promise "wrong bytes are found, with the place, and exit code 3"
truncate -s 8M victim.img
random_file in8.bin 8388608
timeout 300 "$program" quickstart in8.bin --uri sim:image=victim.img,bandwidth=8M --force >out 2>err &
pid=$!
# Past the page cache, as the controller writes: where both meet, the kernel fails the writing.
spoil() {
    dd if=/dev/urandom of=victim.img bs=4096 seek=1953 count=1 conv=notrunc "$@" status=none
}
while kill -0 $pid 2>/dev/null; do # again and again, so that it is after the writing too
    spoil oflag=direct 2>direct.err || spoil conv=fsync
    sleep 0.05
done
wait $pid
code=$?
expect 3 GPUNVME_ERR_VERIFY
expect 3 "bytes 0 to 8388607 of in8.bin"

promise "what can't be used is told"
gpunvme quickstart nowhere.bin
expect 1 GPUNVME_ERR_NOT_FOUND
gpunvme quickstart .
expect 1 "is a directory"
gpunvme quickstart in.bin in.bin
expect 2 "more than one file"
gpunvme quickstart --size 100
expect 2 "4K"
gpunvme quickstart in.bin --profile p5800
expect 2 "did you mean 'p5800x'?"
gpunvme quickstart in.bin --image nowhere/x.img
expect 1 GPUNVME_ERR_NOT_FOUND
truncate -s 4K small.img
gpunvme quickstart in.bin --uri sim:image=small.img --force
expect 1 GPUNVME_ERR_RANGE
gpunvme quickstart in.bin -n 9
expect 1 GPUNVME_ERR_NO_NAMESPACE
mkfifo pipe
gpunvme quickstart pipe
expect 1 "is not a file"
nothing_left

finish

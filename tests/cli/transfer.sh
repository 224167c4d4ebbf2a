#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# gpunvme read and write: any offset, any length, files and pipes, and what is refused.
. "$(dirname "$0")/lib.sh"

random_file in.bin 3000001

# Bytes around what is written must stay: the oracle is a plain copy of the image.
round_trip() {
    local uri=$1 image=$2 offset=$3 length=$4
    shift 4

    head -c "$length" in.bin >part.bin
    cp "$image" oracle.img
    dd if=part.bin of=oracle.img bs=1M seek="$offset" oflag=seek_bytes conv=notrunc status=none
    gpunvme write "$uri" -i part.bin --offset "$offset" "$@"
    expect 0
    same "$image" oracle.img
    gpunvme read "$uri" --offset "$offset" --length "$length" -o back.bin "$@"
    expect 0
    same part.bin back.bin
}

for block in 512 4096; do
    promise "read gives back what write wrote, and nothing else changed (blocks of $block)"
    random_image disk.img 8388608
    uri=sim:image=disk.img,block=$block
    round_trip $uri disk.img 0 512
    round_trip $uri disk.img 0 3000001
    round_trip $uri disk.img 1 1
    round_trip $uri disk.img 511 2
    round_trip $uri disk.img 4095 4098
    round_trip $uri disk.img 12345 3000001
    round_trip $uri disk.img 8388607 1
    round_trip $uri disk.img $((8388608 - 3000001)) 3000001
    promise "small commands, a shallow queue, FUA and a boundary change nothing"
    round_trip $uri disk.img 777 100001 --block-size 4K --depth 1
    round_trip $uri,noiob=24 disk.img 777 1000001 --block-size 64K --depth 7
    round_trip $uri,mdts=1,sgl=off,shadow=off disk.img 4096 1000000
    gpunvme write $uri -i in.bin --fua
    expect 0
done

promise "a pipe of unknown length is written to its end"
cat in.bin | timeout 300 "$program" write sim:image=disk.img --offset 100 -q 2>err
code=$?
expect 0
timeout 300 "$program" read sim:image=disk.img --offset 100 --length 3000001 2>err | cmp - in.bin ||
    fail "the pipe's bytes differ"

promise "without --length all to the end of the namespace is read"
gpunvme read sim:image=disk.img --offset 1M -o back.bin
expect 0
check test "$(stat -c %s back.bin)" -eq $((8388608 - 1048576))
same -i 1048576:0 -n 7340032 disk.img back.bin

promise "--nsid takes another namespace"
truncate -s 4M second.img
gpunvme write sim:image=disk.img,ns=5,image=second.img -n 5 -i in.bin
expect 0
same -n 3000001 second.img in.bin

promise "a length of 0 and an empty input are fine and touch nothing"
cp disk.img before.img
gpunvme read sim:image=disk.img --length 0 -o back.bin
expect 0
check test "$(stat -c %s back.bin)" -eq 0
gpunvme read sim:image=disk.img --offset 8M --length 0 -o back.bin
expect 0
gpunvme write sim:image=disk.img -i /dev/null
expect 0
gpunvme write sim:image=disk.img -i in.bin --length 0
expect 0
same disk.img before.img

promise "beyond the end is refused before anything is written"
gpunvme read sim:image=disk.img --offset 8388609 -o back.bin
expect 1 GPUNVME_ERR_RANGE
gpunvme read sim:image=disk.img --offset 8388607 --length 2 -o back.bin
expect 1 GPUNVME_ERR_RANGE
gpunvme read sim:image=disk.img --offset 1 --length 16777215P -o back.bin
expect 2 "too large"
gpunvme read sim:image=disk.img --offset 1K --length 18446744073709551000 -o back.bin
expect 1 GPUNVME_ERR_RANGE
gpunvme write sim:image=disk.img -i in.bin --offset 6M
expect 1 GPUNVME_ERR_RANGE
gpunvme write sim:image=disk.img -i in.bin --offset 8388607 --length 2
expect 1 GPUNVME_ERR_RANGE
same disk.img before.img

promise "a pipe that does not fit fills the namespace and says so"
cat in.bin | timeout 300 "$program" write sim:image=disk.img --offset 6M -q 2>err
code=$?
expect 1 "the namespace is full after 2097152 bytes"
same -i 6291456:0 -n 2097152 disk.img in.bin

promise "an input shorter than --length is told"
printf hello | timeout 300 "$program" write sim:image=disk.img --length 10 2>err
code=$?
expect 1 "ended after 5 of 10 bytes"
check test "$(head -c 5 disk.img)" = hello
gpunvme write sim:image=disk.img -i in.bin --length 4M
expect 1 "has 3000001 bytes"

promise "an input file that becomes shorter meanwhile is told"
cp in.bin shrinks.bin
"$program" write sim:size=4M,bandwidth=1M -i shrinks.bin --block-size 64K --depth 1 >out 2>err &
pid=$!
# What the program has read so far: more than itself is the file.
until [ "$(awk '/^rchar:/ { print $2 }' /proc/$pid/io 2>/dev/null || echo 0)" -gt 200000 ]; do
    kill -0 $pid 2>/dev/null || break
    sleep 0.01
done
truncate -s 1M shrinks.bin
wait $pid
code=$?
expect 1 "became shorter"
wait

promise "a namespace that does not exist is told"
gpunvme read sim:image=disk.img -n 7 -o back.bin
expect 1 GPUNVME_ERR_NO_NAMESPACE
gpunvme write sim:image=disk.img -n 7 -i in.bin
expect 1 GPUNVME_ERR_NO_NAMESPACE
gpunvme read sim: -n 0 -o back.bin
expect 2 "--nsid"

promise "a namespace with metadata is refused"
gpunvme read sim:size=1M,metadata=8 -o back.bin
expect 1 GPUNVME_ERR_FORMAT

promise "a write-protected namespace is refused"
gpunvme write sim:image=disk.img,readonly -i in.bin
expect 1 GPUNVME_ERR_READONLY

promise "files that can't be used are told"
gpunvme write sim:image=disk.img -i nowhere.bin
expect 1 GPUNVME_ERR_NOT_FOUND
gpunvme write sim:image=disk.img -i .
expect 1 "is a directory"
gpunvme read sim:image=disk.img -o nowhere/back.bin
expect 1 GPUNVME_ERR_NOT_FOUND
gpunvme read sim:image=disk.img -o /dev/full
expect 1 GPUNVME_ERR_NOSPC

promise "an output that is the image itself is refused, by whatever name, and the image stays"
cp disk.img before.img
ln -s disk.img link.img
gpunvme read sim:image=disk.img -o disk.img
expect 1 "is the image of namespace 1"
gpunvme read sim:size=1M,ns=2,image=disk.img -n 1 -o link.img
expect 1 "is the image of namespace 2"
same disk.img before.img

promise "a reader that leaves is an error, not a signal"
timeout 300 "$program" read sim:size=64M 2>err | head -c 10 >/dev/null
code=${PIPESTATUS[0]}
expect 1 "Broken pipe"

promise "a standard stream that is closed fails, and no file takes its number"
timeout 300 "$program" write sim:image=disk.img <&- 2>err
code=$?
expect 1 "standard input"
timeout 300 "$program" read sim:image=disk.img >&- 2>err
code=$?
expect 1 "standard output"
cp disk.img oracle.img
dd if=in.bin of=oracle.img conv=notrunc status=none
timeout 300 "$program" write sim:image=disk.img -i in.bin <&- >&- 2>&-
code=$?
expect 0
same disk.img oracle.img

promise "nonsense options are usage errors that name the option"
gpunvme read sim: --offset -1 -o back.bin
expect 2 "--offset"
gpunvme read sim: --offset 1Q -o back.bin
expect 2 "unknown unit 'Q'"
gpunvme read sim: --depth 0 -o back.bin
expect 2 "--depth"
gpunvme read sim: --block-size 0 -o back.bin
expect 2 "--block-size"
gpunvme read sim: sim: -o back.bin
expect 2 "more than one URI"
gpunvme read sim: --json
expect 2 "--json"
gpunvme read sim:mqes=15 --depth 16 -o back.bin
expect 1 GPUNVME_ERR_LIMIT

promise "the results are JSON where that is asked for"
gpunvme write sim:image=disk.img -i in.bin --json
expect 0
expect_json
expect_out '"bytes": 3000001'
gpunvme read sim:image=disk.img --length 1000 -o back.bin --json
expect 0
expect_json
expect_out '"bytes": 1000,'

promise "bytes that will not last are told, unless --quiet"
gpunvme write sim:size=8M -i in.bin
expect 0 "keeps its bytes in memory"
gpunvme write sim:size=8M -i in.bin --quiet
expect 0
check test ! -s err

promise "the device comes from GPUNVME_URI where none is named"
export GPUNVME_URI=sim:image=disk.img
gpunvme read --length 5 -o back.bin
expect 0
same -n 5 back.bin disk.img
unset GPUNVME_URI
if [ "${CLI_TEST_USE_SIM:-0}" = 0 ]; then
    gpunvme read --length 5 -o back.bin
    expect 2 "GPUNVME_URI"
fi

promise "read, write and bench take every URI of a store"
gpunvme write new.bin -i in.bin
expect 0
same new.bin in.bin
gpunvme read "file:$PWD/new.bin?threads=2" --offset 5 --length 100000 -o back.bin
expect 0
same -n 100000 -i 5:0 new.bin back.bin
gpunvme write "sim:image=disk.img?chunk=4096" -i in.bin --offset 7
expect 0
gpunvme read "sim:image=disk.img?depth=4" --offset 7 --length 3000001 -o back.bin
expect 0
same back.bin in.bin
truncate -s 4M one.bin two.bin
gpunvme stripe create one.bin two.bin
cat in.bin | timeout 300 "$program" write "stripe:one.bin;two.bin" --offset 1000 -q
gpunvme read "stripe:two.bin;one.bin" --offset 1000 --length 3000001 -o back.bin
expect 0
same back.bin in.bin
for uri in new.bin "sim:size=4M?threads=2" "stripe:one.bin;two.bin"; do
    gpunvme bench "$uri" -c 100 -q --json
    expect 0
    expect_json
    expect_out '"commands": 100'
done
gpunvme bench "sim:size=4M?threads=2" -c 200 -q --verify --read-share 50 -Q 2
expect 0

promise "a file with data is not written to without --force"
gpunvme write new.bin -i in.bin --length 10
expect 1 "--force"
gpunvme bench new.bin --read-share 50 -c 10
expect 1 "--force"
same new.bin in.bin
gpunvme write new.bin -i in.bin --length 10 --force
expect 0

promise "what only controllers have is refused for stores, and the rest is told"
gpunvme write new.bin -i in.bin --fua --force
expect 1 "new.bin is a store"
gpunvme read new.bin -n 2 -o back.bin
expect 1 "?nsid="
gpunvme read new.bin -o new.bin
expect 1 "name another output"
same new.bin in.bin
gpunvme read nowhere.bin -o back.bin
expect 1 "nowhere.bin"
gpunvme read "sim:size=1M,fault=status=2/81:lba=100:read?chunk=4096" -o back.bin
expect 1 "of namespace 1"

finish

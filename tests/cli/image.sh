#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What an image file can do to the command: full disk, wrong size, in use, read-only, not there.
. "$(dirname "$0")/lib.sh"

truncate -s 64M disk.img
random_file in.bin 10000000

promise "an image that does not exist is told, and is made where a size is given"
gpunvme identify sim:image=new.img
expect 1 GPUNVME_ERR_NOT_FOUND
check test ! -e new.img
gpunvme identify sim:image=new.img,size=2M
expect 0
check test "$(stat -c %s new.img)" -eq $((2097152 + 4096))

promise "an error is told by its detail alone, with no general text behind it"
gpunvme identify sim:image=new.img,size=4M
check test "$(cat err)" = "gpunvme identify: image new.img: has 2097152 bytes, asked for 4194304 (GPUNVME_ERR_IMAGE_SIZE)"

promise "an image of another size is told"
gpunvme identify sim:image=disk.img,size=32M
expect 1 GPUNVME_ERR_IMAGE_SIZE
check test "$(stat -c %s disk.img)" -eq 67108864

promise "an image that is not whole blocks is told"
truncate -s 1000001 odd.img
gpunvme identify sim:image=odd.img
expect 1 "odd.img"
truncate -s 0 empty.img
gpunvme identify sim:image=empty.img
expect 1 "empty.img"

promise "an image in use by another process is told"
hold_image() {
    timeout 300 "$program" bench sim:image=disk.img -t 30s -q >/dev/null 2>&1 &
    other=$!
}
hold_image
for _ in $(seq 100); do
    sleep 0.1
    # Our own look at the image may have kept the other one from it.
    kill -0 $other 2>/dev/null || hold_image
    gpunvme identify sim:image=disk.img
    [ $code -eq 0 ] || break
done
expect 1 GPUNVME_ERR_BUSY
kill -TERM $other
wait $other
gpunvme identify sim:image=disk.img
expect 0

promise "a directory as an image is told"
gpunvme identify sim:image=.
check test $code -eq 1

promise "a full disk under the image ends the write with an error, and the image still works"
before=$(stat -c %s disk.img)
(
    ulimit -f 1024 # KiB: no write goes beyond the first MiB of any file
    # --force: what is on the image can't be looked at under such a limit.
    timeout 300 "$program" write sim:image=disk.img -i in.bin --force >out 2>err
)
code=$?
expect 1 "the file system under the image is full"
check test "$(stat -c %s disk.img)" -eq "$before"
gpunvme write sim:image=disk.img -i in.bin
expect 0
same -n 10000000 disk.img in.bin

promise "a full disk where an image is made is told, and no half image stays"
(
    ulimit -f 1024
    timeout 300 "$program" sim image half.img --size 4M >out 2>err
)
code=$?
expect 1 GPUNVME_ERR_NOSPC
check test ! -e half.img

promise "a full disk under quickstart is told, and nothing is left behind"
(
    ulimit -f 1024
    timeout 300 "$program" quickstart in.bin >out 2>err
)
code=$?
expect 1 GPUNVME_ERR_NOSPC
nothing_left

if [ "$(id -u)" -eq 0 ] && mkdir small && mount -t tmpfs -o size=4M tmpfs small 2>/dev/null; then
    trap 'umount "$work/small"; rm -rf "$work"' EXIT
    promise "a file system that is really full is told"
    truncate -s 64M small/disk.img
    gpunvme write sim:image=small/disk.img -i in.bin
    expect 1 "the file system under the image is full"
    TMPDIR=$work/small gpunvme quickstart
    expect 1 GPUNVME_ERR_NOSPC
else
    skip "no tmpfs can be mounted here: a full disk is tried by a limit on file sizes only"
fi

promise "a read-only image is read, and refused for writing"
chmod a-w disk.img
if [ "$(id -u)" -eq 0 ]; then # root is stopped by no mode: as somebody else
    chmod a+rx "$work"
    as_other="setpriv --reuid=65534 --regid=65534 --clear-groups"
else
    as_other=""
fi
if $as_other test -x "$program" 2>/dev/null; then
    $as_other timeout 300 "$program" identify sim:image=disk.img >out 2>err
    code=$?
    check test $code -eq 1
    check grep -qE 'GPUNVME_ERR_(READONLY|PERMISSION)' err
    $as_other timeout 300 "$program" read sim:image=disk.img,readonly --length 1000 2>err |
        cmp -n 1000 - disk.img || fail "a read-only image can't be read"
else
    skip "another user can't run the program here: no test of a read-only image"
fi

finish

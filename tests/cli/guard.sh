#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What holds a file system, a partition table or the like is not overwritten without --force.
. "$(dirname "$0")/lib.sh"
PATH=$PATH:/usr/sbin:/sbin
random_file in.bin 100000

promise "a file that is no image is not written to without --force, and is read"
make_valuables
for file in my.db my.tar my.safetensors; do
    cp "$file" before
    gpunvme write "sim:image=$file" -i in.bin --length 512
    expect 1 "holds data that gpunvme did not write"
    expect 1 "--force"
    gpunvme write "sim:image=$file" -i in.bin --length 512 --offset 4K --fua
    expect 1 "--force"
    gpunvme read "sim:image=$file" --length 8192 -o out.bin
    expect 0
    same -n 8192 out.bin before
    gpunvme identify "sim:image=$file"
    expect 0
    same "$file" before
    gpunvme write "sim:image=$file" -i in.bin --length 512 --force
    expect 0
    same -n 512 "$file" in.bin
    same -i 512 -n 60000 "$file" before
done

promise "a file that was forced is an image from then on"
gpunvme write sim:image=my.db -i in.bin --length 4K
expect 0
cp my.db copy.db
gpunvme write sim:image=copy.db -i in.bin --length 4K
expect 0

promise "the URI of an image can force it, too"
make_valuables
gpunvme write sim:image=my.db,force -i in.bin --length 512
expect 0

promise "a file that is zero in its first MiB becomes an image by the first write"
truncate -s 8M zero.img
gpunvme identify sim:image=zero.img
expect 0
check test "$(stat -c %s zero.img)" -eq 8388608
gpunvme write sim:image=zero.img -i in.bin
expect 0
gpunvme write sim:image=zero.img -i in.bin
expect 0
gpunvme identify sim:image=zero.img
expect_out '8 MiB \(8388608 bytes\)|8388608'

promise "an image from before there were marks needs --force once"
truncate -s 8M old.img
dd if=in.bin of=old.img conv=notrunc status=none
gpunvme write sim:image=old.img -i in.bin
expect 1 "--force"
gpunvme write sim:image=old.img -i in.bin --force
expect 0
gpunvme write sim:image=old.img -i in.bin
expect 0

if [ "${CLI_TEST_BLKID:-1}" != 1 ]; then
    promise "without libblkid image files are written to as before"
    truncate -s 8M disk.img
    gpunvme write sim:image=disk.img -i in.bin
    expect 0
    skip "the rest: built without libblkid"
    finish
fi

# refused URI IMAGE TEXT…: write, bench and quickstart refuse, name TEXT, and change nothing;
# with --force, write does its work.
refused() {
    local uri=$1 image=$2 text
    shift 2

    cp "$image" before.img
    for text in "$@"; do
        gpunvme write "$uri" -i in.bin --offset 1M
        expect 1 "$text"
        expect 1 "--force"
        gpunvme bench "$uri" --read-share 50 -c 10
        expect 1 "$text"
        expect 1 "--force"
        gpunvme quickstart in.bin --uri "$uri" --quiet
        expect 1 "$text"
        expect 1 "--force"
    done
    same "$image" before.img
    gpunvme write "$uri" -i in.bin --offset 1M --force
    expect 0
    same -n 100000 -i 1048576:0 "$image" in.bin
    # It is an image now, and what is on it still asks for --force.
    gpunvme write "$uri" -i in.bin --offset 1M
    expect 1 "$1"
}

promise "a namespace with nothing on it, or with a file, needs no --force"
truncate -s 8M disk.img
gpunvme write sim:image=disk.img -i in.bin
expect 0
gpunvme write sim:image=disk.img -i in.bin
expect 0
same -n 100000 disk.img in.bin

promise "reading needs no --force whatever is there"
truncate -s 16M swap.img
if command -v mkswap >mkswap.out; then
    mkswap -q -L spare swap.img
    gpunvme read sim:image=swap.img --length 4K -o out.bin
    expect 0
    gpunvme bench sim:image=swap.img -c 10
    expect 0
    refused sim:image=swap.img swap.img "swap" "spare"
else
    skip "swap: there is no mkswap"
fi

promise "ext4 is recognised, with its label"
if command -v mkfs.ext4 >mkfs.out; then
    truncate -s 32M ext4.img
    mkfs.ext4 -q -L precious ext4.img
    refused sim:image=ext4.img ext4.img 'ext4 file system "precious", UUID'
    promise "of several namespaces the one that is written to is looked at"
    mkfs.ext4 -q -F ext4.img
    gpunvme write sim:image=disk.img,ns=2,image=ext4.img -n 2 -i in.bin
    expect 1 "namespace 2 holds ext4"
    gpunvme write sim:image=disk.img,ns=2,image=ext4.img -n 1 -i in.bin
    expect 0
    promise "what can't be read is not written to, and --force does not look"
    gpunvme write sim:image=ext4.img,fault=status=2/81:lba=1:read -i in.bin --offset 1M
    expect 1 "nothing was written"
    gpunvme write sim:image=ext4.img,fault=status=2/81:lba=1:read -i in.bin --offset 1M --force
    expect 0
else
    skip "ext4: there is no mkfs.ext4"
fi

promise "FAT is recognised, and is no partition table"
if command -v mkfs.vfat >mkfs.out; then
    truncate -s 16M vfat.img
    mkfs.vfat -n CAMERA vfat.img >mkfs.out
    refused sim:image=vfat.img vfat.img 'vfat file system "CAMERA"'
else
    skip "FAT: there is no mkfs.vfat"
fi

promise "partition tables are recognised with the number of their partitions"
if command -v sfdisk >sfdisk.out; then
    truncate -s 64M gpt.img dos.img empty.img
    printf 'label: gpt\nsize=8M\nsize=8M\nsize=8M\n' | sfdisk -q gpt.img
    refused sim:image=gpt.img gpt.img "GPT with 3 partitions"
    printf 'label: dos\nsize=8M\n' | sfdisk -q dos.img
    refused sim:image=dos.img dos.img "MBR partition table with 1 partition"
    printf 'label: gpt\n' | sfdisk -q empty.img
    refused sim:image=empty.img empty.img "GPT with 0 partitions"
    promise "a GPT whose first copy is gone is recognised by its last"
    printf 'label: gpt\nsize=8M\nsize=8M\n' | sfdisk -q --wipe always gpt.img
    dd if=/dev/zero of=gpt.img bs=512 seek=1 count=1 conv=notrunc status=none
    refused sim:image=gpt.img gpt.img "GPT with 2 partitions"
    promise "blocks of 4096 bytes are taken as such"
    truncate -s 64M gpt4k.img
    printf 'g\nn\n\n\n+8M\nw\n' | fdisk -b 4096 gpt4k.img >fdisk.out 2>&1
    refused sim:image=gpt4k.img,block=4096 gpt4k.img "GPT with 1 partition"
else
    skip "partition tables: there is no sfdisk"
fi

promise "a huge namespace is looked at like a small one"
truncate -s 6T huge.img
gpunvme write sim:image=huge.img -i in.bin --offset 1T
expect 0

promise "bench and quickstart ask for --force even where nothing is known"
truncate -s 8M plain.img
gpunvme bench sim:image=plain.img --verify -c 10
expect 1 "holds nothing that is known"
expect 1 "--force"
gpunvme quickstart in.bin --uri sim:image=plain.img --quiet
expect 1 "--force"
finish

#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# gpunvme data: a data set is described, indexed, verified and loaded; what is wrong with it is told.
. "$(dirname "$0")/lib.sh"

random_file a.bin 100000
random_file b.bin 50000

promise "stat tells what a data set has"
gpunvme data stat a.bin b.bin --record 100
expect 0
expect_out 'data set +records, 2 files'
expect_out 'samples +1500, .*; each has 100 B'
gpunvme data stat a.bin --sequence 1000 --overlap 1 --json
expect 0
expect_json
expect_out '"format": "tokens"'
expect_out '"sample_bytes": 2002,'

promise "an index is written, and opened as the data set"
gpunvme data index a.bin b.bin --record 100 -o ab.gnvidx
expect 0
gpunvme data stat ab.gnvidx
expect 0
expect_out 'samples +1500'

promise "a shard is not replaced by its index"
cp a.bin a.before
gpunvme data index a.bin --record 100 -o a.bin
expect 1 'it is not replaced'
check cmp a.bin a.before

promise "a list of places is indexed, and a line that is wrong is told by its number"
printf '# the first two\na.bin\t300\t100\n./b.bin 0 7\n\na.bin\t0\t100\n' >samples.tsv
gpunvme data index --list samples.tsv -o list.gnvidx --json
expect 0
expect_json
expect_out '"format": "list"'
expect_out '"files": 2,'
gpunvme data verify list.gnvidx
expect 0
expect_out 'all 3 samples can be read: 207 B'
sum=$(grep checksum out)
gpunvme data verify --format list samples.tsv
check grep -qF -- "$sum" out
echo 'a.bin 99999 2' >>samples.tsv
gpunvme data index --list samples.tsv -o list.gnvidx
expect 1 'samples.tsv: line 6: a.bin: byte 99999'
gpunvme data index --list samples.tsv a.bin -o list.gnvidx
expect 1 'a list is opened alone'

promise "verify reads all samples, and tells the same checksum each time"
gpunvme data verify ab.gnvidx
expect 0
expect_out 'all 1500 samples can be read'
sum=$(grep checksum out)
gpunvme data verify a.bin b.bin --record 100
expect 0
check grep -qF -- "$sum" out

promise "a byte that changed changes the checksum, and a file that is not the one indexed is refused"
printf 'x%.0s' $(seq 100) | dd of=b.bin bs=1 seek=20000 conv=notrunc status=none
gpunvme data verify a.bin b.bin --record 100
expect 0
check test "$(grep checksum out)" != "$sum"
truncate -s 40000 b.bin
gpunvme data verify ab.gnvidx
expect 3 "b.bin"

promise "an index with checksums finds the sample that changed, where sizes and ends of files tell nothing"
random_file c.bin 100000
gpunvme data index c.bin --record 100 --checksums -o c.gnvidx
expect 0
gpunvme data stat c.gnvidx
expect_out 'in memory, with checksums'
gpunvme data stat c.gnvidx --json
expect 0
expect_json
expect_out '"has_checksums": true'
gpunvme data verify c.gnvidx
expect 0
expect_out 'have the checksums of the index'
gpunvme data bench c.gnvidx --batch 64 --time 50ms --memory host --verify
expect 0
printf 'x%.0s' $(seq 100) | dd of=c.bin bs=1 seek=50000 conv=notrunc status=none
gpunvme data verify c.gnvidx
expect 3 "sample 500: ./c.bin: byte 50000: its checksum is"
gpunvme data verify c.gnvidx --json
expect 3 "of 1000 samples 0 can't be read, and 1 have another checksum"
gpunvme data bench c.gnvidx --batch 64 --time 10s --memory host --verify
expect 3 "sample 500: ./c.bin"
gpunvme data bench a.bin --record 100 --batch 64 --time 50ms --memory host --verify
expect 1 "has no checksums"

promise "bench tells how fast batches are loaded"
gpunvme data bench a.bin --record 100 --batch 64 --time 100ms --memory host
expect 0
expect_out 'samples/s'
gpunvme data bench a.bin --record 100 --batch 64 --time 50ms --memory host --seed 7 --json
expect 0
expect_out '"seed": 7'
expect_out '"how": "'
expect_out '"not_faster": "'
gpunvme data bench a.bin --record 100 --seed -1
expect 2

promise "bench casts batches to the type that is asked for"
gpunvme data bench a.bin --record 100 --batch 64 --time 50ms --memory gpu --cast bf16
expect 0
expect_out 'cast +U8 to BF16: [0-9.]+ .*B made'
gpunvme data bench a.bin --sequence 100 --batch 10 --time 50ms --memory host --cast i64 --json
expect 0
expect_json
expect_out '"cast": "I64"'
made=$(sed -n 's/.*"cast_bytes": \([0-9]*\).*/\1/p' out)
loaded=$(sed -n 's/.*"bytes": \([0-9]*\).*/\1/p' out)
check test "$made" -gt 0 -a "$made" -eq $((4 * loaded))
gpunvme data bench c.gnvidx --time 50ms --cast f64
expect 2 'there are i32, i64, f16, bf16 and f32'
printf 'a.bin 0 3\na.bin 5 8\n' >two.tsv
gpunvme data bench two.tsv --format list --batch 2 --time 50ms --memory host --cast f32
expect 0

promise "what is wrong with the command line is told"
gpunvme data stat
expect 2
gpunvme data index a.bin --record 100
expect 2
gpunvme data stat a.bin --format cards
expect 2
gpunvme data stat a.bin --record 33
expect 1 "no whole record"
finish

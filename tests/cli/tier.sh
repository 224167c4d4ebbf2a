#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# gpunvme tier: a set is made, filled, looked at, migrated, checked and mended; bad input is told.
. "$(dirname "$0")/lib.sh"

tier() {
    local verb=$1
    shift
    gpunvme tier "$verb" --set hot "$@"
}

mkdir hot warm cold folder
random_file a.bin 1000000
random_file b.bin 300000

if [ "${CLI_TEST_SQLITE:-1}" != 1 ]; then
    promise "a build without SQLite says so"
    gpunvme tier create --hot hot --warm warm --cold cold
    expect 1 "SQLite"
    finish
fi

promise "a set that is not there is told"
tier status
expect 1 "hot"
gpunvme tier create --hot hot --warm warm --cold nowhere
expect 1 "nowhere"
gpunvme tier create --hot hot --warm hot/warm --cold cold
expect 1
gpunvme tier create --hot folder --warm folder --cold folder
expect 1
check test ! -e hot/.gpunvme-tiers

promise "bad settings are told"
gpunvme tier create --hot hot --warm warm --cold cold --hot-at 5 --warm-at 10
expect 1
gpunvme tier create --hot hot:0 --warm warm --cold cold
expect 2 "--hot=0"
gpunvme tier create --hot-at -1
expect 2 "score"
gpunvme tier create --half-life soon
expect 2 "--half-life"
gpunvme tier create folder
expect 2 "no arguments"
check test ! -e hot/.gpunvme-tiers

promise "a set is made of three directories, and takes the files that are in them"
mkdir cold/old
cp b.bin cold/old/b
gpunvme tier create --hot hot:2M --warm warm:1G --cold cold --half-life 1d --rate 100M
expect 0
expect_out '^tier '
expect_out '^hot +0 +0 B +2 MiB'
expect_out '^cold +1 +293 KiB'
expect_out 'half after 24 h'
expect_out '100 MiB/s'
gpunvme tier create --hot hot --warm warm --cold cold
expect 1
gpunvme tier status --set cold
expect 0

promise "what is put in comes out again, from any store and from standard input"
tier put a.bin in/a --tier hot
expect 0
expect_out 'hot tier'
tier get in/a -o a.out
expect 0
same a.bin a.out
tier put sim:size=1M drive.img --tier warm
expect 0
tier get drive.img -o drive.out
same drive.out <(head -c 1048576 /dev/zero)
"$program" tier put --set warm - from-stdin <b.bin >out 2>err
check test $? -eq 0
tier get from-stdin -o b.out
same b.bin b.out
"$program" tier get --set hot old/b >b.out 2>err
same b.bin b.out
nothing_left

promise "the files are ordinary files"
same a.bin hot/in/a

promise "a file is replaced as a whole"
tier put b.bin in/a
expect 0
tier get in/a -o a.out
same b.bin a.out

promise "files are listed by their prefix, and described"
tier ls
expect 0
expect_out '^cold .* old/b$'
expect_out '^4 files'
tier ls in/
expect_out '^1 files'
tier ls --json
expect_json
expect_out '"name": "drive.img"'
tier stat in/a
expect 0
expect_out 'size .*300000 bytes'
expect_out 'score +[1-9]'
tier stat in/a old/b --json
expect 0
expect_json
expect_out '"tier": "cold"'

promise "files are moved by name, pinned and set free"
tier migrate in/a --to warm --pin
expect 0
expect_out 'in/a: warm, pinned'
same b.bin warm/in/a
check test ! -e hot/in/a
tier stat in/a
expect_out 'tier +warm, pinned'
tier migrate
expect 0
same b.bin warm/in/a
tier migrate in/a
expect 0
expect_out 'in/a: cold'
same b.bin cold/in/a

promise "files move by how they are used"
for _ in $(seq 12); do
    tier get old/b -o b.out
done
tier migrate -v
expect 0
expect_out 'old/b: cold to warm'
expect_out '^moved [1-9]'
same b.bin warm/old/b
tier status
expect 0
expect_out '^hot .* [0-9.]+ %'

promise "settings are changed; a limit can be taken away"
tier configure --hot :1M --warm-at 2 --rate none
expect 0
expect_out '^hot +0 +0 B +1 MiB'
expect_out 'warm +.*from score 2'
check test "$(grep -c MiB/s out)" -eq 0
tier configure --hot :none
expect 0
expect_out '^hot +0 +0 B +- '
tier configure --hot :1M
expect 0

promise "a tier that is full is told, and nothing is changed"
random_file big.bin 2000000
tier put big.bin big --tier hot
expect 1 "GPUNVME_ERR_NOSPC"
tier get big -o big.out
expect 1 "GPUNVME_ERR_NOT_FOUND"
check test ! -e big.out
check test -z "$(find hot -name big)"

promise "bad names and tiers are told"
for name in ../a a/../../b /etc/passwd a//b '' .gpunvme-tiers/set "$(printf 'a\nb')"; do
    tier put a.bin "$name"
    expect 1 "GPUNVME_ERR_INVALID"
done
ln -s "$work/folder" cold/link
cp a.bin folder/a
tier put a.bin link/a --tier cold
expect 1 "GPUNVME_ERR_PERMISSION"
rm cold/link
tier put a.bin a --tier lukewarm
expect 2 "lukewarm"
tier get nowhere
expect 1 "nowhere"
tier put nowhere.bin a
expect 1 "nowhere.bin"
tier rm nowhere
expect 1 "GPUNVME_ERR_NOT_FOUND"
tier migrate --to hot
expect 2 "named"
tier migrate old/b --pin
expect 2 "--to"
tier get
expect 2 "NAME"
tier get old/b -o warm/old/b
expect 1 "name another output"
same b.bin warm/old/b

promise "a file that something else changed is refused until a scrub takes it as it is"
random_file warm/old/b 1234
tier get old/b -o b.out
expect 3 "GPUNVME_ERR_VERIFY"
cp a.bin cold/new
tier scrub
expect 0
expect_out '^changed +old/b'
expect_out '^new +new'
tier get old/b -o b.out
expect 0
same warm/old/b b.out
tier scrub --json
expect 0
expect_json
expect_out '"findings": \[\]'

promise "bytes that rotted are found by reading all, and told by the exit code"
tier migrate new --to warm
expect 0
cp -p warm/new kept
printf 'rot' | dd of=warm/new bs=1 seek=5000 conv=notrunc status=none
touch -r kept warm/new
tier scrub --read-all
expect 3 "checksum"
expect_out '^bad +new'
cp -p kept warm/new
tier scrub --read-all
expect 0

promise "a directory that is not there is told, and is no reason to forget files"
mv warm away
tier status
expect 1 "warm"
gpunvme tier configure --warm away
expect 0
expect_out 'warm +.*/away'
tier get new -o new.out
expect 0
mv away warm
gpunvme tier configure --warm warm
expect 0
tier get new -o new.out
expect 0
same a.bin new.out

promise "files are removed"
tier rm new old/b
expect 0
check test ! -e warm/new
tier ls old/
expect_out '^0 files'

promise "a daemon migrates until a signal comes, and says what it moved"
tier put a.bin served --tier cold
for _ in $(seq 12); do
    tier get served -o a.out
done
"$program" tier serve --set hot -v --interval 100ms >served.out 2>err &
server=$!
for _ in $(seq 600); do
    ! grep -q 'served: cold to warm' served.out && kill -0 $server 2>/dev/null || break
    sleep 0.1
done
kill -TERM $server
wait $server
check test $? -eq 0
check grep -q 'served: cold to warm' served.out
check grep -qE '^moved [1-9]' served.out
same a.bin warm/served

promise "status is shown again and again until a signal comes"
"$program" tier status --set hot --watch --interval 50ms >out 2>err &
watcher=$!
for _ in $(seq 600); do
    [ "$(grep -c access/s out)" -lt 2 ] && kill -0 $watcher 2>/dev/null || break
    sleep 0.1
done
kill -TERM $watcher
wait $watcher
check test $? -eq 0
check test "$(grep -c access/s out)" -ge 2

promise "a watch ends when nobody reads it"
timeout 60 "$program" tier status --set hot --watch --interval 50ms 2>err | head -n 1 >line
check test "${PIPESTATUS[0]}" -eq 1

promise "--watch --json prints a document a line, and ends likewise"
timeout 60 "$program" tier status --set hot --watch --json --interval 50ms 2>err |
    head -n 3 >lines
check test "${PIPESTATUS[0]}" -eq 1
check test "$(wc -l <lines)" -eq 3
while IFS= read -r line; do
    printf '%s\n' "$line" >out
    expect_json
    expect_out '^{"command": "tier status","seconds": [0-9].*"migrating": (true|false)}$'
done <lines

promise "the commands of docs/TIERS.md do what the page shows"
sed -n '/^## Ten minutes/,/^## In C/p' "$source_dir/docs/TIERS.md" |
    sed -n '/^```sh/,/^```$/p' | grep -v '^```' | sed "s|/tmp/t|$work/page|g" >page.sh
check test "$(wc -l <page.sh)" -gt 5
mkdir bin
ln -s "$program" bin/gpunvme
PATH=$work/bin:$PATH bash -eu page.sh >out 2>err
code=$?
expect 0
expect_out '^train/a: cold to warm'
expect_out '^warm .* train/a$'
expect_out '^cold .* train/b$'

promise "a catalogue that is damaged or gone is told, and made anew"
find hot/.gpunvme-tiers -name 'catalogue*' -exec sh -c 'head -c 100000 /dev/urandom >"$1"' _ {} \;
tier status
expect 3 "rebuild"
tier rebuild
expect 0
tier get served -o a.out
expect 0
same a.bin a.out
finish

#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# --json of every subcommand fits the schema that docs/JSON.md describes; of failures, too.
. "$(dirname "$0")/lib.sh"

python3 -c 'import jsonschema' 2>/dev/null || {
    echo "SKIP: there is no jsonschema for python3"
    exit 77
}
mkdir documents
ndocuments=0

# document CODE WORD…: runs the command with --json and keeps what it prints, with an "error" in it if
# CODE is not 0.
document() {
    local expected=$1
    shift
    gpunvme "$@" --json
    expect "$expected"
    ndocuments=$((ndocuments + 1))
    cp out "documents/$ndocuments.json"
    check test "$(grep -c '"error": {' out)" -eq $((expected != 0))
}

truncate -s 8M a.img b.img c.img
random_file in.bin 100000
make_weights two.safetensors
promise "every subcommand prints a document"
document 0 version
document 0 info
document 0 info --kernels sim:
document 0 identify sim:size=1M,ns=2,size=1M,block=4096
document 0 dump-bar0 sim:
document 0 dump-bar0 --up sim:
document 0 read sim:size=1M -o back.bin -q
document 0 write sim:size=1M -i in.bin -q
document 0 bench sim:size=1M -c 100 -q
document 0 bench sim:size=1M,profile=p5800x --verify --read-share 50 -c 100 -q
document 0 store --memory host --length 4K sim:size=1M
document 0 store in.bin
document 0 check-p2p sim:
document 0 sim profiles
document 0 sim image new.img --size 1M
document 0 sim image new.img --size 1M
document 0 sim check sim:image=a.img,ns=2,size=1M,fault=cfs
document 0 sim check sim:engine=gpu,gpu=1
document 0 stripe create a.img b.img
document 0 stripe show b.img a.img
document 0 quickstart in.bin -q
if [ "${CLI_TEST_JANSSON:-1}" = 1 ]; then
    document 0 weights ls two.safetensors
    document 0 weights load two.safetensors --checksum
    document 0 weights verify two.safetensors --manifest sums.json --write
    document 0 weights verify two.safetensors --manifest sums.json
    document 0 weights bench two.safetensors --rounds 1
    document 0 weights convert two.safetensors converted.safetensors --dtype bf16
fi
document 0 data stat in.bin --record 100
document 0 data index in.bin --record 100 -o in.gnvidx
document 0 data verify in.gnvidx
document 0 data bench in.gnvidx --memory host --time 100ms
document 0 data bench in.gnvidx --memory host --time 100ms --cast f32
if [ "${CLI_TEST_SQLITE:-1}" = 1 ]; then
    mkdir hot warm cold
    document 0 tier create --hot hot:1M --warm warm --cold cold
    document 0 tier put --set hot in.bin in
    document 0 tier status --set hot
    document 0 tier configure --set hot --rate 10M
    document 0 tier ls --set hot
    document 0 tier stat --set hot in
    document 0 tier get --set hot in -o back.bin
    document 0 tier migrate --set hot
    document 0 tier migrate --set hot --to cold in
    random_file hot/new 100
    document 0 tier scrub --set hot
    document 1 tier get --set hot nowhere -o back.bin
    document 0 tier rm --set hot in
    document 0 tier rebuild --set hot
fi
document 0 ops list
document 0 ops bench matmul --variant blocked --shape 40 --rounds 1
document 0 ops check --device cpu --variant blocked
gpunvme topology --json
[ "$code" -ne 0 ] || cp out documents/topology.json

promise "a device that serves prints what each controller did"
"$program" sim --listen "$work/socket" sim:size=1M --json >out 2>err &
server=$!
for _ in $(seq 600); do
    [ ! -S socket ] || break
    sleep 0.1
done
kill -TERM $server
wait $server
cp out documents/listen.json

if [ "${CLI_TEST_SQLITE:-1}" = 1 ]; then
    promise "a daemon that migrates prints what it moved"
    "$program" tier serve --set hot --json >out 2>err &
    server=$!
    for _ in $(seq 600); do
        ! "$program" tier status --set hot --json | grep -q '"migrating": true' &&
            kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    kill -TERM $server
    wait $server
    cp out documents/serve.json

    promise "a set that is watched has a document a line"
    "$program" tier status --set hot --watch --json --interval 50ms 2>err | head -n 1 \
        >documents/watch.json
fi

promise "a failure is a document with an error, beside what there is to tell"
document 1 identify sim:image=nowhere.img
check grep -q '"uri": "sim:image=nowhere.img"' out
document 1 stripe show a.img
document 1 bench sim:size=1M,fault=status=2/81:read:nth=10 -c 100 -q
document 1 read sim:size=1M,fault=status=2/81:read:nth=1 -o back.bin -q
document 1 write sim:image=in.bin -i in.bin -q
document 1 store nowhere.bin
check grep -q '"uri": "nowhere.bin"' out
document 1 check-p2p sim:size=1M,fault=status=2/81:read
document 1 weights ls nowhere.safetensors
document 1 data stat nowhere.bin

promise "each subcommand and verb of --help has a document"
gpunvme --help
for command in $(sed -n '/^Commands:/,/^$/s/^  \([a-z0-9-]*\) .*/\1/p' out); do
    [ "$command" != help ] && [ "$command" != topology ] || continue # a build without hwloc has none
    [ "$command" != weights ] || [ "${CLI_TEST_JANSSON:-1}" = 1 ] || continue
    gpunvme "$command" --help
    verbs=""
    if grep -q "^Usage: gpunvme $command VERB" out; then
        verbs=$(sed -n '1,/^Examples:/s/^  \([a-z][a-z-]*\)  .*/ \1/p' out)
    fi
    while IFS= read -r verb; do
        checks=$((checks + 1))
        grep -q "\"command\": \"$command$verb\"" documents/*.json ||
            fail "no document of: $command$verb"
    done <<<"$verbs"
done

promise "all documents fit the schema, and the schema has nothing that no document is of"
checks=$((checks + 1))
python3 "$source_dir/tests/cli/json_schema.py" "$source_dir/docs/gpunvme.schema.json" \
    documents/*.json >out 2>err || fail "a document does not fit"
finish

# SPDX-License-Identifier: BSD-3-Clause
#
# What the scripts of this folder share. A script is called with the program, a checker of JSON and
# the source directory, sources this file, states promises, and ends with `finish`:
#
#   promise "read gives back what write wrote"
#   gpunvme read sim: -o out.bin
#   expect 0
set -u
program=$(realpath "$1")
json_check=$(realpath "$2")
source_dir=$(realpath "$3")
unset GPUNVME_URI

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export TMPDIR=$work/tmp
mkdir "$TMPDIR"

promised="" failures=0 checks=0 code=0

promise() {
    promised=$1
}

fail() {
    failures=$((failures + 1))
    printf 'FAILED: %s\n        %s\n' "$promised" "$1"
    sed 's/^/        out: /' "$work/out" 2>/dev/null | head -20
    sed 's/^/        err: /' "$work/err" 2>/dev/null | head -20
}

check() {
    checks=$((checks + 1))
    "$@" || fail "$*"
}

# Runs the program: its output is in $work/out and $work/err, its exit code in $code. Nothing that
# is tested here takes as long as the limit; it is there so that a hang is a failure.
gpunvme() {
    timeout -k 5 900 "$program" "$@" >"$work/out" 2>"$work/err" </dev/null
    code=$?
}

# expect CODE [TEXT on stderr]
expect() {
    checks=$((checks + 1))
    [ "$code" -eq "$1" ] || fail "exit code $code, not $1"
    [ $# -lt 2 ] || grep -qF -- "$2" "$work/err" || fail "stderr lacks: $2"
}

expect_out() {
    checks=$((checks + 1))
    grep -qE -- "$1" "$work/out" || fail "stdout lacks: $1"
}

expect_json() {
    checks=$((checks + 1))
    "$json_check" <"$work/out" || fail "stdout is not JSON"
}

same() {
    checks=$((checks + 1))
    cmp "$@" || fail "differ: $*"
}

nothing_left() {
    checks=$((checks + 1))
    [ -z "$(ls -A "$TMPDIR")" ] || fail "left behind: $(ls -A "$TMPDIR")"
    rm -rf "${TMPDIR:?}"/*
}

# make_valuables: files that libblkid does not know, whose loss somebody would mind.
make_valuables() {
    # A page of SQLite: the header of the file format, and rows in it.
    {
        printf 'SQLite format 3\000\020\000\001\001\000\100\040\040'
        head -c 65512 /dev/urandom
    } >my.db
    random_file member 200000
    tar cf my.tar member
    {
        printf '\100\000\000\000\000\000\000\000%-64s' '{"w":{"dtype":"U8","shape":[65464],"data_offsets":[0,65464]}}'
        head -c 65464 /dev/urandom
    } >my.safetensors
}

# random_image FILE NBYTES: an image whose namespace is full of random bytes.
random_image() {
    rm -f "$1"
    "$program" sim image "$1" --size "$2" >/dev/null || fail "no image $1"
    head -c "$2" /dev/urandom | dd of="$1" bs=1M iflag=fullblock conv=notrunc status=none
}

random_file() {
    head -c "$2" /dev/urandom >"$1"
}

# make_weights FILE: a .safetensors file with two tensors, "a.weight" [4, 6] of F16 and "b" [16] of U8.
make_weights() {
    {
        printf '\252\000\000\000\000\000\000\000%-170s' '{"__metadata__":{"format":"pt"},"a.weight":{"dtype":"F16",
            "shape":[4,6],"data_offsets":[0,48]},"b":{"dtype":"U8","shape":[16],"data_offsets":[48,64]}}'
        printf '%064d' 7
    } >"$1"
}

# serve SOCKET... -- ARGUMENT...: starts `gpunvme sim` in the background and waits for its sockets.
serve() {
    local sockets=()
    while [ "$1" != -- ]; do
        sockets+=("$1")
        shift
    done
    shift
    "$program" sim "$@" >out 2>err &
    pid=$!
    for _ in $(seq 400); do
        local missing=0
        for socket in "${sockets[@]}"; do
            # A file that is there may be an old one: the process must hold a socket of this name.
            grep -q "$work/$socket\$" /proc/net/unix || missing=1
        done
        [ $missing = 0 ] && return
        sleep 0.05
    done
    fail "the sockets do not appear"
}

# Waits for the end of $pid; what is not gone after 20 s hangs. Its exit code is in $code.
end() {
    for _ in $(seq 400); do
        kill -0 $pid 2>/dev/null || break
        sleep 0.05
    done
    kill -KILL $pid 2>/dev/null
    wait $pid
    code=$?
}

# stop SIGNAL: ends what serve() started.
stop() {
    kill -"$1" $pid
    end
}

skip() {
    echo "SKIP: $1"
}

finish() {
    echo "$checks checks, $failures failed"
    [ "$failures" -eq 0 ] && [ "$checks" -gt 0 ]
    exit $?
}

#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Checks this tree on a machine with a GPU, without network and without installing anything:
# builds it with CUDA, runs all tests, brings a file into GPU memory with `gpunvme quickstart`,
# and runs the GPU's benchmarks. Every step is run, whatever becomes of the others; fails if any
# of them failed. Without a GPU it says so and does what is left.
#
#   scripts/gpu-check.sh              writes its logs and JSON to $OUT (build/gpu-out)
#   scripts/gpu-check.sh --pack DIR   unpacks Debian's liburing, cmocka and pkgconf into DIR, for
#                                     a machine that lacks them; needs apt-get, but not root
#
# Environment:
#   GPUNVME_DEPS_DIR            a folder that --pack has filled, taken along to this machine
#   GPUNVME_BUILD_DIR           where to build (build/gpu)
#   GPUNVME_CUDA_ARCHITECTURES  what to build for (90a)
#   GPUNVME_CHECK_SIZE          size of the file that is moved, as `gpunvme` has it (1G)
#   GPUNVME_CHECK_BENCH         benchmarks to run, a pattern ('gpu_*')
set -uo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
out=${OUT:-$root/build/gpu-out}
build=${GPUNVME_BUILD_DIR:-$root/build/gpu}
size=${GPUNVME_CHECK_SIZE:-1G}
jobs=$(nproc)
failed=()

die() {
    echo "gpu-check.sh: $*" >&2
    exit 1
}

pack() {
    local dir debs deb
    [ -n "$1" ] || die "--pack needs a folder"
    mkdir -p "$1" || die "$1: cannot be made"
    dir=$(cd "$1" && pwd)
    [ "$dir" != / ] || die "--pack: not into the root"
    debs=$(mktemp -d) || die "no temporary folder"
    # apt-get fetches as another user where it can, who must be able to write there
    chmod 777 "$debs"
    (cd "$debs" && apt-get download liburing-dev liburing2 libcmocka-dev libcmocka0 \
        pkgconf pkgconf-bin libpkgconf3) || die "apt-get download failed"
    for deb in "$debs"/*.deb; do
        dpkg -x "$deb" "$dir" || die "$deb cannot be unpacked"
    done
    rm -rf "$debs"
    echo "packed into $dir: set GPUNVME_DEPS_DIR to it on the other machine"
}

# Makes what --pack unpacked usable where it lies now: the .pc files name the folder /usr.
use_deps() {
    local deps lib pc
    deps=$(cd "$1" && pwd) || die "GPUNVME_DEPS_DIR: $1 is not there"
    lib=$(dirname "$(find "$deps/usr/lib" -name liburing.so | head -n 1)")
    [ -d "$lib/pkgconfig" ] || die "GPUNVME_DEPS_DIR: $1 was not filled by --pack"
    mkdir -p "$build/pkgconfig"
    for pc in "$lib"/pkgconfig/*.pc; do
        sed "s#/usr\b#$deps/usr#g" "$pc" >"$build/pkgconfig/${pc##*/}"
    done
    export PKG_CONFIG_PATH=$build/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    export LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    command -v pkg-config >/dev/null || export PATH=$PATH:$deps/usr/bin
}

need_tools() {
    local tool library
    for tool in cmake ninja pkg-config; do
        command -v $tool >/dev/null || die "$tool is missing (--pack takes pkg-config along)"
    done
    for library in liburing cmocka; do
        pkg-config --exists $library || die "$library is missing: install it, or run" \
            "'scripts/gpu-check.sh --pack DIR' elsewhere and set GPUNVME_DEPS_DIR to DIR here"
    done
}

# step NAME SECONDS LOG COMMAND…: runs it, shows how it went, remembers if it failed.
step() {
    local name=$1 seconds=$2 log=$3 start=$SECONDS status
    shift 3
    timeout -k 5 "$seconds" "$@" >>"$log" 2>&1
    status=$?
    if [ $status -eq 0 ]; then
        echo "ok      $name ($((SECONDS - start)) s)"
        return 0
    fi
    failed+=("$name")
    echo "FAILED  $name: exit status $status after $((SECONDS - start)) s; the end of $log:"
    tail -n 30 "$log"
    return 1
}

describe_machine() {
    uname -srm
    echo "$(nproc) processors"
    grep -E '^(MemTotal|HugePages_Total)' /proc/meminfo
    nvidia-smi -L 2>/dev/null || echo "nvidia-smi: finds no GPU"
    nvidia-smi --query-gpu=driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current \
        --format=csv,noheader 2>/dev/null
    cmake --version | head -n 1
    "${CC:-cc}" --version | head -n 1
    "$nvcc" --version | tail -n 1
}

build_all() {
    (cd "$root" && cmake --preset release -B "$build" -DGPUNVME_CUDA=ON \
        "-DGPUNVME_CUDA_ARCHITECTURES=${GPUNVME_CUDA_ARCHITECTURES:-90a}" -DGPUNVME_USE_SIM=ON \
        -DGPUNVME_WERROR=OFF) && cmake --build "$build" -j "$jobs"
}

# The GPU's memory checker on our own kernels. Errors that calls return are what tests ask for. What
# counts is its own summary: it makes streams wait for each other, which one of the tests forbids.
memcheck() {
    local program
    for program in "$build"/tests/gpu/test_gpu_*; do
        compute-sanitizer --tool memcheck --report-api-errors no "$program" | tee "$out/memcheck.tmp"
        grep -q 'ERROR SUMMARY: 0 errors' "$out/memcheck.tmp" || return 1
    done
    rm -f "$out/memcheck.tmp"
}

# Twice: once for people to read, once for programs; the bytes must have been checked by the GPU.
quickstart() {
    local gpunvme=$build/cli/gpunvme
    "$gpunvme" quickstart --size "$size" || return 1
    "$gpunvme" quickstart --size "$size" --json --quiet >"$out/quickstart.json" || return 1
    if [ "$gpu" = yes ] && ! grep -q '"checksum_by": *"gpu"' "$out/quickstart.json"; then
        echo "there is a GPU, but it did not verify the bytes"
        return 1
    fi
}

# Prints {"NAME": what that benchmark printed, …}; tables go to standard error.
benchmarks() {
    local program comma="" status=0
    printf '{'
    for program in "$build"/bench/${GPUNVME_CHECK_BENCH:-gpu_*}; do
        if [ -f "$program" ] && [ -x "$program" ]; then
            echo "== ${program##*/}" >&2
            printf '%s\n"%s": ' "$comma" "${program##*/}"
            "$program" || { status=1; printf 'null'; }
            comma=,
        fi
    done
    printf '\n}\n'
    return $status
}
benchmarks_to_file() { benchmarks >"$out/bench.json"; }

case ${1:-} in
    "") ;;
    --pack) pack "${2:-}"; exit ;;
    *) sed -n '4,20s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

mkdir -p "$out" "$build" || die "$out or $build cannot be made"
out=$(cd "$out" && pwd)
build=$(cd "$build" && pwd)
[ -z "${GPUNVME_DEPS_DIR:-}" ] || use_deps "$GPUNVME_DEPS_DIR"
need_tools
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
[ -x "$nvcc" ] || die "nvcc is neither on PATH nor in /usr/local/cuda/bin"
export CUDACXX=$nvcc out build size gpu jobs root
rm -f "$out"/{build,tests,memcheck,quickstart,bench}.log "$out"/{quickstart,bench}.json

describe_machine 2>&1 | tee "$out/build.log"

# `timeout` runs programs, not functions: those go to a shell of their own.
export -f build_all memcheck quickstart benchmarks benchmarks_to_file

if ! step build 300 "$out/build.log" bash -c build_all; then
    die "nothing to test without a build"
fi

step tests 400 "$out/tests.log" ctest --test-dir "$build" --output-on-failure --no-tests=error \
    -j "$((jobs > 4 ? jobs / 2 : 1))"
grep -E 'tests passed|\*\*\*Skipped' "$out/tests.log"
grep -h '^SKIP: ' "$build/Testing/Temporary/LastTest.log" | sort -u
gpu=yes
if grep -qE 'test_gpu_memory .*Skipped' "$out/tests.log"; then
    gpu=no
fi

if [ "$gpu" = yes ] && command -v compute-sanitizer >/dev/null; then
    step memcheck 180 "$out/memcheck.log" bash -c memcheck
fi
if [ -x "$build/cli/gpunvme" ]; then
    step quickstart 180 "$out/quickstart.log" bash -c quickstart && cat "$out/quickstart.log"
else
    failed+=(quickstart)
    echo "FAILED  quickstart: there is no $build/cli/gpunvme"
fi
step benchmarks 180 "$out/bench.log" bash -c benchmarks_to_file
cat "$out/bench.log"

echo
if [ ${#failed[@]} -gt 0 ]; then
    echo "gpu-check.sh: FAILED: ${failed[*]} (logs in $out)"
    exit 1
fi
if [ "$gpu" = yes ]; then
    echo "gpu-check.sh: all passed on the GPU (logs and JSON in $out)"
else
    echo "gpu-check.sh: all passed, but without a GPU (logs and JSON in $out)"
fi

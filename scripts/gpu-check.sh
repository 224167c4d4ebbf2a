#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Checks this tree on a machine with a GPU, without network and without installing anything:
# builds it with CUDA, runs all tests, those of stores among them, the GPU's own under
# compute-sanitizer as well, brings a file into GPU memory with `gpunvme quickstart` and by each of
# the ways that bench/store_ways.sh compares, and runs the GPU's benchmarks. Every step is run,
# whatever becomes of the others; fails if any of them failed. Without a GPU it says so and does
# what is left. All ends within ten minutes: what there is no time for has failed.
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
#   GPUNVME_CHECK_SECONDS       how long it may take (570)
#   GPUNVME_CHECK_RACECHECK     tests for compute-sanitizer's racecheck, with seconds for each
#                               ('test_gpu_memory:15 test_gpu_device:15')
#   GPUNVME_CHECK_OPS           variants of operators for compute-sanitizer's memcheck ('coarsened
#                               tensorcore hopper fused persistent'; all there are: naive tiled
#                               vectorized unfused atomic_free warp_reduced, too)
#   GPUNVME_CHECK_OPS_RACES     likewise for racecheck ('tiled coarsened tensorcore fused')
#
# Neither CUDA_MODULE_LOADING nor CUDA_DEVICE_MAX_CONNECTIONS is set here: tests and benchmarks that
# need them set them by themselves (docs/SIM.md, "Queues in GPU memory", says why), and what a user
# runs without them shall be run without them.
set -uo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
out=${OUT:-$root/build/gpu-out}
build=${GPUNVME_BUILD_DIR:-$root/build/gpu}
size=${GPUNVME_CHECK_SIZE:-1G}
seconds_in_all=${GPUNVME_CHECK_SECONDS:-570}
jobs=$(nproc)
failed=()

# With kernels of ours that meet nobody else's, or only for moments: 120 s at most. Left out are
#   test_gpu_engine, test_gpu_engine_host   the driver's kernel waits for the controller's, and the
#                                           sanitizer may let one run only when the other has ended
#   test_gpu_engine_protocol                likewise with the CPU as the driver, where it lets a
#                                           launch return only when the kernel has ended
#   test_gpu_litmus                         races by intent, of blocks that wait for each other
memcheck_tests=(test_gpu_memory:25 test_gpu_queue:15 test_gpu_api:40 test_gpu_device:40)
# racecheck sees shared memory only, which of these have the checksum and the kernel that freezes
# queues. 30 s at most.
read -ra racecheck_tests <<<"${GPUNVME_CHECK_RACECHECK:-test_gpu_memory:15 test_gpu_device:15}"

ops_variants=${GPUNVME_CHECK_OPS-coarsened tensorcore hopper fused persistent}
ops_racecheck=${GPUNVME_CHECK_OPS_RACES-tiled coarsened tensorcore fused}

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
    local name=$1 seconds=$2 log=$3 start=$SECONDS status left=$((seconds_in_all - SECONDS - 5))
    shift 3
    if ((left < 1)); then
        failed+=("$name")
        echo "FAILED  $name: not run, the ${seconds_in_all} s are over"
        return 1
    fi
    seconds=$((seconds < left ? seconds : left))
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

# sanitizer TOOL PROGRAM: a checker of the GPU's on our own kernels. Errors that calls return are
# what tests ask for. What counts is its own summary: under it streams may wait for each other,
# which some of the tests forbid.
sanitizer() {
    local log=$out/$1-$2.tmp good='RACECHECK SUMMARY: 0 hazards' options=() status
    if [ "$1" = memcheck ]; then
        good='ERROR SUMMARY: 0 errors' options=(--report-api-errors no)
    fi
    echo "== $1 $2"
    compute-sanitizer --tool "$1" ${options[@]+"${options[@]}"} "$build/tests/gpu/$2" 2>&1 |
        tee "$log"
    grep -q "$good" "$log"
    status=$?
    rm -f "$log"
    return $status
}

# sanitizers TOOL TEST:SECONDS…
sanitizers() {
    local tool=$1 test
    shift
    for test in "$@"; do
        step "$tool ${test%:*}" "${test#*:}" "$out/$tool.log" bash -c "sanitizer $tool ${test%:*}"
    done
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

# All that is measured of I/O issued by the GPU, once and quickly, and which goals it reached.
gpu_sweep() {
    "$root/bench/gpu_sweep.sh" --quick --out "$out/gpu_sweep.json" "$build" || return 1
    python3 "$root/bench/plot.py" --table "$out/gpu_sweep.json" || true
}
gpu_memory() { "$build/bench/gpu_memory" >"$out/gpu_memory.json"; }

# The ways of a file's and a drive's bytes into GPU memory, verified at each point.
store_ways() {
    "$root/bench/store_ways.sh" --quick "$build" >"$out/store_ways.json"
    local status=$?
    python3 "$root/bench/plot.py" --table "$out/store_ways.json" || true
    return $status
}

# Every operator's every variant against sums in f64; GPU variants once more under the sanitizers.
ops_check() { "$build/cli/gpunvme" ops check --json >"$out/ops_check.json"; }

# ops_sanitizer TOOL VARIANT: a checker on all operators' kernels of a name.
ops_sanitizer() {
    local log=$out/$1-ops-$2.tmp good='RACECHECK SUMMARY: 0 hazards' status
    [ "$1" = memcheck ] && good='ERROR SUMMARY: 0 errors'
    echo "== $1 ops $2"
    compute-sanitizer --tool "$1" "$build/cli/gpunvme" ops check --device cuda --variant "$2" 2>&1 |
        tee "$log"
    grep -q "$good" "$log"
    status=$?
    rm -f "$log"
    return $status
}

# ops_bench FILE OPERATOR DTYPE SHAPE…: a ladder beside cuBLASLt, for people and for programs.
ops_bench() {
    local file=$out/$1.json op=$2 dtype=$3 options=() shape
    shift 3
    for shape in "$@"; do
        options+=(--shape "$shape")
    done
    "$build/cli/gpunvme" ops bench "$op" --device cuda --dtype "$dtype" --rounds 15 --time 300ms \
        "${options[@]}" --json >"$file"
}

# The shapes that goals are set for.
ops_benches() {
    ops_bench ops_f32 matmul f32 4096 8192 && ops_bench ops_tf32 matmul tf32 4096 &&
        ops_bench ops_bf16 matmul bf16 2048 4096 8192 8192x16384x4096 4096x4096x4104 \
            4096x4096x4099 &&
        ops_bench ops_linear linear bf16 8192x16384x4096 4096
}

case ${1:-} in
    "") ;;
    --pack) pack "${2:-}"; exit ;;
    *) sed -n '4,30s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

mkdir -p "$out" "$build" || die "$out or $build cannot be made"
out=$(cd "$out" && pwd)
build=$(cd "$build" && pwd)
[ -z "${GPUNVME_DEPS_DIR:-}" ] || use_deps "$GPUNVME_DEPS_DIR"
need_tools
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
[ -x "$nvcc" ] || die "nvcc is neither on PATH nor in /usr/local/cuda/bin"
export CUDACXX=$nvcc out build size gpu jobs root
rm -f "$out"/{build,tests,memcheck,racecheck,quickstart,gpu_memory,store_ways,gpu_sweep,ops}.log \
    "$out"/*.tmp "$out"/ops_*.json "$out"/{quickstart,gpu_memory,store_ways,gpu_sweep}.json

describe_machine 2>&1 | tee "$out/build.log"

# `timeout` runs programs, not functions: those go to a shell of their own.
export -f build_all sanitizer quickstart gpu_memory store_ways gpu_sweep ops_check ops_sanitizer \
    ops_bench ops_benches

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
    sanitizers memcheck "${memcheck_tests[@]}"
    sanitizers racecheck "${racecheck_tests[@]}"
    for variant in $ops_variants; do
        step "memcheck ops $variant" 30 "$out/memcheck.log" bash -c "ops_sanitizer memcheck $variant"
    done
    for variant in $ops_racecheck; do
        step "racecheck ops $variant" 30 "$out/racecheck.log" \
            bash -c "ops_sanitizer racecheck $variant"
    done
fi
if [ -x "$build/cli/gpunvme" ]; then
    step quickstart 180 "$out/quickstart.log" bash -c quickstart && cat "$out/quickstart.log"
else
    failed+=(quickstart)
    echo "FAILED  quickstart: there is no $build/cli/gpunvme"
fi
step gpu_memory 60 "$out/gpu_memory.log" bash -c gpu_memory
cat "$out/gpu_memory.log"
step store_ways 60 "$out/store_ways.log" bash -c store_ways
cat "$out/store_ways.log"
if [ "$gpu" = yes ]; then
    step gpu_sweep 150 "$out/gpu_sweep.log" bash -c gpu_sweep
    cat "$out/gpu_sweep.log"
    step ops_check 60 "$out/ops.log" bash -c ops_check
    step ops_bench 200 "$out/ops.log" bash -c ops_benches
fi

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

#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Checks this tree on a machine with a GPU, without network and without installing anything: what
# is not built yet is built, or comes packed from elsewhere. In parts, each with a budget of
# seconds, so that short visits to such a machine will do:
#
#   tests     every test that uses a GPU, those that are for it first; what failed
#             once more, alone                                                           240 s
#   sanitize  the GPU's tests and operators under memcheck and racecheck: every variant that
#             'gpunvme ops list' has, the last rungs of each ladder first                300 s
#   queues    I/O issued by the GPU: bench/gpu_sweep.sh, gpu_errors, gpu_ab.sh           420 s
#   storage   files into GPU memory: gpu_memory, gpu_copy_batch, store_files.py, loader_rate.sh,
#             store_rate.sh, disk_vs_fio.py, store_ways.sh, `gpunvme quickstart`         420 s
#   ops       each variant of the operators checked, then timed beside cuBLASLt          480 s
#   python    the Python package, with PyTorch's operators where torch is: its tests, and
#             what it costs over C                                                       300 s
#
#   scripts/gpu-check.sh [--seconds N] [PART[:SECONDS]…]    all of them, if none is named
#   scripts/gpu-check.sh --pack DIR [--built BUILD-DIR] [--python SITE] [--cufile pip|WHEEL|LIBRARY]
#
# Every step has a limit, and ends with its part's budget; what it measured until then is kept, and
# the other steps run all the same. Without a GPU it says so and does what is left. At the end come
# what failed, the figures beside their goals, what could not be run and why. The exit code is 1 if
# a step failed or was cut off; a goal that was missed is no failure. $OUT (build/gpu-out) gets
# PART.tar.gz, written anew after each step, and summary.txt.
#
# --pack unpacks Debian's liburing, jansson, SQLite, cmocka and pkgconf into DIR, for a machine that lacks
# them; it needs apt-get, but not root. --built adds the programs of a build, so that nothing is
# built there: that machine's C library must not be older than the one here. --python adds the
# package from a folder that `pip install --target SITE ./python` has filled. --cufile adds
# libcufile, which "pip" fetches.
#
# Environment:
#   GPUNVME_DEPS_DIR            a folder that --pack has filled, taken along to this machine
#   GPUNVME_BUILD_DIR           where to build or unpack (build/gpu)
#   GPUNVME_CUDA_ARCHITECTURES  what to build for (90a)
#   GPUNVME_CUFILE_LIBRARY      libcufile, if it is not packed
#   GPUNVME_CHECK_UDEV=1        gives the disk of /tmp, for the time being, the entry in
#                               /run/udev/data that libcufile wants (needs root)
#   GPUNVME_CHECK_SIZE          bytes that quickstart moves (1G), and
#   GPUNVME_CHECK_STORE_SIZE    of the files of store_rate.sh (4G), and
#   GPUNVME_CHECK_FILES_SIZE    of those of store_files.py (8G)
#   GPUNVME_CHECK_TEST_SECONDS  the most that a test may take (75)
#   GPUNVME_CHECK_OPS_SECONDS   and the check of a variant of the operators (25)
#   GPUNVME_CHECK_GRACE         seconds that what is cut off has to end by itself (5)
#   GPUNVME_CHECK_SECTIONS      of bench/gpu_sweep.sh ('all': all but errors, which has a step)
#   GPUNVME_CHECK_AB            builds that gpu_ab.sh compares with the plain one ('all' that are
#                               there, in build/gpu/ab/NAME/bench)
#   GPUNVME_CHECK_AB_ROUNDS     how often at most (9)
#   GPUNVME_CHECK_RACECHECK     tests for racecheck ('test_gpu_memory test_gpu_device')
#   GPUNVME_CHECK_OPS           variants of operators for memcheck (all), and
#   GPUNVME_CHECK_OPS_RACES     for racecheck (all)
#   GPUNVME_CHECK_BENCH         options of `gpunvme ops bench` ('--rounds 15 --time 300ms')
#
# Neither CUDA_MODULE_LOADING nor CUDA_DEVICE_MAX_CONNECTIONS is set here: tests and benchmarks that
# need them set them by themselves (docs/SIM.md, "Queues in GPU memory", says why), and what a user
# runs without them shall be run without them.
# shellcheck disable=SC2317 # functions that steps call
set -uo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
out=${OUT:-$root/build/gpu-out}
base=${GPUNVME_BUILD_DIR:-$root/build/gpu}
size=${GPUNVME_CHECK_SIZE:-1G}
store_size=${GPUNVME_CHECK_STORE_SIZE:-4G}
files_size=${GPUNVME_CHECK_FILES_SIZE:-8G}
test_seconds=${GPUNVME_CHECK_TEST_SECONDS:-75}
grace=${GPUNVME_CHECK_GRACE:-5}
sections=${GPUNVME_CHECK_SECTIONS:-one_queue,tier1,latency,writes,queues,drives,little,reapers,ceiling}
jobs=$(nproc)
declare -A budgets=([tests]=240 [sanitize]=300 [queues]=420 [storage]=420 [ops]=480 [python]=300)

# With kernels of ours that meet nobody else's, or only for moments. Left out are
#   test_gpu_engine, test_gpu_engine_host   the driver's kernel waits for the controller's, and the
#                                           sanitizer may let one run only when the other has ended
#   test_gpu_engine_protocol                likewise with the CPU as the driver, where it lets a
#                                           launch return only when the kernel has ended
#   test_gpu_litmus                         races by intent, of blocks that wait for each other
# and by GPUNVME_TEST_SANITIZER, in test_gpu_device and test_gpu_memory, what needs two things at a
# time.
memcheck_tests=(test_gpu_memory test_gpu_queue test_gpu_api test_gpu_device)
# racecheck sees shared memory only, which of these have the checksum and the kernel that freezes
# queues.
read -ra racecheck_tests <<<"${GPUNVME_CHECK_RACECHECK-test_gpu_memory test_gpu_device}"

die() {
    echo "gpu-check.sh: $*" >&2
    exit 1
}
# shellcheck source=scripts/gpu-pack.sh
. "$root/scripts/gpu-pack.sh"

usage() {
    sed -n '4,/GPUNVME_CHECK_BENCH/p' "$0" | sed 's/^# \{0,1\}//'
    exit 2
}

# --- steps ----------------------------------------------------------------------------------------

# step NAME SECONDS COMMAND…: runs it, shows in a line how it went, and notes it in steps.tsv. Its
# log is NAME.log. Exit code 77 says that this machine can't do it, a line "SKIP: " why.
step() {
    local name=$1 limit=$2 start=$SECONDS rc how why="" log left=$((part_end - SECONDS))
    log=$dir/${name//[^A-Za-z0-9_.]/_}.log
    shift 2
    limit=$((limit < left ? limit : left))
    # (timeout 0 is none.)
    if ((left < 3 || limit < 1)); then
        note_step "$name" late 0 "" "there was no time left for it"
        return 1
    fi
    # It runs programs, not functions: those go to a shell of their own.
    # shellcheck disable=SC2016 # expanded by the inner shell
    bash -c 'echo $$ >"$0" && exec timeout -k "$@"' "$log.group" "$grace" "$limit" \
        bash -c '"$@"' - "$@" >"$log" 2>&1 </dev/null
    rc=$?
    end_group "$log.group" "$rc"
    case $rc in
        0) how=ok ;;
        77) how=skipped why=$(sed -n 's/^SKIP: //p' "$log" | head -n 1) ;;
        124|137) how=cut why="cut off after $((SECONDS - start)) s" ;;
        *) how=failed why="exit code $rc" ;;
    esac
    note_step "$name" "$how" $((SECONDS - start)) "${log##*/}" "$why"
    return "$rc"
}

# end_group FILE RC: ends what a step has left behind in its group, whose number FILE has. timeout
# returns as soon as its own child has ended; a program that catches SIGTERM and waits for a kernel
# would stay for good, and keep the GPU.
end_group() {
    local group left=$((grace * 10))
    group=$(cat "$1" 2>/dev/null)
    rm -f "$1"
    [ -n "$group" ] || return
    (($2 == 124)) || left=0
    while ((left-- > 0)) && kill -0 -- "-$group" 2>/dev/null; do
        sleep 0.1
    done
    kill -KILL -- "-$group" 2>/dev/null
}

note_step() { # NAME HOW SECONDS LOG WHY
    local why=${5//[$'\t\n']/ }
    printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" "$why" >>"$dir/steps.tsv"
    printf '%-8s %-8s %s%s (%s s)\n' "$2" "$part" "$1" "${why:+: $why}" "$3"
    keep
}

# cannot NAME WHY: what this machine lacks.
cannot() { note_step "$1" skipped 0 "" "$2"; }

# Whatever becomes of this script, what there is so far lies in $out. Lanes take turns.
keep() {
    (
        flock 9
        # 1: another lane wrote to a file meanwhile
        tar -C "$work" -czf "$out/$part.new" "$part" 2>/dev/null
        (($? < 2)) && mv "$out/$part.new" "$out/$part.tar.gz"
    ) 9>"$work/lock"
}

# --- machine and build ----------------------------------------------------------------------------

describe_machine() {
    local query=driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current
    uname -srm
    echo "$(nproc) processors"
    grep -E '^(MemTotal|HugePages_Total)' /proc/meminfo
    timeout 30 nvidia-smi -L 2>/dev/null || echo "nvidia-smi: finds no GPU"
    timeout 30 nvidia-smi --format=csv,noheader --query-gpu="$query" 2>/dev/null
    df -h /tmp /dev/shm | sed 1d
    if [ -f "$build/commit" ]; then
        echo "programs: packed, of commit $(cat "$build/commit")"
    else
        echo "programs: built here; $("${CC:-cc}" --version | head -n 1)"
    fi
}

build_all() {
    (cd "$root" && cmake --preset release -B "$build" -DGPUNVME_CUDA=ON \
        "-DGPUNVME_CUDA_ARCHITECTURES=${GPUNVME_CUDA_ARCHITECTURES:-90a}" -DGPUNVME_USE_SIM=ON \
        -DGPUNVME_WERROR=OFF) && cmake --build "$build" -j "$jobs"
}

# A packed build is unpacked, else one is made; sets $build.
prepare_build() {
    local deps="" tool library nvcc
    if [ -n "${GPUNVME_DEPS_DIR:-}" ]; then
        deps=$(cd "$GPUNVME_DEPS_DIR" && pwd) || die "GPUNVME_DEPS_DIR: no $GPUNVME_DEPS_DIR"
        cufile=$deps/cufile/libcufile.so.0
        [ -e "$cufile" ] || cufile=""
    fi
    cufile=${GPUNVME_CUFILE_LIBRARY:-${cufile:-}}
    unset GPUNVME_CUFILE_LIBRARY
    [ -z "$deps" ] || use_fio "$deps" "$base"
    if [ -n "$deps" ] && [ -e "$deps/built.tar.xz" ]; then
        build=$base/packed
        unpack_build "$deps" "$build" "$root"
        return
    fi
    build=$base
    mkdir -p "$build"
    [ -z "$deps" ] || use_debs "$deps" "$build"
    for tool in cmake ninja pkg-config; do
        command -v $tool >/dev/null || die "$tool is missing (--pack takes pkg-config along)"
    done
    for library in liburing cmocka; do
        pkg-config --exists $library || die "$library is missing: install it, or run" \
            "'scripts/gpu-check.sh --pack DIR' elsewhere and set GPUNVME_DEPS_DIR to DIR here"
    done
    nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    [ -x "$nvcc" ] || die "nvcc is neither on PATH nor in /usr/local/cuda/bin"
    export CUDACXX=$nvcc
    build_all >"$work/build.log" 2>&1 || {
        tail -n 30 "$work/build.log"
        die "nothing to test without a build: $work/build.log"
    }
}

# Whether there is a GPU, and why not, by a program of ours.
look_for_gpu() {
    why_no_gpu=$(timeout 60 "$build/bench/gpu_io" drives=0 2>&1)
    if [ $? -eq 77 ]; then
        gpu=no why_no_gpu=${why_no_gpu#SKIP: }
    else
        gpu=yes
    fi
}

# The entry of udev's that libcufile looks for, where there is none and one is asked for.
udev_entry() {
    local id entry
    id=$(stat -c '%Hd:%Ld' /tmp 2>/dev/null)
    entry=/run/udev/data/b$id
    if [ "${GPUNVME_CHECK_UDEV:-}" != 1 ] || [ -e "$entry" ] || [ ! -e "/sys/dev/block/$id" ]; then
        return
    fi
    mkdir -p /run/udev/data
    # shellcheck disable=SC2064 # of now
    printf 'I:1\nE:ID_FS_TYPE=%s\nE:ID_FS_USAGE=filesystem\n' \
        "$(df --output=fstype /tmp | tail -n 1)" >"$entry" &&
        trap "rm -f '$entry'" EXIT
}

# needs_gpu NAME: true, or says that NAME can't be run.
needs_gpu() {
    [ "$gpu" = yes ] || { cannot "$1" "$why_no_gpu"; return 1; }
}

# --- tests ----------------------------------------------------------------------------------------

# ctest's lists once more in $work/ctest, with no more than $test_seconds for a test.
list_tests() {
    local file
    rm -rf "$work/ctest"
    (cd "$build" && find . -path ./packed -prune -o -path ./check -prune -o \
        -name CTestTestfile.cmake -print) | while read -r file; do
        mkdir -p "$work/ctest/${file%/*}"
        awk -v most="$test_seconds" '{
            if (match($0, /TIMEOUT "[0-9]+"/) && substr($0, RSTART + 9, RLENGTH - 10) + 0 > most)
                $0 = substr($0, 1, RSTART + 8) most substr($0, RSTART + RLENGTH - 1)
            print
        }' "$build/$file" >"$work/ctest/$file"
    done
}

# run_tests OPTION…: without those that need a build, a virtual machine or stand in for a GPU, and
# without $left_out.
run_tests() {
    local without='_emulated$|^test_gpu_check$|^installed_|^guest_|^test_qtest_|^fuzz_|^spdk_that_'
    without+='|^python|^first_steps_' # packages are fetched there; part_python has the package
    ctest --test-dir "$work/ctest" --output-on-failure --no-tests=error \
        -E "$without${left_out:+|$left_out}" "$@"
}

# What is the same with a GPU as without: specifications, parsers, queues and the controller in host
# memory, threads that stand in for a GPU's. A test that is not named here is run.
no_gpu_tests='^nvme_h_|^readme_|^cli_(hist|json|ops|errors_doc|bind|faults|guard|help|image|interrupt'
no_gpu_tests+='|listen|sim)|^test_(queue|dev_queue|prp|error|nvme_spec|status|guard|units|params|iova'
no_gpu_tests+='|irq|pci|vfio$|vfio_user|store_uri|store_ways|crew|cufile_api|spdk_address|nvme_slot'
no_gpu_tests+='|posix_gate|litmus|config|model|fault|image|write_cache|sim_|engine'
no_gpu_tests+='|device_(api|deadlines|lanes|threads|page)|signature|serve|ops_(arguments|dtype|tiles'
no_gpu_tests+='|matmul$|linear$)|plot|ways|gpu_ab)'

# All at once as far as they allow it (tests/gpu/CMakeLists.txt); a test that does not end gets no
# more time than $test_seconds.
part_tests() {
    local again left_out=""
    list_tests
    cufile_settings
    step gpu $((part_seconds * 7 / 10)) run_tests -L gpu -j "$jobs"
    keep_test_logs gpu
    again=$(failed_tests)
    [ "$gpu" = no ] || left_out=$no_gpu_tests
    export left_out
    step others "$part_seconds" run_tests -LE gpu -j "$jobs"
    keep_test_logs others
    export -n left_out
    again+=" $(failed_tests)"
    again=$(tr -s ' \n' '|' <<<"$again" | sed 's/^|//; s/|$//')
    if [ -n "$again" ]; then
        step again_alone "$part_seconds" run_tests -R "^($again)\$"
        keep_test_logs again_alone
    fi
    unset GPUNVME_CUFILE_LIBRARY CUFILE_ENV_PATH_JSON
}

keep_test_logs() { # STEP
    local logs=$work/ctest/Testing/Temporary log
    log=$logs/LastTest.log
    # ctest gives it its name at its end: one that was stopped has not.
    [ ! -e "$log.tmp" ] || mv "$log.tmp" "$log"
    [ ! -e "$log" ] || gzip -c "$log" >"$dir/$1.full.log.gz"
    sed -n 's/^SKIP: //p' "$log" 2>/dev/null | sort | uniq -c | sort -rn >"$dir/$1.skips"
    rm -f "$log"
    last_failed=$logs/LastTestsFailed.log
    keep
}
failed_tests() {
    cut -d: -f2 "$last_failed" 2>/dev/null
    rm -f "$last_failed"
}

# --- sanitize -------------------------------------------------------------------------------------

# sanitizer TOOL COMMAND…: a checker of the GPU's on our own kernels. Errors that calls return are
# what tests ask for. What counts is its own summary: under it streams may wait for each other,
# which some of the tests forbid.
sanitizer() {
    local tool=$1 log options=() good='RACECHECK SUMMARY: 0 hazards' rc
    shift
    if [ "$tool" = memcheck ]; then
        good='ERROR SUMMARY: 0 errors' options=(--report-api-errors no)
    fi
    log=$(mktemp)
    GPUNVME_TEST_SANITIZER=1 compute-sanitizer --tool "$tool" ${options[@]+"${options[@]}"} "$@" \
        2>&1 | tee "$log"
    if grep -q 'Device not supported' "$log"; then
        echo "SKIP: compute-sanitizer refuses this device"
        rc=77
    else
        grep -q "$good" "$log"
        rc=$?
    fi
    rm -f "$log"
    return "$rc"
}

# The variants that run on this GPU, each once: those that are last in a ladder first, for they do
# the most with shared memory and asynchronous copies, and are what "auto" takes.
last_rungs_first() { # FILE
    python3 -c 'import json, sys
from_the_end = {}
for op in json.load(sys.stdin)["operators"].values():
    rungs = [v["name"] for v in op if v["device"] == "cuda" and v["available"]]
    for i, name in enumerate(reversed(rungs)):
        from_the_end[name] = min(i, from_the_end.get(name, i))
print(*sorted(from_the_end, key=from_the_end.get), sep="\n")' <"$1"
}

# Four lanes: each of these programs leaves the GPU idle most of the time.
part_sanitize() {
    local all=() ops_variants ops_racecheck
    needs_gpu "memcheck and racecheck" || return
    command -v compute-sanitizer >/dev/null || {
        cannot "memcheck and racecheck" "compute-sanitizer is not installed"
        return
    }
    step list 60 to "$dir/list.json" "$build/cli/gpunvme" ops list --json
    mapfile -t all < <(last_rungs_first "$dir/list.json")
    read -ra ops_variants <<<"${GPUNVME_CHECK_OPS-${all[*]}}"
    read -ra ops_racecheck <<<"${GPUNVME_CHECK_OPS_RACES-${all[*]}}"
    (for name in "${memcheck_tests[@]}"; do
        step "memcheck $name" 90 sanitizer memcheck "$build/tests/gpu/$name"
    done) &
    (for name in ${ops_variants[@]+"${ops_variants[@]}"}; do
        step "memcheck ops $name" 60 sanitizer memcheck \
            "$build/cli/gpunvme" ops check --device cuda --variant "$name"
    done) &
    (for name in ${racecheck_tests[@]+"${racecheck_tests[@]}"}; do
        step "racecheck $name" 60 sanitizer racecheck "$build/tests/gpu/$name"
    done) &
    (for name in ${ops_racecheck[@]+"${ops_racecheck[@]}"}; do
        step "racecheck ops $name" 60 sanitizer racecheck \
            "$build/cli/gpunvme" ops check --device cuda --variant "$name"
    done) &
    wait
}

# --- queues ---------------------------------------------------------------------------------------

# to FILE COMMAND…: what it prints, line by line, so that it is there if it does not end.
to() {
    local file=$1
    shift
    stdbuf -oL "$@" >"$file"
}

part_queues() {
    local ab=("$build") name left only=()
    needs_gpu "I/O issued by the GPU" || return
    if [ "$sections" = all ]; then
        sections=threads,one_queue,ways,tier1,latency,writes,blocks,queues,drives,little,reapers,ceiling
    fi
    step sweep $((part_seconds * 4 / 10)) "$root/bench/gpu_sweep.sh" --only "$sections" \
        --out "$dir/gpu_sweep.json" "$build"
    left=$((part_end - SECONDS))
    left=$((left > 230 ? 110 : left > 20 ? left / 2 - 5 : 5))
    step errors $((left + 20)) to "$dir/gpu_errors.json" \
        "$build/bench/gpu_errors" commands=1000000000 launches=50 seconds=$left
    for name in "$build"/ab/*; do
        [ -x "$name/bench/gpu_io" ] || continue
        [[ ${GPUNVME_CHECK_AB-all} != all && " $GPUNVME_CHECK_AB " != *" ${name##*/} "* ]] ||
            ab+=("$name")
    done
    left=$((part_end - SECONDS))
    # It begins nothing after these seconds; what runs then may take 30 s, but takes one.
    ((left > 20)) && only=(--seconds $((left - 15)) --rounds "${GPUNVME_CHECK_AB_ROUNDS:-9}")
    step ab $left "$root/bench/gpu_ab.sh" ${only[@]+"${only[@]}"} --out "$dir/gpu_ab.json" "${ab[@]}"
    [ ${#ab[@]} -gt 1 ] || cannot "other builds of dev_queue.h" \
        "there is no other build in $build/ab"
}

# --- storage --------------------------------------------------------------------------------------

# pythons NAME: a library among Python's packages, as PyTorch brings them.
pythons() {
    python3 -c 'import glob, sys
print(next((f for p in sys.path for f in glob.glob(p + "/nvidia/*/lib/" + sys.argv[1])), ""))' "$1"
}

# libcufile's settings, and where it is.
cufile_settings() {
    local folder=$dir/cufile
    [ -n "$cufile" ] || cufile=$(pythons libcufile.so.0)
    if [ -z "$cufile" ]; then
        cannot "libcufile" "none was taken along: --pack DIR --cufile pip, or GPUNVME_CUFILE_LIBRARY"
        return
    fi
    mkdir -p "$folder"
    printf '{"logging": {"dir": "%s", "level": "ERROR"}, "properties": {"allow_compat_mode": true}}\n' \
        "$folder" >"$folder/cufile.json"
    export CUFILE_ENV_PATH_JSON=$folder/cufile.json GPUNVME_CUFILE_LIBRARY=$cufile
    grep -q '^nvidia_fs ' /proc/modules 2>/dev/null ||
        cannot "cuFile's direct way" "the module nvidia-fs is not loaded: compat mode only"
}

quickstart() {
    "$build/cli/gpunvme" quickstart --size "$size" --json --quiet >"$dir/quickstart.json" || return 1
    cat "$dir/quickstart.json"
    if [ "$gpu" = yes ] && ! grep -q '"checksum_by": *"gpu"' "$dir/quickstart.json"; then
        echo "there is a GPU, but it did not verify the bytes"
        return 1
    fi
}

part_storage() {
    local left
    cufile_settings
    step gpu_memory 40 to "$dir/gpu_memory.json" "$build/bench/gpu_memory"
    step gpu_copy_batch 60 to "$dir/gpu_copy_batch.json" \
        "$build/bench/gpu_copy_batch" 5
    step quickstart 40 quickstart
    if needs_gpu store_rate; then
        step store_files 150 "$root/bench/store_files.py" --size "$files_size" \
            --seconds $((part_seconds / 3)) --out "$dir/store_files.json" "$build"
        step loader_rate 90 to "$dir/loader_rate.json" "$root/bench/loader_rate.sh" "$build"
        left=$((part_end - SECONDS - 120))
        step store_rate $((left + 10)) "$root/bench/store_rate.sh" "$build" "$dir/store_rate" gpu \
            "$store_size" $((left > 5 ? left : 5))
        step disk_vs_fio 90 "$root/bench/disk_vs_fio.py" --size "$store_size" --seconds 45 \
            --out "$dir/disk_vs_fio.json" "$build"
    fi
    step store_ways 45 to "$dir/store_ways.json" "$root/bench/store_ways.sh" --quick "$build" 1G
    unset GPUNVME_CUFILE_LIBRARY CUFILE_ENV_PATH_JSON
}

# --- ops ------------------------------------------------------------------------------------------

# The variants that run on this GPU, each once.
list_variants() { # FILE
    python3 -c 'import json, sys
seen = []
for op in json.load(sys.stdin)["operators"].values():
    for v in op:
        if v["device"] == "cuda" and v["name"] not in seen:
            if v["available"]:
                seen.append(v["name"])
print(*seen, sep="\n")' <"$1"
}

# PyTorch's cuBLASLt, else what the loader or CUDA's folder has.
find_cublaslt() {
    local file
    [ -z "${GPUNVME_CUBLASLT:-}" ] || return 0
    file=$(pythons 'libcublasLt.so.*')
    if [ -z "$file" ]; then
        ldconfig_knows libcublasLt.so.13 || ldconfig_knows libcublasLt.so.12 && return 0
        file=$(find /usr/local/cuda*/lib64 -name 'libcublasLt.so.1[23]' 2>/dev/null | head -n 1)
    fi
    if [ -n "$file" ]; then
        export GPUNVME_CUBLASLT=$file
    else
        cannot "beside cuBLASLt" "there is no libcublasLt.so.13 or .12: GPUNVME_CUBLASLT can name it"
    fi
}

# ops_bench FILE WHAT…: a ladder beside cuBLASLt; as a table in the log, where plot.py knows it.
ops_bench() {
    local file=$1 options rc
    shift
    read -ra options <<<"${GPUNVME_CHECK_BENCH:---rounds 15 --time 300ms}"
    "$build/cli/gpunvme" ops bench "$@" --device cuda "${options[@]}" --json >"$file"
    rc=$?
    python3 "$root/bench/plot.py" --table "$file" 2>/dev/null
    return "$rc"
}

# One variant alone: it may not be for this operator or type, which is no failure.
ops_bench_one() {
    local said rc
    said=$(ops_bench "$@" 2>&1)
    rc=$?
    echo "$said"
    [[ $rc != 0 && $said =~ GPUNVME_OPS_ERR_(VARIANT|DTYPE|UNSUPPORTED|DEVICE|ALIGN) ]] || return "$rc"
    echo "SKIP: ${said##*$'\n'}"
    return 77
}

# ladder OPERATOR DTYPE SHAPE…, with the options of more=(): all variants together but those that do
# not end (bad); where nothing comes of it, one after the other.
ladder() {
    local op=$1 dtype=$2 shape name variant rc faulty="" without
    shift 2
    for shape in "$@"; do
        name=${op}_${dtype}_$shape${more[*]+${more[*]//-/_}}
        name=${name//[ \/]/_}
        without=$bad$faulty
        without=${without% }
        step "$name" 40 ops_bench "$dir/$name.json" "$op" --dtype "$dtype" --shape "$shape" \
            ${without:+--without "${without// /,}"} ${more[@]+"${more[@]}"}
        ! grep -qs '"variants"' "$dir/$name.json" || continue
        for variant in "${variants[@]}"; do
            if [[ " $bad$faulty" == *" $variant "* ]] || ((part_end - SECONDS < 3)); then
                continue
            fi
            step "$name $variant" 25 ops_bench_one "$dir/${name}_$variant.json" \
                "$op" --dtype "$dtype" --shape "$shape" --variant "$variant" \
                ${more[@]+"${more[@]}"}
            rc=$?
            # Once is enough: of what does not end everywhere, of what faults for this type.
            case $rc in
                0|3|77) ;;
                124|137) bad+="$variant " ;;
                *) faulty+="$variant " ;;
            esac
        done
    done
}

part_ops() {
    local variant rc bad="" variants=() more=()
    needs_gpu "operators on the GPU" || return
    step list 60 to "$dir/list.json" "$build/cli/gpunvme" ops list --json
    mapfile -t variants < <(list_variants "$dir/list.json")
    for variant in ${variants[@]+"${variants[@]}"}; do
        # So long only if a kernel does not end.
        step "check $variant" "${GPUNVME_CHECK_OPS_SECONDS:-25}" to "$dir/check_$variant.json" \
            "$build/cli/gpunvme" ops check --json --device cuda --variant "$variant"
        rc=$?
        # The bench itself tells what is wrong, and ends at once at a fault.
        ((rc != 124 && rc != 137)) || bad+="$variant "
    done
    [ ${#variants[@]} -gt 0 ] || { cannot "operators on the GPU" "no variant is for it"; return; }
    find_cublaslt
    # The shapes that goals are set for.
    ladder matmul f32 4096 8192
    ladder matmul tf32 4096
    ladder matmul bf16 2048 4096 8192 8192x16384x4096 4096x4096x4104 4096x4096x4099
    ladder linear-forward bf16 8192x16384x4096 4096
    ladder linear-backward bf16 8192x16384x4096 4096
    if "$build/cli/gpunvme" ops bench --help 2>&1 | grep -q -e --no-preact; then
        more=(--no-preact)
        ladder linear-forward bf16 8192x16384x4096 4096
    fi
    more=(--batch 8 --heads 16)
    ladder attention bf16 2048x2048x128
    ladder attention-backward bf16 2048x2048x128
    more=(--batch 2 --heads 16 --causal)
    ladder attention bf16 8192x8192x128
    more=(--batch 32 --heads 32/8)
    ladder attention-paged bf16 1x4096x128
    ladder kv-append bf16 1x4096x128
    more=(--batch 32 --heads 128/1 --values 512 --page 64)
    ladder attention-paged bf16 1x8192x576
    more=()
    ladder moe-forward bf16 4096x4096x2048
    ladder moe-backward bf16 4096x4096x2048
    # What memory limits, beside a copy of as many bytes.
    more=()
    ladder norm-forward bf16 16384x4096x1 16384x4096x2
    ladder norm-backward bf16 16384x4096x1 16384x4096x2
    ladder cross-entropy bf16 2048x50304x1 4096x128256x1
    ladder adamw bf16 64x1024x1024
    ladder grad-norm bf16 64x1024x1024
    ladder embedding-forward bf16 16384x50304x4096
    ladder embedding-backward bf16 16384x50304x4096
    ladder swiglu-forward bf16 8192x14336x1
    ladder swiglu-backward bf16 8192x14336x1
    ladder rope bf16 16384x32x128
    more=(--kind layer)
    ladder norm-forward bf16 16384x4096x1
    ladder norm-backward bf16 16384x4096x1
}

# --- Python ---------------------------------------------------------------------------------------

# Into a folder of its own, with what this machine's Python has: nothing is fetched.
python_install() {
    local torch=OFF python packed=${GPUNVME_DEPS_DIR:-}/python.tar.xz
    if [ -e "$packed" ]; then
        mkdir -p "$work/python/site" && tar -C "$work/python/site" -xJf "$packed"
        return
    fi
    python=$(command -v python3) || { echo "SKIP: there is no python3"; return 77; }
    "$python" -c 'import numpy, pip, scikit_build_core' 2>/dev/null || {
        echo "SKIP: $python lacks numpy, pip or scikit-build-core"
        return 77
    }
    ! "$python" -c 'import torch' 2>/dev/null || torch=ON
    "$python" -m pip install --quiet --no-build-isolation --no-deps --no-index --upgrade \
        --target "$work/python/site" -C build-dir="$work/python-build" \
        -C "cmake.define.GPUNVME_CUDA_ARCHITECTURES=${GPUNVME_CUDA_ARCHITECTURES:-90a}" \
        -C cmake.define.GPUNVME_TORCH=$torch -C "cmake.define.GPUNVME_TORCH_PYTHON=$python" \
        "$root/python"
}

python_tests() {
    python3 -c 'import pytest, hypothesis' 2>/dev/null || {
        echo "SKIP: python3 lacks pytest or hypothesis"
        return 77
    }
    local parallel=()
    ! python3 -c 'import xdist' 2>/dev/null || parallel=(-n "$((jobs < 8 ? jobs : 8))")
    cd "$work/python" && PYTHONPATH=$work/python/site PYTHONDONTWRITEBYTECODE=1 \
        HYPOTHESIS_STORAGE_DIRECTORY=$work/python/hypothesis \
        python3 -m pytest -v -rs -p no:cacheprovider ${parallel[@]+"${parallel[@]}"} --rootdir "$root/tests/python" \
        "$root/tests/python"
}

part_python() {
    needs_gpu "Python on the GPU" || return
    step install 200 python_install || return
    step pytest 200 python_tests
    step cost 60 to "$dir/python_cost.json" env PYTHONPATH="$work/python/site" \
        python3 "$root/bench/python_cost.py"
    step torch_cost 100 to "$dir/torch_cost.json" env PYTHONPATH="$work/python/site" \
        python3 "$root/bench/torch_cost.py"
    step loader_peers 150 env PYTHONPATH="$work/python/site" python3 "$root/bench/loader_peers.py" \
        --size 1G --runs 3 --seconds 1.5 --json "$dir/loader_peers.json"
}

# --------------------------------------------------------------------------------------------------

parts=() pack_dir="" pack_built="" pack_python="" pack_cufile="" all_seconds=""
while (($#)); do
    case $1 in
        --pack) pack_dir=${2:-} && shift; [ -n "$pack_dir" ] || die "--pack needs a folder" ;;
        --built) pack_built=${2:-} && shift ;;
        --python) pack_python=${2:-} && shift ;;
        --cufile) pack_cufile=${2:-} && shift ;;
        --seconds) all_seconds=${2:-} && shift ;;
        -*) usage ;;
        *)
            [ -n "${budgets[${1%%:*}]:-}" ] || die "no part ${1%%:*}: ${!budgets[*]}"
            [[ $1 != *:* || ${1#*:} =~ ^[1-9][0-9]*$ ]] || die "$1: ${1#*:} is no number of seconds"
            parts+=("$1")
            ;;
    esac
    shift
done
if [ -n "$pack_dir" ]; then
    pack "$pack_dir" "$pack_built" "$pack_python" "$pack_cufile"
    exit
fi
[[ -z $all_seconds || $all_seconds =~ ^[1-9][0-9]*$ ]] || die "--seconds: $all_seconds is no number"
((${#parts[@]})) || parts=(tests sanitize queues storage ops python)

PATH=$PATH:/usr/local/cuda/bin # compute-sanitizer
work=$base/check
mkdir -p "$out" "$work" || die "$out or $work cannot be made"
out=$(cd "$out" && pwd) base=$(cd "$base" && pwd) work=$base/check
cufile=""
prepare_build
look_for_gpu
udev_entry
describe_machine | tee "$work/machine.txt"

export -f run_tests sanitizer to quickstart ops_bench ops_bench_one python_install python_tests
export build root work size gpu jobs cufile
for part in "${parts[@]}"; do
    part_seconds=${all_seconds:-${budgets[${part%%:*}]}}
    [[ $part != *:* ]] || part_seconds=${part#*:}
    part=${part%%:*}
    dir=$work/$part part_start=$SECONDS part_end=$((SECONDS + part_seconds))
    export dir
    rm -rf "$dir"
    mkdir -p "$dir"
    cp "$work/machine.txt" "$dir"
    : >"$dir/steps.tsv"
    case $part in
        tests) part_tests ;;
        sanitize) part_sanitize ;;
        queues) part_queues ;;
        storage) part_storage ;;
        ops) part_ops ;;
        python) part_python ;;
    esac
    echo "$((SECONDS - part_start)) $part_seconds" >"$dir/seconds"
    keep
done
gpus=$(grep -c '^GPU' "$work/machine.txt")
((gpus > 1)) || echo "a second GPU (there is ${gpus/#0/no GPU}): nothing between two was run" \
    >"$work/lacking"
python3 "$root/scripts/gpu-check-summary.py" "$work" "$out" "${parts[@]%%:*}" | tee "$out/summary.txt"
exit "${PIPESTATUS[0]}"

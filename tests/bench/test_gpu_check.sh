#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# scripts/gpu-check.sh with programs that only pretend: what was packed is what runs elsewhere, what
# fails or does not end is named and nothing after it is lost, and what cannot be run is told.
# Needs ctest, python3 and xz; no GPU.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
for tool in ctest python3 xz flock; do
    command -v $tool >/dev/null || { echo "SKIP: no $tool"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OUT=$work/out GPUNVME_BUILD_DIR=$work/gpu TMPDIR=$work
unset GPUNVME_DEPS_DIR GPUNVME_CUFILE_LIBRARY

fail() {
    echo "not so: $*" >&2
    cat "$work/said" >&2
    exit 1
}
says() { grep -qE "$1" "$work/said" || fail "it says $1"; }

# check ARGUMENTS…: the check, and what it says; its exit code is in rc.
check() {
    rc=0
    GPUNVME_DEPS_DIR=$work/deps "$root/scripts/gpu-check.sh" "$@" >"$work/said" 2>&1 || rc=$?
}

# program PATH: its lines come on standard input.
program() {
    mkdir -p "$(dirname "$work/built/$1")"
    { echo "#!/usr/bin/env bash"; cat; } >"$work/built/$1"
    chmod +x "$work/built/$1"
}

# --- a build, with a GPU until the file no_gpu is there ---
mkdir -p "$work/built" "$work/bin"
printf '#!/bin/sh\n' >"$work/bin/apt-get"
chmod +x "$work/bin/apt-get"
cp "$(type -P true)" "$work/bin/fio" # the real one takes a minute to pack
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$root" >"$work/built/CMakeCache.txt"
program bench/gpu_io <<EOF
[[ ! -e $work/no_gpu ]] || { echo "SKIP: no GPU: it was taken out"; exit 77; }
[[ \$1 != drives=0 ]] || exit 2
echo '{"rows": [{"uri": "sim:engine=gpu", "threads": 4096, "lanes": 32, "drives": 16, "queues": 8, "gather": 8,
    "way": "ours", "op": "read", "block": 512, "errors": 0, "violations": 0, "wrong": 0,
    "iops": {"median": 7e7, "min": 6e7, "max": 8e7}}'
printf '\n]}\n'
EOF
mkdir -p "$work/built/ab/other"
cp -r "$work/built/bench" "$work/built/ab/other"
for folder in bench ab/other/bench; do
    program $folder/gpu_latency <<<'[[ $* != *label=model* ]] || { echo "{\"a\": [{\"b"; exit 1; }; echo "{}"'
done
program bench/gpu_engine_ceiling <<<'echo "{}"'
program bench/gpu_errors <<EOF
echo "\$*" >$work/errors
echo '{"commands": 5e8, "good": true}'
EOF
for name in gpu_memory gpu_copy_batch; do
    program bench/$name <<<'echo "{}"'
done
program bench/store_files <<'EOF'
[ "$2" != make ] || exit 0
echo '{"gb_per_s": 49, "transfers_per_s": 3e6, "cpu_s_per_gb": 0.1}'
EOF
program bench/store_rate <<'EOF'
[[ $* != *rate*--cold*64K* ]] || { echo '{"results": ['; exit 1; }
echo '{"results": [
    {"uri": "file:/x", "gb_per_s": {"median": 41}, "requests_per_s": 10, "cpu_s_per_gb": {"median": 1}},
    {"uri": "file:/x?chunk=1M", "gb_per_s": {"median": 42}, "requests_per_s": 2, "cpu_s_per_gb":
        {"median": 1}, "verified": true}
]}'
EOF
program bench/store_ways <<'EOF'
echo '{"gpu": "x", "ways": [{"way": "cufile", "uri": "", "works": false, "why": "no libcufile"}],
 "points": ['
echo ' ]}'
EOF
program tests/works <<<'exit 0'
program tests/lacks <<<'echo "SKIP: no such thing"; exit 77'
program tests/hangs <<<'sleep 100'
program tests/fails <<'EOF'
echo "[  ERROR   ] 1 != 2"
echo "some more"
exit 1
EOF
program cli/gpunvme <<'EOF'
out_of_time() { # by what timeout(1) takes for it
    local group
    read -r _ _ _ _ group _ </proc/$$/stat
    kill -ALRM "$group"
    while sleep 0.2; do :; done
}
case "$*" in
    quickstart*) echo '{"checksum_by": "gpu"}' ;;
    "ops list"*) echo '{"operators": {"matmul": [{"name": "good", "device": "cuda", "available": true},
        {"name": "hung", "device": "cuda", "available": true},
        {"name": "stuck", "device": "cuda", "available": true},
        {"name": "good", "device": "cpu", "available": true},
        {"name": "absent", "device": "cuda", "available": false}]}}' ;;
    "ops check"*hung) echo '{"checks": [{"operator": "matmul", "variant": "hung", "dtype": "f32",
        "right": true},'
        echo $$ >"$TMPDIR/hung"
        trap "" TERM
        out_of_time ;;
    "ops check"*stuck) echo '{"checks": []}'; exit 3 ;;
    "ops check"*) echo '{"checks": []}' ;;
    "ops bench"*"--variant stuck"*) out_of_time ;;
    "ops bench attention "*)
        echo '{"tables": [{"operator": "attention", "dtype": "bf16", "m": 8, "n": 9, "k": 4, "causal": true,
        "variants": [{"variant": "plain", "gflops": 2e3}, {"variant": "failed"}, {"variant": "good", "gflops": 5e5}]}]}' ;;
    "ops bench linear-forward"*) echo "gpunvme: not this type (GPUNVME_OPS_ERR_DTYPE)" >&2; exit 1 ;;
    "ops bench linear"*) echo "gpunvme: good: an illegal memory access" >&2; exit 1 ;;
    "ops bench"*"--variant good"*|"ops bench"*"--without hung,stuck"*)
        echo '{"tables": [{"operator": "matmul", "dtype": "bf16", "m": 1, "n": 2, "k": 3,
        "variants": [{"variant": "wrong", "right": false, "seconds": 0.1, "to_cublaslt": 5},
        {"variant": "failed", "to_cublaslt": null}, {"variant": "good", "seconds": 1, "gflops": 5e5, "to_cublaslt": 0.9}]}]}' ;;
    "ops bench"*--help*) ;;
    "ops bench"*) out_of_time ;;
esac
EOF
program tests/test_prp <<<'exit 1'
for name in works lacks hangs fails test_prp; do
    label=unit limit=600
    [[ $name != hangs ]] || label=gpu limit=1
    echo "add_test($name \"$work/built/tests/$name\")"
    echo "set_tests_properties($name PROPERTIES LABELS $label TIMEOUT \"$limit\" SKIP_RETURN_CODE 77)"
done >"$work/built/CTestTestfile.cmake"

PATH=$work/bin:$PATH "$root/scripts/gpu-check.sh" --pack "$work/deps" --built "$work/built" \
    >"$work/said" 2>&1 || fail "it packs"
[[ -s $work/deps/built.tar.xz ]] || fail "the programs are packed"
rm -rf "$work/built"

# --- with a GPU ---
# Only what is to be cut off has little time, so that a busy machine changes nothing.
export GPUNVME_CHECK_TEST_SECONDS=90 GPUNVME_CHECK_OPS_SECONDS=90 GPUNVME_CHECK_GRACE=1
check tests ops
((rc == 1)) || fail "what failed is told by the exit code"
[[ $(grep -oh 'TIMEOUT "[0-9]*"' "$GPUNVME_BUILD_DIR/check/ctest/CTestTestfile.cmake" | sort -u |
    tr '\n' ' ') == 'TIMEOUT "1" TIMEOUT "90" ' ]] || fail "no test takes longer than is said"
! kill -0 "$(cat "$work/hung")" 2>/dev/null || fail "what catches SIGTERM is ended all the same"
says '^failed +tests +gpu'
says '^  hangs: Timeout; alone, too'
says '^  fails: Failed; alone, too'
says '^      \[  ERROR   \] 1 != 2'
says '^  1 tests or parts of them: no such thing'
! grep -q test_prp "$work/said" || fail "tests that do not touch a GPU are left out"
says '^ok +ops +check good'
says '^  ops, check hung: cut off after'
says '^cut +ops +matmul_f32_4096: '
says '^ok +ops +matmul_f32_4096 good'
says '^ok +ops +matmul_bf16_4096x4096x4099 '
says '^  NO  matmul bf16 1 x 2 x 3, good / cuBLASLt: 0\.9, 500 TFLOP/s \(goal 0\.97\)'
says '^ok +ops +attention_bf16_2048x2048x128__batch_8___heads_16 '
says '^      attention bf16 8 x 9 x 4 causal: plain 2, good 500 TFLOP/s'
says '^  NO  results that are wrong: matmul wrong bf16'
says '^skipped +ops +linear-forward_bf16_4096 good: gpunvme: not this type'
says '^failed +ops +linear-backward_bf16_8192x16384x4096 good: exit code 1'
(($(grep -c '^cut .*stuck' "$work/said") == 1)) || fail "what does not end is tried once"
! grep -q 'absent' "$work/said" || fail "what this GPU lacks is not tried"
! grep -qE ' ops +matmul.* hung' "$work/said" || fail "nor is what does not end, again"
sed -n '/^tests: /,$p' "$work/said" | cmp - "$OUT/summary.txt" || fail "the end is the summary"
(($(wc -l <"$OUT/summary.txt") <= 60)) || fail "the summary is short"
tar -xzOf "$OUT/ops.tar.gz" ops/check_hung.json | grep -q '"right": true' ||
    fail "what there was before it was cut off is kept"

# A checker that finds nothing, and notes what it checks.
cat >"$work/bin/compute-sanitizer" <<EOF
#!/usr/bin/env bash
echo "\$*" >>$work/sanitized
echo "ERROR SUMMARY: 0 errors"
echo "RACECHECK SUMMARY: 0 hazards displayed"
EOF
chmod +x "$work/bin/compute-sanitizer"
PATH=$work/bin:$PATH check sanitize
((rc == 0)) || fail "what finds nothing is good"
for name in stuck hung good; do
    says "^ok +sanitize +memcheck ops $name"
    says "^ok +sanitize +racecheck ops $name"
done
[[ $(grep -o 'memcheck.*--variant .*' "$work/sanitized" | grep -o '[a-z]*$' | tr '\n' ' ') == 'stuck hung good ' ]] ||
    fail "the last rungs are checked first"
GPUNVME_CHECK_OPS="good" GPUNVME_CHECK_OPS_RACES="" PATH=$work/bin:$PATH check sanitize
! grep -q 'ops stuck' "$work/said" || fail "only the variants that are named"

export GPUNVME_CHECK_AB_ROUNDS=1
check queues:300 storage:300
((rc == 1)) || fail "a question without a whole answer is a failure"
says '^failed +queues +sweep: exit code 1'
says '^      fastest of 1 to n drives: 70 M/s with 16' # though one before it is cut
says '^ok +queues +errors'
says '^ok +queues +ab'
grep -q '^commands=1000000000 .*seconds=110$' "$work/errors" || fail "the errors' time is told"
says '^  yes 512-byte reads/s, 4096 threads \(ab\): 70 M \(goal 62 M\)'
says '^      other: rates beside the plain build.s, [0-9]+ points: x 1\.000'
says '^  NO  reads with errors among them: 500 M'
says '^failed +storage +store_rate: exit code 1'
says '^  yes tmpfs to GPU: 41, 1 CPU s/GB; best 42, chunk=1M \(goal 40\)'
says '^  store_ways, cufile: no libcufile'
says "^  (libcufile|cuFile's direct way): " # the machine's Python may have one

# --- its time ---
check --seconds 1 tests
((rc == 1)) || fail "no time is a failure"
says 'there was no time left for it'
check storage:40
says '^late +storage +store_rate: there was no time left for it'
says '^ok +storage +quickstart'
check tests:x
((rc == 1)) || fail "a number of seconds"
check nothing
((rc == 1)) || fail "a part that there is not"
check --help
((rc == 2)) || fail "help"

# --- without a GPU ---
touch "$work/no_gpu"
check sanitize queues ops
((rc == 0)) || fail "what can't be run is no failure"
says '^  I/O issued by the GPU: no GPU: it was taken out'
says '^gpu-check.sh: all passed that was run'
echo "all so"

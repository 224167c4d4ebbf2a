#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# gpunvme ops bench on a GPU that is none (fake_gpu.c): what is done with one is, times are not.
. "$(dirname "$0")/lib.sh"

# Not the machine's: without a GPU it only fails, in its own ways.
export GPUNVME_CUBLASLT=${CLI_TEST_CUBLASLT:-/nowhere/libcublasLt.so}

bench() {
    gpunvme ops bench --device cuda --rounds 3 --time 50ms "$@"
}

promise "a ladder on the GPU has TFLOP/s, peaks and no threads"
bench --shape 24 --shape 8x16x32
expect 0
expect_out '^a GPU that is none \(sm_90a\)$'
expect_out '^peaks: [0-9.]+ TFLOP/s \(nothing much\), [0-9.]+ GB/s \(a small copy\)$'
expect_out '^  variant +TFLOP/s +best +spread +of peak +GB/s +of peak +x before +x cuBLASLt'
check test "$(grep -cE '^  (naive|blocked|packed) .*% ' out)" -eq 6

promise "short runs are timed together, on so many sets of matrices that no cache holds them"
bench --shape 16 --json
expect 0
expect_json
expect_out '"sets": 131'
check test "$(grep -c '"batch": 64,' out)" -ge 3

promise "a burst is as long as is asked for, and not longer"
bench --shape 16 --burst 100ms --time 1s --json
expect 0
check test "$(grep -c '"batch": 2500,' out)" -ge 3

promise "the clock is that of the runs, and without NVML the highest one"
bench --shape 16 --json
expect 0
expect_json
expect_out '"sm_clock_by": "NVML"'
check test "$(grep -c '"sm_clock_mhz": 150[0-2],' out)" -ge 5
bench --shape 16
expect_out '^  variant .* runs   MHz +host$'
expect_out '^  naive .* 150[0-2] .*$'
FAKE_NO_NVML=1 bench --shape 16
expect 0
expect_out '^clock of the multiprocessors: 1980 MHz at most, by cudaDeviceGetAttribute'
expect_out '^  naive .* -  .*$'
FAKE_NO_NVML=1 bench --shape 16 --json
expect_out '"sm_clock_by": "cudaDeviceGetAttribute"'
check test "$(grep -c '"sm_clock_mhz":' out)" -eq 0
bench --shape 16 --json

promise "the host's time is that of one run"
bench --shape 16 --json
expect 0
check test "$(grep -cE '"host_seconds": (1e-06|9.99[0-9]*e-07|1.00[0-9]*e-06)' out)" -ge 3
bench --shape 16
expect_out '^  variant .* MHz +host$'
expect_out '^  naive .* 1 us$'

promise "the time in which code is loaded is not that of a run"
check test "$(grep -c '"batch": 1,' out)" -eq 0

promise "every type and operator is right, on all sets"
for dtype in f32 f16 bf16; do
    bench matmul linear --shape 12x20x8 --dtype $dtype --json
    expect 0
    expect_json
    check test "$(grep -c '"right": true' out)" -ge 9
    check test "$(grep -c '"right": false' out)" -eq 0
done

promise "a peak that can't be measured is a dash, or null"
FAKE_NO_PEAKS=1 bench --shape 8
expect 0
expect_out '^  naive +[0-9.]+ +[0-9.]+ +[0-9.]+% +- +[0-9.]+ +- '
FAKE_NO_PEAKS=1 bench --shape 8 --json
expect 0
expect_json
expect_out '"of_peak": null'
expect_out '"peak_gb_per_s": null'

promise "peaks need not be measured"
bench --shape 8 --no-peaks --json
expect 0
expect_json
expect_out '"of_peak": null'
check test "$(grep -c 'small copy' out)" -eq 0

promise "variants can be left out"
bench --shape 8 --without blocked,packed
expect 0
check test "$(grep -cE '^  (naive|blocked|packed) ' out)" -eq 1
expect_out '^  naive '

promise "a list measures auto, or all variants but some and names auto's choice"
printf 'matmul f32 8x8x8\nmatmul bf16 8x8x8\n' >list
bench --shapes list --json
expect 0
expect_json
check test "$(grep -c '"variant": "auto"' out)" -eq 2
bench --shapes list --without naive --json
expect 0
expect_json
check test "$(grep -c '"auto": ' out)" -eq 2
check test "$(grep -cE '"variant": "(blocked|packed)"' out)" -eq 4
check test "$(grep -cE '"variant": "(naive|auto)"' out)" -eq 0

promise "a wrong result is told, and is what the exit code says"
FAKE_WRONG=blocked bench --shape 8 --shape 16
expect 3
check test "$(grep -c 'WRONG: its error is' out)" -eq 2
expect_out '^  packed .*%'
FAKE_WRONG=blocked bench --shape 8 --json
expect 3
expect_json
expect_out '"error": null'
expect_out '"right": false'

promise "what was not written is wrong, whatever was there before"
for operator in matmul linear-forward linear-backward; do
    for idle in naive blocked packed; do
        FAKE_IDLE=$idle bench $operator --shape 8
        expect 3
        check test "$(grep -c 'WRONG: its error is nan' out)" -eq 1
    done
done

for operator in attention attention-backward attention-paged; do
    for idle in naive packed; do
        FAKE_IDLE=$idle bench $operator --shape 8 --heads 4/2
        expect 3
        check test "$(grep -c 'WRONG: its error is nan' out)" -eq 1
    done
done

promise "a variant that fails says why, and the others are measured"
FAKE_FAIL=blocked bench --shape 8 --shape 16
expect 1
check test "$(grep -c '^  blocked .*not measured: ' out)" -eq 2
check test "$(grep -cE '^  packed .*%' out)" -eq 2
FAKE_FAIL=blocked bench --shape 8 --json
expect 1
expect_json
expect_out '"failed": "this variant cannot do this'
FAKE_FAIL=blocked bench --shape 8 --variant blocked
expect 1 "cannot do this"

promise "after a kernel's fault it ends at once, and names the variant"
FAKE_FAULT=blocked bench --shape 8 --shape 16 --json
expect 1 "blocked: an illegal memory access"
expect_json
check test "$(grep -c variants out)" -eq 0
check test "$(wc -l <err)" -eq 1

promise "without cuBLASLt it says what was looked for"
GPUNVME_CUBLASLT=/nowhere/libcublasLt.so bench --shape 8
expect 0
expect_out '^cuBLASLt was not found .*/nowhere/libcublasLt.so'
GPUNVME_CUBLASLT=/nowhere/libcublasLt.so bench --shape 8 --json
expect 0
expect_json
expect_out '"cublaslt": null'
expect_out '"to_cublaslt": null'

if [ -n "${CLI_TEST_CUBLASLT:-}" ]; then
    promise "cuBLASLt is a row of its own, with what it did of a layer"
    bench matmul linear --shape 16
    expect 0
    check test "$(grep -cE '^  cuBLASLt .*%' out)" -eq 3
    expect_out '^cuBLASLt 130099, given bias, gelu by tanh, pre-activation kept$'
    bench linear-forward --shape 16 --no-preact --activation relu --json
    expect 0
    expect_json
    expect_out '"cublaslt_does": "bias and relu"'
    expect_out '"to_cublaslt": [0-9.]+'
fi

finish

#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# gpunvme ops: the ladder is listed, checked and timed. How fast it is, is not tested.
. "$(dirname "$0")/lib.sh"

promise "ops alone is a usage error with its verbs"
gpunvme ops
expect 2 "bench"
gpunvme ops --help
expect 0
expect_out '^  check  '
gpunvme ops chekc
expect 2 "did you mean 'check'?"

promise "list has every operator's variants with texts"
gpunvme ops list
expect 0
expect_out '^matmul on the CPU'
expect_out '^linear-backward on the CPU'
expect_out '^attention on the CPU'
expect_out '^  blocked +f32 f16 bf16 e4m3 e5m2$'
gpunvme ops list --json
expect 0
expect_json
expect_out '"name": "naive"'
expect_out '"e4m3",$'

promise "list takes operators by name"
gpunvme ops list rope linear
expect 0
expect_out '^linear-backward on the CPU'
expect_out '^rope on the CPU'
check test "$(grep -c '^matmul' out)" -eq 0
gpunvme ops list roep
expect 2 "there is no operator 'roep'"

promise "check finds every variant right"
if [ "${CLI_TEST_INSTRUMENTED:-0}" = 1 ]; then # it takes ten minutes; tests/ops runs all there, too
    echo "SKIP: gpunvme ops check of all variants, in an instrumented build"
else
    gpunvme ops check
    expect 0
    expect_out '^  matmul +naive +f32 +[0-9]+ cases .* right$'
    expect_out '^  attention +naive +f32 +[0-9]+ cases .* right$'
    expect_out '^[0-9]+ checked, 0 wrong$'
fi

promise "check takes operators by name"
gpunvme ops check kv-append linear --variant naive --device cpu
expect 0
expect_out '^  kv-append +naive +f32 +[0-9]+ cases .* right$'
expect_out '^  linear-backward +naive '
check test "$(grep -c '^  matmul' out)" -eq 0
gpunvme ops check linear-forward --variant blocked --device cpu --seed 5 --json
expect 0
expect_json
check test "$(grep -c '"right": true' out)" -eq 3 # f32, f16, bf16
gpunvme ops check attentoin
expect 2 "there is no operator 'attentoin'"
gpunvme ops check matmul --variant online
expect 2 "these operators have no variant 'online'"

promise "bench has a row for each variant, with figures"
gpunvme ops bench --shape 64 --rounds 2
expect 0
expect_out '^matmul f32, 64 x 64 x 64$'
expect_out '^  naive +1 +[0-9.]+ +[0-9.]+ '
expect_out '^  packed +1 .* x '
expect_out '^peaks of 1 thread: [0-9.]+ GFLOP/s \(.*multiply-adds.*\), [0-9.]+ GB/s \(memcpy'
expect_out '^  variant .* GFLOP/s +best +spread +of peak +GB/s +of peak '

promise "bench takes one variant, several shapes, every type"
for dtype in f32 f16 bf16; do
    gpunvme ops bench matmul --variant blocked --shape 33x65x17 --shape 40 --dtype $dtype --rounds 1 \
        --no-peaks
    expect 0
    check test "$(grep -c '^  blocked' out)" -eq 2
done

promise "bench of linear layers is both directions, with the activation"
gpunvme ops bench linear --variant packed --shape 32x48x64 --activation silu --rounds 1 --no-peaks
expect 0
expect_out '^linear-forward f32, 32 x 48 x 64, activation silu$'
expect_out '^linear-backward f32, 32 x 48 x 64, activation silu$'

promise "bench of attention has heads, and counts only what is not masked"
gpunvme ops bench attention --shape 24x40x16 --batch 3 --heads 6/2 --causal --rounds 1 --no-peaks
expect 0
expect_out '^attention f32, 24 x 40 x 16, batch 3, heads 6/2, causal$'
expect_out '^OpenBLAS has no attention$|^OpenBLAS was not found'
gpunvme ops bench attention --shape 3x4x8 --variant naive --rounds 1 --no-peaks --causal --json
expect 0
expect_json
expect_out '"kv_heads": 8'
expect_out '"flops": 2304$|"flops": 2304,'
gpunvme ops bench attention --shape 24x40x16 --dtype e4m3 --heads 4/2 --variant packed --rounds 1 --no-peaks
expect 0
expect_out '^attention e4m3, 24 x 40 x 16, batch 1, heads 4/2$'
gpunvme ops bench attention --shape 24x40x16 --dtype e4m3-row
expect 1 "attention has no variant for this device and type"
gpunvme ops bench attention-backward --shape 33x65x16 --variant packed --heads 4/2 --causal --rounds 1 --no-peaks
expect 0
expect_out '^attention-backward f32, 33 x 65 x 16, batch 1, heads 4/2, causal$'
gpunvme ops bench attention-paged kv-append --shape 3x65x16 --variant naive --page 8 --rounds 1 --no-peaks
expect 0
expect_out '^attention-paged f32, 3 x 65 x 16, batch 1, heads 8, pages of 8$'
expect_out '^kv-append f32, 3 x 65 x 16, batch 1, heads 8, pages of 8$'
gpunvme ops bench attention-paged --shape 1x65x24 --values 16 --variant naive --rounds 1 --no-peaks
expect 0
expect_out '^attention-paged f32, 1 x 65 x 24, batch 1, heads 8, pages of 16, values of 16 channels of the keys$'
gpunvme ops bench attention-paged kv-append --shape 3x65x16 --dtype bf16 --cache-dtype e4m3 --variant naive --rounds 1 \
    --no-peaks
expect 0
expect_out '^attention-paged bf16, 3 x 65 x 16, batch 1, heads 8, pages of 16 in e4m3$'
expect_out '^kv-append bf16, 3 x 65 x 16, batch 1, heads 8, pages of 16 in e4m3$'
gpunvme ops bench attention-paged --cache-dtype e5m2
expect 2 "--cache-dtype=e5m2: must be e4m3"
gpunvme ops bench attention-paged --shape 1x65x24 --values 25
expect 2 "--values=25: keys have 24 channels"
gpunvme ops bench attention-paged --page 300
expect 2 "--page"
gpunvme ops bench kv-append --without naive
expect 1 "kv-append has no variant"
for heads in 6/4 6/ 0 6/2x; do
    gpunvme ops bench attention --heads $heads
    expect 2 "8 divides 32"
done

promise "a window, a softcap and mixed lengths are what is timed, and what counts"
gpunvme ops bench attention attention-backward --shape 12x20x16 --heads 2 --window 3/1 --softcap 0.5 --rounds 1 --no-peaks
expect 0
expect_out '^attention f32, 12 x 20 x 16, batch 1, heads 2, window of 3 keys before and 1 after, softcap 0.5$'
gpunvme ops bench attention --shape 4x4x8 --heads 1 --window 1 --variant naive --rounds 1 --no-peaks --json
expect 0
expect_json
expect_out '"window_left": 1'
expect_out '"flops": 224$|"flops": 224,' # 7 pairs
gpunvme ops bench attention-paged --shape 1x64x8 --batch 3 --heads 1 --lengths 16 --variant naive --rounds 1 --no-peaks
expect 0
expect_out ', lengths from 16$'
gpunvme ops bench attention-paged --shape 1x64x8 --batch 3 --heads 1 --lengths 16 --variant naive --rounds 1 --no-peaks --json
expect 0
expect_json
expect_out '"flops": 3584$|"flops": 3584,' # 16, 32 and 64 keys
expect_out '"bytes": 7432$|"bytes": 7432,'
gpunvme ops bench attention-paged --shape 1x64x8 --lengths 65
expect 2 "the shape has 64 keys"
for window in x 3/ -1 3/1x; do
    gpunvme ops bench attention "--window=$window"
    expect 2 "--window"
done
gpunvme ops bench attention --softcap -1
expect 2 "--softcap"

promise "bench of operators that memory limits has GB/s, and no operations"
for op in norm-forward kv-append; do
    gpunvme ops bench $op --variant naive --rounds 2 --time 100ms --shape 64x64x16
    expect 0
    expect_out '^  variant .* GB/s +best +spread +of peak +x before '
    expect_out '^  naive +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+% '
    expect_out '^peaks of 1 thread: [0-9.]+ GB/s \('
    check test "$(grep -c 'FLOP/s' out)" -eq 0
done

promise "--json has the same"
gpunvme ops bench linear-forward --shape 32 --rounds 2 --json
expect 0
expect_json
expect_out '"operator": "linear-forward"'
expect_out '"gflops": [0-9.]+'
expect_out '"peak_gflops": [0-9.]+'
gpunvme ops bench matmul --shape 32 --rounds 2 --variant packed --no-peaks --json
expect 0
expect_json
expect_out '"global_load_bytes": [0-9.]+'

promise "shares of peaks are rates by what was measured, and ratios are those of times"
gpunvme ops bench matmul linear --shape 48 --shape 20x30x40 --rounds 2 --time 200ms --json
expect 0
expect_json
check python3 - out <<'EOF'
import json, math, sys

tables = json.load(open(sys.argv[1]))["tables"]
assert len(tables) == 6, len(tables)
close = lambda a, b: math.isclose(a, b, rel_tol=1e-6)
for table in tables:
    peaks = {(p["threads"], rate): p[rate]
             for p in table["peaks"] for rate in ("gflops", "gb_per_s") if rate in p}
    before = None
    assert table["variants"]
    for row in table["variants"]:
        assert row["right"] and row["error"] <= 1, row
        assert row["runs"] >= 1 and row["seconds_min"] <= row["seconds"] <= row["seconds_max"], row
        assert close(row["gflops"], table["flops"] / row["seconds"] * 1e-9), row
        assert close(row["gb_per_s"], table["bytes"] / row["seconds"] * 1e-9), row
        assert close(row["peak_gflops"], peaks[row["threads"], "gflops"]), row
        assert close(row["peak_gb_per_s"], peaks[row["threads"], "gb_per_s"]), row
        assert close(row["of_peak"], row["gflops"] / row["peak_gflops"]), row
        assert close(row["of_bandwidth"], row["gb_per_s"] / row["peak_gb_per_s"]), row
        if row["peer"]:
            continue
        peer = [r for r in table["variants"] if r["peer"] and r["threads"] == row["threads"]]
        assert close(row["to_openblas"], peer[0]["seconds"] / row["seconds"]) if peer \
            else row["to_openblas"] is None, row
        assert close(row["to_variant_before"], before["seconds"] / row["seconds"]) if before \
            else row["to_variant_before"] is None, row
        before = row
EOF

promise "a linear layer can be timed without its pre-activation, which is so many bytes less"
gpunvme ops bench linear-forward --shape 16x32x8 --variant naive --rounds 1 --no-preact --no-peaks --json
expect 0
expect_json
expect_out '"preact": false'
expect_out '"bytes": 3712$|"bytes": 3712,'
gpunvme ops bench linear-forward --shape 16x32x8 --variant naive --rounds 1 --no-peaks
expect 0
expect_out '^  naive +1 '

promise "no more runs than asked for"
gpunvme ops bench --shape 8 --variant naive --rounds 99 --no-peaks --json
expect 0
expect_json
expect_out '"runs": 99'
check test "$(grep -oE '"runs": [0-9]+' out | grep -oE '[0-9]+' | sort -n | tail -n 1)" -eq 99

promise "processor time can be counted instead of the clock's"
gpunvme ops bench --shape 48 --variant blocked --rounds 1 --cpu-time --no-peaks
expect 0
expect_out ', by processor time$'

promise "a list of shapes is measured as auto, and a line that makes no sense is named"
printf '# shapes\n\nmatmul f32 24x16x8 # small\nlinear-forward bf16 8\n' >list
gpunvme ops bench --shapes list --rounds 2 --time 10ms
expect 0
expect_out '^matmul f32, 24 x 16 x 8$'
expect_out '^linear-forward bf16, 8 x 8 x 8'
expect_out 'of 2 were compared: geometric mean'
gpunvme ops bench --shapes list --rounds 2 --time 10ms --json
expect 0
expect_json
expect_out '"chose": "'
expect_out '"geometric_mean"'
echo 'matmul f64 8' >>list
gpunvme ops bench --shapes list
expect 2 "line 5"
gpunvme ops bench --shapes nowhere
expect 2 "can't be read"

promise "nonsense is refused with what would do"
gpunvme ops bench matmull
expect 2 "matmul, linear"
gpunvme ops bench --shape 12x
expect 2 "4096x4096x1024"
gpunvme ops bench --shape 0x1x1
expect 2 "--shape"
gpunvme ops bench --dtype f64
expect 2 "f32, tf32, f16, bf16 or e4m3; for matmul also e5m2"
gpunvme ops bench --device tpu
expect 2 "cpu or cuda"
gpunvme ops bench --activation tanh
expect 2 "gelu_tanh"
gpunvme ops bench --burst 11s
expect 2 "up to 10s"
gpunvme ops bench --variant fast --shape 8
expect 2 "there is no variant 'fast'"
gpunvme ops check --variant fast
expect 2 "there is no variant 'fast'"
gpunvme ops bench --without naive,pack --shape 8
expect 2 "there is no variant 'pack'"
gpunvme ops bench --without naive, --shape 8
expect 2 "there is no variant ''"
gpunvme ops bench --variant naive --without blocked --shape 8
expect 2 "not both"
gpunvme ops bench --shape 999999
expect 1 "too large"

finish

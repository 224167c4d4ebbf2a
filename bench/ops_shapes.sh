#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# bench/ops_shapes.sh [LIST [FOLDER]]: checks the GPU's operators against sums in f64, then times
# what "auto" takes beside the fastest of cuBLASLt's proposals, for each shape of LIST
# (bench/ops_cliffs.txt; bench/ops_shapes.txt is the long one, of bf16, ops_shapes_f32.txt that of
# f32, ops_fp8.txt that of fp8). FOLDER gets check.txt and shapes.json; the end of the output is the
# summary. BUILD names the build folder, ROUNDS how often each is timed (11), BURST how long the runs
# that are timed together last (2ms; 1s with TIME=30s shows what a warm GPU holds).
set -uo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
build=${BUILD:-$root/build/release}
list=${1:-$root/bench/ops_cliffs.txt}
out=${2:-$(mktemp -d)}
gpunvme=$build/bin/gpunvme
[ -x "$gpunvme" ] || gpunvme=$(find "$build" -maxdepth 3 -type f -name gpunvme -perm -u+x | head -1)
code=0

mkdir -p "$out"
"$gpunvme" ops check --device cuda >"$out/check.txt" 2>&1 || code=$?
grep -vE ' right$' "$out/check.txt" | tail -20
"$gpunvme" ops bench --device cuda --shapes "$list" --rounds "${ROUNDS:-11}" \
    --time "${TIME:-60ms}" --burst "${BURST:-2ms}" --json \
    >"$out/shapes.json" 2>"$out/shapes.log" || code=$?
tail -5 "$out/shapes.log"
python3 - "$out/shapes.json" <<'END' || code=$?
import json, sys

x = json.load(open(sys.argv[1]))
for t in x["tables"]:
    shape = f'{t["operator"]} {t["dtype"]} {t["m"]}x{t["n"]}x{t["k"]}'
    rows = {("peer" if v["peer"] else v["variant"]): v for v in t["variants"]}
    ours, peer = rows.get("auto", {}), rows.get("peer", {})
    us = lambda v: f'{v["seconds"] * 1e6:9.2f}' if "seconds" in v else "        -"
    print(f'{shape:38}{ours.get("chose", "?"):12}{us(ours)} us {us(peer)} us  '
          f'{ours.get("to_cublaslt") or float("nan"):6.3f}  {ours.get("gb_per_s", 0):7.0f} GB/s  '
          f'error {ours.get("error", ours.get("failed"))}')
s = x["summary"]
print(f'{s["cases"]} cases, geometric mean {s["geometric_mean"]:.3f}')
END
exit "$code"

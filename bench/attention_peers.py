#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Attention of gpunvme.ops beside PyTorch's cuDNN, on the same GPU, in one process, in turn.

    bench/attention_peers.py [--work forward|backward|decode|mla …] [--rounds 9] [--json FILE]

forward and backward: bf16, 16384 rows in all, sequences of 2048, 8192 and 16384, full and causal,
for each of four shapes of heads; TFLOP/s of 4 (backward: 10) b h s^2 d operations, of causal half.
The peer is scaled_dot_product_attention() by cuDNN on the same memory, and its autograd. Each
round measures all ways after each other, beginning with another one; before each the GPU rests for
--rest seconds. Figures are the GPU's own times, medians over the rounds; the spread is (longest -
shortest) / median. Before it is timed, a result is compared with the peer's.

decode: one query a sequence over a cache in pages of 16 rows in random order, 32 heads on 8 of 128
channels, in a captured graph that uses as many caches in turn as fill four times the L2; GB/s of K
and V. Beside it, what a sum of 4 GiB of f32 reads.

mla: one query a sequence over latent vectors in pages of 64 rows, heads on one of 576 channels, of
which 512 are the value; likewise. Beside it FlashMLA, if there is a module flash_mla for this GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

try:
    import flash_mla
except (ImportError, OSError) as error:
    print(f"no FlashMLA: {error}", file=sys.stderr)
    flash_mla = None

from gpunvme import ops

Ways = dict[str, Callable[[], Any]]
ROWS = 16384
LENGTHS = (2048, 8192, 16384)
HEADS = ((16, 16, 128), (64, 8, 128), (32, 32, 64), (8, 8, 256))  # of Q, of K; channels


def seconds_of(call: Callable[[], Any], fill: float) -> float:
    """The GPU's seconds a call, of as many in a row as take about ``fill`` seconds."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    runs, found = 2, 0.0
    for _ in range(2):
        torch.cuda._sleep(2_000_000)  # until all have been enqueued
        begin.record()
        for _ in range(runs):
            call()
        end.record()
        torch.cuda.synchronize()
        found = begin.elapsed_time(end) / 1e3 / runs
        runs = max(2, int(fill / found))
    return found


def measure(ways: Ways, rounds: int, rest: float) -> dict[str, dict[str, float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for i in range(rounds):
        for name in names[i % len(names):] + names[:i % len(names)]:
            time.sleep(rest)
            times[name].append(seconds_of(ways[name], 0.02))
    return {name: {"seconds": statistics.median(t),
                   "spread": (max(t) - min(t)) / statistics.median(t)}
            for name, t in times.items()}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(torch.bfloat16)


def compare(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    error = (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()
    if not error < 0.02:
        sys.exit(f"attention_peers.py: {name} differs by {error:.3g} of its largest element")


def peer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal,
            enable_gqa=q.shape[2] != k.shape[2]).transpose(1, 2)


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Ways:
    out = torch.full_like(q, float("nan"))
    ways: Ways = {"gpunvme": lambda: ops.attention(q, k, v, causal=causal, out=out),
                  "cudnn": lambda: peer(q, k, v, causal)}
    ways["gpunvme"]()
    compare("out", out, ways["cudnn"]())
    return ways


def backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Ways:
    lse = torch.empty(q.shape[:3], device="cuda")
    out = ops.attention(q, k, v, causal=causal, lse=lse)
    grad = random(*q.shape)
    results = [torch.full_like(x, float("nan")) for x in (q, k, v)]

    def ours(deterministic: bool = False) -> None:
        ops.attention_backward(grad, q, k, v, out, lse, causal=causal, grad_q=results[0],
                               grad_k=results[1], grad_v=results[2], deterministic=deterministic)

    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        made = peer(inputs[0], inputs[1], inputs[2], causal)
    ways: Ways = {"gpunvme": ours, "deterministic": lambda: ours(True),
                  "cudnn": lambda: torch.autograd.grad(made, inputs, grad, retain_graph=True)}
    ours()
    for name, mine, theirs in zip(("grad_q", "grad_k", "grad_v"), results, ways["cudnn"]()):
        compare(name, mine, theirs)
    return ways


def ladder(work: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    make, products = {"forward": (forward, 4), "backward": (backward, 10)}[work]
    results = []
    for heads, kv_heads, dim in HEADS:
        for length in LENGTHS:
            for causal in (False, True):
                batch = ROWS // length
                q, k, v = (random(batch, length, n, dim) for n in (heads, kv_heads, kv_heads))
                flop = products * batch * heads * length**2 * dim / (2 if causal else 1)
                found: dict[str, Any] = {"work": work, "heads": heads, "kv_heads": kv_heads,
                                         "dim": dim, "length": length, "causal": causal}
                found |= measure(make(q, k, v, causal), args.rounds, args.rest)
                for x in found.values():
                    if isinstance(x, dict):
                        x["tflops"] = flop / x["seconds"] / 1e12
                found["ratio"] = found["gpunvme"]["tflops"] / found["cudnn"]["tflops"]
                results.append(found)
                print(f"{work:8} {heads:2}/{kv_heads:<2} d {dim:3} {length:5} "
                      f"{'causal' if causal else 'full':6} " + ", ".join(
                          f"{n} {x['tflops']:.0f}" for n, x in found.items()
                          if isinstance(x, dict)) + f": {found['ratio']:.3f} x", flush=True)
    return results


# ---- Decoding ---------------------------------------------------------------------------------


def reading(rounds: int) -> float:
    """GB/s that a sum of 4 GiB reads."""
    x = torch.ones(1 << 30, device="cuda")
    return x.nbytes / measure({"sum": lambda: x.sum()}, rounds, 0)["sum"]["seconds"] / 1e9


def mixed(batch: int, low: int, high: int) -> list[int]:
    """Lengths from low to high, geometrically, in an order by chance."""
    found = [round(low * (high / low)**(i / (batch - 1))) for i in range(batch)]
    return [found[i] for i in torch.randperm(batch).tolist()]


def steps_of(lengths: list[int]) -> tuple[Callable[[], Any], int, int]:
    """A graph of steps, each with caches of its own; the number of them; bytes that a step reads."""
    page, kv_heads, dim = 16, 8, 128
    counts = [-(-n // page) for n in lengths]
    nbytes = sum(lengths) * kv_heads * dim * 2 * 2
    nsets = max(2, -(-4 * torch.cuda.get_device_properties(0).L2_cache_size // nbytes))
    k_lengths = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    sets = []
    for _ in range(nsets):
        order = torch.randperm(sum(counts), dtype=torch.int32)
        table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
        for b, pages in enumerate(order.split(counts)):
            table[b, :len(pages)] = pages
        q = random(len(lengths), 1, 32, dim)
        sets.append((q, random(sum(counts), page, kv_heads, dim),
                     random(sum(counts), page, kv_heads, dim), table.cuda(), torch.empty_like(q)))

    def steps() -> None:
        for q, k, v, table, out in sets:
            ops.attention_paged(q, k, v, table, k_lengths, out=out)

    steps()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        steps()
    return graph.replay, nsets, nbytes


def decode(args: argparse.Namespace) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = [{"work": "reading", "gb_per_s": reading(args.rounds)}]
    print(f"reading  {results[0]['gb_per_s']:.0f} GB/s")
    for name, lengths in (("32 of 4096", [4096] * 32), ("64 of 8192", [8192] * 64),
                          ("64 of 128 to 32768", mixed(64, 128, 32768)),
                          ("8 of 4096", [4096] * 8), ("1 of 4096", [4096])):
        replay, nsets, nbytes = steps_of(lengths)
        found = measure({"gpunvme": replay}, args.rounds, args.rest)["gpunvme"]
        seconds = found["seconds"] / nsets
        results.append({"work": "decode", "sequences": name, "seconds": seconds,
                        "spread": found["spread"], "gb_per_s": nbytes / seconds / 1e9})
        print(f"decode   {name:20} {seconds * 1e6:.1f} us, {nbytes / seconds / 1e9:.0f} GB/s",
              flush=True)
    return results


# ---- Latent vectors ---------------------------------------------------------------------------


def captured(step: Callable[[int], Any], nsets: int) -> Callable[[], Any]:
    """A graph of a step with each of the sets."""
    def steps() -> None:
        for i in range(nsets):
            step(i)

    steps()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        steps()
    return graph.replay


def latent(batch: int, length: int, heads: int) -> tuple[Ways, int, int]:
    """Graphs of steps; the number of steps; bytes that a step reads."""
    page, dim, dim_v, scale = 64, 576, 512, 576**-0.5
    pages = batch * length // page
    nbytes = batch * length * dim * 2
    nsets = max(2, -(-4 * torch.cuda.get_device_properties(0).L2_cache_size // nbytes))
    lengths = torch.full((batch,), length, dtype=torch.int32, device="cuda")
    q = [random(batch, 1, heads, dim) for _ in range(nsets)]
    cache = [random(pages, page, 1, dim) for _ in range(nsets)]
    table = [torch.randperm(pages, dtype=torch.int32).reshape(batch, -1).cuda()
             for _ in range(nsets)]
    out = torch.empty(batch, 1, heads, dim_v, dtype=torch.bfloat16, device="cuda")

    def ours(i: int) -> Any:
        return ops.attention_paged(q[i], cache[i], cache[i][..., :dim_v], table[i], lengths,
                                   scale=scale, out=out)

    ways: Ways = {"gpunvme": captured(ours, nsets)}
    if flash_mla:
        plan = flash_mla.get_mla_metadata()[0]

        def theirs(i: int) -> Any:
            return flash_mla.flash_mla_with_kvcache(
                q[i], cache[i], table[i], lengths, dim_v, plan, softmax_scale=scale,
                use_legacy=True)[0]

        compare("out", ours(0), theirs(0))
        ways["flash_mla"] = captured(theirs, nsets)
    return ways, nsets, nbytes


def mla(args: argparse.Namespace) -> list[dict[str, Any]]:
    results = []
    for batch, length, heads in ((32, 8192, 128), (32, 8192, 16), (8, 4096, 128), (1, 4096, 128)):
        ways, nsets, nbytes = latent(batch, length, heads)
        found: dict[str, Any] = {"work": "mla", "batch": batch, "length": length, "heads": heads}
        for name, x in measure(ways, args.rounds, args.rest).items():
            x["seconds"] /= nsets
            x["tflops"] = 2 * batch * length * heads * (576 + 512) / x["seconds"] / 1e12
            x["gb_per_s"] = nbytes / x["seconds"] / 1e9
            found[name] = x
        results.append(found)
        print(f"mla      {batch} of {length}, {heads} heads: " + ", ".join(
            f"{n} {x['seconds'] * 1e6:.1f} us, {x['tflops']:.0f} TFLOP/s, {x['gb_per_s']:.0f} GB/s"
            for n, x in found.items() if isinstance(x, dict)), flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", action="append", choices=("forward", "backward", "decode", "mla"),
                        help="may be given several times (all)")
    parser.add_argument("--rounds", type=int, default=9, metavar="N")
    parser.add_argument("--rest", type=float, default=0.05, metavar="SECONDS")
    parser.add_argument("--json", help="where to write the results")
    args = parser.parse_args()
    if args.rounds < 1 or args.rest < 0:
        parser.error("--rounds wants a number from 1 on, --rest seconds")
    if not torch.cuda.is_available():
        print("SKIP: no GPU for PyTorch")
        return 77
    results = []
    with torch.no_grad():
        for work in args.work or ("forward", "backward", "decode", "mla"):
            results += (decode(args) if work == "decode" else mla(args) if work == "mla"
                        else ladder(work, args))
            if args.json:
                with open(args.json, "w", encoding="utf-8") as f:
                    json.dump({"benchmark": "attention_peers",
                               "device": torch.cuda.get_device_name(), "torch": torch.__version__,
                               "cudnn": torch.backends.cudnn.version(), "results": results}, f,
                              indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())

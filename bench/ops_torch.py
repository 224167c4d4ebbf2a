#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The linear layer of libgpunvme_ops beside PyTorch's, on the same GPU, in one process, in turn.

    bench/ops_torch.py --library libgpunvme_ops.so --shape 8192x16384x4096 --json torch.json

Forward is torch._addmm_activation() (bias and GELU by tanh, in one call of cuBLASLt), backward the
two products alone that a linear layer's gradients need, without bias and activation. Random bf16;
each run takes another set of matrices, together four times the L2. Times are the GPU's own, medians.
Before it is timed, a result is compared with PyTorch's in f32.
"""
import argparse
import ctypes
import json
import statistics
import sys

try:
    import torch
except ImportError:
    print("SKIP: no PyTorch")
    sys.exit(77)

CUDA, BF16, GELU_TANH = 1, 2, 3
P, I64, I32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


def struct(name, *fields):
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Linear = struct(
    "gpunvme_linear", *((n, I64) for n in ("rows", "in_", "out")),
    *((n, P) for n in ("x", "weight", "bias", "y", "preact")),
    *((n, I64) for n in ("ldx", "ldw", "ldy", "ld_preact")),
    *((n, I32) for n in ("activation", "dtype", "compute", "reserved")))
Grad = struct(
    "gpunvme_linear_grad", *((n, I64) for n in ("rows", "in_", "out")),
    *((n, P) for n in ("x", "weight", "grad_y", "preact", "grad_x", "grad_weight", "grad_bias")),
    *((n, I64) for n in ("ldx", "ldw", "ld_grad_y", "ld_preact", "ld_grad_x", "ld_grad_weight")),
    *((n, I32) for n in ("activation", "dtype", "grad_dtype", "compute", "accumulate",
                         "reserved")))
Exec = struct(
    "gpunvme_ops_exec", ("device", I32), ("threads", I32), ("stream", P),
    ("variant", ctypes.c_char_p), ("workspace", P), ("workspace_nbytes", ctypes.c_size_t),
    ("flags", ctypes.c_uint32), ("reserved", ctypes.c_uint32))


class Library:
    def __init__(self, path):
        try:
            self.lib = ctypes.CDLL(path)
        except OSError as e:
            sys.exit(f"ops_torch.py: {e}: --library wants one of a build with "
                     "-DBUILD_SHARED_LIBS=ON")
        self.lib.gpunvme_ops_detail.restype = ctypes.c_char_p

    def prepare(self, function, problem):
        """A function that runs the call, and its workspace, which must live as long."""
        call = Exec(device=CUDA, stream=torch.cuda.current_stream().cuda_stream)
        nbytes = ctypes.c_size_t()
        size = getattr(self.lib, function + "_workspace")
        self.check(size(ctypes.byref(problem), ctypes.byref(call), ctypes.byref(nbytes)))
        space = torch.empty(max(nbytes.value, 1), dtype=torch.uint8, device="cuda")
        call.workspace, call.workspace_nbytes = space.data_ptr(), nbytes.value
        run = getattr(self.lib, function)
        return lambda: self.check(run(ctypes.byref(problem), ctypes.byref(call))), space

    def check(self, status):
        if status:
            sys.exit(f"ops_torch.py: {self.lib.gpunvme_ops_detail().decode()}")


def random(*shape):
    return torch.rand(*shape, device="cuda").mul_(2).sub_(1).to(torch.bfloat16)


def forward(library, rows, out, inputs):
    x, w, b = random(rows, inputs), random(out, inputs), random(out)
    y = torch.full((rows, out), float("nan"), dtype=torch.bfloat16, device="cuda")
    problem = Linear(rows=rows, in_=inputs, out=out, x=x.data_ptr(), weight=w.data_ptr(),
                     bias=b.data_ptr(), y=y.data_ptr(), ldx=inputs, ldw=inputs, ldy=out,
                     activation=GELU_TANH, dtype=BF16)
    ours, space = library.prepare("gpunvme_linear_forward", problem)

    def wrong():
        ours()
        z = x[:64].float() @ w.float().t() + b.float()
        right = torch.nn.functional.gelu(z, approximate="tanh")
        return not bool(((y[:64].float() - right).abs() <= right.abs() / 128 + 1e-2).all())

    peer = lambda: torch._addmm_activation(b, x, w.t(), use_gelu=True)
    return ours, peer, wrong, (x, w, b, y, space, problem)


def backward(library, rows, out, inputs):
    x, w, g, z = random(rows, inputs), random(out, inputs), random(rows, out), random(rows, out)
    gx, gw, gb = (torch.full(s, float("nan"), dtype=torch.bfloat16, device="cuda")
                  for s in ((rows, inputs), (out, inputs), (out,)))
    problem = Grad(rows=rows, in_=inputs, out=out, x=x.data_ptr(), weight=w.data_ptr(),
                   grad_y=g.data_ptr(), preact=z.data_ptr(), grad_x=gx.data_ptr(),
                   grad_weight=gw.data_ptr(), grad_bias=gb.data_ptr(), ldx=inputs, ldw=inputs,
                   ld_grad_y=out, ld_preact=out, ld_grad_x=inputs, ld_grad_weight=inputs,
                   activation=GELU_TANH, dtype=BF16, grad_dtype=BF16)
    ours, space = library.prepare("gpunvme_linear_backward", problem)

    def wrong():
        ours()
        with torch.enable_grad():
            at = z[:64].float().requires_grad_()
            torch.nn.functional.gelu(at, approximate="tanh").backward(g[:64].float())
        right = at.grad.to(torch.bfloat16).float() @ w.float()
        size = at.grad.abs() @ w.float().abs()
        return not bool(((gx[:64].float() - right).abs() <= right.abs() / 128 + size / 512).all())

    peer = lambda: (torch.mm(g, w), torch.mm(g.t(), x))
    return ours, peer, wrong, (x, w, g, z, gx, gw, gb, space, problem)


def time_of(calls, seconds):
    """Seconds of one call, of as many in a row as fill some milliseconds, on each set in turn."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    runs = max(len(calls), int(0.005 / seconds) // len(calls) * len(calls))
    torch.cuda._sleep(5_000_000)  # until all have been enqueued
    begin.record()
    for i in range(runs):
        calls[i % len(calls)]()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / runs


def measure(library, make, shape, rounds):
    rows, out, inputs = shape
    nbytes = 2 * (rows * inputs + out * inputs + rows * out)
    nsets = max(2, -(-4 * torch.cuda.get_device_properties(0).L2_cache_size // nbytes))
    sets = [make(library, *shape) for _ in range(nsets)]
    if any(s[2]() for s in sets):
        sys.exit(3)
    ways = {"gpunvme": [s[0] for s in sets], "torch": [s[1] for s in sets]}
    times = {name: [] for name in ways}
    first = {name: time_of(calls, 1) for name, calls in ways.items()}
    for _ in range(rounds):
        for name, calls in ways.items():
            times[name].append(time_of(calls, first[name]))
    flop = 2.0 * rows * out * inputs * (2 if make is backward else 1)
    result = {"operator": "linear-" + make.__name__, "rows": rows, "out": out, "in": inputs,
              "dtype": "bf16", "activation": "gelu_tanh"}
    for name, t in times.items():
        median = statistics.median(t)
        result[name] = {"tflops": flop / median / 1e12, "seconds": median,
                        "spread": (max(t) - min(t)) / median, "runs": len(t)}
    result["ratio"] = result["gpunvme"]["tflops"] / result["torch"]["tflops"]
    return result


def count_of(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def shape_of(text):
    shape = [count_of(n) for n in text.split("x")]
    if len(shape) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not ROWSxOUTxIN")
    return shape


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="libgpunvme_ops.so", help="the shared library")
    parser.add_argument("--shape", action="append", type=shape_of, metavar="ROWSxOUTxIN",
                        help="may be given several times")
    parser.add_argument("--rounds", type=count_of, default=15, metavar="N")
    parser.add_argument("--json", help="where to write the results")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("SKIP: no GPU for PyTorch")
        return 77
    library = Library(args.library)
    results = []
    with torch.no_grad():
        for shape in args.shape or [[8192, 16384, 4096], [4096, 4096, 4096]]:
            for make in (forward, backward):
                r = measure(library, make, shape, args.rounds)
                results.append(r)
                name = "x".join(map(str, shape))
                print(f"{r['operator']:16} {name:16} gpunvme {r['gpunvme']['tflops']:.1f}, PyTorch "
                      f"{r['torch']['tflops']:.1f} TFLOP/s: {r['ratio']:.3f} x", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"benchmark": "ops_torch", "device": torch.cuda.get_device_name(),
                       "torch": torch.__version__, "results": results}, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Bandwidth of the softmax kernels on a GPU, as a share of what a copy of the same tensors reaches in the same run.

    python benchmarks/gpu_softmax.py [--out DIR] [--elements 134217728] [--jobs 15]

Per op, dtype and width: these kernels (the Ascend source through upstream Triton, and their CUDA companions where rows
are narrow, not 16-byte aligned or do not fit a tile), eager PyTorch, torch.compile, and Liger-Kernel where it is
installed and has the op. A share of 1 is a copy; operations that read two tensors and write one can pass it, because
reading is cheaper than writing. Calls are replayed from CUDA graphs, contenders in turn. Every case is checked against
float64 first. Needs an NVIDIA GPU and upstream Triton. Writes gpu_softmax.json to DIR, and gpu_softmax.png where
matplotlib is installed.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _turns import in_turns

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from thunder_npu import kernels

WIDTHS = (
    1, 2, 7, 8, 16, 31, 32, 64, 100, 128, 197, 256, 257, 512, 577, 1000, 1024, 2048, 4096, 8192, 12288, 16384, 20000,
    32768, 50257, 65536, 128256, 151936, 262144,
)  # fmt: skip
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
OPS = ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward")
ROUNDS, LAUNCHES = 5, 8
LIGER_WIDTH = 16  # it runs a program per row: on narrower ones a call takes up to a tenth of a second
Call = Callable[[], torch.Tensor]
Case = tuple[str, str, int, int]  # op, dtype, width, elements


def eager(op: str, *tensors: torch.Tensor) -> torch.Tensor:
    """The ATen op: of x for a forward, of (gradient, result) for a backward."""
    if op == "softmax":
        return torch.softmax(tensors[0], -1)
    if op == "log_softmax":
        return torch.log_softmax(tensors[0], -1)
    aten = torch.ops.aten
    backward = aten._softmax_backward_data if op == "softmax_backward" else aten._log_softmax_backward_data
    return backward(*tensors, -1, tensors[0].dtype)


def ours(op: str, *tensors: torch.Tensor) -> torch.Tensor:
    if op.endswith("backward"):
        return getattr(kernels, op)(*tensors, -1, tensors[0].dtype)
    return getattr(kernels, op)(*tensors, -1)


def compiled(op: str) -> Callable[..., torch.Tensor]:
    return torch.compile(lambda *tensors: eager(op, *tensors), dynamic=False, fullgraph=True)


def liger(op: str) -> Callable[..., torch.Tensor] | None:
    try:
        from liger_kernel.ops import softmax
    except ImportError:
        return None
    if op == "softmax":
        return lambda x: softmax._softmax_forward(x)[0]
    if op == "softmax_backward":
        return lambda grad, result: softmax._softmax_backward(grad, result, *_liger_launch(result))
    return None


def _liger_launch(result: torch.Tensor) -> tuple[Any, ...]:
    """What Liger's forward saves for its backward: block size, warps, and whether a row is one block."""
    from liger_kernel.ops.utils import calculate_settings

    block, warps = calculate_settings(result.shape[-1])
    return block, warps, block >= result.shape[-1]


def inputs(op: str, dtype: torch.dtype, width: int, elements: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(width)
    x = torch.randn(elements // width, width, device="cuda").mul_(3).to(dtype)
    if not op.endswith("backward"):
        return (x,)
    result = eager(op.removesuffix("_backward"), x)
    return torch.randn_like(x), result


def error(op: str, result: torch.Tensor, tensors: tuple[torch.Tensor, ...]) -> float:
    """Largest error of the last 64 rows against float64: relative for a softmax, else over the row's largest value."""
    exact = eager(op, *[t[-64:].double() for t in tensors])
    scale = exact.abs() if op == "softmax" else exact.abs().amax(-1, keepdim=True)
    return ((result[-64:].double() - exact).abs() / scale.clamp(min=1e-30)).max().item()  # width 1 gives zeros


def replay(call: Call) -> Callable[[], None]:
    """`LAUNCHES` calls at once from a CUDA graph, so that what is timed is the device and not Python."""
    call()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(LAUNCHES):
            call()
    return captured.replay


def milliseconds(calls: Callable[[], None]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    calls()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / LAUNCHES


def prepare(case: Case) -> Callable[[], dict[str, Any]]:
    """Compiles a case for all contenders; what is returned measures it."""
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 4096
    op, name, width, elements = case
    tensors = inputs(op, DTYPES[name], width, elements)
    ways = {"ours": functools.partial(ours, op), "eager": functools.partial(eager, op), "torch.compile": compiled(op)}
    row: dict[str, Any] = {"op": op, "dtype": name, "width": width, "rows": tensors[0].shape[0]}
    run_liger = liger(op)
    if run_liger is not None and width >= LIGER_WIDTH:
        ways["liger"] = run_liger
    row["error"] = {}
    for contender, way in list(ways.items()):
        try:
            row["error"][contender] = error(op, way(*tensors), tensors)
        except Exception as failure:
            if contender != "liger":
                raise
            row["liger failed"] = f"{type(failure).__name__}: {failure}".splitlines()[0][:200]
            del ways[contender]
    del tensors
    torch.cuda.empty_cache()
    return lambda: measure(case, ways, row)


def measure(case: Case, ways: dict[str, Callable[..., torch.Tensor]], row: dict[str, Any]) -> dict[str, Any]:
    """Times of all contenders, in turn, round after round; medians over the rounds."""
    torch.cuda.empty_cache()
    op, name, width, elements = case
    tensors = inputs(op, DTYPES[name], width, elements)
    copy = torch.empty_like(tensors[0])
    runs = {contender: replay(functools.partial(way, *tensors)) for contender, way in ways.items()}

    def copies() -> None:  # not from a graph, where a copy becomes a transfer by the copy engine: a third slower
        for _ in range(LAUNCHES):
            copy.copy_(tensors[0])

    runs["copy"] = copies
    times: dict[str, list[float]] = {contender: [] for contender in runs}
    for _ in range(ROUNDS + 1):
        for contender, calls in runs.items():
            times[contender].append(milliseconds(calls))
    row["ms"] = {contender: statistics.median(t[1:]) for contender, t in times.items()}
    moved = (len(tensors) + 1) / 2
    row["share"] = {c: moved * row["ms"]["copy"] / t for c, t in row["ms"].items() if c != "copy"}
    row["copy GB/s"] = 2 * copy.nbytes / row["ms"]["copy"] / 1e6
    return row


def plot(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(DTYPES), len(OPS), figsize=(4.2 * len(OPS), 3.6 * len(DTYPES)), sharey=True)
    styles = {"ours": "C0o-", "torch.compile": "C1s--", "eager": "C7^--", "liger": "C2d--"}
    for i, name in enumerate(DTYPES):
        for j, op in enumerate(OPS):
            here = [r for r in rows if r["dtype"] == name and r["op"] == op]
            for contender, style in styles.items():
                points = [(r["width"], r["share"][contender]) for r in here if contender in r["share"]]
                if points:
                    axes[i, j].plot(*zip(*points, strict=True), style, markersize=4, label=contender)
            axes[i, j].set(xscale="log", ylim=(0, 1.15), title=f"{op}, {name}")
            axes[i, j].axhline(1, color="k", linewidth=0.5)
    for axis in axes[-1]:
        axis.set_xlabel("row width")
    for axis in axes[:, 0]:
        axis.set_ylabel("share of copy bandwidth")
    axes[0, 0].legend(loc="lower left", fontsize=8)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def geometric_mean(rows: list[dict[str, Any]], other: str) -> float:
    """Of our speed over another contender's."""
    return math.exp(statistics.fmean(math.log(r["ms"][other] / r["ms"]["ours"]) for r in rows))


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for other in ("eager", "torch.compile"):
        groups = {
            f"{op} {name}": [r for r in rows if (r["op"], r["dtype"]) == (op, name)] for op in OPS for name in DTYPES
        }
        summary[other] = {
            "geometric mean of our speed over theirs": geometric_mean(rows, other),
            "per op and dtype": {group: geometric_mean(found, other) for group, found in groups.items() if found},
            "slower by more than 3%": {
                f"{r['op']} {r['dtype']} {r['width']}": r["ms"]["ours"] / r["ms"][other] - 1
                for r in rows
                if r["ms"]["ours"] > 1.03 * r["ms"][other]
            },
        }
    return summary


def versions() -> dict[str, str]:
    import triton

    found = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    try:
        from importlib.metadata import version

        found["liger-kernel"] = version("liger-kernel")
    except ImportError:
        found["liger-kernel"] = "not installed"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--elements", type=int, default=2**27)
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile side by side at first")
    parser.add_argument("--ops", nargs="+", default=OPS, choices=OPS)
    parser.add_argument("--widths", nargs="+", type=int, default=WIDTHS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs an NVIDIA GPU")
    start = time.monotonic()
    cases = [(op, name, width, options.elements) for op in options.ops for name in DTYPES for width in options.widths]
    print(f"{'op':21s}{'dtype':9s}{'width':>7s}  ours eager compile liger   error ours/eager", flush=True)
    measured = {}
    for case, row in in_turns(prepare, cases, min(options.jobs, len(cases)), options.jobs):
        measured[case] = row
        shares = " ".join(f"{row['share'].get(c, math.nan):5.3f}" for c in ("ours", "eager", "torch.compile", "liger"))
        errors = f"{row['error']['ours']:.1e}/{row['error']['eager']:.1e}"
        print(f"{row['op']:21s}{row['dtype']:9s}{row['width']:7d} {shares}   {errors}", flush=True)
    rows = [measured[case] for case in cases]
    summary = summarize(rows)
    print(json.dumps(summary, indent=1), flush=True)
    print(f"{time.monotonic() - start:.0f} s", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    result = {"versions": versions(), "elements": options.elements, "summary": summary, "rows": rows}
    (options.out / "gpu_softmax.json").write_text(json.dumps(result, indent=1))
    title = ", ".join(f"{k} {v}" if k != "gpu" else v for k, v in result["versions"].items())
    if importlib.util.find_spec("matplotlib") is None:
        print("matplotlib is not installed: no gpu_softmax.png")
    else:
        plot(rows, options.out / "gpu_softmax.png", f"{title}; 2^{int(math.log2(options.elements))} elements")
    return 0


if __name__ == "__main__":
    sys.exit(main())

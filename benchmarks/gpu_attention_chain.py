"""Attention's chain between its two matmuls on a GPU: ours through thunder.jit, eager PyTorch, torch.compile.

    python benchmarks/gpu_attention_chain.py [--dtypes bfloat16,float16,float32] [--widths 128,…] [--out results.json]

Each line gives the share of the copy bandwidth of the same run: bytes that have to move (every input of the chain read
once, every output written once; a mask counts once) over the time, over the bandwidth of a device-to-device copy of as
many bytes. The backward is a function of its own (gradients in, what the forward saves recomputed from its inputs
excluded): the time of forward and backward less that of the forward that saves. Every contender's calls are captured in
a CUDA graph and its replays timed with events: the device's time, whatever the host needs to launch. (The copies are
not: in a graph the copy engine makes them, a third slower.) All work is on one stream of its own, as a capture needs.
For half types ours is measured once more with fusion_float32_inside=True, which saves roundings and changes numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _turns import in_turns

HEADS = 12
ELEMENTS = 2**28  # of half types; half as many of float32
PROCESSES = 14
Case = tuple[str, str, int]  # chain, dtype, width
Call = Callable[..., torch.Tensor]
Tensors = tuple[torch.Tensor, ...]


def masked(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """BERT: a mask [B, 1, 1, S]; GPT-2, Llama: [B, 1, S, S]."""
    return torch.softmax(scores * 0.125 + mask, -1)


def causal(scores: torch.Tensor) -> torch.Tensor:
    """A causal mask of two aranges."""
    i = torch.arange(scores.shape[-1], device=scores.device)
    return torch.softmax(torch.where(i[:, None] >= i[None, :], scores * 0.125, float("-inf")), -1)


def biased(scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """T5: a position bias [1, H, S, S], softmax in float32, cast back."""
    return torch.softmax((scores + bias).float(), -1).type_as(scores)


def capped(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Gemma-2: soft-cap, mask [B, 1, S, S], softmax in float32, cast back."""
    scores = torch.tanh(scores * 0.0625 / 50.0) * 50.0 + mask
    return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)


# name → function, shape of its second argument (of B, H, S)
CHAINS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[int, int, int], tuple[int, ...]] | None]] = {
    "mask [B,1,1,S]": (masked, lambda b, h, s: (b, 1, 1, s)),
    "mask [B,1,S,S]": (masked, lambda b, h, s: (b, 1, s, s)),
    "causal": (causal, None),
    "T5 bias": (biased, lambda b, h, s: (1, h, s, s)),
    "Gemma-2 soft-cap": (capped, lambda b, h, s: (b, 1, s, s)),
}


def arguments(name: str, dtype: torch.dtype, width: int) -> Tensors:
    """Random scores (they require a gradient) and the mask or bias; a tenth of a mask is closed."""
    torch.manual_seed(width)
    batch = max(1, ELEMENTS * 2 // dtype.itemsize // (HEADS * width * width))
    scores = torch.randn(batch, HEADS, width, width, device="cuda", dtype=dtype).mul_(4).requires_grad_()
    shape = CHAINS[name][1]
    if shape is None:
        return (scores,)
    second = torch.randn(shape(batch, HEADS, width), device="cuda", dtype=dtype)
    if name != "T5 bias":
        second = torch.where(second > 1.28, -10000.0, 0.0).to(dtype)
    return scores, second


def contenders(name: str, dtype: torch.dtype) -> dict[str, Call]:
    """The ways to run a chain."""
    import thunder

    from thunder_npu import triton_ascend_ex

    function = CHAINS[name][0]
    ways = {
        "ours": thunder.jit(function, executors=[triton_ascend_ex]),
        "eager": function,
        "torch.compile": torch.compile(function, dynamic=False),
    }
    if dtype != torch.float32:
        ways["ours, float32 inside"] = thunder.jit(function, executors=[triton_ascend_ex], fusion_float32_inside=True)
    return ways


def milliseconds(call: Callable[[], Any], calls: int = 4, rounds: int = 5, graph: bool = True) -> float:
    """Median over rounds of the time of one call, from `calls` calls at once."""
    for _ in range(2):
        call()

    def launch() -> None:
        for _ in range(calls):
            call()

    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=torch.cuda.current_stream()):
            launch()
        launch = captured.replay
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        start.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / calls)
    return statistics.median(times[1:])


def deviation(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def exact(name: str, tensors: Tensors, grad: torch.Tensor) -> Tensors:
    """Result and gradient of the chain in float64, on the first batch entry."""
    wide: dict[str, Call] = {  # those that name float32 themselves
        "T5 bias": lambda scores, bias: torch.softmax(scores + bias, -1),
        "Gemma-2 soft-cap": lambda scores, mask: torch.softmax(torch.tanh(scores * 0.0625 / 50.0) * 50.0 + mask, -1),
    }
    first = [t[:1].detach().double() for t in tensors]
    scores = first[0].requires_grad_()
    out = wide.get(name, CHAINS[name][0])(*first)
    return out.detach(), torch.autograd.grad(out, scores, grad[:1].double())[0]


def prepare(case: Case) -> Callable[[], list[dict[str, Any]]]:
    """Compiles a case; what is returned measures it: one row per contender and direction, without the share."""
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 4096
    if torch.cuda.current_stream() == torch.cuda.default_stream():
        torch.cuda.set_stream(torch.cuda.Stream())
    name, dtype = case[0], getattr(torch, case[1])
    ways = contenders(name, dtype)
    tensors = arguments(name, dtype, case[2])
    for contender, function in ways.items():
        if contender != "eager":
            with torch.no_grad():
                function(*tensors)
            function(*tensors).sum().backward()
    torch.cuda.synchronize()
    tensors = ()
    torch.cuda.empty_cache()

    def measure() -> list[dict[str, Any]]:
        rows = [row for way in ways.items() for row in measure_one(case, *way)]
        torch.cuda.empty_cache()
        return rows

    return measure


def measure_one(case: Case, contender: str, function: Call) -> list[dict[str, Any]]:
    """Forward and backward of one contender."""
    name, dtype, width = case
    tensors = arguments(name, getattr(torch, dtype), width)
    scores = tensors[0]
    grad = torch.randn_like(scores)
    size, others = scores.numel() * scores.element_size(), sum(t.numel() * t.element_size() for t in tensors[1:])
    again = others if name in ("T5 bias", "Gemma-2 soft-cap") else 0  # computed from the scores once more

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return function(*tensors)

    def saving() -> torch.Tensor:
        return function(*tensors)

    def step() -> torch.Tensor:
        return torch.autograd.grad(function(*tensors), scores, grad)[0]

    want, want_grad = exact(name, tensors, grad)
    errors = deviation(forward()[:1], want), deviation(step()[:1], want_grad)
    times = milliseconds(forward), milliseconds(step) - milliseconds(saving)
    moved = 2 * size + others, 3 * size + again
    return [
        {
            "chain": name, "dtype": dtype, "width": width, "direction": direction, "contender": contender,
            "ms": ms, "GB/s": bytes_ / ms / 1e6, "error": error,
        }
        for direction, ms, bytes_, error in zip(("forward", "backward"), times, moved, errors, strict=True)
    ]  # fmt: skip


def copy_bandwidth() -> float:
    """GB/s, bytes read plus bytes written."""
    a = torch.randn(ELEMENTS, device="cuda").to(torch.bfloat16)
    b = torch.empty_like(a)
    return 2 * a.numel() * a.element_size() / milliseconds(lambda: b.copy_(a), graph=False) / 1e6


def versions() -> dict[str, str]:
    import thunder
    import triton

    return {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "thunder": thunder.__version__, "python": sys.version.split()[0],
    }  # fmt: skip


def show(found: list[dict[str, Any]]) -> None:
    """A line for each direction."""
    for direction in ("forward", "backward"):
        mine = {row["contender"]: row for row in found if row["direction"] == direction}
        faster = mine["torch.compile"]["ms"] / mine["ours"]["ms"]
        cells = "  ".join(f"{contender} {row['share']:.2f} ({row['error']:.0e})" for contender, row in mine.items())
        first = found[0]
        head = f"{first['dtype']:8} {first['chain']:16} S={first['width']:<5}{direction:9}"
        print(f"{head} ours/compile {faster:.2f}x  {cells}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", default="bfloat16,float16,float32")
    parser.add_argument("--widths", default="128,197,256,384,512,1024")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "gpu_attention_chain.json"))
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark measures on a CUDA GPU, and there is none")
    cases = [(n, d, int(w)) for d in given.dtypes.split(",") for n in CHAINS for w in given.widths.split(",")]
    torch.cuda.set_stream(torch.cuda.Stream())
    copy = copy_bandwidth()
    print(f"copy: {copy:.0f} GB/s; share of it, and relative error against float64 (first batch entry)")
    processes = min(PROCESSES, len(cases), os.cpu_count() or 1)
    measured = {}
    for case, found in in_turns(prepare, cases, processes, processes):
        measured[case] = [{**row, "share": row["GB/s"] / copy} for row in found]
        show(measured[case])
    rows = [row for case in cases for row in measured[case]]
    Path(given.out).parent.mkdir(parents=True, exist_ok=True)
    Path(given.out).write_text(json.dumps({"versions": versions(), "copy_GBps": copy, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What thunder-npu adds to the time that thunder.jit takes to compile a model, forward and backward.

    python benchmarks/compile_overhead.py [--rounds 3] [--layers 12 24] [--profile]

litgpt's Llama 3.2, shrunk but for its number of layers, is compiled with Thunder's torch executor alone and with
[aclnn_ex, triton_ascend_ex] before it. A time is the process's CPU time until the end of the first call, so that other
processes do not count. Each round compiles with both; the ratios are medians over the rounds.

The bound: a ratio of at most 1.05 at 24 layers, and growth with the trace that is linear.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import statistics
import time
from pathlib import Path

import _overhead  # first: it makes the repository importable
import thunder
import torch
from litgpt_models import CausalLM, shrunk

import thunder_npu

OURS = (thunder_npu.aclnn_ex, thunder_npu.triton_ascend_ex)
SIDES = {"Thunder alone": (), "with ours": OURS}
BOUND = 1.05


def compile_seconds(model: torch.nn.Module, idx: torch.Tensor, executors: tuple) -> float:
    gc.collect()
    start = time.process_time()
    thunder.jit(model, executors=executors)(idx)
    return time.process_time() - start


def own_seconds(model: torch.nn.Module, idx: torch.Tensor) -> tuple[float, dict[str, float]]:
    """Seconds of a compilation under a profiler, which slows Python down, and of the slowest of our functions in it.

    A function's seconds include those of what it calls.
    """
    profile = cProfile.Profile()
    profile.runcall(compile_seconds, model, idx, OURS)
    stats = pstats.Stats(profile)
    ours = str(_overhead.ROOT / "thunder_npu")
    mine = {
        f"{Path(file).relative_to(_overhead.ROOT)}:{line} {name}": cumulative
        for (file, line, name), (_, _, _, cumulative, _) in stats.stats.items()  # type: ignore[attr-defined]
        if file.startswith(ours)
    }
    return stats.total_tt, dict(sorted(mine.items(), key=lambda item: -item[1])[:12])  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, nargs="+", default=[12, 24])
    parser.add_argument("--profile", action="store_true", help="also show where our own time goes")
    options = parser.parse_args()

    torch.set_num_threads(1)
    idx = torch.randint(1000, (1, 16))
    models = {n: CausalLM(shrunk("Llama-3.2", layers=n)) for n in options.layers}
    warm = CausalLM(shrunk("Llama-3.2", layers=1))
    for executors in SIDES.values():
        compile_seconds(warm, idx, executors)  # imports and caches that only a first compilation fills

    seconds: dict[int, dict[str, list[float]]] = {n: {side: [] for side in SIDES} for n in models}
    for _ in range(options.rounds):
        for n, model in models.items():
            for side, executors in SIDES.items():
                seconds[n][side].append(compile_seconds(model, idx, executors))
                print(f"{n} layers, {side}: {seconds[n][side][-1]:.2f} s", flush=True)

    ratios = {n: statistics.median(b / a for a, b in zip(*times.values(), strict=True)) for n, times in seconds.items()}
    least, most = min(models), max(models)
    for n, ratio in ratios.items():
        print(f"{n} layers: {ratio:.3f} of the time with Thunder alone (median of {options.rounds})")
    growth = {side: statistics.median(seconds[most][side]) / statistics.median(seconds[least][side]) for side in SIDES}
    print(f"growth from {least} to {most} layers: " + ", ".join(f"{side} {g:.2f}" for side, g in growth.items()))
    verdict = "within" if ratios[most] <= BOUND else "beyond"
    print(f"{ratios[most]:.3f} at {most} layers is {verdict} the bound of {BOUND}")
    if options.profile:
        total, mine = own_seconds(models[most], idx)
        print(f"of {total:.1f} s under a profiler:")
        for name, cumulative in mine.items():
            print(f"{cumulative:7.2f} s  {name}")
    path = _overhead.write_results(
        "compile_overhead", {"seconds": seconds, "ratios": ratios, "growth": growth, "bound": BOUND}
    )
    print(f"written to {path.relative_to(_overhead.ROOT)}")


if __name__ == "__main__":
    main()

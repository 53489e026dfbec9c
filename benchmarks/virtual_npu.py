"""What the virtual NPU costs: time on npu:0 over the time of the same on the CPU, and what starting it adds.

    python -m thunder_npu.virtual_npu benchmarks/virtual_npu.py

Prints a line for each measure with the bound it must keep, and fails if one does not. Times are medians of runs in
turn on both devices, so that a busy machine slows both. They are host times and say nothing of an NPU's speed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from transformers import BertConfig, BertForMaskedLM


def ratio(run: Callable[[str], Callable[[], object]], repeats: int) -> tuple[float, float]:
    """Median seconds on the CPU and on npu:0, of runs taken in turn after one warm-up each."""
    calls = {device: run(device) for device in ("cpu", "npu:0")}
    seconds: dict[str, list[float]] = {device: [] for device in calls}
    for index in range(repeats + 1):
        for device, call in calls.items():
            start = time.perf_counter()
            call()
            if index:
                seconds[device].append(time.perf_counter() - start)
    return statistics.median(seconds["cpu"]), statistics.median(seconds["npu:0"])


def softmax(device: str) -> Callable[[], object]:
    x = torch.randn(512, 50257, dtype=torch.bfloat16).to(device)
    return lambda: torch.softmax(x, -1)


def bert_base_step(device: str) -> Callable[[], object]:
    """A training step of BERT-base on 2 × 64 tokens: forward, backward, AdamW."""
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig()).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 30000, (2, 64)).to(device)

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()

    return step


def small_operator(device: str) -> Callable[[], object]:
    x = torch.randn(4, 8).to(device)

    def calls() -> None:
        for _ in range(1000):
            torch.exp(x)

    return calls


def start_up(repeats: int = 5) -> tuple[float, float]:
    """Median CPU seconds of a process that imports torch and torch_npu, and of one that calls enable() instead.

    The first is a child of this process and finds the stand-in libraries by LD_LIBRARY_PATH, as it would find CANN's.
    """
    clean = {k: v for k, v in os.environ.items() if not k.startswith("VIRTUAL_NPU_") and k != "LD_LIBRARY_PATH"}
    programs = (
        ("import torch, torch_npu", dict(os.environ)),
        ("from thunder_npu import virtual_npu; virtual_npu.enable()", clean),
    )
    seconds: list[list[float]] = [[], []]
    for _ in range(repeats):
        for index, (code, environment) in enumerate(programs):
            command = [sys.executable, "-c", f"{code}; import time; print(time.process_time())"]
            result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            seconds[index].append(float(result.stdout.split()[-1]))
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def main() -> None:
    kept = True
    for name, run, repeats, bound in (
        ("softmax, 512 × 50257 bfloat16", softmax, 7, 3.0),
        ("BERT-base-shape training step", bert_base_step, 3, 3.0),
        ("exp of 32 numbers, 1000 calls", small_operator, 5, None),
    ):
        cpu, npu = ratio(run, repeats)
        limit = "" if bound is None else f", bound {bound}"
        print(f"{name:34s} cpu {cpu * 1e3:8.1f} ms   npu:0 {npu * 1e3:8.1f} ms   ratio {npu / cpu:5.2f}{limit}")
        kept &= bound is None or npu / cpu <= bound
    bare, enabled = start_up()
    added = enabled - bare
    print(f"{'start, once built, CPU time':34s} bare imports {bare:.2f} s, with enable() {added:+.2f} s, bound 0.3")
    kept &= added < 0.3
    if not kept:
        sys.exit("a bound was not kept")


if __name__ == "__main__":
    main()

"""A BERT-base training step on a GPU: eager, torch.compile, Thunder's defaults, ours, ours with Inductor for the rest.

    python benchmarks/gpu_bert_step.py [--batch 32] [--width 384] [--out results.json]

bf16, eager attention, dropout 0, random weights and tokens; a step is forward, loss, backward. Times are medians of
single steps between device synchronisations, so they include what the host costs. A profile then says where the
device's time goes, with torch.compile and in the two of ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from gpu_attention_chain import versions

Model = Callable[..., Any]


def model_and_batch(batch: int, width: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    config = transformers.BertConfig(
        attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0, attn_implementation="eager"
    )
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(config).cuda().bfloat16().train()
    tokens = torch.randint(0, config.vocab_size, (batch, width), device="cuda")
    mask = torch.ones(batch, width, device="cuda", dtype=torch.long)
    mask[:, width - width // 8 :] = 0
    return model, {"input_ids": tokens, "attention_mask": mask, "labels": tokens}


def contenders(model: torch.nn.Module) -> dict[str, Callable[[], Model]]:
    from thunder.dynamo import thunderfx

    from thunder_npu import aclnn_ex, triton_ascend_ex

    ours = [aclnn_ex, triton_ascend_ex]
    return {
        "eager": lambda: model,
        "torch.compile": lambda: torch.compile(model),
        "Thunder's defaults": lambda: thunderfx(model),
        "ours": lambda: thunderfx(model, executors=ours),
        "ours, torchcompile": lambda: thunderfx(model, executors=[*ours, "torchcompile"]),
    }


def step(run: Model, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    model.zero_grad(set_to_none=True)
    loss = run(**batch).loss
    loss.backward()
    return loss.detach()


def milliseconds(call: Callable[[], Any], steps: int = 12) -> float:
    times = []
    for _ in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[2:])


KINDS = (
    ("fused regions", ("fused_rows",)),
    ("matrix products", ("gemm", "cutlass", "nvjet", "cublas", "xmma", "splitk")),
    ("Inductor's kernels", ("triton_",)),
    ("softmax kernels", ("softmax",)),
    ("copies", ("memcpy", "memset")),
)


def profile(call: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of device time of one step, by kind of kernel, and the five longest of the others."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    total: dict[str, float] = defaultdict(float)
    others: dict[str, float] = defaultdict(float)
    for event in found.key_averages():
        spent = event.self_device_time_total / 1e3
        name = event.key.lower()
        kind = next((kind for kind, parts in KINDS if any(part in name for part in parts)), None)
        total[kind or "everything else"] += spent
        if kind is None:
            others[event.key[:70]] += spent
    total |= {f"  {name}": spent for name, spent in sorted(others.items(), key=lambda item: -item[1])[:5]}
    return dict(total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "gpu_bert_step.json"))
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark measures on a CUDA GPU, and there is none")
    model, batch = model_and_batch(given.batch, given.width)
    results: dict[str, Any] = {}
    for name, make in contenders(model).items():
        torch._dynamo.reset()
        started = time.perf_counter()
        run = make()

        def call(run: Model = run) -> torch.Tensor:
            return step(run, model, batch)

        loss = call().item()
        first = time.perf_counter() - started
        results[name] = {"ms": milliseconds(call), "loss": loss, "first_step_s": first}
        if name.startswith("ours") or name == "torch.compile":
            results[name]["profile_ms"] = profile(call)
        row = results[name]
        print(f"{name:20} {row['ms']:8.1f} ms   loss {loss:.4f}   first step {first:.0f} s", flush=True)
        for kind, spent in row.get("profile_ms", {}).items():
            print(f"    {spent:8.2f} ms  {kind}", flush=True)
    Path(given.out).parent.mkdir(parents=True, exist_ok=True)
    shape = {"batch": given.batch, "width": given.width}
    Path(given.out).write_text(json.dumps({"versions": versions(), **shape, "steps": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""A BERT-base training step on a GPU: eager, torch.compile, Thunder's defaults, ours, ours with Inductor for the rest.

    python benchmarks/gpu_bert_step.py [--batch 32] [--width 384] [--out results.json]

bf16, eager attention, dropout 0, random weights and tokens; a step is forward, loss, backward. Times are medians of
single steps between device synchronisations, so they include what the host costs. A profile then says where the
device's time goes. Every contender compiles in a process of its own, all at once; then they are measured one by one.

torch.compile recognises the attention that the model spells out and puts one flash-attention kernel in its place, which
does not round where the model rounds. It is measured as it is, and once more without that replacement.
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
from _turns import in_turns
from gpu_attention_chain import versions

Model = Callable[..., Any]
AT_ONCE = 4  # contenders whose first step the GPU's memory holds


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


def compiled_as_written(model: torch.nn.Module) -> Model:
    """torch.compile without its patterns of attention; nothing may have been compiled in this process before."""
    from torch._inductor.fx_passes import fuse_attention

    fuse_attention._sfdp_init = lambda *args, **kwargs: None
    torch._inductor.config.force_disable_caches = True  # a graph compiled with the patterns is no use here
    return torch.compile(model)


def by_thunder(model: torch.nn.Module, **options: Any) -> Model:
    from thunder.dynamo import thunderfx

    return thunderfx(model, **options)


def ours(model: torch.nn.Module, *more: str) -> Model:
    from thunder_npu import aclnn_ex, triton_ascend_ex

    return by_thunder(model, executors=[aclnn_ex, triton_ascend_ex, *more])


CONTENDERS: dict[str, Callable[[torch.nn.Module], Model]] = {
    "eager": lambda model: model,
    "torch.compile": torch.compile,
    "torch.compile, attention as written": compiled_as_written,
    "Thunder's defaults": by_thunder,
    "Thunder, torchcompile": lambda model: by_thunder(model, executors=["torchcompile"]),
    "ours": ours,
    "ours, torchcompile": lambda model: ours(model, "torchcompile"),
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
    ("flash attention", ("sdpa", "flash", "fmha", "cudnn::fusion")),
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


def prepare(job: tuple[str, int, int]) -> Callable[[], dict[str, Any]]:
    """Compiles a contender; what is returned measures it."""
    name, batch, width = job
    model, inputs = model_and_batch(batch, width)
    started = time.perf_counter()
    run = CONTENDERS[name](model)

    def call() -> torch.Tensor:
        return step(run, model, inputs)

    row: dict[str, Any] = {"loss": call().item(), "first_step_s": time.perf_counter() - started}
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()

    def measure() -> dict[str, Any]:
        row["ms"] = milliseconds(call)
        row["profile_ms"] = profile(call)
        row["device_ms"] = sum(spent for kind, spent in row["profile_ms"].items() if not kind.startswith(" "))
        return row

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "gpu_bert_step.json"))
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark measures on a CUDA GPU, and there is none")
    jobs = [(name, given.batch, given.width) for name in CONTENDERS]
    measured = {name: row for (name, *_), row in in_turns(prepare, jobs, len(jobs), AT_ONCE)}
    results = {name: measured[name] for name in CONTENDERS}
    for name, row in results.items():
        print(f"{name:36} {row['ms']:7.1f} ms, on the device {row['device_ms']:6.1f} ms   loss {row['loss']:.4f}")
        for kind, spent in row["profile_ms"].items():
            print(f"    {spent:8.2f} ms  {kind}")
    Path(given.out).parent.mkdir(parents=True, exist_ok=True)
    shape = {"batch": given.batch, "width": given.width}
    Path(given.out).write_text(json.dumps({"versions": versions(), **shape, "steps": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()

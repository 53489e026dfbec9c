"""Records what the compiler makes of the tests' models, to show that a change of layout changes nothing.

    PYTHONHASHSEED=0 python -m tests.record FOLDER    writes traces, regions' sources and launch plans as text files
    python -m tests.record --compare A B      says which files of two recordings differ, and exits with 1 if any does

Recorded for every model of tests/test_models.py, every attention of tests/fusion/attention.py with and without dropout,
and random programs of tests/fusion/random_regions.py: the final forward and backward trace, the Triton source of each
region for an Ascend910B2 and an H200, and its launch plans there; and the plans of the kernels of a single softmax over
widths and dtypes. Times are left out of the traces. Nothing here is compared with eager.
"""

from __future__ import annotations

import argparse
import filecmp
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import thunder
import torch

from tests.fusion import attention, random_regions, regions
from tests.test_models import WORKLOADS
from thunder_npu.kernels import Target, ascend_target

EXAMPLES = 300
TARGETS = (ascend_target("Ascend910B2", 48), Target("cuda", "NVIDIA H200", 132))


def functions(jitted: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The functions that Thunder compiled for `jitted`: itself, or those of thunderfx's graphs."""
    backend = getattr(jitted, "_backend", None)
    if backend is None:
        return [jitted]
    return [f for info in backend.subgraph_infos for f in info.thunder_compiled_fns or ()]


def described(jitted: Callable[..., Any]) -> str:
    """Final traces of `jitted`, and of every region its sources and plans, as text without times."""
    parts: list[str] = []
    for function in functions(jitted):
        backward = thunder.last_backward_traces(function)
        for trace in (thunder.last_traces(function)[-1], *backward[-1:]):
            parts.append(re.sub(r"took \d+ milliseconds", "took", str(trace)))
            parts += [text for region in regions._regions(trace) for text in region_texts(region)]
    return "\n".join(parts)


def region_texts(region: Any) -> Iterator[str]:
    for target in TARGETS:
        try:
            launch = region.kernel._contiguous_launch(target)
        except ValueError as error:
            yield f"{region.name} on {target.name}: {error}"
            continue
        yield f"{region.name} on {target.name}: {launch.plan} {launch.sizes} {launch.strides}\n{launch.text}"


def models() -> Iterator[tuple[str, str]]:
    for name, make in WORKLOADS.items():
        torch.compiler.reset()
        workload = make()
        compiled = workload.compile(workload.model.train())
        _, loss = compiled(**workload.batch)
        loss.backward()
        yield f"model {name}", described(compiled)


def attentions() -> Iterator[tuple[str, str]]:
    for name, make in attention.MODELS.items():
        for dropout in (0.0, 0.1):
            for dtype in (torch.float32, torch.bfloat16):
                torch.manual_seed(0)
                case = make(dropout)
                module = regions.jit(case.module.to(dtype).train())
                inputs = [x.to(dtype) for x in case.inputs]
                inputs[0].requires_grad_()
                case.call(module, *inputs).sum().backward()
                yield f"attention {name} {dropout} {dtype}".replace("torch.", ""), described(module)


def programs() -> Iterator[tuple[str, str]]:
    for seed in range(EXAMPLES):
        case = random_regions.generate(seed)
        jitted = regions.jit(case.function())
        random_regions.results(case, jitted)
        yield f"program {seed:04}", described(jitted)


def record(folder: Path) -> int:
    folder.mkdir(parents=True)
    count = 0
    for kind in (models, attentions, programs):
        for name, text in kind():
            (folder / f"{name}.txt").write_text(text, encoding="utf-8")
            count += 1
    return count


def compare(a: Path, b: Path) -> list[str]:
    """Names of the files that differ or stand in one folder only."""
    names = sorted({p.name for folder in (a, b) for p in folder.iterdir()})
    _, differing, missing = filecmp.cmpfiles(a, b, names, shallow=False)
    return sorted([*differing, *missing])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+", help="where to write; with --compare, the two to compare")
    parser.add_argument("--compare", action="store_true")
    arguments = parser.parse_args()
    if not arguments.compare:
        print(f"{record(arguments.folder[0])} files written to {arguments.folder[0]}")
        return
    a, b = arguments.folder
    differing = compare(a, b)
    print("\n".join(differing))
    print(f"{len(list(a.iterdir()))} recordings, {len(differing)} differ")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()

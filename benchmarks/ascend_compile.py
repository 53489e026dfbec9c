"""Proof that the softmax kernels compile for Ascend: every launch plan, compiled by the real compiler, nothing run.

    python benchmarks/ascend_compile.py [--quick] [--jobs 2] [--json FILE]

For each kernel, dtype pair, layout, width and SoC the plan of thunder_npu.kernels is compiled by triton-ascend and
BiShengIR up to its closed back end. A plan fails if the compiler refuses it, retries with an optimisation switched off,
plans more than 85% of the unified buffer or more than the plan's model says, compares int64 vectors, or walks over
elements one by one. Plans that ask for the same code are compiled once. Prints a line per kernel, dtypes and layout and
ends with "0 retries, 0 failures" or the list of what failed (exit status 1).
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from thunder_npu.kernels.launch import NATIVE, launch_arguments
from thunder_npu.kernels.layout import Layout, row_layout
from thunder_npu.kernels.plan import BUDGET, LIVE, Plan, ascend_target, plan, plan_bytes
from thunder_npu.virtual_npu.soc import SOCS

if TYPE_CHECKING:
    from thunder_npu.virtual_npu.triton_cpu import BufferReport

WIDTHS = (
    *(1, 2, 7, 8, 16, 31, 32, 64, 100, 128, 197, 256, 257, 512, 577, 1000, 1024, 2048, 4096, 8192, 12288, 16384),
    *(20000, 32768, 50257, 65536, 128256, 151936, 262144),
)
QUICK_WIDTHS = (1, 7, 128, 197, 1000, 8192, 12288, 50257)
SOC_NAMES = ("Ascend910B2", "Ascend910B4", "Ascend910_9391", "Ascend950PR_9599")
SAME = (("fp32", "fp32"), ("fp16", "fp16"), ("bf16", "bf16"))
MIXED = (("bf16", "fp32"), ("fp32", "fp16"))
OTHER_LAYOUTS = ("middle", "transposed", "expanded", "every other column")
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
MANY = 2**17  # rows: enough for every vector core to get the largest tiles


@dataclass(frozen=True)
class Case:
    kernel: str
    dtype_in: str
    dtype_out: str
    layout: str
    width: int
    soc: str


@dataclass(frozen=True)
class Result:
    case: Case
    plan: str
    bytes_planned: int
    bytes_modelled: int
    bytes_available: int
    retries: int
    problems: tuple[str, ...]


def cases(widths: tuple[int, ...] = WIDTHS, socs: tuple[str, ...] = SOC_NAMES) -> Iterator[Case]:
    """Contiguous rows of every width; the other layouts and mixed dtypes at the quick widths, once per buffer size."""
    for soc, kernel in itertools.product(socs, LIVE):
        for pair, width in itertools.product(SAME, widths):
            yield Case(kernel, *pair, "rows", width, soc)
        if soc in (SOC_NAMES[0], SOC_NAMES[-1]):
            for pair, width in itertools.product(MIXED, QUICK_WIDTHS):
                yield Case(kernel, *pair, "rows", width, soc)
            for pair, layout, width in itertools.product(SAME[::2], OTHER_LAYOUTS, QUICK_WIDTHS):
                yield Case(kernel, *pair, layout, width, soc)


def layout_of(case: Case) -> Layout:
    """The named layout: the first input of a kernel has it, the other tensors are contiguous."""
    w, inner, rows = case.width, 1024, MANY
    if case.layout == "middle":
        shape, dim, dense = (rows, w, inner), 1, (w * inner, inner, 1)
        first = dense
    else:
        shape, dim, dense = (rows, w), 1, (w, 1)
        first = {
            "rows": dense,
            "transposed": (1, rows),
            "expanded": (0, 0) if case.kernel.endswith("backward") else (0, 1),
            "every other column": (2 * w, 2),
        }[case.layout]
    inputs = 2 if case.kernel.endswith("backward") else 1
    layout = row_layout(shape, dim, [first, *[dense] * inputs])
    assert layout is not None
    return layout


def compile_case(case: Case) -> Result:
    """Plan, compile and judge one case."""
    report, chosen = compile_report(case)
    modelled = plan_bytes(case.kernel, chosen, layout_of(case), *_sizes(case))
    problems = []
    if not report.fits:
        problems.append("does not fit")
    if report.retries:
        problems.append(f"retried without {', '.join(report.retries)}")
    if report.bytes_planned > BUDGET * report.bytes_available:
        problems.append(f"{report.bytes_planned / report.bytes_available:.0%} of the unified buffer")
    if report.bytes_planned > modelled:
        problems.append(f"more than the model's {modelled} bytes")
    problems += scalar_code(report.hivm)
    described = f"{chosen.rows}×{chosen.block} {'one pass' if chosen.one_pass else 'loop'}"
    return Result(
        case,
        described,
        report.bytes_planned,
        modelled,
        report.bytes_available,
        len(report.retries),
        tuple(problems),
    )


def compile_report(case: Case) -> tuple[BufferReport, Plan]:
    """What BiShengIR says about a case's kernel, and the plan."""
    from thunder_npu.virtual_npu.triton_cpu import compile_kernel

    function, signature, constants, divisible, chosen = _request(case)
    return compile_kernel(function, signature, constants, soc=case.soc, divisible_by_16=divisible).report, chosen


def scalar_code(hivm: str) -> list[str]:
    """Signs of scalar code in planned HIVM: int64 vector compares, loops whose counters address on-chip memory."""
    found = []
    if re.search(r"vcmp\w*[^\n]*(?:xi64|int64)", hivm):
        found.append("int64 vector compare")
    counters = set(re.findall(r"scf\.(?:for|parallel) \(?(%\w+)", hivm))
    for indices in re.findall(r"memref\.(?:load|store) [^\n\[]*\[([^\]]*)\][^\n]*address_space<ub>", hivm):
        if counters & set(re.findall(r"%\w+", indices)):
            found.append("scalar loop over a tile")
            break
    return found


def _sizes(case: Case) -> tuple[list[int], list[int]]:
    inputs = 2 if case.kernel.endswith("backward") else 1
    return [BYTES[case.dtype_in]] * inputs, [BYTES[case.dtype_out]]


def _request(case: Case) -> tuple[Any, dict[str, str], dict[str, Any], tuple[str, ...], Plan]:
    """What the JIT would compile for a case: integers equal to 1 are constants, multiples of 16 are known as such."""
    layout = layout_of(case)
    loads, stores = _sizes(case)
    chosen = plan(case.kernel, layout, loads, stores, ascend_target(case.soc, SOCS[case.soc].vector_cores))
    function, numbers, constexpr = launch_arguments(case.kernel, chosen, layout, NATIVE)
    parameters = [p for p in function.params if p.name not in constexpr]
    dtypes = (*[case.dtype_in] * len(loads), case.dtype_out)
    signature = {p.name: f"*{t}" for p, t in zip(parameters, dtypes, strict=False)}
    constants, divisible = dict(constexpr), list(signature)
    for parameter, value in zip(parameters[len(dtypes) :], numbers, strict=True):
        if value == 1 and not parameter.do_not_specialize:
            constants[parameter.name] = 1
            continue
        signature[parameter.name] = "i32" if value < 2**31 else "i64"
        if value % 16 == 0 and not parameter.do_not_specialize:
            divisible.append(parameter.name)
    return function, signature, constants, tuple(divisible), chosen


def distinct(all_cases: list[Case]) -> dict[Case, Case]:
    """Each case → the first one that asks the compiler for the same thing."""
    first: dict[str, Case] = {}
    return {case: first.setdefault(f"{case.soc} {_request(case)[:4]}", case) for case in all_cases}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="eight widths and two SoCs")
    parser.add_argument("--jobs", type=int, default=2, help="compiling processes")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    options = parser.parse_args()
    start = time.monotonic()
    all_cases = list(cases(QUICK_WIDTHS, (SOC_NAMES[0], SOC_NAMES[-1])) if options.quick else cases())
    representative = distinct(all_cases)
    todo = list(dict.fromkeys(representative.values()))
    print(f"{len(all_cases)} plans, {len(todo)} different compilations", flush=True)
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        done = dict(zip(todo, pool.imap(compile_case, todo, chunksize=8), strict=True))
    results = {case: done[representative[case]] for case in all_cases}
    _print_table(results)
    if options.json:
        rows = [{**asdict(case), **{k: v for k, v in asdict(r).items() if k != "case"}} for case, r in results.items()]
        options.json.write_text(json.dumps(rows, indent=0))
    failed = [r for r in done.values() if r.problems]
    for result in failed:
        print(f"FAILED {result.case} {result.plan}: {'; '.join(result.problems)}")
    retries = sum(r.retries for r in done.values())
    print(f"{len(all_cases)} plans, {len(todo)} compiled in {time.monotonic() - start:.0f} s")
    print(f"{retries} retries, {len(failed)} failures")
    return 1 if failed else 0


def _print_table(results: dict[Case, Result]) -> None:
    """A line per kernel, dtypes, layout and SoC: the share of the unified buffer at each width; `…` marks a loop."""
    widths = list(dict.fromkeys(case.width for case in results))
    print("percent of the unified buffer planned, by width (~: more than one pass)")
    print(f"{'':62s}" + " ".join(f"{w:>6d}" for w in widths))
    lines: dict[str, dict[int, str]] = {}
    for case, result in results.items():
        name = f"{case.soc:16s} {case.kernel:20s} {case.dtype_in}→{case.dtype_out} {case.layout:18s}"
        share = f"{100 * result.bytes_planned / result.bytes_available:.0f}"
        mark = "!" if result.problems else "" if "one pass" in result.plan else "~"
        lines.setdefault(name, {})[case.width] = mark + share
    for name, cells in lines.items():
        print(f"{name:62s}" + " ".join(f"{cells.get(w, ''):>6s}" for w in widths).rstrip())


if __name__ == "__main__":
    sys.exit(main())

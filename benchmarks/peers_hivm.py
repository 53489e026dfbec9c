"""The softmax kernels against those that Liger-Kernel ships for Ascend, on the same compiler: memory and instructions.

    pip install --no-deps liger-kernel==0.8.5
    python benchmarks/peers_hivm.py [--soc Ascend910B2] [--json FILE]

Both are compiled by triton-ascend and BiShengIR as each would launch them for 2^17 contiguous rows. From the planned
HIVM this prints, per kernel: the tile, the share of the unified buffer and its bytes per tile element, retries
(optimisations that the compiler silently gave up), and how often each element passes a vector instruction. Nothing is
run; what an instruction costs is not known here.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
sys.path.insert(0, str(Path(__file__).resolve().parent))

from ascend_compile import Case, compile_report

if TYPE_CHECKING:
    from thunder_npu.virtual_npu.triton_cpu import BufferReport

ROWS = 2**17
WIDTHS = (32, 128, 197, 256, 1000, 1024, 4096, 8192, 12288, 32768, 50257, 128256)
DTYPES = ("bf16", "fp32")


@dataclass(frozen=True)
class Row:
    op: str
    dtype: str
    width: int
    contender: str
    tile: str = ""
    share: float = 0.0
    bytes_per_element: float = 0.0
    retries: int = 0
    vector: float = 0.0
    """Vector instructions per element of the row: elements passed by all vector instructions over those of the tile."""
    failed: str = ""


_CAST = re.compile(r"(%\w+) = memref\.cast %\w+ : memref<((?:\d+x)*)[a-z]")
_CALL = re.compile(r"call @(v\w+|\w*reduce\w*|broadcast\w*)\(([^)]*)\)")


def figures(report: BufferReport, elements: int) -> dict[str, Any]:
    """The figures of a kernel whose tile has `elements`; operands have their shape before the cast to library types."""
    shapes: dict[str, int] = {}  # names are only unique within a region, so in the order of the text
    passed = 0
    for line in report.hivm.splitlines():
        if cast := _CAST.search(line):
            shapes[cast[1]] = prod(int(n) for n in cast[2].split("x")[:-1])
        elif call := _CALL.search(line):
            passed += max((shapes.get(name, 0) for name in re.findall(r"%\w+", call[2])), default=0)
    return {
        "share": report.bytes_planned / report.bytes_available,
        "bytes_per_element": report.bytes_planned / elements,
        "retries": len(report.retries),
        "vector": passed / elements,
    }


def ours(op: str, dtype: str, width: int, soc: str) -> Row:
    report, chosen = compile_report(Case(op, dtype, dtype, "rows", width, soc))
    elements = chosen.rows * chosen.block
    tile = f"{chosen.rows}×{chosen.block}{'' if chosen.one_pass else ' loop'}"
    return Row(op, dtype, width, "ours", tile, **figures(report, elements))


@functools.cache
def liger_kernels(soc: str) -> ModuleType:
    """Liger's module of softmax kernels for Ascend, by its file: the package around it needs a newer triton-ascend."""
    from thunder_npu.virtual_npu.triton_cpu import install

    install(soc)  # importing Liger asks Triton for its driver
    package = importlib.util.find_spec("liger_kernel")
    if package is None or package.submodule_search_locations is None:
        raise SystemExit("needs Liger-Kernel: pip install --no-deps liger-kernel==0.8.5")
    path = Path(package.submodule_search_locations[0], "ops/backends/_ascend/ops/softmax.py")
    spec = importlib.util.spec_from_file_location("liger_ascend_softmax", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def liger(op: str, dtype: str, width: int, soc: str) -> Row:
    """Tile sizes as in _softmax_forward of liger_kernel/ops/backends/_ascend/ops/softmax.py, version 0.8.5."""
    from triton.compiler.errors import TritonError

    from thunder_npu.virtual_npu.triton_cpu import compile_kernel

    kernels = liger_kernels(soc)

    block = min(1 << (width - 1).bit_length(), 8192)
    single = width <= block
    rows = min(8192 // block, 32) if single else 1
    direction = "backward" if op.endswith("backward") else "forward"
    function = getattr(kernels, f"_softmax_{'single' if single else 'multi'}_block_{direction}_kernel")
    constants = {"n_rows": ROWS, "n_cols": width, "BLOCK_SIZE": block, **({"ROWS_PER_BLOCK": rows} if single else {})}
    names = [name for name in function.arg_names if name not in constants]
    signature = {name: f"*{dtype}" if name.endswith("_ptr") else "i32" for name in names}
    divisible = [name for name in names if name.endswith("_ptr") or width % 16 == 0]
    tile = f"{rows}×{block}{'' if single else ' loop'}"
    try:
        report = compile_kernel(function, signature, constants, soc=soc, divisible_by_16=divisible).report
    except TritonError as error:
        return Row(op, dtype, width, "liger", tile, failed=str(error).strip().splitlines()[-1])
    if not report.fits:
        return Row(op, dtype, width, "liger", tile, failed="does not fit the unified buffer")
    return Row(op, dtype, width, "liger", tile, **figures(report, rows * block))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--soc", default="Ascend910B2")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    contenders: tuple[Callable[..., Row], ...] = (ours, liger)
    rows: list[Row] = []
    print(f"{'':38s}tile              share  bytes/element  retries  vector")
    for op in ("softmax", "softmax_backward"):
        for dtype in DTYPES:
            for width in WIDTHS:
                for contender in contenders:
                    row = contender(op, dtype, width, options.soc)
                    rows.append(row)
                    name = f"{op:17s}{dtype:5s}{width:7d}  {row.contender:7s}"
                    numbers = f"{row.share:5.0%}  {row.bytes_per_element:13.1f}  {row.retries:7d}  {row.vector:6.2f}"
                    print(f"{name}{row.tile:18s}{row.failed or numbers}", flush=True)
    if options.json:
        result: dict[str, Any] = {"soc": options.soc, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

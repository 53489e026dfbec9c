"""The real compiler accepts the plans: no retry, 15% of headroom, no scalar code, no more bytes than the model says.

A part of what benchmarks/ascend_compile.py proves for every width, dtype, kernel and SoC.
"""

import pytest
import torch

pytest.importorskip("triton.backends.ascend", reason="needs triton-ascend")
pytest.importorskip("ascendnpuir", reason="needs BiShengIR")

import ascend_compile
import triton
import triton.language as tl
from ascend_compile import Case, compile_case, scalar_code

from thunder_npu import kernels
from thunder_npu.kernels import launch
from thunder_npu.kernels.plan import LIVE
from thunder_npu.virtual_npu.triton_cpu import compile_kernel

A2, A5 = "Ascend910B2", "Ascend950PR_9599"
CASES = [
    *(Case(k, "bf16", "bf16", "rows", w, A2) for k in LIVE for w in (7, 100, 1024, 50257)),
    *(Case(k, "fp32", "fp32", "rows", w, A5) for k in LIVE for w in (1, 197, 12288, 128256)),
    *(Case(k, "fp32", "fp32", layout, 197, A2) for k in LIVE for layout in ascend_compile.OTHER_LAYOUTS),
    *(Case(k, "bf16", "bf16", layout, 20000, A2) for k in LIVE for layout in ("middle", "expanded")),
    *(Case(k, *pair, "rows", 577, soc) for k in LIVE for pair, soc in zip(ascend_compile.MIXED, (A2, A5), strict=True)),
]


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c.soc}-{c.kernel}-{c.dtype_in}-{c.dtype_out}-{c.layout}-{c.width}"
)
def test_plan_compiles(case: Case) -> None:
    result = compile_case(case)
    assert not result.problems, f"{result.plan}: {result.problems}"


@triton.jit
def compares_int64(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # noqa: N803
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + column)
    tl.store(y_ptr + column, tl.where(column.to(tl.int64) < n, x, 0.0))


def test_scalar_code_is_found() -> None:
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i64"}
    assert scalar_code(compile_kernel(compares_int64, signature, {"BLOCK": 256}, soc=A2).report.hivm)


def test_a_tile_too_large_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans by a model that believes in half the bytes."""
    real = kernels.plan._element_bytes
    monkeypatch.setattr(kernels.plan, "_element_bytes", lambda *a: real(*a) // 2)
    result = compile_case(Case("softmax", "fp32", "fp32", "rows", 1024, A2))
    assert result.retries
    assert any("retried" in problem for problem in result.problems)


def test_a_kernel_that_does_not_compile_is_an_error(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the kernel, shape, dtypes, SoC and the compiler's message; nothing else runs in its place."""
    monkeypatch.setattr(kernels.plan, "BUDGET", 4.0)
    launch._prepare.cache_clear()
    x = torch.randn(48 * 64, 2048, device=device)
    with pytest.raises(kernels.KernelCompileError) as caught:
        kernels.log_softmax(x, -1)
    launch._prepare.cache_clear()
    for part in ("log_softmax", "(3072, 2048)", "float32", "Ascend910B2", "ub overflow"):
        assert part in str(caught.value)

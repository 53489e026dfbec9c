"""Which executor takes a softmax: one pure function of operation, shape, dtype, device, options and list of executors.

The checkers of both executors and the report that explains a trace call :func:`claim`; nothing else decides, and
nothing here has side effects.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from thunder_npu import kernels

ACLNN = "aclnn"
TRITON_ASCEND = "triton_ascend"
OURS = (ACLNN, TRITON_ASCEND)
OPS = ("softmax", "log_softmax", "safe_softmax")

# CANN documents at most 8 axes for aclnnSoftmax and aclnnLogSoftmax.
ACLNN_MAX_RANK = 8
# aclnnSoftmaxBackward lists no DOUBLE although the forward does: a float64 softmax given to aclnn could not be trained.
ACLNN_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32})
# Elements of a head up to which eager torch_npu 2.9 gives an attention to aclnnFlashAttentionScore.
ATTENTION_MAX_HEAD = 512
# A row wider than this fits no tile of a fused region on a GPU (kernels/plan.py): there a softmax stands alone.
CUDA_FUSED_WIDTH = 16384
# Thunder's fusion executors that take a softmax whole. (nvFuser takes the operations it decomposes into.)
FUSERS = ("torchcompile",)
# On a CPU tensor both executors run ATen's kernel.
REFERENCE_DTYPES = ACLNN_DTYPES | {torch.float64}


@dataclass(frozen=True)
class Softmax:
    """What routing knows of one softmax.

    Attributes:
        op: one of :data:`OPS`.
        rank: number of axes of the input.
        width: length of the reduced axis; if it is symbolic, that of the call which was traced; None if unknown.
        empty: the input has no elements.
        dtype: dtype of the input.
        result_dtype: dtype of the result (differs from ``dtype`` if the call has ``dtype=``).
        device: device type of the input: "cpu", "cuda", "npu", …
        executors: names of the executors in the list of the compilation, in order.
        symbolic: the width may be another one in a later call of the same trace.
    """

    op: str
    rank: int
    width: int | None
    empty: bool
    dtype: torch.dtype
    result_dtype: torch.dtype
    device: str
    executors: tuple[str, ...] = OURS
    symbolic: bool = False


@dataclass(frozen=True)
class Attention:
    """What routing knows of one scaled_dot_product_attention.

    Attributes:
        shapes, dtypes: of query, key and value.
        mask_shape, mask_dtype: of attn_mask; None without one.
        dropout_p, is_causal: as they were given.
        device: device type of all tensors, "several" if they differ.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    mask_shape: tuple[int, ...] | None
    mask_dtype: torch.dtype | None
    dropout_p: float
    is_causal: bool
    device: str


@dataclass(frozen=True)
class Options:
    """The options that routing reads; :mod:`thunder_npu.options` says what they mean."""

    softmax_aclnn_max_fuse_numel: int
    log_softmax_aclnn_fallback: bool
    safe_softmax_aclnn_fallback: bool


@dataclass(frozen=True)
class Claim:
    """Whether one executor takes a softmax, and why, in words."""

    taken: bool
    reason: str


@dataclass(frozen=True)
class Route:
    """The executor that takes a softmax (None: neither of ours does), and why, in words."""

    executor: str | None
    reason: str


def claim(executor: str, softmax: Softmax, options: Options) -> Claim:
    """Whether ``executor`` ("aclnn" or "triton_ascend") takes ``softmax``.

    Raises:
        KeyError: the executor is not one of ours.
    """
    rules = {ACLNN: _aclnn, TRITON_ASCEND: _triton_ascend}[executor]
    if softmax.empty:
        return Claim(False, "an empty tensor has nothing to compute")
    if softmax.op == "safe_softmax" and not options.safe_softmax_aclnn_fallback:
        return Claim(False, "safe_softmax_aclnn_fallback=False leaves _safe_softmax to ATen")
    return rules(softmax, options)


def route(softmax: Softmax, options: Options, order: Sequence[str] = OURS) -> Route:
    """The first executor in ``order`` that takes ``softmax``, its reason and those of the ones before it."""
    refusals: list[str] = []
    for executor in order:
        answer = claim(executor, softmax, options)
        if answer.taken:
            return Route(executor, "; ".join([answer.reason, *refusals]))
        refusals.append(f"{executor}: {answer.reason}")
    return Route(None, "; ".join(refusals))


def side(softmax: Softmax, options: Options, order: Sequence[str] = OURS) -> list[tuple[str, int]]:
    """What a symbolic width has to keep to for its route to stay: comparisons (">", 256) or ("<=", 256), mostly one.

    Empty where no width would change the route, or where the width of the traced call is unknown.
    """
    kept: list[tuple[str, int]] = []
    for bound in (options.softmax_aclnn_max_fuse_numel, CUDA_FUSED_WIDTH) if softmax.width is not None else ():
        below, above = (route(replace(softmax, width=n), options, order).executor for n in (bound, bound + 1))
        if bound and below != above:
            kept.append(("<=" if (softmax.width or 0) <= bound else ">", bound))
    return kept


def _aclnn(softmax: Softmax, options: Options) -> Claim:
    on_npu = softmax.device == "npu"
    if not on_npu and softmax.device != "cpu":
        return Claim(False, f"aclnn runs on npu tensors, this one is on {softmax.device}")
    if softmax.result_dtype not in (ACLNN_DTYPES if on_npu else REFERENCE_DTYPES):
        return Claim(False, f"aclnn has no softmax with a backward for {_name(softmax.result_dtype)}")
    if on_npu and softmax.rank > ACLNN_MAX_RANK:
        return Claim(False, f"CANN's softmax takes at most {ACLNN_MAX_RANK} axes, this one has {softmax.rank}")
    if softmax.op == "log_softmax" and options.log_softmax_aclnn_fallback:
        return Claim(True, "log_softmax_aclnn_fallback=True: log_softmax at every width")
    bound = options.softmax_aclnn_max_fuse_numel
    if softmax.width is None:
        narrow = "an unknown width is never wide"
    elif bound == 0:
        narrow = "softmax_aclnn_max_fuse_numel=0: no routing by width"
    elif softmax.width <= bound:
        narrow = f"{_width(softmax)} ≤ softmax_aclnn_max_fuse_numel={bound}"
    else:
        return Claim(True, f"{_width(softmax)} > softmax_aclnn_max_fuse_numel={bound}")
    nobody = _nobody_for_narrow_rows(softmax, options)
    return Claim(False, narrow) if nobody is None else Claim(True, f"{narrow}, but {nobody}")


def _nobody_for_narrow_rows(softmax: Softmax, options: Options) -> str | None:
    """Why no Triton executor can take a row that aclnn would leave to one; None if one can.

    That is "triton_ascend", or a fusion executor that takes a softmax whole and prints Triton where tensors are on an
    NPU. Without one, Thunder's torch executor would get the row, and autograd would decompose its backward.
    """
    if TRITON_ASCEND in softmax.executors:
        answer = _triton_ascend(softmax, options)
        if answer.taken:
            return None
        nobody = f"{TRITON_ASCEND} cannot take it: {answer.reason}"
    else:
        nobody = f"{TRITON_ASCEND} is not in the list of executors"
    fuses = softmax.op != "safe_softmax" and any(name in FUSERS for name in softmax.executors)
    return None if fuses and (softmax.device == "cpu" or missing_triton(softmax.device) is None) else nobody


def _triton_ascend(softmax: Softmax, options: Options) -> Claim:
    if softmax.device == "cpu":
        if softmax.result_dtype not in REFERENCE_DTYPES:
            return Claim(False, f"ATen has no softmax for {_name(softmax.result_dtype)}")
    else:
        refusal = missing_triton(softmax.device) or kernels.unsupported(softmax.op, softmax.dtype, softmax.result_dtype)
        if refusal is not None:
            return Claim(False, refusal)
    fuser, width = fuser_behind(softmax.executors), softmax.width
    if softmax.device == "cuda" and fuser and softmax.op != "safe_softmax" and (width or 0) > CUDA_FUSED_WIDTH:
        return Claim(
            False, f"{_width(softmax)} fits no tile, so it would stand alone here; {fuser} fuses its neighbours"
        )
    return Claim(True, "rows of any width")


def claim_attention(attention: Attention) -> Claim:
    """Whether aclnn takes an attention: where eager torch_npu 2.9 runs it as one aclnnFlashAttentionScore.

    Seen by what eager launches (tests/virtual_npu/test_attention.py compares the two); two cases that eager gives to
    the operator, which then refuses them, are left out: an axis of length zero, dropout of everything.
    """
    (query, key, value), mask = attention.shapes, attention.mask_shape
    if attention.device != "npu":
        return Claim(False, f"aclnn runs attention on npu tensors, these are on {attention.device}")
    if any(len(shape) != 4 for shape in attention.shapes):
        return Claim(False, f"CANN's attention takes [B, N, S, D], the query has {len(query)} axes")
    if len(set(attention.dtypes)) > 1 or attention.dtypes[0] not in ACLNN_DTYPES:
        return Claim(False, f"CANN's attention has no {' and '.join(sorted({_name(t) for t in attention.dtypes}))}")
    if not query[:2] == key[:2] == value[:2] or key[2] != value[2] or query[3] != key[3]:
        return Claim(False, f"query {query}, key {key} and value {value} do not fit without broadcasting")
    if 0 in (*query, *key, *value):
        return Claim(False, "an empty tensor has nothing to compute")
    if max(query[3], value[3]) > ATTENTION_MAX_HEAD:
        return Claim(False, f"heads of {query[3]} elements, CANN's attention takes at most {ATTENTION_MAX_HEAD}")
    if not 0 <= attention.dropout_p < 1:
        return Claim(False, f"dropout_p={attention.dropout_p} keeps nothing")
    if mask is not None:
        if attention.is_causal:
            return Claim(False, "is_causal and a mask exclude each other")
        if attention.mask_dtype != torch.bool:
            assert attention.mask_dtype is not None
            return Claim(False, f"a mask of {_name(attention.mask_dtype)} is added, CANN's attention takes a bool one")
        full = (query[0], query[1], query[2], key[2])
        if len(mask) not in (2, 4) or any(m not in (1, n) for m, n in zip(mask, full[-len(mask) :], strict=True)):
            return Claim(False, f"CANN's attention takes masks of 2 or 4 axes for {full}, this one is {mask}")
    return Claim(True, "one aclnnFlashAttentionScore, as eager's")


def fuser_behind(executors: Sequence[str]) -> str | None:
    """The first of ``FUSERS`` in a list of executors, if it stands behind "triton_ascend"."""
    own = list(executors).index(TRITON_ASCEND) if TRITON_ASCEND in executors else len(executors)
    return next((name for name in executors[own:] if name in FUSERS), None)


@lru_cache
def missing_triton(device: str) -> str | None:
    """Why no Triton kernel can run on tensors of device type ``device`` here; None if one can."""
    backend = {"npu": "ascend", "cuda": "nvidia"}.get(device)
    if backend is None:
        return f"the Triton kernels run on npu and cuda tensors, this one is on {device}"
    package = "triton-ascend" if device == "npu" else "triton"
    if importlib.util.find_spec("triton") is None:
        return f"the package {package} is not installed"
    if importlib.util.find_spec(f"triton.backends.{backend}") is None:
        return f"the installed triton has no {backend} backend; {device} tensors need the package {package}"
    return None


def _width(softmax: Softmax) -> str:
    return f"width {softmax.width}" + (" of the traced call (symbolic)" if softmax.symbolic else "")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

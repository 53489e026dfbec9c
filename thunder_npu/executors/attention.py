"""scaled_dot_product_attention on npu tensors: one aclnnFlashAttentionScore, and one …Grad in the backward.

Without this, autograd decomposes attention into two matmuls and a softmax, which keep S × S matrices. Claimed is what
eager torch_npu gives to the same operator, with the same arguments, so that the numbers (and, from the same seed, the
dropped elements) are eager's; ``routing.claim_attention`` says what that is. Saved for the backward are query, key,
value, the result, and two float32 statistics of 8 elements per query.

On the CPU nothing is claimed: there the decomposition runs.
"""

from __future__ import annotations

import functools
import inspect
import math
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.devices import cpu
from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import get_grad, put_grad
from thunder.extend import Executor

from thunder_npu import routing

LAYOUT = "BNSD"
# FlashAttentionScore's sparse modes: 0 takes the mask as it is, 2 masks above the diagonal from the upper left corner
# and wants a mask of this size to read the pattern from, whatever the lengths.
PLAIN, CAUSAL = 0, 2
CAUSAL_MASK_SIZE = 2048
STATISTICS = 8
"""Elements per query of each saved statistic: the row's maximum (or sum), repeated to 32 bytes."""
EVERYTHING = 2**31 - 1


# ---- implementation --------------------------------------------------------------------------------------------------
@functools.cache
def _causal_mask(device: torch.device) -> torch.Tensor:
    """True above the diagonal; made once a device, where eager makes it at every call."""
    return torch.ones(CAUSAL_MASK_SIZE, CAUSAL_MASK_SIZE, dtype=torch.bool, device=device).triu_(1)


def _arguments(query: torch.Tensor, blocked: torch.Tensor | None, dropout_p: float, is_causal: bool) -> dict[str, Any]:
    return {
        "atten_mask": _causal_mask(query.device) if is_causal else blocked,
        "keep_prob": 1.0 - dropout_p,
        "next_tockens": 0 if is_causal else EVERYTHING,
        "sparse_mode": CAUSAL if is_causal else PLAIN,
    }


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    blocked: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    """aclnnFlashAttentionScore.

    Args:
        query, key, value: [B, N, L, D], [B, N, S, D], [B, N, S, Dv] of one dtype.
        blocked: bool, True where a query may not see a key, of a shape that CANN takes ([L, S] or [B|1, N|1, L, S]).

    Returns:
        the result [B, N, L, Dv]; maxima and sums of the rows, float32 [B, N, L, 8]; seed and offset of the dropped
        elements, int64 [1] in host memory.
    """
    out, maximum, total, _, seed, offset = torch.ops.npu.npu_fusion_attention_v3(
        query, key, value, query.shape[1], LAYOUT, scale=scale, **_arguments(query, blocked, dropout_p, is_causal)
    )
    return out, maximum, total, seed, offset


def attention_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    blocked: torch.Tensor | None,
    saved: tuple[torch.Tensor, ...],
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    """aclnnFlashAttentionScoreGrad: the gradients of query, key and value. ``saved`` is what :func:`attention` gave."""
    out, maximum, total, seed, offset = saved
    return torch.ops.npu.npu_fusion_attention_grad_v3(
        query,
        key,
        value,
        grad,
        query.shape[1],
        LAYOUT,
        softmax_max=maximum,
        softmax_sum=total,
        attention_in=out,
        scale_value=scale,
        seed=seed,
        offset=offset,
        **_arguments(query, blocked, dropout_p, is_causal),
    )[:3]


# ---- metas -----------------------------------------------------------------------------------------------------------
def _meta(
    query: TensorProxy,
    key: TensorProxy,
    value: TensorProxy,
    blocked: Any,
    dropout_p: float,
    is_causal: bool,
    scale: Any,
) -> tuple[TensorProxy, ...]:
    rows = tuple(query.shape[:-1])
    statistic = functools.partial(TensorProxy, like=query, shape=(*rows, STATISTICS), dtype=dtypes.float32)
    number = functools.partial(TensorProxy, shape=(1,), device=cpu, dtype=dtypes.int64, requires_grad=False)
    return TensorProxy(like=query, shape=(*rows, value.shape[-1])), statistic(), statistic(), number(), number()


def _backward_meta(
    grad: TensorProxy, query: TensorProxy, key: TensorProxy, value: TensorProxy, *rest: Any
) -> tuple[TensorProxy, ...]:
    return TensorProxy(like=query), TensorProxy(like=key), TensorProxy(like=value)


# ---- claims ----------------------------------------------------------------------------------------------------------
def describe(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: Any = 0.0, is_causal: Any = False
) -> routing.Attention | None:
    """An attention as routing sees it; None if its tensors are not plain ones of known shape."""
    tensors = [query, key, value] + ([] if attn_mask is None else [attn_mask])
    if any(type(t) is not TensorProxy or any(type(n) is not int for n in t._shape) for t in tensors):
        return None
    if type(is_causal) is not bool or not isinstance(dropout_p, (int, float)):
        return None
    devices = {t.device for t in tensors}
    return routing.Attention(
        shapes=tuple(tuple(t._shape) for t in (query, key, value)),
        dtypes=tuple(dtypes.to_torch_dtype(t.dtype) for t in (query, key, value)),
        mask_shape=None if attn_mask is None else tuple(attn_mask._shape),
        mask_dtype=None if attn_mask is None else dtypes.to_torch_dtype(attn_mask.dtype),
        dropout_p=float(dropout_p),
        is_causal=is_causal,
        device=query.device.type if len(devices) == 1 else "several",
    )


def _takes(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    *,
    scale: Any = None,
) -> bool:
    described = describe(query, key, value, attn_mask, dropout_p, is_causal)
    return described is not None and routing.claim_attention(described).taken


def _blocked(attn_mask: TensorProxy | None, query: TensorProxy, key: TensorProxy) -> TensorProxy | None:
    """``attn_mask`` as CANN wants it: True where nothing is seen, its last two axes of full length."""
    if attn_mask is None:
        return None
    shape = (*attn_mask.shape[:-2], query.shape[-2], key.shape[-2])
    return ltorch.logical_not(attn_mask if tuple(attn_mask.shape) == shape else ltorch.expand(attn_mask, *shape))


def register(executor: Executor) -> None:
    """Give ``executor`` the operators ``<name>_attention`` and ``…_backward``, and let it claim Thunder's symbol."""
    tags = [OpTags.RANDOM_OP, OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD]
    name = f"{executor.name}_attention"
    forward = executor.register_operator(name, meta=_meta, fn=attention, tags=tags)
    backward = executor.register_operator(
        f"{name}_backward", meta=_backward_meta, fn=attention_backward, tags=[OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD]
    )

    def run(
        query: TensorProxy,
        key: TensorProxy,
        value: TensorProxy,
        attn_mask: TensorProxy | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[tuple[TensorProxy, ...], tuple[Any, ...]]:
        """What the operator gives, and what it was given."""
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        blocked = _blocked(attn_mask, query, key)
        return (
            forward(query, key, value, blocked, float(dropout_p), is_causal, scale),
            (query, key, value, blocked, float(dropout_p), is_causal, scale),
        )

    def execute(*args: Any, **kwargs: Any) -> TensorProxy:
        return run(*args, **kwargs)[0][0]

    def grad_rule(*args: Any, **kwargs: Any) -> TensorProxy:
        saved, (query, key, value, blocked, *rest) = run(*args, **kwargs)
        grads = backward(get_grad(saved[0]), query, key, value, blocked, saved, *rest)
        for tensor, grad in zip((query, key, value), grads, strict=True):
            put_grad(tensor, grad)
        return saved[0]

    # Thunder's VJP pairs the arguments of a rule with those of its symbol.
    grad_rule.__signature__ = inspect.signature(ltorch.scaled_dot_product_attention.meta)  # type: ignore[attr-defined]
    executor.register_implementation(
        ltorch.scaled_dot_product_attention, checker=_takes, execution_transform=execute, grad_transform=grad_rule
    )

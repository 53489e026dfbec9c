"""Operators that torch_npu calls only on an Atlas A5, or with TORCH_NPU_USE_COMPATIBLE_IMPL=1; flash attention.

As a script, with the name of a variant: checks its operators in this process and prints their names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from operator_table import FLOAT, Expression, Inputs, gradient


# ---- flash attention: plain, causal, masked, grouped heads, position bias -------------------------------------------
def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, **options)


def _attention_cases(t: Inputs) -> list[tuple[list[torch.Tensor], dict[str, Any]]]:
    qkv = [t(2, 4, 5, 8), t(2, 4, 7, 8), t(2, 4, 7, 8)]
    grouped = [t(2, 4, 6, 8), t(2, 2, 6, 8), t(2, 2, 6, 8)]
    mask = t.mask(2, 1, 5, 7)
    mask[:, :, 1] = False  # a row that sees nothing
    return [
        (qkv, {}),
        ([t(1, 2, 6, 8), t(1, 2, 6, 8), t(1, 2, 6, 8)], {"is_causal": True}),
        (qkv, {"attn_mask": mask, "scale": 0.3}),
        (qkv, {"attn_mask": t.mask(5, 7).logical_or(torch.eye(5, 7, device=t.device).bool())}),
        (grouped, {"enable_gqa": True}),
    ]


def flash_forward(t: Inputs) -> Any:
    return [_attention(*inputs, **options) for inputs, options in _attention_cases(t)]


def flash_backward(t: Inputs) -> Any:
    return [
        gradient(lambda q, k, v, o=options: _attention(q, k, v, **o), *inputs)
        for inputs, options in _attention_cases(t)
    ]


def _with_bias(t: Inputs, layout: str, pse_type: int) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
    """npu_fusion_attention_v2 with a position bias, in a layout, and what it computes."""
    q, k, v, bias = t(2, 4, 5, 8), t(2, 4, 5, 8), t(2, 4, 5, 8), t(2, 4, 5, 5)
    there = {"BNSD": lambda x: x, "BSND": lambda x: x.transpose(1, 2), "BSH": lambda x: x.transpose(1, 2).flatten(2),
             "SBH": lambda x: x.permute(2, 0, 1, 3).flatten(2)}[layout]  # fmt: skip

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if t.device == "npu":
            inputs = [there(x).contiguous() for x in (q, k, v)]
            return torch.ops.npu.npu_fusion_attention_v2(*inputs, 4, layout, pse=bias, scale=0.3, pse_type=pse_type)[0]
        scores = q @ k.mT
        scores = (scores + bias) * 0.3 if pse_type == 1 else scores * 0.3 + bias
        return there(torch.softmax(scores, -1) @ v)

    return call, [q, k, v, bias]


def biased_forward(t: Inputs) -> Any:
    results = []
    for layout in ("BNSD", "BSND", "BSH", "SBH"):
        for pse_type in (0, 1):
            call, inputs = _with_bias(t, layout, pse_type)
            results.append(call(*inputs))
    return results


def biased_backward(t: Inputs) -> Any:
    results = []
    for layout in ("BNSD", "SBH"):
        for pse_type in (0, 1):
            results.append(gradient(*(lambda call, inputs: (call, *inputs))(*_with_bias(t, layout, pse_type))))
    return results


# ---- Atlas A5 -------------------------------------------------------------------------------------------------------
def _dropout_is_consistent(t: Inputs) -> Any:
    """Zeros where the gradient is zero, the others scaled up: the same on both devices, whatever the draw."""
    x = torch.ones(40, 50, device=t.device, requires_grad=True)
    y = F.dropout(x, 0.5)
    y.sum().backward()
    assert 800 < y.detach().count_nonzero() < 1200
    return (y.detach() - x.grad), (y.detach() * (y.detach() - 2))


def _masked_softmax(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax((x * 0.5).masked_fill(mask, -10000.0), -1)


def _scaled_masked_softmax(t: Inputs, call: str = "npu_scaled_masked_softmax") -> Callable[..., torch.Tensor]:
    if t.device == "npu":
        return lambda x, mask: getattr(torch.ops.npu, call)(x, mask, 0.5, False)
    return _masked_softmax


def _scaled_masked_softmax_gradient(t: Inputs) -> Any:
    mask = t.mask(2, 1, 32, 32)
    return gradient(lambda x: _scaled_masked_softmax(t)(x, mask), t(2, 2, 32, 32))


A5 = {
    "aclnnDropoutV3": _dropout_is_consistent,
    "aclnnScaledMaskedSoftmax": lambda t: _scaled_masked_softmax(t)(t(2, 2, 32, 32), t.mask(2, 1, 32, 32)),
    "aclnnScaledMaskedSoftmaxBackward": _scaled_masked_softmax_gradient,
    "aclnnFlashAttentionScoreV4": flash_forward,
    "aclnnFlashAttentionScoreGradV4": flash_backward,
    "aclnnIndexFillTensor": lambda t: t(5, 6).index_fill(1, t.index(3, high=6), 1),
    "aclnnInplaceIndexFillTensor": lambda t: t(5, 6).index_fill_(1, t.index(3, high=6), 1),
}
A2 = {
    "aclnnFlashAttentionScore": flash_forward,
    "aclnnFlashAttentionScoreGrad": flash_backward,
    "aclnnFlashAttentionScoreV2": biased_forward,
    "aclnnFlashAttentionScoreGradV2": biased_backward,
}
COMPATIBLE = {
    "aclnnMaxPool2dWithIndices": lambda t: F.max_pool2d(t.distinct(2, 3, 8, 8), 3, 2, 1),
    "aclnnMaxPool2dWithIndicesBackward": lambda t: gradient(lambda x: F.max_pool2d(x, 2), t.distinct(2, 3, 8, 8)),
    "aclnnFastLayerNorm": lambda t: F.layer_norm(t(4, 6), (6,), t(6), t(6)),
}
TABLES: dict[str, dict[str, Expression]] = {"A5": A5, "A2": A2, "compatible": COMPATIBLE}
VARIANTS: dict[str, tuple[str, dict[str, str], set[str]]] = {
    "A5": ("Ascend950PR_9599", {}, set(A5)),
    "A2": ("Ascend910B4", {}, set(A2)),
    "compatible": ("Ascend910B2", {"TORCH_NPU_USE_COMPATIBLE_IMPL": "1"}, set(COMPATIBLE)),
}
OPERATORS = {name for table in TABLES.values() for name in table}

if __name__ == "__main__":
    from checks import check

    for _name, _expression in sorted(TABLES[sys.argv[1]].items()):
        check(_name, _expression, FLOAT)
        print(_name)

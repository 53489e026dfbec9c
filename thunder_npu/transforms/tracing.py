"""What lets an executor apply the rewrites by itself: lookasides for every symbol that a rewrite may act on."""

from __future__ import annotations

import thunder.torch as ltorch
import torch
from thunder.extend import Executor

from thunder_npu.transforms import repeat_cat, softmax
from thunder_npu.transforms.rewrite import register_lookaside


def register(executor: Executor) -> None:
    """Lets ``executor`` do while a function is traced what RepeatCat and SafeSoftmax do, for users who name neither."""
    repeat_cat.register(executor)
    softmax.register(executor)
    # Under thunderfx the body of a checkpoint is recorded by this one symbol, unseen by the interpreter.
    checkpoint = (torch.ops.higher_order.tag_activation_checkpoint, ltorch.checkpoint)
    register_lookaside(executor, checkpoint, ltorch.checkpoint, repeat_cat.RepeatCat, softmax.SafeSoftmax)

"""``thunder.compile(model, plugins=thunder_npu.NPU())``: the executors and the transforms in one word."""

from __future__ import annotations

from functools import wraps

from thunder.core.recipe import Plugin
from thunder.core.transform_common import Transform
from thunder.extend import Executor
from thunder.recipes import BaseRecipe

from thunder_npu.executors.aclnn_ex import aclnn_ex
from thunder_npu.executors.triton_ascend_ex import triton_ascend_ex
from thunder_npu.transforms import RepeatCat, SafeSoftmax


class NPU(Plugin):
    """Plugin that puts ``aclnn_ex`` and ``triton_ascend_ex`` ahead of the recipe's executors and adds both transforms.

    ``thunder.compile`` takes no compile options: set ours by their environment variables (:mod:`thunder_npu.options`).
    """

    def setup_executors(self) -> list[Executor]:
        """The two executors, in the order that routes wide rows to aclnn."""
        _let_recipes_do_without_nvfuser()
        return [aclnn_ex, triton_ascend_ex]

    def setup_transforms(self) -> list[Transform]:
        """The transforms; with these executors they act anyway, here they stand in the list for users to see."""
        return [RepeatCat(), SafeSoftmax()]


def _let_recipes_do_without_nvfuser() -> None:
    """Where nvFuser is not installed, as on every Ascend machine, leave it out of the recipe's executors.

    Thunder 0.2.6 prints a hint and then lists None in its place, which thunder.jit refuses: without this,
    ``thunder.compile`` works on CUDA machines only.
    """
    original = BaseRecipe.setup_executors
    if getattr(original, "leaves_out_none", False):
        return

    @wraps(original)
    def setup_executors(self: BaseRecipe) -> list[Executor]:
        return [executor for executor in original(self) if executor is not None]

    setup_executors.leaves_out_none = True  # type: ignore[attr-defined]
    BaseRecipe.setup_executors = setup_executors

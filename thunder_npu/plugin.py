"""``thunder.compile(model, plugins=thunder_npu.NPU())``: the executors and the transforms in one word."""

from __future__ import annotations

from thunder.core.recipe import Plugin
from thunder.core.transform_common import Transform
from thunder.extend import Executor

from thunder_npu.executors.aclnn_ex import aclnn_ex
from thunder_npu.executors.triton_ascend_ex import triton_ascend_ex
from thunder_npu.transforms import RepeatCat, SafeSoftmax


class NPU(Plugin):
    """Plugin that puts ``aclnn_ex`` and ``triton_ascend_ex`` ahead of the recipe's executors and adds both transforms.

    ``thunder.compile`` takes no compile options: set ours by their environment variables (:mod:`thunder_npu.options`).
    """

    def setup_executors(self) -> list[Executor]:
        """The two executors, in the order that routes wide rows to aclnn."""
        return [aclnn_ex, triton_ascend_ex]

    def setup_transforms(self) -> list[Transform]:
        """The transforms; with these executors they act anyway, here they stand in the list for users to see."""
        return [RepeatCat(), SafeSoftmax()]

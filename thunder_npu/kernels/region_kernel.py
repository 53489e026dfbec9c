"""A fused region as something to call: torch tensors in, torch tensors out, one Triton kernel launched.

The kernel for given strides is made at the first call with them and kept. There is no other way to compute a region
here: what cannot be compiled raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import codegen
from .codegen import Launch
from .launch import _device, rename, target_of
from .plan import Target, ascend_target
from .region import Region, Tensor

DEFAULT_TARGET = ascend_target("Ascend910B2", 48)
"""What a region has to fit where there is no device to ask: on the reference path of CPU tensors."""


class RegionKernel:
    """The compiled forms of one region.

    Args:
        region: what to compute.
        name: how errors call it.
    """

    def __init__(self, region: Region, name: str = "region") -> None:
        self.region = region
        self.name = name
        self._launches: dict[Any, Launch | None] = {}

    def launch_for(self, strides: Sequence[tuple[int, ...]], target: Target) -> Launch | None:
        """Source, sizes and plan for inputs with these strides; None if the inputs have to be made contiguous."""
        key = (tuple(strides), target)
        if key not in self._launches:
            self._launches[key] = codegen.prepare(self.region, strides, target)
        return self._launches[key]

    def source(self, target: Target = DEFAULT_TARGET) -> str:
        """The text of the kernel for inputs that lie in memory as the rows do.

        Raises:
            ValueError: no kernel on the target can compute the region.
        """
        return self._contiguous_launch(target).text

    def _contiguous_launch(self, target: Target) -> Launch:
        launch = self.launch_for([codegen.row_strides(t) for t in self.region.inputs], target)
        if launch is None:
            raise ValueError(
                f"{self.name}: {self.region.rows} rows of {self.region.width} elements with {self.region.live} live "
                f"tiles have no kernel on {target.name}: {codegen.unfit(self.region, target)}"
            )
        return launch

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The region's outputs, contiguous, on the device of the inputs.

        `inputs` are as `region.inputs`: npu or cuda tensors, or CPU tensors while the virtual NPU's Triton driver is
        active. 0-d tensors may be in host memory whatever the device.

        Raises:
            KernelCompileError: the kernel does not compile; the message names the region, its shape and the target.
            RuntimeError: an input is on another device than the first that is in no host memory.
        """
        device = next((t.device for t in inputs if t.device.type != "cpu"), torch.device("cpu"))
        target = target_of(device)
        tensors = [t if t.device == device else self._moved(n, t, device) for n, t in enumerate(inputs)]
        launch = self.launch_for([t.stride() for t in tensors], target)
        if launch is None:
            tensors = [_in_rows(t, tensor) for t, tensor in zip(tensors, self.region.inputs, strict=True)]
            launch = self._contiguous_launch(target)
        outputs = [torch.empty(t.shape, dtype=t.dtype, device=device) for _, t in self.region.outputs]
        arguments = [_storable(t) for t in (*tensors, *outputs)]
        plan = launch.plan
        # Every operation rounds as eager's does: no product and sum contract to one.
        options = {"num_warps": plan.num_warps, "enable_fp_fusion": False} if target.kind == "cuda" else {}
        numbers = (*launch.sizes, *launch.strides)
        try:
            with _device(device):
                launch.kernel[(plan.grid,)](*arguments, *numbers, ROWS=plan.rows, BLOCK=plan.block, **options)
        except Exception as error:
            rows = f"{self.region.rows} rows of {self.region.width} elements"
            rename(error, f"{self.name}: the kernel {codegen.path_of(launch.text)} for {rows}", target, plan)
            raise
        return tuple(outputs)

    def _moved(self, number: int, t: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A 0-d tensor of host memory on the region's device: the one mixture of devices that eager allows."""
        if t.dim() == 0 and t.device.type == "cpu":
            return t.to(device)
        raise RuntimeError(
            f"{self.name}: input {number} of shape {tuple(t.shape)} is on {t.device} and the region on {device}: "
            "all inputs have to be on one device, but for 0-d tensors in host memory"
        )


def _in_rows(t: torch.Tensor, tensor: Tensor) -> torch.Tensor:
    """A copy (where one is needed) that lies in memory as the rows do, with the same dimensions."""
    order = codegen.row_order(tensor)
    return t.permute(order).contiguous().permute([order.index(d) for d in range(len(order))])


def _storable(tensor: torch.Tensor) -> torch.Tensor:
    # Triton's pointers to booleans differ between versions; a byte is a byte.
    return tensor.view(torch.int8) if tensor.dtype == torch.bool else tensor

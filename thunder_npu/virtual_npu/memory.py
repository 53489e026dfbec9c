"""Accounting of the virtual devices' memory. It sees what torch_npu's caching allocator asked CANN for, not tensors."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from thunder_npu.virtual_npu import library


@dataclass(frozen=True)
class Memory:
    """Bytes of one device: in use now, most ever in use (or since `reset_peak()`), the limit, and how many allocations
    there were. `acl_objects` counts the live descriptors of operators' arguments (tensors, scalars, …)."""

    in_use: int
    peak: int
    limit: int
    allocations: int
    acl_objects: int


def memory(device: int = 0) -> Memory:
    """The state of a device's memory."""
    data = library.data("vnpu_memory")
    if not 0 <= device < len(data["devices"]):
        raise ValueError(f"no device {device}: there are {len(data['devices'])}")
    return Memory(**data["devices"][device], limit=data["limit"], acl_objects=data["acl_objects"])


def set_memory_limit(limit: int) -> None:
    """Set the bytes that each device has; an allocation beyond them gives torch.OutOfMemoryError."""
    if limit <= 0:
        raise ValueError(f"the limit must be a positive number of bytes, not {limit}")
    library.require().vnpu_set_memory_limit(limit)


def reset_peak() -> None:
    """Let the peaks start again from what is in use now."""
    library.require().vnpu_reset_peak()


@contextmanager
def leak_check() -> Iterator[None]:
    """Raises RuntimeError if the block leaves device memory or acl descriptors behind, once caches are emptied."""
    before = _settled()
    yield
    after = _settled()
    leaks = [f"{name}: {before[name]} before, {after[name]} after" for name in before if after[name] > before[name]]
    if leaks:
        raise RuntimeError("leak on the virtual NPU; " + "; ".join(leaks))


def _settled() -> dict[str, int]:
    import torch

    gc.collect()
    torch.npu.synchronize()  # type: ignore[attr-defined]
    torch.npu.empty_cache()  # type: ignore[attr-defined]
    data = library.data("vnpu_memory")
    return {
        "acl objects": data["acl_objects"],
        **{f"bytes on device {index}": device["in_use"] for index, device in enumerate(data["devices"])},
    }

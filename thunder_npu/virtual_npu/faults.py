"""Faults on demand: what a program does when an operator fails, memory runs out, or a device is lost."""

from __future__ import annotations

from thunder_npu.virtual_npu import library


def inject_fault(what: str, times: int | None = None, *, device: int = 0) -> None:
    """From now on, `what` fails as it would on hardware; nothing hangs.

    Args:
        what: "aclnnSoftmax" or another emulated operator: its launch fails with error 507015, torch_npu raises
            RuntimeError. "memory": device allocations fail, torch_npu raises torch.OutOfMemoryError once its cache
            cannot serve a request. "device": `device` is lost; whatever needs it raises RuntimeError with error 507010,
            until `reset_device`.
        times: how often an operator or an allocation fails before it works again; None: until `clear_faults()`.
        device: the device that "device" loses.

    Raises:
        ValueError: no such operator or device, or a wrong `times`.
    """
    handle = library.require()
    if times is not None and times < 1:
        raise ValueError(f"times must be at least 1, not {times}")
    count = -1 if times is None else times
    if what == "device":
        handle.vnpu_set_lost(_checked(device), 1)
    elif what == "memory":
        handle.vnpu_fail_allocations(count)
    elif what in operators():
        handle.vnpu_fail_operator(what.encode(), count)
    else:
        raise ValueError(f"no such fault: {what!r}; one of the emulated aclnn operators, 'memory', or 'device'")


def clear_faults() -> None:
    """Operators and memory work again. A lost device stays lost, see `reset_device`."""
    handle = library.require()
    handle.vnpu_clear_operator_faults()
    handle.vnpu_fail_allocations(0)


def reset_device(device: int = 0) -> None:
    """Bring a lost device back. Its memory holds what it held."""
    library.require().vnpu_set_lost(_checked(device), 0)


def _checked(device: int) -> int:
    count = len(library.data("vnpu_memory")["devices"])
    if not 0 <= device < count:
        raise ValueError(f"no device {device}: there are {count}")
    return device


def operators() -> frozenset[str]:
    """Names of the aclnn operators that are emulated; every other one that the wheel mentions fails with its name."""
    return frozenset(library.text("vnpu_operators").split())

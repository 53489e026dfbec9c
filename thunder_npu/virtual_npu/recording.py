"""What the virtual NPU was asked to do: every aclnn call and every Triton launch, in order.

The aclnn side is logged by the C++ library, the Triton side here. Both stamp CLOCK_MONOTONIC and both run on the
calling thread, so the start times alone give the one global order. With nobody recording, only counters are kept.
This module never imports torch, and works without the library (Triton kernels on CPU tensors).
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from thunder_npu.virtual_npu import library


@dataclass(frozen=True)
class TensorArg:
    """A tensor argument: dtype by PyTorch's name ("float32", "bfloat16", …) and shape."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class AclnnCall:
    """One aclnn operator that ran. `args` holds, in the order of the C signature, outputs included: TensorArg, tuples
    of them, numbers, strings, tuples of numbers, or None. Times are nanoseconds of CLOCK_MONOTONIC."""

    name: str
    args: tuple[Any, ...]
    start_ns: int
    end_ns: int

    def __str__(self) -> str:
        return f"{self.name}({', '.join(_show(a) for a in self.args)})"


@dataclass(frozen=True)
class TritonLaunch:
    """One launch of a Triton kernel: the grid, and the bytes of unified buffer a vector core needs (None: unknown)."""

    kernel: str
    grid: tuple[int, int, int]
    unified_buffer_bytes: int | None
    start_ns: int
    end_ns: int

    @property
    def name(self) -> str:
        return self.kernel

    def __str__(self) -> str:
        used = "" if self.unified_buffer_bytes is None else f", {self.unified_buffer_bytes} B of unified buffer"
        return f"{self.kernel}[{', '.join(map(str, self.grid))}]{used}"


Event = AclnnCall | TritonLaunch

_lock = threading.Lock()
_launches: list[TritonLaunch] = []
_launch_counts: Counter[str] = Counter()
_recorders = 0


def note_triton_launch(
    kernel: str, grid: tuple[int, int, int], unified_buffer_bytes: int | None, start_ns: int, end_ns: int
) -> None:
    """Called by the Triton launcher after each launch; times from `time.monotonic_ns()`."""
    with _lock:
        _launch_counts[kernel] += 1
        if _recorders:
            _launches.append(TritonLaunch(kernel, grid, unified_buffer_bytes, start_ns, end_ns))


class Recording(Sequence[Event]):
    """The calls since `record()` was entered, oldest first: a live sequence inside the `with`, fixed after it."""

    def __init__(self) -> None:
        self._first_call = 0
        self._first_launch = 0
        self._events: list[Event] | None = None

    def _now(self) -> list[Event]:
        if self._events is not None:
            return self._events
        with _lock:
            launches: list[Event] = list(_launches[self._first_launch :])
        calls: list[Event] = []
        if library.loaded() is not None:
            calls = [_call(line) for line in library.text("vnpu_events", self._first_call).splitlines()]
        return sorted(calls + launches, key=lambda event: event.start_ns)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        return self._now()[index]

    def __len__(self) -> int:
        return len(self._now())

    def __iter__(self) -> Iterator[Event]:
        return iter(self._now())

    def __str__(self) -> str:
        return "\n".join(map(str, self._now()))

    @property
    def names(self) -> list[str]:
        """Operator and kernel names in order."""
        return [event.name for event in self._now()]

    def chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a trace for chrome://tracing or Perfetto: one row for aclnn operators, one for Triton kernels."""
        rows = {AclnnCall: 1, TritonLaunch: 2}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": name}}
            for tid, name in ((1, "aclnn"), (2, "Triton"))
        ]
        events += [
            {
                "ph": "X", "name": event.name, "pid": 0, "tid": rows[type(event)], "args": {"call": str(event)},
                "ts": event.start_ns / 1e3, "dur": (event.end_ns - event.start_ns) / 1e3,
            }
            for event in self._now()
        ]  # fmt: skip
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}), encoding="utf-8")


@contextmanager
def record() -> Iterator[Recording]:
    """`with record() as calls:` — every aclnn call and Triton launch of any thread meanwhile, as a `Recording`."""
    global _recorders
    recording = Recording()
    handle = library.loaded()
    if handle is not None:
        handle.vnpu_record(1)
        recording._first_call = handle.vnpu_event_count()
    with _lock:
        _recorders += 1
        recording._first_launch = len(_launches)
    try:
        yield recording
    finally:
        recording._events = recording._now()
        with _lock:
            _recorders -= 1
            if not _recorders:
                _launches.clear()
        if handle is not None:
            handle.vnpu_record(-1)


def counters() -> dict[str, int]:
    """How often each aclnn operator and each Triton kernel ran since the start or the last `reset_counters()`."""
    counts: dict[str, int] = library.data("vnpu_counters") if library.loaded() is not None else {}
    with _lock:
        return counts | dict(_launch_counts)


def reset_counters() -> None:
    """Set every counter to zero; recordings under way are not touched."""
    with _lock:
        _launch_counts.clear()
    handle = library.loaded()
    if handle is not None:
        handle.vnpu_reset_counters()


def _call(line: str) -> AclnnCall:
    name, start, end, args = json.loads(line)
    return AclnnCall(name, tuple(map(_argument, args)), start, end)


def _argument(value: Any) -> Any:
    if isinstance(value, dict):
        return TensorArg(value["dtype"], tuple(value["shape"]))
    if isinstance(value, list):
        return tuple(map(_argument, value))
    return value


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_show, value)) + "]"
    return str(value)


def summary() -> str:
    """A table of the calls so far: how often each operator and kernel ran, most frequent first."""
    from rich.console import Console
    from rich.table import Table

    with _lock:
        kernels = set(_launch_counts)
    table = Table("kind", "name", "calls", title="virtual NPU")
    for name, calls in sorted(counters().items(), key=lambda item: (-item[1], item[0])):
        table.add_row("Triton" if name in kernels else "aclnn", name, str(calls))
    console = Console(width=100)
    with console.capture() as text:
        console.print(table)
    return text.get()

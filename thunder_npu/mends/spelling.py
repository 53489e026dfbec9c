"""A misspelt or wrong option of ours is an error when a function is jitted, not ignored or found in the first call.

``thunder.jit`` takes any keyword as a compile option, and asks nobody whether there is such an option: Thunder has no
hook at which an executor sees the options before a call. All ways to compile (``thunder.jit``, ``thunder.compile``)
make one CompileData, which holds options and executors, so its constructor is what is wrapped: the class stays the
same, nothing of it is read but these two, and nothing is changed. ``thunderfx`` jits in the first call, inside of
Dynamo, which wraps errors; its backend's constructor has the same keywords earlier. Only where one of our executors
stands in the list is anything looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

from thunder.common import CompileData
from thunder.dynamo.compiler import ThunderCompiler
from thunder.extend import Executor, resolve_executors

from thunder_npu import options
from thunder_npu.mends.mend import Mend

_OURS = ("aclnn", "triton_ascend")


def _check(executors: Iterable[Executor], compile_options: Mapping[str, Any]) -> None:
    if any(executor.name in _OURS for executor in executors):
        options.check_all(compile_options)


def _compile_data(self: CompileData) -> None:
    _check(self.executors_list, self.compile_options)


def _thunder_compiler(self: ThunderCompiler) -> None:
    _check(resolve_executors(self.thunder_options.get("executors")), self.thunder_options)


def _after_init(kind: Any, check: Callable[[Any], None]) -> None:
    original = kind.__init__
    if getattr(original, "checks_our_options", False):
        return

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        check(self)

    init.checks_our_options = True  # type: ignore[attr-defined]
    kind.__init__ = init


def _apply(executor: Executor | None) -> None:
    _after_init(CompileData, _compile_data)
    _after_init(ThunderCompiler, _thunder_compiler)


SPELLING = Mend("a misspelt compile option is ignored, a wrong value is found in the first call", _apply, lambda: True)

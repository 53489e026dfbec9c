"""Tensors as default arguments: ``def f(x, mask=MASK)``.

Thunder 0.2.6 takes a default for a constant of the program, and then cannot find the way to it from the function
("Exception occured unpacking object from ProvenanceRecord(PseudoInst.CONSTANT"). Here a tensor among the defaults is
read as ``f.__defaults__[i]``, a way that the prologue can go at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from thunder.core import interpreter
from thunder.core.interpreter import INTERPRETER_SIGNALS, _interpret_call, unwrap
from thunder.extend import Executor

from thunder_npu.mends.mend import Mend


def _positional(fn: Any, i: int) -> Any:
    return fn.__defaults__[i]


def _by_name(fn: Any, name: str) -> Any:
    return fn.__kwdefaults__[name]


def _tensors(fn: Any) -> Iterator[tuple[int, str, Callable[..., Any], Any]]:
    """(position, name, how to read it, by what) of each default of ``fn`` that is a tensor and may go by name."""
    code = fn.__code__
    defaults = fn.__defaults__ or ()
    first = code.co_argcount - len(defaults)
    for i, value in enumerate(defaults):
        if isinstance(value, torch.Tensor) and first + i >= code.co_posonlyargcount:
            yield first + i, code.co_varnames[first + i], _positional, i
    for name, value in (fn.__kwdefaults__ or {}).items():
        if isinstance(value, torch.Tensor):
            yield code.co_argcount, name, _by_name, name


def _apply(executor: Executor | None) -> None:
    run_function, wrap_constant = interpreter._setup_frame_and_run_python_function, interpreter.wrap_const
    if getattr(run_function, "finds_default_tensors", False):
        return
    supplied: list[torch.Tensor] = []

    @wraps(run_function)
    def run(compilectx: Any, runtimectx: Any, wrapped_fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        fn = unwrap(wrapped_fn)
        before = len(supplied)
        if getattr(fn, "__defaults__", None) or getattr(fn, "__kwdefaults__", None):
            for position, name, read, key in _tensors(fn):
                supplied.append(read(fn, key))
                if name in kwargs or (read is _positional and position < len(args)):
                    continue
                value = _interpret_call(read, wrapped_fn, wrap_constant(key))
                if isinstance(value, INTERPRETER_SIGNALS):
                    del supplied[before:]
                    return value
                kwargs[name] = value
        try:
            return run_function(compilectx, runtimectx, wrapped_fn, *args, **kwargs)
        finally:
            del supplied[before:]

    @wraps(wrap_constant)
    def wrap_const(value: Any, /, **provenance: Any) -> Any:
        # The original wraps every default, used or not, and a tensor once wrapped is an input of the program.
        if isinstance(value, torch.Tensor) and any(value is tensor for tensor in supplied):
            value = None
        return wrap_constant(value, **provenance)

    run.finds_default_tensors = True  # type: ignore[attr-defined]
    interpreter._setup_frame_and_run_python_function = run
    interpreter.wrap_const = wrap_const


DEFAULTS = Mend("a tensor as a default argument cannot be unpacked", _apply)

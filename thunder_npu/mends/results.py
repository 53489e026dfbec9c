"""Named results: ``x.max(-1).values``, ``x.topk(2).indices``, ``torch.linalg.svd(x).S``, and all others of the kind.

PyTorch gives these back as named tuples (``torch.return_types``). Thunder 0.2.6 traces them to plain tuples: a name
raises AttributeError, and the caller of a jitted function reads a plain tuple. Here the traced value is PyTorch's own
class, inside of the function and where the function returns it; a trace prints it as a call of that class. The names
come from ``torch.return_types`` itself, so no list of functions stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import optree
import thunder.torch as ltorch
import torch
from thunder.core import codeutils
from thunder.core.symbol import Symbol
from thunder.extend import Executor

from thunder_npu.mends.mend import Mend
from thunder_npu.transforms.rewrite import register_lookaside


def named() -> Iterator[tuple[type, Symbol, list[Any]]]:
    """Each named tuple of PyTorch, Thunder's symbol of the function that returns it, and the spellings of this."""
    symbols = ltorch._torch_to_thunder_function_map
    for name, cls in vars(torch.return_types).items():
        if not optree.is_structseq_class(cls):
            continue
        where = [(torch.linalg, name.removeprefix("linalg_"))] if name.startswith("linalg_") else []
        found = [getattr(holder, n, None) for holder, n in (*where, (torch, name), (torch.Tensor, name))]
        # A function and its method may have a symbol each.
        for symbol in dict.fromkeys(symbols[f] for f in found if f in symbols):
            yield cls, symbol, [symbol, *(f for f in found if symbols.get(f) is symbol)]


def _name(cls: Any, symbol: Symbol) -> Callable[..., Any]:
    @wraps(symbol.meta)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "input" in kwargs:
            args = (kwargs.pop("input"), *args)
        out = symbol(*args, **kwargs)
        # torch.max(x) and torch.max(x, y) give a tensor.
        return cls(out) if type(out) is tuple else out

    return call


def _results(executor: Executor | None) -> None:
    for cls, symbol, spellings in named():
        register_lookaside(executor, spellings, _name(cls, symbol))


class _Call:
    """A named tuple of printed values, which prints as the call that makes it."""

    def __init__(self, printed: Any) -> None:
        self.printed = printed

    def __repr__(self) -> str:
        kind = type(self.printed)
        return f"{kind.__module__}.{kind.__qualname__}({tuple(self.printed)!r})"


def _printing(executor: Executor | None) -> None:
    original = codeutils.tree_unflatten
    if getattr(original, "prints_named_tuples", False):
        return

    @wraps(original)
    def tree_unflatten(values: Any, spec: Any) -> Any:
        """What codeutils prints is a tree of strings, by its repr; that of a named tuple is no program."""
        tree = original(values, spec)
        if not all(isinstance(value, str) for value in values):
            return tree
        return optree.tree_map(
            lambda t: _Call(t) if optree.is_structseq(t) else t, tree, is_leaf=optree.is_structseq, none_is_leaf=True
        )

    tree_unflatten.prints_named_tuples = True  # type: ignore[attr-defined]
    codeutils.tree_unflatten = tree_unflatten


RESULTS = Mend("x.max(-1).values, .indices and their kin raise AttributeError", _results)
PRINTING = Mend("a trace prints a named tuple of PyTorch as a call that raises", _printing)

"""An executor that owns gradient rules of symbols it does not claim.

Thunder asks an executor for its gradient rule of the symbols that this executor runs itself. A rule that only mends
Thunder's own must not claim the symbol with it: the executors behind ours, and our regions, are to have it. Nothing
here says what a rule is (:mod:`thunder_npu.mends.gradients` does).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from thunder.core.symbol import BoundSymbol, Symbol
from thunder.extend import Executor


class GradientRules(Executor):
    """To be inherited before the kind of executor.

    Attributes:
        gradient_rules: by id of a symbol, whether the rule takes this bound symbol, and the rule.
    """

    def __init__(self, name: Hashable, *, version: Any = None) -> None:
        super().__init__(name, version=version)
        self.gradient_rules: dict[Hashable, tuple[Callable[[BoundSymbol], bool], Callable[..., Any]]] = {}

    def can_execute_or_fuse(self, bsym: BoundSymbol) -> bool:
        """What Thunder's autograd asks before it asks for the rule; nothing else does."""
        taken = self.gradient_rules.get(bsym.sym.id)
        return (taken is not None and taken[0](bsym)) or super().can_execute_or_fuse(bsym)

    def get_grad_transform(self, sym: Symbol) -> Callable[..., Any] | None:
        own: Callable[..., Any] | None = super().get_grad_transform(sym)
        return own if own is not None or sym.id not in self.gradient_rules else self.gradient_rules[sym.id][1]

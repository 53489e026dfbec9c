"""``x % y``: Thunder 0.2.6 looks for the method "mod" of its torch language, which is not there (TypeError)."""

from __future__ import annotations

import thunder.torch as ltorch
from thunder.extend import Executor
from thunder.torch.langctx import _method_name_to_fn_map, register_method

from thunder_npu.mends.mend import Mend


def _apply(executor: Executor | None) -> None:
    register_method("mod", ltorch.remainder)


def _missing() -> bool:
    return "mod" not in _method_name_to_fn_map


MOD = Mend("x % y raises \"'NoneType' object is not callable\"", _apply, needed=_missing)

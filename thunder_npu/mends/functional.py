"""A jitted function under ``torch.func``.

``torch.func.grad``, ``vmap``, ``jvp`` and their kin hand a function tensors that have no storage. Thunder 0.2.6 asks
each input for its storage, and the user reads "Cannot access storage of TensorWrapper".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import thunder
from thunder.extend import Executor
from torch._C._functorch import peek_interpreter_stack

from thunder_npu.mends.mend import Mend

MESSAGE = (
    "a function compiled by thunder.jit was called inside of torch.func ({transform}), whose tensors Thunder cannot "
    "trace. Use Thunder's own transforms on the jitted function (thunder.core.transforms.grad(jitted), or "
    "jitted(x).sum().backward()), or hand torch.func the function that is not jitted"
)


def _apply(executor: Executor | None) -> None:
    original = thunder._with_cache_info_ctx
    if getattr(original, "names_torch_func", False):
        return

    @wraps(original)
    def with_cache_info_ctx(fn: Callable[..., Any]) -> Callable[..., Any]:
        inner = original(fn)

        @wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return inner(*args, **kwargs)
            except NotImplementedError as error:
                level = peek_interpreter_stack()
                if level is None:
                    raise
                raise RuntimeError(MESSAGE.format(transform=level.key().name.lower())) from error

        return call

    with_cache_info_ctx.names_torch_func = True  # type: ignore[attr-defined]
    thunder._with_cache_info_ctx = with_cache_info_ctx


FUNCTORCH = Mend("inside of torch.func a jitted function raises 'Cannot access storage of TensorWrapper'", _apply)

"""Copying and pickling what ``thunder.jit`` makes of a module.

A ThunderModule holds compiled functions, traces and statistics, none of which can be copied: ``copy.deepcopy`` of one
that has been called asserts in Thunder 0.2.6, pickle stops at a local function. What it *is* can be copied: the module,
and what it was jitted with. The copy compiles for itself at its first call and shares no memory with the original.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import thunder
import torch
from thunder.core.module import ThunderModule
from thunder.extend import Executor, TemporaryExecutor

from thunder_npu.mends.mend import Mend


def _rebuild(
    model: torch.nn.Module,
    executors: Sequence[str],
    transforms: Sequence[Any],
    options: Mapping[str, Any],
    parameters: Mapping[str, Any],
    buffers: Mapping[str, Any],
) -> ThunderModule:
    jitted = thunder.jit(model, executors=list(executors), transforms=list(transforms), **options)
    # What a transform put in the place of the module's own tensors (a quantised weight, a shard).
    jitted._overrides_parameters.update(parameters)
    jitted._overrides_buffers.update(buffers)
    return jitted


def _reduce(jitted: ThunderModule, protocol: Any) -> tuple[Any, ...]:
    """How copy and pickle take a jitted module apart."""
    data = thunder.compile_data(jitted)
    own = {**dict(jitted._model.named_parameters()), **dict(jitted._model.named_buffers())}

    def replaced(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {name: t for name, t in tensors.items() if own.get(name) is not t}

    options = {
        **data.compile_options,
        "cache": data.cache_option,
        "sharp_edges": data.sharp_edges,
        "disable_torch_autograd": data.disable_torch_autograd_support,
    }
    return _rebuild, (
        jitted._model,
        tuple(str(ex.name) for ex in data.executors_list if not isinstance(ex, TemporaryExecutor)),  # jit makes its own
        tuple(jitted._lc_transforms),
        options,
        replaced(jitted._overrides_parameters),
        replaced(jitted._overrides_buffers),
    )


def _apply(executor: Executor | None) -> None:
    ThunderModule.__reduce_ex__ = _reduce


COPY = Mend("copy.deepcopy of a jitted module asserts once it has been called; pickle cannot take one apart", _apply)

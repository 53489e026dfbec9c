"""thunderfx: what Thunder takes of a graph of Dynamo's, and who runs the rest.

Three faults of Thunder 0.2.6. It looks for gradients in example values with a pytree that refuses the tensors of a vmap
(transformers builds its masks in one). It counts the ends of a vmap as further beginnings, so that nothing behind one
goes to Thunder. And it asks the default executors about an operator, not those of the call: on an npu tensor "sdpa"
asks for the CUDA capability, and attention is left out.

What Thunder does not take it gives to Inductor, which knows no npu. There it runs as the graph module that it is,
operator by operator, unless the option ``thunderfx_npu_inductor`` asks for torch_npu's own Inductor.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import torch
from thunder import common
from thunder.dynamo import compiler, splitter, utils
from thunder.extend import Executor, resolve_executors
from torch.utils import _pytree

from thunder_npu import options
from thunder_npu.mends.mend import Mend

# torch 2.9 puts functions of torch._functorch.predispatch into its graphs, older ones those of torch._C._functorch.
_VMAP_BEGINS, _VMAP_ENDS = "_vmap_increment_nesting", "_vmap_decrement_nesting"


def _nodes_under_vmap(gm: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """The nodes of a graph between the beginning and the end of a vmap, both included."""
    depth = 0
    found: set[torch.fx.Node] = set()
    for node in gm.graph.nodes:
        name = getattr(node.target, "__name__", None) if node.op == "call_function" else None
        depth += name == _VMAP_BEGINS
        if depth and node.op not in ("placeholder", "get_attr", "output"):
            found.add(node)
        depth -= name == _VMAP_ENDS
    return found


def _asks_given_executors(is_supported: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(is_supported)
    def asked(node: torch.fx.Node, thunder_options: dict[str, Any]) -> Any:
        given = thunder_options.get("executors")
        if given is None:
            return is_supported(node, thunder_options)
        # Thunder builds the compile data of its question inside of a function, by this name and without a list.
        original = common.CompileData
        common.CompileData = partial(original, executors_list=resolve_executors(given))
        try:
            return is_supported(node, thunder_options)
        finally:
            common.CompileData = original

    return asked


def _is_on_npu(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a tensor of a graph, given, held or made, is on an npu."""
    values = [*inputs, *gm.parameters(), *gm.buffers()]
    values += [n.meta["example_value"] for n in gm.graph.nodes if "example_value" in n.meta]
    tensors = (t for t in _pytree.tree_leaves(values) if isinstance(t, torch.Tensor))
    return any(t.device.type == "npu" for t in tensors)


def _run_the_rest(inductor: Callable[..., Any], thunder_options: dict[str, Any], gm: Any, inputs: Any) -> Any:
    if not _is_on_npu(gm, inputs):
        return inductor(gm, inputs)
    if not options.resolve("thunderfx_npu_inductor", thunder_options):
        return gm
    importlib.import_module("torch_npu._inductor")  # registers the backend, or says what is missing
    return inductor(gm, inputs)


def _apply(executor: Executor | None) -> None:
    split = compiler._splitter
    if getattr(split, "knows_npu", False):
        return

    @wraps(split)
    def split_for_npu(gm: Any, jit: Any, inductor: Any, sample_args: Any, thunder_options: Any = None) -> Any:
        rest = partial(_run_the_rest, inductor, thunder_options or {})
        return split(gm, jit, rest, sample_args, thunder_options)

    split_for_npu.knows_npu = True  # type: ignore[attr-defined]
    compiler._splitter = split_for_npu
    utils.tree_flatten = _pytree.tree_flatten
    for module in (utils, splitter):
        module.get_nodes_in_unsupported_ctx_regions = _nodes_under_vmap
        module.is_node_supported_by_thunder = _asks_given_executors(module.is_node_supported_by_thunder)


DYNAMO = Mend(
    "thunderfx stops at a mask made under vmap, leaves all behind it to Inductor, and Inductor knows no npu", _apply
)

"""From a recording to a graph module that takes the place of Dynamo's in AOTAutograd."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites.reason import Reason
from .. import torch_compat
from .autocast import SOURCE_META, wrap_without_autocast

# Dynamo's own working values: real tensors and fakes of another mode, which a compiled graph should not keep alive.
_WORKING_META = ("example_value", "grapharg")
_NAMESPACES = ("aten", "prims", "prim")
# Write to running statistics in training, though their schemas don't say so. True: a flag says whether they do.
_HIDDEN_WRITES = {
    "aten::batch_norm": "training",
    "aten::instance_norm": "use_input_stats",
    "aten::native_batch_norm": "training",
    "aten::cudnn_batch_norm": "training",
    "aten::miopen_batch_norm": "training",
    "aten::_batch_norm_impl_index": "training",
}


def finish(recording: fx.GraphModule, gm: fx.GraphModule) -> tuple[fx.GraphModule, Reason | None]:
    """Give a recording of `gm` the inputs, output, attributes and metadata that AOTAutograd knows `gm` by.

    Returns:
        The finished graph module, and why it must not be used, or None.
    """
    graph = recording.graph
    graph.set_codegen(fx.CodeGen())  # Inputs and outputs are flat.
    _adopt_placeholders(graph, gm.graph)
    _flatten_output(graph)
    wrap_without_autocast(graph)
    graph.eliminate_dead_code(has_effect)
    _complete_metadata(graph)
    captured = fx.GraphModule(recording, graph, class_name=type(gm).__name__)
    _unregister_constants(captured, gm)
    _carry_over(gm, captured)
    return captured, _unusable(captured)


def _adopt_placeholders(graph: fx.Graph, original: fx.Graph) -> None:
    pairs = zip(_placeholders(graph), _placeholders(original), strict=True)
    for node, source in pairs:
        torch_compat.rename(node, source.name)
        node.target, node.type = source.target, source.type
        node.meta = {k: v for k, v in source.meta.items() if k not in _WORKING_META} | node.meta
        if hasattr(source, "_dynamo_source"):
            node._dynamo_source = source._dynamo_source


def _placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in graph.nodes if n.op == "placeholder"]


def _flatten_output(graph: fx.Graph) -> None:
    output = graph.output_node()
    value = output.args[0]
    output.args = (tuple(value) if isinstance(value, (tuple, list)) else (value,),)


def has_effect(node: fx.Node) -> bool:
    """Whether a call must stay though nobody reads its result: it writes, draws random numbers, checks or sets a mode."""
    if node.op != "call_function":
        return node.op != "get_attr"
    target = node.target
    if not isinstance(target, torch_compat.OpOverload):
        return target is not operator.getitem and not isinstance(node.meta.get("val"), torch_compat.NUMBERS)
    if target.namespace not in _NAMESPACES or "unbacked_bindings" in node.meta:
        return True
    return node.is_impure() or not target._schema.returns or _writes_statistics(node)


def _writes_statistics(node: fx.Node) -> bool:
    flag = _HIDDEN_WRITES.get(node.target._schema.name)
    return flag is not None and bool(torch_compat.argument(node, flag))


def may_write(gm: fx.GraphModule) -> bool:
    """Whether running a captured graph could change memory or sizes of its inputs."""
    return any(n.op == "call_function" and _may_write(n) for n in gm.graph.nodes)


def _may_write(node: fx.Node) -> bool:
    if isinstance(node.target, torch_compat.OpOverload):
        return node.target._schema.is_mutable or "unbacked_bindings" in node.meta or _writes_statistics(node)
    return isinstance(node.target, torch_compat.HigherOrderOperator)


def _complete_metadata(graph: fx.Graph) -> None:
    """Give a source line to what has none: sizes, recorded where they are first needed, and Dynamo's own scopes."""
    for node in reversed(graph.nodes):
        if isinstance(node.target, torch_compat.OpOverload) and not node.target._schema.returns:
            node.meta.setdefault("val", None)
        if node.op in ("call_function", "get_attr") and "stack_trace" not in node.meta:
            near = next((n for n in (*node.users, *node.all_input_nodes, node.next) if "stack_trace" in n.meta), node)
            node.meta |= {k: near.meta[k] for k in SOURCE_META if k in near.meta}


def _unregister_constants(captured: fx.GraphModule, gm: fx.GraphModule) -> None:
    """Tensors that the program made from literals are plain attributes: AOTAutograd wants a source for each buffer."""
    known = dict(gm.named_buffers(remove_duplicate=False))
    for name in [n for n in captured._buffers if n not in known]:
        setattr(captured, name, captured._buffers.pop(name))


def _carry_over(gm: fx.GraphModule, captured: fx.GraphModule) -> None:
    """Attributes and metadata through which Dynamo speaks to AOTAutograd."""
    captured.training = gm.training
    captured.meta = dict(gm.meta)
    for name, value in gm.__dict__.items():
        if name not in captured.__dict__:
            captured.__dict__[name] = value
    for name, module in gm.named_children():
        if name.startswith("saved_tensors_hooks"):
            captured.add_module(name, module)


def _unusable(captured: fx.GraphModule) -> Reason | None:
    for node in captured.graph.nodes:
        if node.op == "get_attr" and isinstance(value := torch_compat.attribute(captured, node.target), torch.Tensor):
            if torch_compat.is_fake(value):
                return Reason("untracked-tensor", f"{node.name} is a tensor that no recorded call made", (node,))
        elif node.op == "call_function" and "val" not in node.meta:
            return Reason("no-metadata", f"nothing is known of the result of {node.name}", (node,))
        if torch_compat.is_subclass(node.meta.get("val")):
            return Reason("tensor-subclass", f"{node.name} is a tensor subclass", (node,))
    return None


def flat_outputs(gm: fx.GraphModule) -> tuple[fx.GraphModule, Callable[[Sequence[Any]], Any] | None]:
    """A graph module like `gm` whose output is a flat tuple, as AOTAutograd wants it.

    Returns:
        `gm` itself and None where it is that already, as Dynamo's always is; else a copy that shares its attributes, and
        a function from the flat results to the structure of those of `gm`.
    """
    structure = gm.graph.output_node().args[0]
    if type(gm.graph._codegen) is not fx.CodeGen or _is_flat(structure):
        return gm, None
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    copied = graph.graph_copy(gm.graph, values)
    graph.output(tuple(torch_compat.tree_leaves(copied)))
    flat = fx.GraphModule(gm, graph, class_name=type(gm).__name__)
    flat.meta = dict(gm.meta)
    return flat, lambda results: _rebuilt(structure, iter(results))


def _is_flat(structure: Any) -> bool:
    return isinstance(structure, (tuple, list)) and not any(isinstance(s, (tuple, list, dict)) for s in structure)


def _rebuilt(structure: Any, results: Iterator[Any]) -> Any:
    if isinstance(structure, dict):
        return {key: _rebuilt(value, results) for key, value in structure.items()}
    if isinstance(structure, (tuple, list)):
        items = [_rebuilt(value, results) for value in structure]
        return items if isinstance(structure, list) else tuple(items)
    return next(results)

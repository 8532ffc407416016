"""Turns a recording into a graph module that replaces Dynamo's in AOTAutograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.purity import is_removable
from ...rewrites.reason import Reason
from ...rewrites.tracing import read_sizes_early
from ..lowering.element_numbers import unheld
from ..lowering.refused import refused
from .autocast import SOURCE_META, wrap_without_autocast
from .refused_sizes import leaves_nothing, refused_sizes

aten = torch.ops.aten
# Dynamo's temporary values: real tensors, and fakes of another mode, which a compiled graph must not keep alive.
_WORKING_META = ("example_value", "grapharg")


def finish(recording: fx.GraphModule, gm: fx.GraphModule) -> tuple[fx.GraphModule, Reason | None]:
    """Give a recording of `gm` the inputs, output, attributes and metadata that AOTAutograd expects of `gm`.

    Returns:
        The finished graph module, and the reason why it must not be used, or None.
    """
    graph = recording.graph
    graph.set_codegen(fx.CodeGen())  # Inputs and outputs are flat.
    _adopt_placeholders(graph, gm.graph)
    _flatten_output(graph)
    read_sizes_early(graph)
    wrap_without_autocast(graph)
    _detach_factories(graph)
    _drop_dead(graph)
    _complete_metadata(graph)
    captured = compat.lazy_module(_attributes(recording, gm), graph, type(gm).__name__)
    _unregister_constants(captured, gm)
    _carry_over(gm, captured)
    return captured, _unusable(captured)


def _attributes(recording: fx.GraphModule, gm: fx.GraphModule) -> dict[str, Any]:
    """The attributes that the recorded graph reads: parameters and buffers of `gm`, and attributes that tracing added.

    While the recording was made, fakes replaced the parameters and buffers.
    """
    own = dict([*gm.named_parameters(remove_duplicate=False), *gm.named_buffers(remove_duplicate=False)])
    names = [node.target for node in recording.graph.nodes if node.op == "get_attr"]
    return {name: own[name] if name in own else compat.attribute(recording, name) for name in names}


def _adopt_placeholders(graph: fx.Graph, original: fx.Graph) -> None:
    for node, source in zip(graph.find_nodes(op="placeholder"), original.find_nodes(op="placeholder"), strict=True):
        compat.adopt_name(node, source)
        node.type = source.type
        node.meta = {k: v for k, v in source.meta.items() if k not in _WORKING_META} | node.meta


def _flatten_output(graph: fx.Graph) -> None:
    output = graph.output_node()
    value = output.args[0]
    output.args = (tuple(value) if isinstance(value, (tuple, list)) else (value,),)


def _detach_factories(graph: fx.Graph) -> None:
    """``randint_like(x, 10)  ->  randint_like(detach(x), 10)`` for floats: no gradients flow through either.

    The Python function is called below autograd, but its operator is not, and autograd has no derivative of it.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or getattr(node.target, "overloadpacket", None) is not aten.randint_like:
            continue
        like = node.args[0]
        with graph.inserting_before(node):
            detached = graph.call_function(aten.detach.default, (like,))
        with torch.no_grad():
            detached.meta = {**node.meta, "val": like.meta["val"].detach()}
        node.replace_input_with(like, detached)


def _drop_dead(graph: fx.Graph) -> None:
    """Erase pure calls without users, but for those that eager refuses.

    `Graph.eliminate_dead_code` is not used: it also erases calls in the subgraphs of higher-order operators, by another
    notion of purity, and would erase the writes in Dynamo's subgraphs.
    """
    for node in reversed(graph.nodes):
        if not node.users and is_removable(node) and not _is_refused(node):
            graph.erase_node(node)


def _is_refused(node: fx.Node) -> bool:
    if not isinstance(node.target, compat.OpOverload):
        return False
    return leaves_nothing(node) or (refused_sizes(node) or refused(node) or unheld(node)) is not None


def _complete_metadata(graph: fx.Graph) -> None:
    """Give a source line to nodes without one: sizes, which are recorded where they are first needed, and scopes."""
    nodes = list(graph.nodes)
    for node in (*reversed(nodes), *nodes):
        if isinstance(node.target, compat.OpOverload) and compat.returns_nothing(node.target):
            node.meta.setdefault("val", None)
        if node.op in ("call_function", "get_attr") and not node.meta.get("stack_trace"):
            _take_source(node, [*node.users, *node.all_input_nodes, node.next, node.prev])


def _take_source(node: fx.Node, neighbours: list[fx.Node]) -> None:
    near = next((n for n in neighbours if n.meta.get("stack_trace")), None)
    if near is not None:
        node.meta |= {k: near.meta[k] for k in SOURCE_META if k in near.meta}


def _unregister_constants(captured: fx.GraphModule, gm: fx.GraphModule) -> None:
    """Make tensors from literals plain attributes, not buffers: AOTAutograd requires a source for each buffer."""
    known = dict(gm.named_buffers(remove_duplicate=False))
    for name, value in [*captured.named_buffers(recurse=False)]:
        if name not in known:
            delattr(captured, name)
            setattr(captured, name, value)


def _carry_over(gm: fx.GraphModule, captured: fx.GraphModule) -> None:
    """Copy the attributes and metadata through which Dynamo passes information to AOTAutograd."""
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
        if node.op == "get_attr" and isinstance(value := compat.attribute(captured, node.target), torch.Tensor):
            if compat.is_fake(value):
                return Reason(
                    "untracked-tensor",
                    f"{node.name} is a tensor that is neither an input nor the result of a traced call",
                    (node,),
                )
        elif node.op == "call_function" and "val" not in node.meta:
            return Reason("no-metadata", f"the shape and dtype of the result of {node.name} are not known", (node,))
        if compat.is_subclass(node.meta.get("val")):
            return Reason("tensor-subclass", f"{node.name} is a tensor subclass", (node,))
    return None

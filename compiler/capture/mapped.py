"""Replaces maps by `vmap` in a program by operators on whole batches.

    vmap(lambda a, b: a * b.sum())(x, y)    ->    mul(x, view(sum(y, [1]), ...))

The rest of the program can then be captured before autograd. Scans (`associative_scan`) and masks by position are maps.
Other transforms, and maps that draw random numbers or read attributes of the program, are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat import attention
from ...rewrites.tracing import record
from .screen import refused_call

_BEGINS, _ENDS, _PREPARES = "_vmap_increment_nesting", "_vmap_decrement_nesting", "lazy_load_decompositions"
_ALLOWED = (_BEGINS, _ENDS, _PREPARES, "_add_batch_dim", "_remove_batch_dim")
_CONSTANT = "_constant_of_a_map_"
_SOURCE = ("stack_trace", "nn_module_stack", "source_fn_stack")


def without_maps(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of `gm` with all maps replaced; `gm` if there are none, or if one of them must be kept."""
    maps = list(_maps(gm.graph))
    if not maps or any(_stays(part) for part in maps):
        return gm
    last = {part[-1]: part for part in maps}
    inside = {node for part in maps for node in part}
    graph, copies, constants = fx.Graph(), dict[fx.Node, Any](), dict[str, Any]()
    for node in gm.graph.nodes:
        if node in last:
            _write_out(last[node], graph, copies, constants)
        elif node.op == "output":
            graph.output(fx.node.map_arg(node.args[0], copies.__getitem__)).meta = dict(node.meta)
        elif node not in inside:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    made = fx.GraphModule(_attributes(gm, graph) | constants, graph, class_name=type(gm).__name__)
    made.meta, made.training = dict(gm.meta), gm.training
    return made


def _attributes(gm: fx.GraphModule, graph: fx.Graph) -> dict[str, Any]:
    """What a graph reads of the program that it comes from; constants of maps are not part of the program."""
    named = [str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")]
    return {name: attrgetter(name)(gm) for name in named if not name.startswith(_CONSTANT)}


def _maps(graph: fx.Graph) -> Iterator[list[fx.Node]]:
    """The nodes of each outermost map."""
    part: list[fx.Node] = []
    depth = 0
    for node in graph.nodes:
        name = _name(node)
        depth += name == _BEGINS
        if depth or name == _PREPARES:
            part.append(node)
        if name == _ENDS:
            depth -= 1
            if depth == 0:
                yield part
                part = []
    if part:
        yield part


def _name(node: fx.Node) -> str:
    ours = getattr(node.target, "__module__", "") == "torch._functorch.predispatch"
    return getattr(node.target, "__name__", "") if ours and node.op == "call_function" else ""


def _stays(part: Sequence[fx.Node]) -> bool:
    """Whether a map must be kept: it contains attributes or another transform, or its inputs are unknown."""
    if _name(part[-1]) != _ENDS:
        return True
    return any(map(_refused, part)) or any("example_value" not in node.meta for node in _inputs(part))


def _refused(node: fx.Node) -> bool:
    """Whether a call may have effects other than writes to tensors, or draw random numbers."""
    if _name(node) == _BEGINS and node.args[1:] != ("error",):  # it may draw random numbers
        return True
    scope = node.target in (*compat.SCOPES, attention.BACKEND_NAMED, attention.ALLOW_BACKENDS) or isinstance(
        node.target, compat.HigherOrderOperator
    )
    return node.op == "get_attr" or scope or (_name(node) not in _ALLOWED and refused_call(node) is not None)


def _inputs(part: Sequence[fx.Node]) -> list[fx.Node]:
    own = set(part)
    return list(dict.fromkeys(n for node in part for n in node.all_input_nodes if n not in own))


def _write_out(part: Sequence[fx.Node], graph: fx.Graph, copies: dict[fx.Node, Any], constants: dict[str, Any]) -> None:
    """Add the computations of a map to `graph`, and the tensors that it makes from numbers to `constants`."""
    inputs = _inputs(part)
    own = set(part)
    results = [node for node in part if any(user not in own for user in node.users)]
    values = [_fresh(node.meta["example_value"]) for node in inputs]
    own_mode = next((value.fake_mode for value in values if compat.is_fake(value)), nullcontext())
    with own_mode:
        made = record(_running(part, inputs, results), values, "below autograd")
    inner: dict[fx.Node, Any] = dict(zip(made.graph.find_nodes(op="placeholder"), map(copies.get, inputs), strict=True))
    for node in made.graph.nodes:
        if node.op == "call_function":
            inner[node] = graph.node_copy(node, inner.__getitem__)
            inner[node].meta = {key: part[-1].meta[key] for key in _SOURCE if key in part[-1].meta}
        elif node.op == "output":
            copies |= zip(results, fx.node.map_arg(node.args[0], inner.__getitem__), strict=True)
        elif node.op == "get_attr":
            name = f"{_CONSTANT}{len(constants)}"
            constants[name] = attrgetter(str(node.target))(made)
            inner[node] = graph.get_attr(name)


def _fresh(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _running(part: Sequence[fx.Node], inputs: Sequence[fx.Node], results: Sequence[fx.Node]) -> Callable[..., Any]:
    """A function that runs the calls of a map; if one fails, all open levels are closed."""
    end: Any = part[-1].target

    def run(*values: Any) -> list[Any]:
        known, leave = dict(zip(inputs, values, strict=True)), list[Callable[[], Any]]()
        try:
            for node in part:
                args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), known.__getitem__)
                if node.op == "call_method":
                    known[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
                else:
                    known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
                if _name(node) == _BEGINS:
                    leave.append(end)
                elif _name(node) == _ENDS:
                    leave.pop()
        finally:
            for leave_one in leave:
                leave_one()
        return [known[node] for node in results]

    return run

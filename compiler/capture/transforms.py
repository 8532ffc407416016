"""Replaces transforms of `torch.func` in a program by the operators that they compute with.

    vmap(lambda a, b: a * b.sum())(x, y)    ->    mul(x, view(sum(y, [1]), ...))
    grad(lambda a: a.sin().sum())(x)        ->    mul(cos(x), expand(...))

The rest of the program can then be captured before autograd. Scans (`associative_scan`) and masks by position are maps.
Transforms of programs with effects other than writes to tensors are kept.
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
from .screen import refused_call, writes_in_place

_MAP = "_vmap_increment_nesting"
_DERIVATIVES = {
    "_grad_increment_nesting": "_grad_decrement_nesting",
    "_jvp_increment_nesting": "_jvp_decrement_nesting",
}
_LEVELS = {_MAP: "_vmap_decrement_nesting"} | _DERIVATIVES | {"_enter_dual_level": "_exit_dual_level"}
_HOOKS = ("_saved_tensors_hooks_disable", "_saved_tensors_hooks_enable")  # no hooks are called while tracing
_PREPARES = ("lazy_load_decompositions", "_maybe_load_decompositions")
_DIFFERENTIATE = "_autograd_grad"  # which a program may call after the level of its inputs has ended
_INSIDE = frozenset(
    """
    _add_batch_dim _remove_batch_dim _wrap_for_grad _unwrap_for_grad set_inplace_requires_grad_allowed
    _set_tensor_requires_grad _autograd_grad _make_dual _unpack_dual _set_fwd_grad_enabled
    """.split()  # noqa: SIM905
)
_CALLS = _INSIDE.union(_PREPARES, _HOOKS, *_LEVELS.items())
_MODULES = ("torch._functorch.", "torch._C._functorch", "torch._C._autograd", "torch.autograd.forward_ad", "torch._C")
_CONSTANT = "_constant_of_a_transform_"
_SOURCE = ("stack_trace", "nn_module_stack", "source_fn_stack")


def without_transforms(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of `gm` with all transforms replaced; `gm` if there are none, or if one of them must be kept."""
    parts = list(_parts(gm.graph))
    modes = _grad_modes(gm.graph, parts)
    if (
        compat.functorch_active()
        or not parts
        or any(_stays(part) or _changes_gradients(part, modes[part[-1]]) for part in parts)
    ):
        return gm
    last = {part[-1]: part for part in parts}
    inside = {node for part in parts for node in part}
    graph, copies, constants = fx.Graph(), dict[fx.Node, Any](), dict[str, Any]()
    for node in gm.graph.nodes:
        if node in last:
            with torch.set_grad_enabled(modes[node]):
                _write_out(last[node], graph, copies, constants)
        elif node.op == "output":
            graph.output(fx.node.map_arg(node.args[0], copies.__getitem__)).meta = dict(node.meta)
        elif _name(node) in _PREPARES:
            _called(node, {})
        elif node not in inside and _name(node) not in _HOOKS:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    made = fx.GraphModule(_attributes(gm, graph) | constants, graph, class_name=type(gm).__name__)
    made.meta, made.training = dict(gm.meta), gm.training
    return made


def _attributes(gm: fx.GraphModule, graph: fx.Graph) -> dict[str, Any]:
    """The attributes of the program that its graph reads; constants of transforms are not part of the program."""
    named = [str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")]
    return {name: attrgetter(name)(gm) for name in named if not name.startswith(_CONSTANT)}


def _parts(graph: fx.Graph) -> Iterator[list[fx.Node]]:
    """The nodes of each outermost transform, with the derivatives that are taken of its values after its end."""
    part: list[fx.Node] = []
    depth = 0
    awaited = set[fx.Node]()
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):  # copied before the part that reads it
            continue
        name = _name(node)
        depth += name in _LEVELS
        if depth or awaited:
            part.append(node)
            awaited.discard(node)
            awaited.update(user for user in node.users if name == _DIFFERENTIATE or _name(user) == _DIFFERENTIATE)
        depth -= name in _LEVELS.values()
        if part and not depth and not awaited:
            yield part
            part = []
    if part:
        yield part


def _name(node: fx.Node) -> str:
    """The name of a call that belongs to a transform; "" for others."""
    name = getattr(node.target, "__name__", "")
    ours = node.op == "call_function" and name in _CALLS
    return name if ours and (getattr(node.target, "__module__", None) or "").startswith(_MODULES) else ""


def _stays(part: Sequence[fx.Node]) -> bool:
    """Whether a transform must be kept: it has effects, is not complete, or its inputs are unknown."""
    names = [_name(node) for node in part]
    if any(names.count(begin) != names.count(end) for begin, end in _LEVELS.items()):
        return True
    return any(map(_refused, part)) or any("example_value" not in node.meta for node in _inputs(part))


def _refused(node: fx.Node) -> bool:
    """Whether a call may have effects other than writes to tensors and draws of random numbers."""
    if _name(node) or node.target is compat.SET_GRAD_MODE:
        return False
    scope = node.target in (*compat.SCOPES, attention.BACKEND_NAMED, attention.ALLOW_BACKENDS) or isinstance(
        node.target, compat.HigherOrderOperator
    )
    return node.op == "output" or scope or refused_call(node) is not None


def _changes_gradients(part: Sequence[fx.Node], enabled: bool) -> bool:
    """Whether a part has another meaning for autograd than its operators.

    It writes where gradients are disabled, or it enables them where its program disables them and takes no derivative.
    """
    around, levels = enabled, 0
    for node in part:
        name = _name(node)
        levels += (name in _DERIVATIVES) - (name in _DERIVATIVES.values())
        if node.target is compat.SET_GRAD_MODE:
            enabled = bool(node.args[0])
            if enabled and not around and not levels:
                return True
        elif not enabled and around and _writes(node):
            return True
    return enabled != around


def _writes(node: fx.Node) -> bool:
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    in_place = writes_in_place(name) or writes_in_place(f"__{name}__") or name == "setitem"
    return (in_place and not _name(node)) or node.kwargs.get("out") is not None


def _grad_modes(graph: fx.Graph, parts: Sequence[Sequence[fx.Node]]) -> dict[fx.Node, bool]:
    """Whether gradients are enabled around each part, by its last node."""
    inside = {node for part in parts for node in part}
    last = {part[-1] for part in parts}
    enabled, found = torch.is_grad_enabled(), dict[fx.Node, bool]()
    for node in graph.nodes:
        if node.target is compat.SET_GRAD_MODE and node not in inside:
            enabled = bool(node.args[0])
        elif node in last:
            found[node] = enabled
    return found


def _inputs(part: Sequence[fx.Node]) -> list[fx.Node]:
    own = set(part)
    return list(dict.fromkeys(n for node in part for n in node.all_input_nodes if n not in own))


def _write_out(part: Sequence[fx.Node], graph: fx.Graph, copies: dict[fx.Node, Any], constants: dict[str, Any]) -> None:
    """Add the computations of a part to `graph`, and the tensors that it makes from numbers to `constants`."""
    inputs = _inputs(part)
    own = set(part)
    results = [node for node in part if any(user not in own for user in node.users)]
    values = [_fresh(node.meta["example_value"]) for node in inputs]
    own_mode = next((value.fake_mode for value in values if compat.is_fake(value)), nullcontext())
    differentiates = any(_name(node) in _DERIVATIVES for node in part)
    with own_mode, compat.saved_tensor_hooks_off():
        made = record(_running(part, inputs, results), values, "decomposed" if differentiates else "below autograd")
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
    """A function that runs the calls of a part; if one fails, all open levels are closed."""

    def run(*values: Any) -> list[Any]:
        known, leave = dict(zip(inputs, values, strict=True)), list[fx.Node]()
        ends = {_name(node): node for node in part}
        constant = [list[fx.Node]()]  # values made since gradients were disabled, of each level
        try:
            for node in part:
                if _name(node) in _HOOKS:
                    continue
                known[node] = _called(node, known)
                if node.target is compat.SET_GRAD_MODE:
                    known |= {made: compat.tree_map(_fresh, known[made]) for made in constant[-1]}
                    constant[-1] = []
                elif not torch.is_grad_enabled():
                    constant[-1].append(node)
                if _name(node) in _LEVELS:
                    leave.append(ends[_LEVELS[_name(node)]])
                    constant.append([])
                elif _name(node) in _LEVELS.values():
                    leave.pop()
                    inner = constant.pop()
                    constant[-1] += [made for made in inner if any(user not in known for user in made.users)]
        finally:
            for end in reversed(leave):
                _called(end, known)
        return [known[node] for node in results]

    return run


def _called(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), known.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]

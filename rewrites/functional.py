"""Simplifications of a captured graph that keep every bit and every alias of the program.

    scores = matmul(q, k);  div_(scores, 8)   ->   div(matmul(q, k), 8)        nobody else sees `scores` afterwards
    add_(scores, wider)                       ->   to(add(scores, wider), dtype of scores)
    masked_fill_(scores, mask, 0)             ->   masked_fill(scores, mask, 0), laid out as scores
    dropout(x, p, train=False)                ->   x
    index_put_(scores[:, :], mask, 0)         ->   index_put_(scores, mask, 0)  the parts are the whole
    full_like(scores, -inf)                   ->   full([S, S], -inf)          see `unread`

Writes that anyone could observe (to inputs, to what has other aliases in use) stay as they are, and so do those that
autograd must not see (under `no_grad`, to a tensor that has a history).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from . import compat
from .editor import infer
from .effects import unseen, wants_gradient
from .graph import is_tensor, op_name, val
from .layout import restore_layout, same_layout
from .purity import erase_dead, is_random, storages
from .symbolic import known_equal, same_shape
from .unread import asks_shape_alone


def is_simplified(graph: fx.Graph) -> bool:
    """Whether there is nothing for the functions below, or for `unread`, to do."""
    return not any(writes_self(n) or _is_inactive_dropout(n) or asks_shape_alone(n) for n in graph.nodes)


def functionalize_temporaries(graph: fx.Graph) -> int:
    """Replace in-place calls on temporaries; returns how many. Metadata stays as it is."""
    inplace = [n for n in graph.nodes if writes_self(n)]
    if not inplace:
        return 0
    position: dict[fx.Node, float] = {node: i for i, node in enumerate(graph.nodes)}
    memory = {node: storages(node) for node in graph.nodes}  # before any change: metadata is renewed on the way
    inplace = [node for node in inplace if not _takes_memory(node, memory)]
    aliases, hidden = _aliases(memory), unseen(graph)
    return sum(
        _functionalize(node, position, shared)
        for node in inplace
        if not _keeps_history(node, shared := [aliases[m] for m in memory[node]], hidden)
    )


def write_to_whole_tensors(graph: fx.Graph) -> int:
    """Let calls that write to a slice which is all of a tensor write to the tensor; how many.

    ``scores[:, :, mask] = 0`` slices dims of symbolic sizes, those of known sizes it leaves out. What reads the tensor
    afterwards reads the call, as it does where a program writes without slices.
    """
    writes = [n for n in graph.nodes if writes_self(n) and not n.users and _whole(n.args[0]) is not n.args[0]]
    position = {node: i for i, node in enumerate(graph.nodes)} if writes else {}
    for node in writes:
        view, base = node.args[0], _whole(node.args[0])
        assert isinstance(view, fx.Node), node
        node.replace_input_with(view, base)
        node.meta["val"] = val(base)
        base.replace_all_uses_with(node, delete_user_cb=lambda user, at=position[node]: position[user] > at)
        erase_dead(graph, [view])
    return len(writes)


def _whole(view: Any) -> Any:
    """The tensor that the program makes, all of which a slice of a slice ... gives; itself for anything else."""
    while isinstance(view, fx.Node) and view.target is torch.ops.aten.slice.Tensor:
        x = view.args[0]
        if not isinstance(x, fx.Node) or x.op != "call_function" or not same_layout(val(x), val(view)):
            return view
        if not known_equal(val(x).storage_offset(), val(view).storage_offset()):
            return view
        view = x
    return view


def remove_inactive_dropout(graph: fx.Graph) -> int:
    """``dropout(x, p, train=False)  ->  x``, as eager code has it (autograd's tracing would copy); how many."""
    inactive = [node for node in graph.nodes if _is_inactive_dropout(node) and not _is_hooked(node)]
    moved: set[fx.Node] = set()
    for node in inactive:
        x = node.args[0]
        assert isinstance(x, fx.Node), node
        if is_tensor(x) and not same_layout(val(x), val(node)):
            moved.update(node.users)
        node.replace_all_uses_with(x)
        graph.erase_node(node)
    if moved:
        _lay_out(graph, moved)
    return len(inactive)


def _is_inactive_dropout(node: fx.Node) -> bool:
    return op_name(node) == "aten.dropout" and not is_random(node)


def _is_hooked(node: fx.Node) -> bool:
    """Whether a value has a hook: AOTAutograd loses hooks of views that are returned beside what they are views of."""
    return any(map(takes_hook, node.users))


def takes_hook(node: fx.Node) -> bool:
    """Whether a call gives a value a hook."""
    return isinstance(node.target, compat.HigherOrderOperator) and node.target.name() in _WITH_HOOKS


def _lay_out(graph: fx.Graph, moved: set[fx.Node]) -> None:
    """New metadata for what reads a value in its own strides, where the copy's were recorded."""
    for node in graph.nodes:
        if node not in moved or not is_tensor(node):
            continue
        result = _inferred(node)
        if result is not None and not same_layout(result, val(node)):
            node.meta["val"] = result
            moved.update(node.users)


def writes_self(node: fx.Node) -> bool:
    """Whether a call writes to its first argument, and to nothing else, and returns it."""
    if node.op != "call_function" or not isinstance(node.target, compat.OpOverload):
        return False
    if not compat.schema(node.target).is_mutable:  # reading all arguments takes longer
        return False
    written = [_is_written(argument) for argument in compat.schema(node.target).arguments]
    return node.target.namespace == "aten" and bool(written) and written[0] and not any(written[1:]) and is_tensor(node)


def written_outs(node: fx.Node) -> list[str]:
    """The names of the results that the caller gives, where an operator of torch's writes to them and to nothing else.

    Empty for any other call.
    """
    if node.op != "call_function" or not isinstance(node.target, compat.OpOverload):
        return []
    if node.target.namespace != "aten" or not compat.schema(node.target).is_mutable:
        return []
    names = [a.name for a in compat.schema(node.target).arguments if _is_written(a)]
    return names if all(isinstance(node.kwargs.get(name), fx.Node) for name in names) else []


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _aliases(memory: dict[fx.Node, set[int]]) -> dict[int, list[fx.Node]]:
    found: dict[int, list[fx.Node]] = {}
    for node, owned in memory.items():
        for storage in owned:
            found.setdefault(storage, []).append(node)
    return found


def _takes_memory(node: fx.Node, memory: dict[fx.Node, set[int]]) -> bool:
    """Whether a call writes nothing, and gives its operand the memory of another tensor (``set_``, ``x.data = y``)."""
    return memory[node] != memory[node.all_input_nodes[0]]


def _keeps_history(node: fx.Node, aliases: list[list[fx.Node]], hidden: set[fx.Node]) -> bool:
    """Whether autograd, which does not see a write, has seen what is written made: its gradients go on."""
    return node in hidden and any(other not in hidden for shared in aliases for other in shared)


def _functionalize(node: fx.Node, position: dict[fx.Node, float], aliases: list[list[fx.Node]]) -> bool:
    """`aliases`: for each storage of `node`, the nodes that share it, in order."""
    target = functional_form(node.target)
    if target is None or len(aliases) != 1 or not _is_temporary(node, position, aliases[0]):
        return False
    if target in _UNDERIVED_DRAWS and wants_gradient(node.args[0]) and not _is_empty(node, position, aliases[0]):  # type: ignore[arg-type]
        return False
    if _turns_result(node, aliases[0]) or _is_derived_otherwise(target, node):
        return False
    inplace, node.target = node.target, target
    result = _inferred(node)
    if result is None or _loses_gradient(result, node):
        node.target = inplace
        return False
    if not same_layout(result.to(val(node).dtype), val(node)):
        if is_random(node) or not _lay_back(node, result, position, aliases[0]):  # draws fill memory in its order
            node.target = inplace
            return False
    elif result.dtype != val(node).dtype:
        _cast_back(node, position, aliases[0])
    for other in aliases[0]:
        if position[other] >= position[node]:
            _refresh(other)
    return True


def _is_empty(node: fx.Node, position: dict[fx.Node, float], aliases: list[fx.Node]) -> bool:
    """Whether a call writes to new memory that has only the sizes of another tensor, and so none of its history."""
    made = op_name(node.args[0])
    return made in ("aten.empty_like", "aten.new_empty") and sum(position[a] < position[node] for a in aliases) == 1


def _turns_result(node: fx.Node, aliases: list[fx.Node]) -> bool:
    """Whether a call gives what the program returns other dims in place: a view out of place is another tensor."""
    if node.target is torch.ops.aten.detach_.default:  # its dims stay
        return False
    returned = node.graph.output_node().all_input_nodes
    return torch.Tag.inplace_view in node.target.tags and any(other in returned for other in aliases)  # type: ignore[union-attr]


def _is_derived_otherwise(target: Any, node: fx.Node) -> bool:
    """Whether autograd has a derivative of only one of the calls in place and out of place, and needs it."""
    x = node.args[0]
    if not isinstance(x, fx.Node) or not wants_gradient(x):
        return False
    return target in _DERIVED_OUT_OF_PLACE or (target in _OF_REAL_NUMBERS and val(x).is_complex())


def _loses_gradient(result: torch.Tensor, node: fx.Node) -> bool:
    """Whether a comparison out of place gives what has no gradient, where the call in place keeps one, of zeros."""
    return val(node).dtype.is_floating_point and not (result.dtype.is_floating_point or result.dtype.is_complex)


def _inferred(node: fx.Node) -> torch.Tensor | None:
    try:
        result = infer(node)
    except (RuntimeError, TypeError, ValueError):
        return None
    return result if isinstance(result, torch.Tensor) else None


def _cast_back(node: fx.Node, position: dict[fx.Node, float], aliases: list[fx.Node]) -> None:
    """Casts what a call out of place has promoted, as the call in place casts when it writes."""
    with node.graph.inserting_after(node):
        narrow = node.graph.call_function(torch.ops.aten.to.dtype, (node, val(node).dtype))
    narrow.meta = dict(node.meta)
    node.replace_all_uses_with(narrow, delete_user_cb=lambda user: user is not narrow)
    position[narrow] = position[node] + 0.5
    aliases.insert(aliases.index(node) + 1, narrow)


def _lay_back(node: fx.Node, result: torch.Tensor, position: dict[fx.Node, float], aliases: list[fx.Node]) -> bool:
    """Lays out what a call out of place gives as the memory is that the call in place writes to; whether it can be."""
    like = val(node)
    if result.dtype != like.dtype or not same_shape(result.shape, like.shape):
        return False
    before, users = node.next, list(node.users)
    node.meta["val"] = result
    with node.graph.inserting_before(before):
        laid = restore_layout(node.graph, node, like)
    made = list(itertools.takewhile(lambda n: n is not before, _following(node)))
    if not same_layout(val(laid), like):
        for new in reversed(made):
            node.graph.erase_node(new)
        node.meta["val"] = like
        return False
    for user in users:
        user.replace_input_with(node, laid)
    for k, new in enumerate(made, 1):
        position[new] = position[node] + k / 8
    aliases[aliases.index(node) + 1 : aliases.index(node) + 1] = made
    return True


def _following(node: fx.Node) -> Iterator[fx.Node]:
    while node.op != "root":
        node = node.next
        yield node


_OVERLOADS = {"bernoulli_.float": "p"}  # where the functional one has another name
_UNDERIVED = ("copy_",)  # where autograd knows no derivative of the functional one
_WITH_HOOKS = ("register_hook", "autograd_function_apply")  # what Dynamo makes of a hook; the second one, torch 2.11
_UNDERIVED_DRAWS = (torch.ops.aten.bernoulli.p,)  # likewise; these stay in place only where a gradient flows
# Autograd refuses these in place, and those out of place of complex numbers.
_DERIVED_OUT_OF_PLACE = (torch.ops.aten.acosh.default, torch.ops.aten.asinh.default, torch.ops.aten.atanh.default)
_OF_REAL_NUMBERS = (torch.ops.aten.silu.default,)


def functional_form(inplace: Any) -> Any | None:
    """``aten.div`` for ``aten.div_``, with the same overload and parameters."""
    name = compat.schema(inplace).name.split("::")[-1]
    if not name.endswith("_") or name in _UNDERIVED:
        return None
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    overload = compat.overload_name(inplace)
    target = getattr(packet, _OVERLOADS.get(f"{name}.{overload}", overload), None)
    if target is None:
        return None
    ours, theirs = ([a.name for a in compat.schema(t).arguments[1:]] for t in (target, inplace))
    return target if ours == theirs else None


def form_without_out(target: Any) -> Any | None:
    """``aten.add.Tensor`` for ``aten.add.out``: the overload with the same parameters, but for those written to."""
    name = compat.schema(target).name.split("::")[-1]
    packet, wanted = getattr(torch.ops.aten, name), _parameters(target)
    for overload in packet.overloads():
        found = getattr(packet, overload)
        if not compat.schema(found).is_mutable and _parameters(found) == wanted:
            return found
    return None


def _parameters(target: Any) -> list[tuple[str, str]]:
    """The names and types of an operator's arguments but for those that it writes to."""
    return [(a.name, str(a.type)) for a in compat.schema(target).arguments if not _is_written(a)]


def _is_temporary(node: fx.Node, position: dict[fx.Node, float], aliases: list[fx.Node]) -> bool:
    """Whether nobody reads the written memory later except through `node`, and it is no input's."""
    here = position[node]
    for other in aliases:
        if other.op != "call_function":
            return False
        if position[other] < here and any(position[user] > here for user in other.users):
            return False
    return True


def _refresh(node: fx.Node) -> None:
    """New metadata, because the value now has memory of its own; what calls of other kinds give is laid out alike."""
    if isinstance(node.target, compat.OpOverload):
        node.meta["val"] = infer(node)

"""The effects of a call besides giving results, and what they allow: for rules, capture, passes and lowering.

    aten.add_(%x, 1)                    writes to %x
    aten.dropout(%x, 0.5, True)         draws random numbers
    aten.nonzero(%x)                    gives a size of which only the data knows the value a name
    aten._assert_scalar(%s, "...")      is called for its effect
    mylib.send(%x)                      an operator that torch does not know: others may wait for it

Which effects forbid what:

                 writes   draws   checks   called   named   foreign   unknown
    is_pure        x        x       x        x                           x       may be removed, merged, moved
    is_removable   x        x       x        x        x       x          x       may be removed from a captured program
    may_move       x        x                x                x          x       may change places with other effects
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from enum import Flag, auto
from typing import Any

import torch
from torch import fx

from . import compat
from .compat.memory import storage_key
from .graph import KNOWN_NAMESPACES, SYMBOLIC_OPERATORS, arguments, nodes_in, op_name, val

SCOPES = (
    "_set_grad_enabled", "_enter_autocast", "_enter_inference_mode", "_exit_autocast", "_exit_inference_mode",
    "_backend_from_string", "_sdpa_kernel",
)  # fmt: skip
"""Functions that set a mode, which holds for the calls after them."""

# Write to running statistics where this argument is true, though their schemas do not say so.
_HIDDEN_WRITES = {
    "aten.batch_norm": "training",
    "aten.instance_norm": "use_input_stats",
    "aten.native_batch_norm": "training",
    "aten.cudnn_batch_norm": "training",
    "aten.miopen_batch_norm": "training",
    "aten._batch_norm_impl_index": "training",
}

# Raise where a factorization fails, by an operator of their own that they call.
_FACTORIZATIONS = frozenset(
    ["aten.inverse", "aten.matrix_power", "aten.linalg_matrix_power"]
    + [f"aten.linalg_{name}" for name in ("inv", "solve", "tensorinv", "tensorsolve")]
    + [f"aten.linalg_{name}" for name in ("cholesky", "ldl_factor", "lu_factor")]
)
_UNINITIALISED = ("aten.empty", "aten.new_empty")
# Their effects are those of a call, not of the operator.
_BY_ARGUMENTS = _HIDDEN_WRITES.keys() | {"aten.dropout", "aten.native_dropout", "aten.scaled_dot_product_attention"}


class Effect(Flag):
    """An effect of a call besides giving results."""

    WRITES = auto()  # to an argument, or to running statistics
    DRAWS = auto()  # from the random stream
    CHECKS = auto()  # raises for some values, and torch's compilers raise even where nobody reads the result
    CALLED = auto()  # for its effect: it has no results, checks a size, records a profile, ...
    NAMES = auto()  # a size of which only the data knows the value
    FOREIGN = auto()  # an operator of a library whose schemas may not tell everything
    UNKNOWN = auto()  # a function that may do anything, or a mode that is set


_NOTHING = Effect(0)
_NOT_PURE = ~(Effect.NAMES | Effect.FOREIGN)
_NOT_MOVED = ~(Effect.NAMES | Effect.CHECKS)


class PureCall:
    """A callable of ours as the target of a `call_function` node: it makes new tensors of its inputs, and nothing else.

    Calls of other Python functions may write to whatever they are given.
    """


def effects_of(node: fx.Node) -> Effect:
    """The effects of a node besides giving its value."""
    if node.op != "call_function":
        return _NOTHING if node.op == "get_attr" else Effect.UNKNOWN
    target = node.target
    if not isinstance(target, compat.OpOverload):
        known = isinstance(target, PureCall) or target is operator.getitem or target in SYMBOLIC_OPERATORS
        return _NOTHING if known or isinstance(node.meta.get("val"), compat.NUMBERS) else Effect.UNKNOWN
    key = target, compat.marked_effects()
    found = _of_operators.get(key)
    if found is None:
        found = _of_call(node, target)
        if op_name(node) not in _BY_ARGUMENTS:
            _of_operators[key] = found
    return found | Effect.NAMES if "unbacked_bindings" in node.meta else found


_of_operators: dict[tuple[compat.OpOverload, int], Effect] = {}


def _of_call(node: fx.Node, target: compat.OpOverload) -> Effect:
    """The effects of a call of an operator, but for names of sizes."""
    found = _NOTHING
    schema = compat.schema(target)
    if schema.is_mutable or writes_statistics(node):
        found |= Effect.WRITES
    if is_random(node):
        found |= Effect.DRAWS
    if checks_values(node):
        found |= Effect.CHECKS
    if not schema.returns or (Effect.WRITES not in found and node.is_impure(impure_random=False)):
        found |= Effect.CALLED
    return found if target.namespace in KNOWN_NAMESPACES else found | Effect.FOREIGN


# -- what may be done with a call ------------------------------------------------------------------------------------


def is_pure(node: fx.Node) -> bool:
    """Whether a call may be removed where nobody reads it, merged with an equal one, or made elsewhere."""
    found = effects_of(node)
    return found is _NOTHING or not found & _NOT_PURE


def is_removable(node: fx.Node) -> bool:
    """Whether a call that nobody reads may be removed from a program as it was captured: it has no effect at all."""
    return effects_of(node) is _NOTHING


def may_move(node: fx.Node) -> bool:
    """Whether a call may change places with calls that have effects.

    Operators of other libraries may not, whatever their schemas say: other processes may wait for them, collectives
    above all, in the order in which the program was written. Generated kernels were put where they are by choice.
    """
    return not effects_of(node) & _NOT_MOVED and not isinstance(node.target, PureCall)


def is_foldable(node: fx.Node) -> bool:
    """Whether a call may be evaluated while compiling: it is pure, and its sizes are constant."""
    sizes = [s for v in tensors_of(node) for s in v.shape]
    plain = isinstance(node.target, compat.OpOverload) or op_name(node) == "getitem"
    filled = not op_name(node).startswith(_UNINITIALISED)
    return plain and filled and is_pure(node) and bool(tensors_of(node)) and all(type(s) is int for s in sizes)


# -- what effects a call has -------------------------------------------------------------------------------------------


def is_random(node: fx.Node) -> bool:
    """Whether a call draws from the random stream: not dropout in evaluation, nor with p = 0 unless native."""
    target = node.target
    if not isinstance(target, compat.OpOverload):
        return False
    name = op_name(node)
    if name in ("aten.dropout", "aten.native_dropout"):
        p, train = node.args[1], node.args[2] if len(node.args) > 2 else True
        return train is not False and (p != 0 or name == "aten.native_dropout")
    if name == "aten.scaled_dot_product_attention":
        p = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
        return p != 0
    return torch.Tag.nondeterministic_seeded in target.tags


def checks_values(node: fx.Node) -> bool:
    """Whether a call raises for some values, and torch's compilers raise even where nobody reads the result."""
    return op_name(node) in _FACTORIZATIONS


def writes_statistics(node: fx.Node) -> bool:
    """Whether a call is a normalization that updates its running statistics in place."""
    flag = _HIDDEN_WRITES.get(op_name(node))
    return flag is not None and arguments(node).get(flag) is not False


def written(node: fx.Node) -> list[fx.Node]:
    """The arguments that a call writes to."""
    target = node.target
    if node.op != "call_function":
        return list(node.all_input_nodes) if node.op in ("call_module", "call_method") else []
    if not isinstance(target, compat.OpOverload):
        return [] if is_pure(node) or op_name(node) in SCOPES else list(node.all_input_nodes)
    if writes_statistics(node):
        return [n for name, given in arguments(node).items() if name.startswith("running_") for n in nodes_in(given)]
    if not compat.is_mutable(target):
        return []
    out: list[fx.Node] = []
    for position, argument in enumerate(compat.schema(target).arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        out.extend(nodes_in(given))
    return out


def mutable(graph: fx.Graph) -> set[fx.Node]:
    """The nodes whose memory a call writes to."""
    memory = {s for node in graph.nodes for target in written(node) for s in storages(target)}
    return {node for node in graph.nodes if memory and storages(node) & memory}


def storages(node: Any) -> set[int]:
    """Identities of the storages behind a node's tensors; aliases share them."""
    found = set()
    for value in tensors_of(node):
        try:
            found.add(storage_key(value))
        except (NotImplementedError, RuntimeError):  # sparse and other layouts have none
            continue
    return found


def returned_storages(graph: fx.Graph) -> set[int]:
    """Identities of the storages behind what a graph returns."""
    return {storage for node in graph.output_node().all_input_nodes for storage in storages(node)}


def tensors_of(node: Any) -> list[torch.Tensor]:
    """The tensors among a call's results."""
    return _tensors(val(node))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _tensors(v)]
    return []


# -- removing ----------------------------------------------------------------------------------------------------------


def erase_dead(graph: fx.Graph, nodes: Iterable[fx.Node], may_go: Callable[[fx.Node], bool] = is_pure) -> list[fx.Node]:
    """Erase those of `nodes` that nobody reads, and what only they kept alive; returns what was erased.

    Args:
        graph: changed in place.
        nodes: where to begin.
        may_go: whether a call that nobody reads may be erased.
    """
    erased, todo = [], list(nodes)
    while todo:
        node = todo.pop()
        if compat.is_erased(node) or node.users or not may_go(node):
            continue
        todo.extend(node.all_input_nodes)
        graph.erase_node(node)
        erased.append(node)
    return erased

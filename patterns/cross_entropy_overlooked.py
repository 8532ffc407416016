"""Cross entropies by hand in spellings that no rule replaces, each of which differs somewhere from picking logarithms.

log(softmax(z)).gather(-1, t), log(softmax(z).gather(-1, t))    -inf where a probability is rounded to 0
sum(one_hot(t) * log_softmax(z), -1)                            NaN where another class has no probability
sum(where(arange(n) == t, log_softmax(z), 0), -1)               0 for what is no class
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from ..rewrites.graph import is_tensor, op_name
from ..rewrites.moves import ALIASES, COPIES, EXPANDS, REORDERS, RESHAPES
from ..rewrites.reason import Reason
from .overlooked import differs, reached

_SOFTMAXES = ("aten.softmax", "aten._softmax")
_PICKS = ("aten.gather", "aten.index", "aten.take_along_dim")
_MOVED = RESHAPES | REORDERS | EXPANDS | ALIASES | COPIES | {"aten.to", "aten._to_copy"}
_BOUNDED = {"aten.add", "aten.clamp", "aten.clamp_min", "aten.maximum"}  # + 1e-8: another number, as far from -inf
_MULTIPLIED = ("aten.mul", "aten.einsum", "aten.matmul")


def overlooked_choices(graph: fx.Graph) -> Iterator[tuple[fx.Node, Reason]]:
    """Each logarithm of probabilities of which one of a row is picked, by another way than the rule's."""
    for node in graph.nodes:
        name = op_name(node)
        if name == "aten.log" and (softmax := _softmax_below(node)) is not None:
            message = (
                "the logarithm of a softmax is -inf where a probability is rounded to 0, that of log_softmax is not"
            )
            yield node, differs("logarithm-of-rounded", message, "log_softmax", node, softmax)
        elif name in _MULTIPLIED and (logs := _multiplied(node)) is not None:
            message = "rows of zeros and a one multiply logarithms, and 0 * -inf is NaN: a gather takes one of a row"
            yield node, differs("one-hot-classes", message, "gather", node, logs)
        elif name == "aten.where" and (logs := _compared(node)) is not None:
            message = "a comparison chooses one of each row, which gives 0 for what is no class: a gather refuses it"
            yield node, differs("compared-classes", message, "gather", node, logs)


def _softmax_below(log: fx.Node) -> fx.Node | None:
    """The softmax of whose probabilities, or of some of them that are picked, this is the logarithm.

    Entropies need all logarithms: they are none, where nothing picks.
    """
    passed = list(reached(log.args[0], lambda n: n.args[:1] if op_name(n) in _MOVED | _BOUNDED or _picks(n) else ()))
    softmax = next((n for n in passed if op_name(n) in _SOFTMAXES), None)
    if softmax is None or any(map(_picks, passed)):
        return softmax
    later = reached(log, lambda n: n.users if n is log or op_name(n) in _MOVED | {"aten.neg"} else ())
    return softmax if any(_picks(n) or _multiplies_classes(n) for n in later) else None


def _picks(node: fx.Node) -> bool:
    return op_name(node) in _PICKS


def _multiplies_classes(node: fx.Node) -> bool:
    return op_name(node) in _MULTIPLIED and any(map(_is_one_hot, _operands(node)))


def _multiplied(product: fx.Node) -> fx.Node | None:
    """The logarithms that one-hot rows multiply."""
    if not _multiplies_classes(product):
        return None
    return next((logs for x in _operands(product) if (logs := _logarithms(x)) is not None), None)


def _operands(product: fx.Node) -> list[Any]:
    given = product.args[1] if op_name(product) == "aten.einsum" else product.args[:2]
    return [x for x in given if is_tensor(x)]


def _logarithms(value: Any) -> fx.Node | None:
    below = _below(value, _MOVED | {"aten.neg"})
    if op_name(below) == "aten.mul" and below.args[1] == -1:
        below = _below(below.args[0], _MOVED)
    return below if op_name(below) in ("aten.log_softmax", "aten._log_softmax") else None


def _is_one_hot(value: Any) -> bool:
    below = _below(value, _MOVED)
    return op_name(below) == "aten.one_hot" or (op_name(below) == "aten.eq" and _counts(below))


def _compared(where: fx.Node) -> fx.Node | None:
    """The logarithms that ``where(arange(n) == t, logs, 0)`` chooses from."""
    if len(where.args) != 3 or op_name(where.args[0]) != "aten.eq" or not _counts(where.args[0]):
        return None
    return _logarithms(where.args[1])


def _counts(comparison: fx.Node) -> bool:
    return any(op_name(_below(x, _MOVED)) == "aten.arange" for x in comparison.args[:2])


def _below(value: Any, operators: set[str] | frozenset[str]) -> Any:
    return [value, *reached(value, lambda n: n.args[:1] if op_name(n) in operators else ())][-1]

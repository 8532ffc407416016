"""Rotations of pairs in spellings that no rule replaces: halves written in place, and pairs turned by matrices.

out[..., :n] = a * cos - b * sin;  out[..., n:] = b * cos + a * sin       rules see cat([...], -1)
turned[..., ::2] = -x[..., 1::2];  turned[..., 1::2] = x[..., ::2]        rules see stack([...], -1)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

from torch import fx

from ..rewrites.graph import is_tensor, op_name
from ..rewrites.moves import EXPANDS, REORDERS, RESHAPES
from ..rewrites.reason import Reason
from .overlooked import differs, reached

_PARTS = frozenset({"aten.slice", "aten.select", "aten.narrow", "getitem", "aten.chunk", "aten.split"})
_MOVED = RESHAPES | REORDERS | EXPANDS
_PRODUCTS = ("aten.matmul", "aten.einsum", "aten.mul", "aten.bmm")


def overlooked_rotations(graph: fx.Graph) -> Iterator[tuple[fx.Node, Reason]]:
    """Each second write of two halves that are turned, and each product with matrices of cosines and sines."""
    written: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        name = op_name(node)
        if name == "aten.copy_":
            _note_write(node, written)
            buffer = _buffer(node.args[0])
            values = written.get(buffer, []) if buffer is not None else []
            if len(values) == 2 and (_is_turn(*values) or _is_turned(*values)):
                message = "the parts of turned pairs are written in place, where rules see parts that are joined"
                yield values[1], differs("written-in-parts", message, "cat or stack", node, values[1])
        elif name in _PRODUCTS and (matrix := _rotation_in(node)) is not None:
            message = "pairs are multiplied by matrices of cosines and sines, not each part by its own"
            yield node, differs("turned-by-matrices", message, "a * cos - b * sin", matrix, node)


def _note_write(node: fx.Node, written: dict[fx.Node, list[fx.Node]]) -> None:
    target, value = node.args[:2]
    buffer = _buffer(target)
    if buffer is not None and buffer is not target and is_tensor(value):
        written[buffer].append(value)


def _buffer(part: Any) -> fx.Node | None:
    """The tensor that a part is a view of."""
    whole = _below(part, _PARTS)
    return whole if is_tensor(whole) else None


def _below(view: Any, operators: Collection[str]) -> Any:
    """The value under calls of some operators."""
    return [view, *reached(view, lambda n: n.args[:1] if op_name(n) in operators else ())][-1]


def _is_turn(a: fx.Node, b: fx.Node) -> bool:
    """Whether two values are ``a * c - b * s`` and ``b * c + a * s``, in either order."""
    minus, plus = (a, b) if op_name(a) == "aten.sub" else (b, a)
    if op_name(minus) != "aten.sub" or op_name(plus) != "aten.add":
        return False
    terms = [t for total in (minus, plus) for t in total.args[:2]]
    if not all(op_name(t) == "aten.mul" for t in terms):
        return False
    ac, bs, bc, a_s = ({_key(f) for f in t.args} for t in terms)
    apart = len(ac | bs) == 4 and not ac & bs
    return apart and all(len(ac & t) == len(bs & t) == 1 for t in (bc, a_s)) and bc | a_s == ac | bs


def _is_turned(a: fx.Node, b: fx.Node) -> bool:
    """Whether one of two values is a negated part of a tensor, and the other another part of it."""
    for negated, plain in ((a, b), (b, a)):
        opposite = op_name(negated) == "aten.neg" or (op_name(negated) == "aten.mul" and negated.args[1] == -1)
        part = negated.args[0] if opposite else None
        if part is not None and op_name(part) in _PARTS and op_name(plain) in _PARTS:
            return _key(part) != _key(plain) and _buffer(part) is _buffer(plain)
    return False


def _key(value: Any) -> Any:
    """What tells values apart: parts of a tensor that are taken twice are one."""
    if op_name(value) in _PARTS:
        return (op_name(value), *map(_key, value.args))
    return value if isinstance(value, (fx.Node, int, str)) or value is None else str(value)


def _rotation_in(product: fx.Node) -> fx.Node | None:
    """The operand of a product that holds matrices [[c, -s], [s, c]]."""
    operands = product.args[1] if op_name(product) == "aten.einsum" else product.args[:2]
    for operand in operands:
        matrix = _below(operand, _MOVED | _PARTS)
        if op_name(matrix) not in ("aten.stack", "aten.cat"):
            continue
        entries = _entries(matrix)
        if len(entries) != 4 or _key(entries[0]) != _key(entries[3]):
            continue
        for negated, plain in (entries[1:3], entries[2:0:-1]):
            if op_name(negated) == "aten.mul" and negated.args[1] == -1 and _key(negated.args[0]) == _key(plain):
                return matrix
    return None


def _entries(node: Any) -> list[fx.Node]:
    node = _below(node, _MOVED)
    if op_name(node) not in ("aten.stack", "aten.cat"):
        return [node]
    return [e for part in node.args[0] for e in _entries(part)]

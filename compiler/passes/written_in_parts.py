"""Writes tensors that are filled part after part as what joins these parts.

    w = empty(n, 2 * k);  w[:, 0::2] = low;  w[:, 1::2] = high     ->   stack([low, high], 2).view(n, 2 * k)
    w = empty(n, 2 * k);  w[:, :k] = left;  w[:, k:] = right       ->   cat([left, right], 1)
    w = empty(n, 2);      w[:, 0] = x;  w[:, 1] = y                ->   stack([x, y], 1)

Each write is a copy of the whole tensor to those who look at the graph: none of them sees that nothing of what was
there before is left. Parts that are joined may be computed where they are read, by pointwise kernels and by products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, is_tensor, op_name, rank, shape, val
from ...rewrites.symbolic import known_equal
from ...rewrites.walk import replaces_calls

aten = torch.ops.aten

_MOST = 16
"""Parts at most: more are written where they lie."""
_NO_END = (1 << 63) - 1
_FRESH = ("empty", "zeros", "full", "ones")
_BASES = {f"aten.{prefix}{name}{like}" for name in _FRESH for prefix in ("", "new_") for like in ("", "_like")}
_INTO = ("aten.copy", "aten.fill")  # of their first operand, only dtype and sizes count
_WRITES = (aten.slice_scatter.default, aten.select_scatter.default)


@dataclass(frozen=True)
class _WrittenPart:
    """One write: `value`, broadcast to `sizes`, at `start`, `start + step`, ...; a step of 0 selects one place."""

    value: fx.Node
    sizes: tuple[Any, ...]
    start: int
    step: int


@replaces_calls(*_WRITES, backwards=True)
def join_written_parts(editor: Editor, write: fx.Node) -> fx.Node | None:
    """Replace a tensor that is written as a whole, part after part."""
    if _written_over(write) is not None:
        return None
    parts = _parts(write)
    ordered = None if parts is None else _ordered(write, parts)
    return None if ordered is None else _joined(editor, write, ordered)


def _written_over(node: fx.Node) -> fx.Node | None:
    """The next write to the same dim of a value, if it is part of the same chain."""
    writes = [user for user in node.users if user.target in _WRITES and user.args[0] is node]
    return writes[0] if len(writes) == 1 and _dim(writes[0]) == _dim(node) and _others(node, writes[0]) == [] else None


def _others(node: fx.Node, write: fx.Node) -> list[fx.Node]:
    """Readers of a value besides the write, and besides the views that say what is written over."""
    return [user for user in node.users if user is not write and not _is_written_over(user)]


def _is_written_over(view: fx.Node) -> bool:
    """Whether a view is only read for its dtype and sizes: ``copy(view, value)``."""
    if op_name(view) not in ("aten.slice", "aten.select"):
        return False
    return all(op_name(user) in _INTO and user.args[0] is view and user.args[1] is not view for user in view.users)


def _dim(write: fx.Node) -> int:
    dim: int = arguments(write)["dim"]
    return dim % rank(write)


def _parts(last: fx.Node) -> list[_WrittenPart] | None:
    """The writes of a chain that begins with a fresh tensor; None if it begins with anything else, or is read."""
    parts: list[_WrittenPart] = []
    write: Any = last
    while isinstance(write, fx.Node) and write.target in _WRITES and _dim(write) == _dim(last) and len(parts) <= _MOST:
        part, before = _part(write), write.args[0]
        if part is None or not is_tensor(before) or _others(before, write):
            return None
        parts.append(part)
        write = before
    return parts[::-1] if op_name(write) in _BASES and 1 < len(parts) <= _MOST else None


def _part(write: fx.Node) -> _WrittenPart | None:
    given = arguments(write)
    source = value = given["src"]
    if op_name(source) in _INTO:
        value = source.args[1]
    if not is_tensor(source) or not is_tensor(value) or val(value).is_complex() != val(write).is_complex():
        return None
    if val(value).device != val(write).device:
        return None
    if op_name(write) == "aten.select_scatter":
        start, step, size = given["index"], 0, shape(write)[_dim(write)]
        start = start + size if isinstance(start, int) and start < 0 else start
    else:
        start, step = given["start"] or 0, given["step"]
    if not isinstance(start, int) or not isinstance(step, int) or start < 0:
        return None
    sizes, size = [*shape(source)], shape(write)[_dim(write)]
    if step > 1 and known_equal(size % step, 0) and start < step and _reaches(given["end"], size):
        sizes[_dim(write)] = size // step
    return _WrittenPart(value, tuple(sizes), start, step)


def _reaches(end: Any, size: Any) -> bool:
    return end is None or (isinstance(end, int) and end >= _NO_END) or bool(known_equal(end, size))


def _ordered(node: fx.Node, parts: Sequence[_WrittenPart]) -> list[_WrittenPart] | None:
    """The parts in order, if each place is written by one of them, and they make a tensor like `node`."""
    dim, size, steps = _dim(node), shape(node)[_dim(node)], {part.step for part in parts}
    if not _is_contiguous(node) or len(steps) != 1:
        return None
    parts = sorted(parts, key=lambda part: part.start)
    (step,) = steps
    if step == 1:
        ends = [part.start + part.sizes[dim] for part in parts]
        starts = [part.start for part in parts]
        known = all(isinstance(place, int) for place in (*ends, size))
        return parts if known and starts[0] == 0 and ends == [*starts[1:], size] else None
    if [part.start for part in parts] != list(range(len(parts))) or not known_equal(len(parts), step or size):
        return None
    return parts if not step or all(known_equal(part.sizes[dim] * step, size) for part in parts) else None


def _is_contiguous(node: fx.Node) -> bool:
    """Whether elements lie one after the other; asks nothing of symbolic sizes."""
    expected: Any = 1
    for size, stride in zip(reversed(shape(node)), reversed(val(node).stride()), strict=True):
        if not known_equal(stride, expected) and not known_equal(size, 1):
            return False
        expected = expected * size
    return True


def _joined(editor: Editor, node: fx.Node, parts: Sequence[_WrittenPart]) -> fx.Node:
    made, dim, step = val(node), _dim(node), parts[0].step
    values = []
    for part in parts:
        value = part.value
        if val(value).dtype != made.dtype:
            value = editor.call(aten._to_copy.default, value, dtype=made.dtype)
        sizes = shape(value)
        if len(sizes) != len(part.sizes) or not all(map(known_equal, sizes, part.sizes)):
            value = editor.call(aten.expand.default, value, list(part.sizes))
        values.append(value)
    if step == 1:
        whole = editor.call(aten.cat.default, values, dim)
    elif step == 0:
        whole = editor.call(aten.stack.default, values, dim)
    else:
        whole = editor.call(aten.view.default, editor.call(aten.stack.default, values, dim + 1), list(shape(node)))
    if not _is_contiguous(whole):  # such as that of images whose channels lie side by side
        whole = editor.call(aten.clone.default, whole, memory_format=torch.contiguous_format)
    return whole


__all__ = ["join_written_parts"]

"""Computes the gradients of gathers along diagonals, as in attention with relative positions, without atomics.

    index[i, j] = f(j - i), known while compiling;  f(d) == p exactly where a[p] <= d < b[p]

    scatter_add(zeros, -1, index, g)   ->   out[i, p] = g[i, i + a[p]] + ... + g[i, i + b[p] - 1]

Each element of the result adds the few elements of a row that were gathered from it. Elements from which many were
gathered (the ends, if distances are clamped) are masked sums over the row. The index is computed once, by eager on the
program's device, and both the gather and its gradient read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.editor import Editor
from ...rewrites.graph import op_name, val
from ...rewrites.purity import is_foldable
from ...rewrites.walk import recompiles
from .fold_constant_tables import compute
from .zeros import is_zeros

aten = torch.ops.aten

_NAME = "_diagonals"
_MAX_BYTES = 1 << 25  # largest index: 2048 x 2048 positions
_FEW = 8  # most terms of an element's sum that are written out
_LONG = 4  # most elements with more terms


@dataclass(frozen=True)
class Diagonals:
    """For each position `p`, the distances ``start[p] <= j - i < stop[p]`` that gather from it.

    Args:
        width: the most distances of one position, not counting `long`.
        long: positions with many distances, each with its distances.
        line: a sign and an offset with ``start[p] == sign * p + offset``, if each position has at most one distance.
    """

    start: torch.Tensor
    stop: torch.Tensor
    width: int
    long: tuple[tuple[int, int, int], ...]
    line: tuple[int, int] | None


@recompiles
def sum_by_diagonal(graph_module: fx.GraphModule) -> int:
    """Replace scattered sums along diagonals by sums of slices, in place; returns the number of sums.

    Args:
        graph_module: a functional graph (writes to inputs at its end apart).
    """
    graph, known, tables = graph_module.graph, dict[tuple[fx.Node, int], Any](), dict[fx.Node, torch.Tensor]()
    editor, made = Editor(graph), 0
    for node in graph.find_nodes(op="call_function", target=aten.scatter_add.default):
        base = _unexpanded(node.args[2])
        if not _is_candidate(node, base):
            continue
        places = val(node).shape[-1]
        if (base, places) not in known:
            known[base, places] = _known(base, places)
        if known[base, places] is None:
            continue
        tables[base], diagonals = known[base, places]
        with editor.at(node):
            total = _summed(editor, graph_module, node, diagonals)
        editor.replace(node, total)
        editor.erase_dead(node)
        made += 1
    for base, table in tables.items():
        _hold(graph_module, editor, base, table)
    return made


def _unexpanded(index: Any) -> fx.Node:
    """The index before it was expanded over batches."""
    while isinstance(index, fx.Node) and op_name(index) == "aten.expand":
        index = index.args[0]
    return index


def _is_candidate(node: fx.Node, base: Any) -> bool:
    zeros, dim, _, source = node.args
    shapes = [val(x).shape for x in (node, source, base)]
    if any(not all(type(n) is int for n in shape) for shape in shapes):
        return False
    out, given, index = shapes
    rank = len(out)
    return (
        is_zeros(zeros)
        and dim in (-1, rank - 1)
        and rank >= 2
        and out[:-1] == given[:-1] == val(node.args[2]).shape[:-1]
        and given == val(node.args[2]).shape
        and len(index) >= 2
        and index[-2:] == given[-2:]
        and all(n == 1 for n in index[:-2])
        and index.numel() * 8 <= _MAX_BYTES
        and val(node).dtype.is_floating_point
        and is_foldable(base)
    )


def _known(base: fx.Node, places: int) -> tuple[torch.Tensor, Diagonals] | None:
    table = compute(base, limit=_MAX_BYTES, on_device=True)
    if table is None:
        return None
    with compat.plain_eager():
        found = diagonals_of(table.reshape(table.shape[-2:]).cpu(), places)
    return None if found is None else (table, found)


def diagonals_of(index: torch.Tensor, places: int) -> Diagonals | None:
    """The diagonals of an index of rank 2; None if it does not consist of diagonals, or is out of range."""
    rows, columns = index.shape
    if not rows or not columns or not torch.equal(index[1:, 1:], index[:-1, :-1]):
        return None
    by_distance = torch.cat([index[:, 0].flip(0), index[0, 1:]])
    if int(by_distance.min()) < 0 or int(by_distance.max()) >= places:
        return None  # an error of the program
    found, counts = torch.unique_consecutive(by_distance, return_counts=True)
    if len(found.unique()) != len(found):
        return None
    stops = counts.cumsum(0) - (rows - 1)
    long = [
        (p, stop - count, stop)
        for p, count, stop in zip(found.tolist(), counts.tolist(), stops.tolist(), strict=True)
        if count > _FEW
    ]
    if len(long) > _LONG:
        return None
    short = counts <= _FEW
    start, stop = torch.zeros(2, places, dtype=torch.int64)
    start[found[short]], stop[found[short]] = (stops - counts)[short], stops[short]
    width = int(counts[short].max()) if short.any() else 0
    line = _line(start, found[short]) if width == 1 and not long else None
    return Diagonals(start.int(), stop.int(), width, tuple(long), line)


def _line(start: torch.Tensor, used: torch.Tensor) -> tuple[int, int] | None:
    for sign in (-1, 1):
        offsets = start[used] - sign * used
        if bool((offsets == offsets[0]).all()):
            return sign, int(offsets[0])
    return None


def _summed(editor: Editor, module: fx.GraphModule, node: fx.Node, diagonals: Diagonals) -> fx.Node:
    """The sums that replace a scattered sum; the elements that they read have indices of 32 bits."""
    call, wanted, source = editor.call, val(node), node.args[3]
    device, (*batch, rows, places) = wanted.device, wanted.shape
    columns = val(source).shape[-1]
    if wanted.dtype.itemsize < 4:
        source = call(aten._to_copy.default, source, dtype=torch.float32)
    zero = call(aten.full.default, [], 0, dtype=val(source).dtype, device=device)

    def count(n: int, *shape: int) -> fx.Node:
        numbers = call(aten.arange.default, n, dtype=torch.int32, device=device)
        return call(aten.view.default, numbers, list(shape))

    row, total = count(rows, rows, 1), None
    start, stop = _bounds(editor, module, diagonals, count(places, 1, places), device)
    first, last = (call(aten.clamp.default, call(aten.add.Tensor, x, row), 0, columns) for x in (start, stop))
    for step in range(diagonals.width):
        at = call(aten.add.Tensor, first, step)
        index = call(aten._to_copy.default, call(aten.clamp.default, at, None, columns - 1), dtype=torch.int64)
        term = call(aten.gather.default, source, -1, call(aten.expand.default, index, [*batch, rows, places]))
        term = call(aten.where.self, call(aten.lt.Tensor, at, last), term, zero)
        total = term if total is None else call(aten.add.Tensor, total, term)
    for place, begin, end in diagonals.long:
        distance = call(aten.sub.Tensor, count(columns, 1, columns), row)
        inside = call(
            aten.logical_and.default, call(aten.ge.Scalar, distance, begin), call(aten.lt.Scalar, distance, end)
        )
        whole = call(aten.sum.dim_IntList, call(aten.where.self, inside, source, zero), [-1], True)
        here = call(aten.eq.Scalar, count(places, places), place)
        total = call(aten.where.self, here, whole, zero if total is None else total)
    total = call(aten.expand.default, total, list(wanted.shape))
    return editor.cast(total, wanted.dtype)


def _bounds(
    editor: Editor, module: fx.GraphModule, diagonals: Diagonals, place: fx.Node, device: torch.device
) -> tuple[fx.Node, fx.Node]:
    """The first distance of each position, and the end of its distances."""
    if diagonals.line is not None:
        sign, offset = diagonals.line
        start = editor.call(aten.add.Tensor, editor.call(aten.mul.Tensor, place, sign), offset)
        return start, editor.call(aten.add.Tensor, start, 1)
    start, stop = (_constant(module, editor, x, device) for x in (diagonals.start, diagonals.stop))
    return start, stop


def _constant(module: fx.GraphModule, editor: Editor, value: torch.Tensor, device: torch.device) -> fx.Node:
    """A node that reads a constant of the module; the constant is added if there is none with these numbers."""
    names = [name for name, _ in module.named_buffers() if name.startswith(_NAME)]
    with compat.plain_eager():
        value = value.to(device)
        same = (x for x in names if getattr(module, x).shape == value.shape and torch.equal(getattr(module, x), value))
        name = next(same, f"{_NAME}{len(names)}")
    if name not in names:
        module.register_buffer(name, value)
    like = next(node for node in module.graph.nodes if isinstance(val(node), torch.Tensor))
    with val(like).fake_mode:
        fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return editor.attribute(name, fake)


def _hold(module: fx.GraphModule, editor: Editor, base: fx.Node, table: torch.Tensor) -> None:
    """Let the remaining readers of an index read the constant."""
    if not base.users:
        editor.erase_dead(base)
        return
    with editor.at(base):
        held = _constant(module, editor, table, val(base).device)
    editor.replace(base, held)
    editor.erase_dead(base)

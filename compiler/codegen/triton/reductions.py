"""The reduction algebra as Triton text: identities, elements, joins."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...ir.folds import component_dtypes, identity
from ...ir.program import Reduction
from ...ir.reducers import REDUCERS, algebra_of
from .dtypes import bare_literal, spelled, type_name


def carriers(reduction: Reduction) -> tuple[torch.dtype, ...]:
    """The dtypes that components are held in: truth values as int32, which every reduction of Triton takes."""
    found = component_dtypes(reduction.reducer, reduction.values[0].dtype)
    return tuple(torch.int32 if dtype == torch.bool else dtype for dtype in found)


def identities(reduction: Reduction) -> list[str]:
    """The components over nothing, as literals."""
    start = identity(reduction.reducer, reduction.values[0].dtype)
    return [
        spelled(int(n) if n is True or n is False else n, d) for n, d in zip(start, carriers(reduction), strict=True)
    ]


def initial(reduction: Reduction, shape: str) -> list[str]:
    """The components over nothing, as blocks."""
    held = zip(identities(reduction), carriers(reduction), strict=True)
    return [f"tl.full({shape}, {number}, {type_name(dtype)})" for number, dtype in held]


def elements(reduction: Reduction, operands: Sequence[str], shape: str, whole: Sequence[bool]) -> list[str]:
    """The components over one element in every lane; operands are names, `whole` says which are of all the `shape`."""
    dtypes = carriers(reduction)
    x = operands[0] if reduction.values[0].dtype != torch.bool else f"{operands[0]}.to(tl.int32)"
    found = [x, *operands[1:]]
    if reduction.reducer == "welford":
        kind = type_name(dtypes[0])
        spread = f'tl.where(tl.abs({x}) < float("inf"), 0.0, float("nan")).to({kind})'
        found = [x, spread, f"tl.full({shape}, 1.0, {kind})"]
        whole = [whole[0], whole[0], True]
    if reduction.reducer == "softmax":
        found, whole = [x, f"softmax_scale({x}, {x})"], [whole[0], whole[0]]
    return [text if full else f"tl.broadcast_to({text}, {shape})" for text, full in zip(found, whole, strict=True)]


def neutral(reduction: Reduction) -> list[str]:
    """The components over nothing, where lanes of their dtypes choose between them and something else."""
    start = identity(reduction.reducer, reduction.values[0].dtype)
    pairs = zip(start, carriers(reduction), initial(reduction, "[1, 1]"), strict=True)
    return [bare_literal(int(n) if isinstance(n, bool) else n, d) or block for n, d, block in pairs]


def joined(reduction: Reduction, left: Sequence[str], right: Sequence[str]) -> str:
    """One call that joins two partial results."""
    return f"join_{algebra_of(reduction.reducer)}({', '.join([*left, *right])})"


def components_added(reduction: Reduction) -> int:
    """The number of components of an element that `added` uses."""
    return REDUCERS[reduction.reducer].operands


def added(
    reduction: Reduction, state: Sequence[str], element: Sequence[str], share: str = "", inside: str | None = None
) -> str:
    """One line that folds one more element into a state.

    Args:
        reduction: the reduction that combines the elements.
        state: its components, as names; counts are not touched: they are `counted` in the end.
        element: its first components, `components_added` of them; those of nothing in lanes that have none.
        share: one over the number of elements with this one, the same in all lanes.
        inside: which lanes have an element, None where all do.
    """
    if reduction.reducer == "softmax":
        return f"{', '.join(state)} = add_softmax({', '.join([*state, *element])})"
    if reduction.reducer == "welford":
        given = ", ".join([*state[:2], *element, share])
        call = f"add_welford({given})" if inside is None else f"add_welford_inside({given}, {inside})"
        return f"{', '.join(state[:2])} = {call}"
    return f"{', '.join(state)} = {joined(reduction, state, element)}"


def counted(reduction: Reduction, state: Sequence[str], shape: str, extent: str, block: int) -> list[str]:
    """Lines that give each lane the count of its elements, where they came in blocks and nobody counted."""
    if reduction.reducer != "welford":
        return []
    number = f"({extent} + {block - 1} - tl.arange(0, {block})[None, :]) // {block}"
    return [f"{state[2]} = tl.broadcast_to(({number}).to({type_name(carriers(reduction)[2])}), {shape})"]


def folded(reduction: Reduction, lanes: Sequence[str], number: str = "") -> str:
    """One call that reduces lanes along the tile's second axis; `number`: of how many elements, where it is known."""
    if reduction.reducer == "welford" and number:
        return f"fold_counted_welford({', '.join([*lanes, number])})"
    if REDUCERS[algebra_of(reduction.reducer)].folds_lanes:
        return f"fold_{algebra_of(reduction.reducer)}({', '.join(lanes)})"
    given = lanes[0] if len(lanes) == 1 else f"({', '.join(lanes)})"
    return f"tl.reduce({given}, 1, join_{algebra_of(reduction.reducer)}, keep_dims=True)"


def scanned(reduction: Reduction, lanes: Sequence[str]) -> str:
    """One call that gives every lane the result up to it."""
    given = lanes[0] if len(lanes) == 1 else f"({', '.join(lanes)})"
    return f"tl.associative_scan({given}, 1, join_{algebra_of(reduction.reducer)})"


def begun(reduction: Reduction, partial: Sequence[str]) -> list[str]:
    """The first partial result joined to nothing: a sum begins with 0.0, as eager's, which negative zeros show."""
    if REDUCERS[reduction.reducer].from_zero and carriers(reduction)[0].is_floating_point:
        return [f"{name} + 0.0" for name in partial]
    return list(partial)

"""Calls on a few real numbers while a graph is being compiled: what eager makes of them, to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from .. import compat
from ..graph import dtype, is_tensor, nodes_in, op_name, rank, val
from ..purity import is_pure
from ..symbolic import concrete, hint
from .fact import REAL, Conditional, Fact, Number, Positions, Table, Uniform

MAX_BYTES = 1 << 16  # of a tensor that is computed element by element while compiling
MAX_EXAMPLE = 1 << 26  # elements of a tensor that is made up for a measurement

# Their results depend on more than the elements of their operands.
_OF_MEMORY = ("aten.empty", "aten.new_empty", "aten.as_strided", "aten.view_as", "aten.stride", "aten.resize")


@contextmanager
def plainly() -> Iterator[None]:
    """Real tensors: no fake ones, no recording, no gradients."""
    with compat.no_dispatch_modes(), torch.no_grad():
        yield


def number_of(node: fx.Node, operands: Mapping[fx.Node, Number]) -> Number | None:
    """The result of an elementwise call on one number for each operand; None where it raises or has another dtype."""

    def tensor(operand: fx.Node) -> Any:
        if not is_tensor(operand):
            return val(operand)
        return torch.full([1] * min(rank(operand), 1), operands[operand], dtype=dtype(operand), device="cpu")

    with plainly():
        try:
            args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), tensor)
            result = node.target(*args, **kwargs)  # type: ignore[operator]
        except (RuntimeError, TypeError, ValueError, OverflowError):
            return None
        return result.item() if isinstance(result, torch.Tensor) and result.dtype == dtype(node) else None


def filled(number: Any, kind: torch.dtype) -> Number | None:
    """A number as a tensor of a dtype holds it; None where eager does not convert it, of one element but of several."""
    with plainly():
        try:
            return torch.full([2], number, dtype=kind, device="cpu")[0].item()
        except (RuntimeError, TypeError, OverflowError):
            return None


def converted(number: Number, source: torch.dtype, kind: torch.dtype) -> Number | None:
    """A number of one dtype in another; None where that is not the same on every machine."""
    if source.is_floating_point and not kind.is_floating_point and kind != torch.bool:
        info = torch.iinfo(kind)
        if not info.min <= number <= info.max:  # NaN is neither
            return None
    with plainly():
        return torch.full([], number, dtype=source, device="cpu").to(kind).item()


def table_of(node: fx.Node, read: Callable[[Any], Fact | None], exact: bool) -> Fact | None:
    """The result of a call on small tensors that are known, one number where all of its elements are that."""
    facts = {n: read(n) for n in node.all_input_nodes}
    if None in facts.values() or not _is_small(node):
        return None
    if not all(f is not None and _is_small(n) and _is_numeric(f) for n, f in facts.items()):
        return None
    with plainly():
        try:
            given = {n: elements(fact, val(n)) for n, fact in facts.items() if fact is not None}
            args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), given.__getitem__)
            value = node.target(*args, **on_cpu(kwargs))  # type: ignore[operator]
        except (RuntimeError, TypeError, ValueError, IndexError, OverflowError):
            return None
        if not isinstance(value, torch.Tensor) or value.dtype != dtype(node) or value.shape != val(node).shape:
            return None
        kept = exact and all(getattr(fact, "exact", True) for fact in facts.values())
        return summary(value, kept)


def is_same_on_cpu(node: fx.Node) -> bool:
    """Whether the CPU gives the bits of a tensor: it is computed there, or computes integers from integers.

    The last bits of floats differ between devices.
    """
    known = compat.tree_leaves([val(n) for n in (node, *node.all_input_nodes)])
    read = [v for v in known if isinstance(v, torch.Tensor)]
    return all(v.device.type == "cpu" for v in read) or not any(v.dtype.is_floating_point for v in read)


def on_cpu(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of the same call on the CPU."""
    return {name: torch.device("cpu") if name == "device" else given for name, given in kwargs.items()}


def _is_small(node: fx.Node) -> bool:
    """Whether a value is a tensor of static size that may be computed while compiling."""
    if not is_tensor(node):
        return False
    value = val(node)
    if value.layout != torch.strided or value.dtype not in REAL or not all(map(concrete, value.shape)):
        return False
    if value.numel() * value.dtype.itemsize > MAX_BYTES or not is_same_on_cpu(node):
        return False
    return node.op != "call_function" or _is_computable(node)


def _is_numeric(fact: Fact) -> bool:
    """Whether a fact has no symbols."""
    if isinstance(fact, Conditional):
        return all(map(_is_numeric, fact.conditions))
    return not isinstance(fact, Positions) or all(map(concrete, (fact.offset, *fact.steps)))


def _is_computable(node: fx.Node) -> bool:
    if not isinstance(node.target, compat.OpOverload) or op_name(node).startswith(_OF_MEMORY):
        return False
    given = nodes_in([node.args, node.kwargs])
    return node.target.namespace == "aten" and is_pure(node) and all(is_tensor(n) for n in given)


def summary(value: torch.Tensor, exact: bool = True) -> Fact | None:
    """The fact on a tensor whose elements are known."""
    if value.numel() == 0 or value.dtype not in REAL:
        return None
    with plainly():
        value = value.detach()
        first = value.flatten()[0]
        return Uniform(first.item(), exact) if same_bits(value, first) else Table(value, exact)


def same_bits(value: torch.Tensor, first: torch.Tensor) -> bool:
    """Whether all elements are the number `first`: NaN is none, and the two zeros are two."""
    if value.is_floating_point() and not bool((torch.signbit(value) == torch.signbit(first)).all()):
        return False
    return bool((value == first).all())


def elements(fact: Fact, value: torch.Tensor) -> torch.Tensor:
    """The tensor like `value`, of static size, that a fact describes, on the CPU."""
    if isinstance(fact, Table):
        return fact.value
    if isinstance(fact, Uniform):
        return torch.full(value.shape, fact.number, dtype=value.dtype, device="cpu")
    if isinstance(fact, Positions):
        return _integers(fact, value).to(value.dtype)
    holds = torch.ones(value.shape, dtype=torch.bool, device="cpu")
    for condition in fact.conditions:
        holds = holds & (_integers(condition, value) >= 0)
    yes, no = (torch.full([], x, dtype=value.dtype, device="cpu") for x in (fact.yes, fact.no))
    return torch.where(holds, yes, no)


def example(fact: Fact, value: torch.Tensor) -> torch.Tensor | None:
    """The tensor that a fact describes, symbolic sizes at their example values; None where one has none, or it is huge.

    The example repeats its memory if `value` does (expanded dims).
    """
    sizes, strides = ([hint(n) for n in part] for part in (value.shape, value.stride()))
    known = _hinted(fact)
    if known is None or None in (*sizes, *strides) or math.prod(sizes) > MAX_EXAMPLE:
        return None
    with plainly():
        filled = elements(known, torch.empty(sizes, dtype=value.dtype, device="meta"))
        for dim, stride in enumerate(strides):
            filled = filled.narrow(dim, 0, 1) if stride == 0 and sizes[dim] else filled
        memory = torch.empty_strided(filled.shape, strides, dtype=value.dtype, device=value.device)
        return memory.copy_(filled).expand(sizes)


def _hinted(fact: Fact) -> Fact | None:
    """A fact of numbers alone."""
    if isinstance(fact, Conditional):
        conditions = [found for condition in fact.conditions if (found := _hinted_positions(condition)) is not None]
        return replace(fact, conditions=tuple(conditions)) if len(conditions) == len(fact.conditions) else None
    return _hinted_positions(fact) if isinstance(fact, Positions) else fact


def _hinted_positions(positions: Positions) -> Positions | None:
    offset, steps = hint(positions.offset), tuple(map(hint, positions.steps))
    return None if None in (offset, *steps) else Positions(offset, steps)


def _integers(positions: Positions, value: torch.Tensor) -> torch.Tensor:
    total = torch.full(value.shape, positions.offset, dtype=torch.int64, device="cpu")
    for dim, step in enumerate(positions.steps):
        sizes = [-1 if d == dim else 1 for d in range(len(positions.steps))]
        total = total + torch.arange(value.shape[dim], device="cpu").view(sizes) * step
    return total


def is_known_exactly(fact: Fact | None) -> bool:
    """Whether eager computes the same bits."""
    return fact is not None and getattr(fact, "exact", True)

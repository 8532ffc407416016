"""Whether two programs give the same results: a loose check before one of them is chosen for its speed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...rewrites.words import counted

TOLERANCE = 1e-2
HALF_TOLERANCE = 5e-2
_PIECE = 1 << 21  # number of elements to compare at a time
_LARGE = 1 << 26  # bytes of a result from which on a part of it is compared


@dataclass(frozen=True)
class ResultPart:
    """A part of a large result, along its longest dim, so that the rest's memory is free for the next program.

    Args:
        shape: of the result.
        rows: the last row, and every few before, an odd number of them apart, so that they lie at all places of a tile.
    """

    shape: tuple[int, ...]
    rows: torch.Tensor

    @classmethod
    def of(cls, result: Any) -> Any:
        """A large tensor as a sample; other results as they are."""
        if not isinstance(result, torch.Tensor) or result.numel() * result.itemsize <= _LARGE:
            return result
        dim = max(range(result.dim()), key=result.shape.__getitem__)
        step = result.numel() * result.itemsize // _LARGE | 1
        size = result.shape[dim]
        places = torch.arange(0, size + step - 1, step, device=result.device).clamp_(max=size - 1)
        return cls(tuple(result.shape), result.index_select(dim, places))


def _tensor(result: Any) -> Any:
    return result.rows if isinstance(result, ResultPart) else result


def disagreement(found: Sequence[Any], expected: Sequence[Any], values: bool = True) -> str:
    """How two lists of results differ; empty if they agree within rounding.

    The check is loose on purpose: it should find wrong programs before they are chosen, and cannot prove a program
    right. The bound on the error of a tensor is relative to its own largest value, plus a tenth of that relative to the
    largest value of all tensors, since gradients may be zero except for rounding. The bound
    is that of 16 bits for all results if one of them has 16 bits: others are computed from numbers that are rounded so.

    Args:
        found: results of the program to check, large ones as samples in both.
        expected: results of the original.
        values: whether to compare values as well as metadata.
    """
    if len(found) != len(expected):
        return f"{counted(len(found), 'result')} instead of {len(expected)}"
    tensors = [leaf for leaf in map(_tensor, expected) if isinstance(leaf, torch.Tensor)] if values else []
    largest = max(map(_largest, tensors), default=0.0)
    tolerance = max(map(_tolerance, tensors), default=TOLERANCE)
    differences = (_difference(a, b, largest, tolerance, values) for a, b in zip(found, expected, strict=True))
    return next(filter(None, differences), "")


def relative_error(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest relative error, in the 2-norm of each tensor, of results that agree.

    Values that are not finite are left out, as are tensors that consist of rounding errors compared with the largest
    one.
    """
    pairs = [
        (a, b)
        for a, b in zip(map(_tensor, found), map(_tensor, expected), strict=True)
        if isinstance(b, torch.Tensor) and (b.dtype.is_floating_point or b.dtype.is_complex) and b.numel()
    ]
    largest = max((_largest(b) for _, b in pairs), default=0.0)
    return max((_error(a, b) for a, b in pairs if _largest(b) > 1e-6 * largest), default=0.0)


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    wrong = scale = 0.0
    for a, b in zip(_pieces(found), _pieces(expected), strict=True):
        finite = b.isfinite() & a.isfinite()
        wrong = math.hypot(wrong, float(torch.linalg.vector_norm((a - b).where(finite, 0))))
        scale = math.hypot(scale, float(torch.linalg.vector_norm(b.where(finite, 0))))
    return wrong / scale if scale else 0.0


def _tolerance(tensor: torch.Tensor) -> float:
    inexact = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    return HALF_TOLERANCE if inexact and torch.finfo(tensor.dtype).eps >= 1e-6 else TOLERANCE


def _difference(found: Any, expected: Any, largest: float, tolerance: float, values: bool) -> str:
    if isinstance(found, ResultPart) and isinstance(expected, ResultPart) and found.shape != expected.shape:
        return f"shape {found.shape} instead of {expected.shape}"
    found, expected = _tensor(found), _tensor(expected)
    if not isinstance(found, torch.Tensor) or not isinstance(expected, torch.Tensor):
        same = type(found) is type(expected) and found == expected
        return "" if same else f"{_brief(found)} instead of {_brief(expected)}"
    for name in ("shape", "dtype", "device"):
        if getattr(found, name) != getattr(expected, name):
            return f"{name} {getattr(found, name)} instead of {getattr(expected, name)}"
    return _value_difference(found, expected, largest, tolerance) if values else ""


def _brief(result: Any) -> str:
    return "a tensor" if isinstance(result, torch.Tensor) else repr(result)[:80]


def _value_difference(found: torch.Tensor, expected: torch.Tensor, largest: float, tolerance: float) -> str:
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        return "" if torch.equal(found, expected) else "integer values differ"
    error = own = 0.0
    for a, b in zip(_pieces(found), _pieces(expected), strict=True):
        if not torch.equal(a.isnan(), b.isnan()):
            return "NaN in other places"
        finite = b.isfinite() & a.isfinite()
        if not torch.equal(a.where(~finite, 0).nan_to_num(), b.where(~finite, 0).nan_to_num()):
            return "infinities in other places"
        error = max(error, _largest((a - b).where(finite, 0)))
        own = max(own, _largest(b))
    if error <= tolerance * own + 0.1 * tolerance * largest:
        return ""
    return f"relative error {error / own if own else float('inf'):.2g}, more than {tolerance:g}"


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor as views of some elements each, the same for all tensors of its shape.

    Comparing takes several copies of the compared elements, for which a large model leaves no memory.
    """
    if tensor.numel() <= _PIECE:
        yield _comparable(tensor)
        return
    for part in tensor.split(max(_PIECE * tensor.shape[0] // tensor.numel(), 1)):
        if part.numel() > _PIECE:
            yield from _pieces(part[0])
        else:
            yield _comparable(part)


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as real numbers of at least single precision, which every device can compare."""
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.dtype.is_complex else tensor
    return real.to(torch.promote_types(real.dtype, torch.float32) if real.dtype.itemsize > 1 else torch.float32)


def _largest(tensor: torch.Tensor) -> float:
    """The largest finite magnitude."""
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex) or tensor.numel() == 0:
        return 0.0
    return max(float(piece.abs().nan_to_num(nan=0.0, posinf=0.0).max()) for piece in _pieces(tensor))

"""What two calls of a program did differently, beyond what rounding explains.

Values that are apart are held against eager in double precision and against eager on inputs a little off: a result that
is nearly as good as eager's, or that eager itself gives for inputs that differ in the last bit, is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
AS_GOOD = 4  # times eager's own error
_NOTHING = 1e-12  # of the largest number around: what cancels in double precision
Others = Callable[[], Iterable[tuple[str, Any]]]


@dataclass(frozen=True)
class Difference:
    """A kind of difference, and what it is in words; `unstable` says nothing about the compiler."""

    kind: str
    message: str


def difference(ours: Any, theirs: Any, others: Others) -> Difference | None:
    """What differs between two calls.

    Args:
        ours, theirs: what was seen of them.
        others: runs of eager in other ways, when they are needed.
    """
    if ours.error is not None or theirs.error is not None:
        return _errors(ours.error, theirs.error, others)
    if ours.form != theirs.form:
        return Difference("structure", f"{ours.form} instead of {theirs.form}")
    found = _leaves(ours, theirs) or _sharing(ours, theirs) or _zeros(ours, theirs)
    if found is None or found.kind not in ("values", "shape"):
        return found
    runs = list(others())
    return _explained(ours, theirs, runs, found)


# -- errors ------------------------------------------------------------------------------------------------------------


def _errors(ours: BaseException | None, theirs: BaseException | None, others: Others) -> Difference | None:
    if "modified by an inplace operation" in str(theirs):  # what AOTAutograd makes functional no write can spoil
        return None
    if ours is None:
        return Difference("silent", f"nothing instead of {_told(theirs)}")
    if theirs is None:
        kind = "raises " + _root(ours)
        return Difference(kind, _told(ours))
    if _same_error(ours, theirs):
        return None
    return Difference("error type", f"{_told(ours)} instead of {_told(theirs)}")


def _told(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:600]}"


def _root(error: BaseException) -> str:
    inner = getattr(error, "inner_exception", None) or error
    return type(inner).__name__


def _same_error(ours: BaseException, theirs: BaseException) -> bool:
    """Of one type, or raised by Dynamo while it traced."""
    if isinstance(ours, type(theirs)) or isinstance(theirs, type(ours)):
        return True
    return type(ours).__module__.startswith("torch._dynamo") and "Backend" not in type(ours).__name__


# -- leaves ------------------------------------------------------------------------------------------------------------

PARTS = ("outputs", "inputs", "gradients", "state")
_KINDS = {"outputs": "values", "inputs": "mutation", "gradients": "gradient", "state": "state"}


def _pairs(ours: Any, theirs: Any) -> Iterable[tuple[str, Any, Any]]:
    for part in PARTS:
        for k, (mine, other) in enumerate(zip(getattr(ours, part), getattr(theirs, part), strict=True)):
            yield f"{part}[{k}]", mine, other


def _leaves(ours: Any, theirs: Any) -> Difference | None:
    """The first difference; metadata before values."""
    pairs = list(_pairs(ours, theirs))
    for look in (_metadata, _apart):
        for where, mine, other in pairs:
            if where.startswith("gradients") and _is_zeros_for_none(mine, other):
                continue
            found = look(mine, other)
            if found is not None:
                return Difference(found.kind, f"{where}: {found.message}")
    return None


def _zeros(ours: Any, theirs: Any) -> Difference | None:
    """Gradients of zeros where eager has none: of what only a value depends on that nobody uses."""
    pairs = enumerate(zip(ours.gradients, theirs.gradients, strict=True))
    at = next((k for k, (mine, other) in pairs if _is_zeros_for_none(mine, other)), None)
    return None if at is None else Difference("zeros", f"gradients[{at}]: zeros instead of None")


def _is_zeros_for_none(mine: Any, other: Any) -> bool:
    return other is None and isinstance(mine, torch.Tensor) and not bool(mine.detach().any())


def _metadata(mine: Any, other: Any) -> Difference | None:
    if not isinstance(mine, torch.Tensor) or not isinstance(other, torch.Tensor):
        if type(mine) is not type(other):
            return Difference("type", f"{type(mine).__name__} instead of {type(other).__name__}")
        return None
    if mine.dtype != other.dtype:
        return Difference("dtype", f"{mine.dtype} instead of {other.dtype}")
    if mine.shape != other.shape:
        return Difference("shape", f"{list(mine.shape)} instead of {list(other.shape)}")
    if mine.requires_grad != other.requires_grad:
        return Difference("requires_grad", f"{mine.requires_grad} instead of {other.requires_grad}")
    if mine.numel() > 1 and _strides(mine) != _strides(other):
        return Difference("strides", f"{mine.stride()} instead of {other.stride()} of {list(mine.shape)}")
    return None


def _strides(tensor: torch.Tensor) -> list[int]:
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _apart(mine: Any, other: Any) -> Difference | None:
    if isinstance(mine, float):
        mine, other = torch.tensor(mine, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
        near = torch.isclose(mine, other, 1e-4, 1e-5, equal_nan=True)
        return None if near else Difference("values", f"{mine} instead of {other}")
    if not isinstance(mine, torch.Tensor):
        return None if mine == other else Difference("values", f"{mine} instead of {other}")
    mine, other = as_real(mine.detach()), as_real(other.detach())
    tolerance = TOLERANCE.get(mine.dtype, 0.0)
    scale = float(other.double().abs().nan_to_num(0, 0, 0).amax()) if tolerance and other.numel() else 0.0
    near = mine.isclose(other, tolerance, min(tolerance * max(scale, 1e-3), 1e30), equal_nan=True)
    if bool(near.all()):
        return None
    at = int((~near).flatten().nonzero()[0])
    values = f"{mine.flatten()[at].item()!r} instead of {other.flatten()[at].item()!r}"
    return Difference("values", f"{int((~near).sum())} of {near.numel()}, at {at} {values}")


def as_real(value: Any) -> Any:
    """A complex tensor as pairs of real numbers."""
    complicated = isinstance(value, torch.Tensor) and value.is_complex()
    return torch.view_as_real(value.detach().resolve_conj()) if complicated else value


# -- what explains it --------------------------------------------------------------------------------------------------


def _explained(ours: Any, theirs: Any, runs: list[tuple[str, Any]], found: Difference) -> Difference | None:
    """None or `unstable` where eager's own rounding explains what differs."""
    ran = [(name, run) for name, run in runs if run.error is None]
    runs = [(name, run) for name, run in ran if _alike(run, theirs)]
    if found.kind == "shape" or not runs:
        steady = 0 < len(runs) == len(ran)  # a size may hang on the sign of what is nearly 0
        return found if steady else Difference("unstable", found.message)
    # Without double precision nobody knows what constants of the program's own are rounded to.
    coarsest = max(run.eps for _, run in runs)
    eps = 0.0 if any(name == "double" for name, _ in runs) else coarsest
    largest = _largest(theirs)
    for where, mine, other in _pairs(ours, theirs):
        if _is_zeros_for_none(mine, other) or _apart(mine, other) is None:
            continue
        part, index = where[:-1].split("[")
        if not isinstance(mine, torch.Tensor):
            return Difference("unstable", where) if _moves(runs, part, int(index), other) else found
        versions = [(name, as_real(getattr(run, part)[int(index)])) for name, run in runs]
        widened = coarsest if mine.dtype in (torch.float64, torch.complex128) else 0.0  # of what was rounded before
        if not _within(as_real(mine.detach()), as_real(other.detach()), versions, max(eps, widened), largest):
            return Difference(_KINDS[part], f"{where}: {_message(mine, other)}")
    return None


def _largest(seen: Any) -> float:
    """The largest finite number among results and gradients."""
    tensors = [as_real(x.detach()) for x in (*seen.outputs, *seen.gradients) if isinstance(x, torch.Tensor)]
    finite = [x.double().abs().nan_to_num(0, 0, 0).amax() for x in tensors if x.dtype.is_floating_point and x.numel()]
    return max(map(float, finite), default=0.0)


def _message(mine: Any, other: Any) -> str:
    apart = _apart(mine, other)
    return "" if apart is None else apart.message


def _alike(run: Any, theirs: Any) -> bool:
    """Whether a run gives tensors of the same sizes."""
    if any(len(getattr(run, part)) != len(getattr(theirs, part)) for part in PARTS):
        return False
    return all(getattr(one, "shape", None) == getattr(two, "shape", None) for _, one, two in _pairs(run, theirs))


def _moves(runs: list[tuple[str, Any]], part: str, index: int, other: Any) -> bool:
    return any(getattr(run, part)[index] != other for _, run in runs)


def _within(
    mine: torch.Tensor, other: torch.Tensor, versions: list[tuple[str, Any]], eps: float = 0.0, largest: float = 0.0
) -> bool:
    """Whether each element is as near to the truth as eager's, or where eager's own may be; `eps` on the way to it.

    Where all of eager's runs give exactly 0, terms cancel: ours may be a rounding of the `largest` number around. Where
    they do so in double precision only, it may be as far off as eager is where that is worst.
    """
    if not mine.dtype.is_floating_point:  # ties and thresholds
        moved = [v for _, v in versions if isinstance(v, torch.Tensor)]
        return any(bool((v.double() != other.double()).any()) for v in moved)
    mine64, other64 = mine.double(), other.double()
    room = torch.zeros_like(other64)
    truth, wild = other64, torch.zeros_like(other64, dtype=torch.bool)
    cancels, nothing = other64 == 0, torch.zeros_like(wild)
    for name, version in versions:
        if not isinstance(version, torch.Tensor):
            continue
        value = version.detach().double()
        apart = (value - other64).abs()
        cancels &= value == 0
        wild |= ~(value.isclose(other64, 0, 0, equal_nan=True)) & ~apart.isfinite()  # NaN or infinite in one of them
        room = torch.maximum(room, apart.nan_to_num(0, 0, 0))
        truth = value if name == "double" else truth
        nothing = value.abs() <= _NOTHING * largest if name == "double" else nothing
    eps = max(eps, torch.finfo(mine.dtype).eps)
    room, scale = room.masked_fill(wild, 0), other64.abs().nan_to_num(0, 0, 0).masked_fill(wild, 0)
    most = scale.amax() if scale.numel() else 0.0
    inexact = room[room > 0]  # exact zeros, as padding makes, say nothing about precision
    usual = inexact.mean() if inexact.numel() else 0.0
    lost = room.masked_fill(~nothing, 0).amax() if room.numel() else 0.0  # of what cancels, by eager
    room = AS_GOOD * room.clamp(min=usual) + eps * AS_GOOD * (scale + most)
    ok = ((mine64 - truth).abs() <= room) | ((mine64 - other64).abs() <= room) | wild
    ok |= mine64.isclose(other64, 0, 0, equal_nan=True)
    ok |= cancels & (mine64.abs() <= AS_GOOD * eps * largest)
    ok |= nothing & (mine64.abs() <= AS_GOOD * lost)
    return bool(ok.all())


# -- sharing -----------------------------------------------------------------------------------------------------------


def _sharing(ours: Any, theirs: Any) -> Difference | None:
    """Which inputs and outputs share memory, and which are one object."""
    mine, other = _shares(ours), _shares(theirs)
    return None if mine == other else Difference("alias", f"{mine} instead of {other}")


def _shares(seen: Any) -> list[tuple[int, bool]]:
    tensors = [x for x in (*seen.inputs, *seen.outputs) if isinstance(x, torch.Tensor)]
    first: dict[int, int] = {}
    found = []
    for k, tensor in enumerate(tensors):
        storage = tensor.untyped_storage()._cdata if tensor.numel() else -1 - k
        place = first.setdefault(storage, k)
        found.append((place, tensor is tensors[place]))
    return found

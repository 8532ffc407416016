"""Changes to a function while it runs: other spellings that mean the same, or one step that means something else.

Both see every call of a tensor operation, so that one list of changes serves the patterns of all rules.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Tensor = torch.Tensor
_QUERIES = ("get", "dim", "size", "stride", "numel", "is_floating_point", "is_contiguous", "element_size")


class Steps(TorchFunctionMode):
    """Counts the steps of a function: its calls that give a floating tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one call."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").split(".")[0].strip("_")
        if name in _QUERIES:
            return func(*args, **kwargs)
        result = self.call(name, func, args, kwargs)
        self.step += isinstance(result, Tensor)
        return result

    def call(self, name: str, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Do what is asked."""
        return func(*args, **kwargs)


class Respelled(Steps):
    """Every call in a spelling drawn for it, with views and copies in between that change nothing."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        self.source = source

    def call(self, name: str, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """The call as it is, or in other words."""
        spellings = [s for s in SPELLINGS.get(name, ()) if not kwargs and self.source.random() < 0.5]
        result = None
        for spelling in spellings[:1]:
            result = spelling(*args)
        result = func(*args, **kwargs) if result is None else result
        around = self.source.choice([None, None, None, *AROUND])
        plain = isinstance(result, Tensor) and not result.is_complex()
        return AROUND[around](result) if plain and around is not None else result


def _floats(*values: Any) -> bool:
    return all(isinstance(v, Tensor) and v.is_floating_point() for v in values)


def _commuted(function: Callable[..., Tensor]) -> Callable[..., Tensor | None]:
    return lambda a, b: function(b, a) if isinstance(a, Tensor) and isinstance(b, Tensor) else None


def _divided(a: Any, b: Any) -> Tensor | None:
    """A power of two, so that no rounding depends on the spelling."""
    exact = isinstance(b, float) and b != 0 and math.frexp(abs(b))[0] == 0.5
    return a / (1 / b) if exact and _floats(a) else None


def _contracted(a: Tensor, b: Tensor) -> Tensor | None:
    letters = "uvwxyz"[: a.dim() - 2]
    return torch.einsum(f"{letters}ij,{letters}jk->{letters}ik", a, b) if _matrices(a, b) else None


def _turned(a: Tensor, b: Tensor) -> Tensor | None:
    return (b.mT @ a.mT).mT if _matrices(a, b) else None


def _batched(a: Tensor, b: Tensor) -> Tensor | None:
    return torch.bmm(a, b) if _matrices(a, b) and a.dim() == 3 else None


def _matrices(a: Tensor, b: Tensor) -> bool:
    return _floats(a, b) and 2 <= a.dim() == b.dim() <= 6 and a.shape[:-2] == b.shape[:-2]


def _by_hand(x: Tensor, dim: int, *rest: Any) -> Tensor | None:
    if rest:
        return None
    e = torch.exp(x - x.amax(dim, keepdim=True))
    return e / e.sum(dim, keepdim=True)


def _through_logarithm(x: Tensor, dim: int, *rest: Any) -> Tensor | None:
    return None if rest else torch.log_softmax(x, dim).exp()


def _filled(keep: Tensor, x: Any, fill: Any) -> Tensor | None:
    return x.masked_fill(~keep, fill) if isinstance(x, Tensor) and isinstance(fill, float) else None


# other words for a call, by its name; None where they do not fit
SPELLINGS: dict[str, tuple[Callable[..., Tensor | None], ...]] = {
    "add": (_commuted(torch.add),),
    "mul": (_commuted(torch.mul), _divided),
    "matmul": (_contracted, _turned, _batched),
    "softmax": (_by_hand, _through_logarithm),
    "where": (_filled,),
}

# what may stand around a value without changing it
AROUND: dict[str, Callable[[Tensor], Tensor]] = {
    "cloned": torch.clone,
    "contiguous": torch.Tensor.contiguous,
    "turned twice": lambda x: x.transpose(0, -1).transpose(0, -1) if x.dim() else x,
    "permuted twice": lambda x: x.permute([*reversed(range(x.dim()))]).permute([*reversed(range(x.dim()))]),
    "unsqueezed": lambda x: x.unsqueeze(0).squeeze(0),
    "viewed": lambda x: x.reshape(x.shape),
    "cast to itself": lambda x: x.to(x.dtype),
    "times one": lambda x: x * 1.0 if x.is_floating_point() else x,
}


class Almost(Steps):
    """One step of a function is changed.

    Args:
        change: one of `ALMOST`, or what is none of them to change nothing.
        at: at which step.
        operands: the function's own tensors, which changes may write to.
        seen: takes inner values that somebody else looks at too.
    """

    def __init__(self, change: str, at: int, operands: Sequence[Tensor], seen: list[Tensor]) -> None:
        super().__init__()
        self.change, self.at, self.operands, self.seen = change, at, operands, seen

    def call(self, name: str, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """The call, changed where its turn has come."""
        if self.step != self.at or self.change not in ALMOST:
            return func(*args, **kwargs)
        if self.change == "other dim":
            args, kwargs = _other_dim(args), {k: _other_dim((v,))[0] if k == "dim" else v for k, v in kwargs.items()}
        if self.change == "other number":
            args = tuple(a * 1.5 if isinstance(a, float) and math.isfinite(a) else a for a in args)
        if self.change == "other fill":
            args = tuple(-1.0 if isinstance(a, float) and a < -1e4 else a for a in args)
        if self.change == "swapped":
            args = (args[1], args[0], *args[2:]) if len(args) > 1 else args
        result = func(*args, **kwargs)
        return ALMOST[self.change](self, result) if isinstance(result, Tensor) else result

    def look(self, value: Tensor) -> None:
        """Somebody else uses a value too."""
        self.seen.append(value)


def _other_dim(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The last dim becomes the one before."""
    changed = tuple([-2] if a == [-1] else -2 if type(a) is int and a == -1 else a for a in args[1:])
    return (*args[:1], *changed) if isinstance(args[0], Tensor) else tuple(-2 if a == -1 else a for a in args)


def _used_too(self: Almost, x: Tensor) -> Tensor:
    self.look(x.sin())
    return x


def _returned(self: Almost, x: Tensor) -> Tensor:
    self.look(x)
    return x


def _varying(self: Almost, x: Tensor) -> Tensor:
    return x * torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device) if x.dim() and _floats(x) else x


def _whole(self: Almost, x: Tensor) -> Tensor:
    return (x * 2).to(torch.int32).to(x.dtype) if _floats(x) else x


def _rounded(self: Almost, x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(x.dtype) if _floats(x) else x


def _operand_written(self: Almost, x: Tensor) -> Tensor:
    for operand in self.operands:
        if _floats(operand):
            operand.mul_(0.5)
    return x


def _through_view(self: Almost, x: Tensor) -> Tensor:
    for operand in self.operands:
        if _floats(operand) and operand.dim():
            operand[..., :1].add_(1.0)
    return x


def _written(self: Almost, x: Tensor) -> Tensor:
    return x.add_(1.0) if _floats(x) else x


def _written_after_look(self: Almost, x: Tensor) -> Tensor:
    self.look(x * 2.0)
    if x.dim() and _floats(x):
        x[..., :1].mul_(3.0)
    return x


def _enlarged(self: Almost, x: Tensor) -> Tensor:
    return x.unsqueeze(0).expand(2, *x.shape)


def _unchanged(self: Almost, x: Tensor) -> Tensor:
    return x


ALMOST: dict[str, Callable[[Almost, Tensor], Tensor]] = {
    "used too": _used_too,
    "returned": _returned,
    "varying factor": _varying,
    "whole numbers": _whole,
    "rounded": _rounded,
    "operand written": _operand_written,
    "operand written through a view": _through_view,
    "written": _written,
    "written after a look": _written_after_look,
    "enlarged": _enlarged,
    "other dim": _unchanged,
    "other number": _unchanged,
    "other fill": _unchanged,
    "swapped": _unchanged,
}
JUMPS = ("whole numbers", "rounded")  # a rounding before them may be a step after them: compared in float64

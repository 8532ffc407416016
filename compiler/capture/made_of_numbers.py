"""Tensors made of numbers that change from call to call: numbers beyond the dtype are infinite in them, as in eager.

    torch.tensor(n)             ->    scalar_tensor(n, float64).to(float32)
    torch.tensor([n, 1.0])      likewise for each
    torch.tensor(1e39)          ->    scalar_tensor(inf), where a number that changed is compiled as a constant
    torch.as_tensor(n)          ->    torch.tensor(n), and `asarray`, `FloatTensor` and its like
    numpy.array([n])            likewise: NumPy's functions call `torch.as_tensor`

Torch traces such a number as `scalar_tensor(n)`, which eager refuses where the dtype does not hold it. Tracing
`torch.as_tensor` makes a constant of it, of 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...rewrites import compat
from ...rewrites.symbolic import SYMBOLIC


def as_made(target: Callable[..., Any]) -> Callable[..., Any]:
    """The function that makes what a call of `target` makes in eager."""
    if target in (torch.as_tensor, torch.asarray):
        return partial(_where_symbolic, target)
    if isinstance(target, type(torch.FloatTensor)) and target.is_cuda is False:
        return partial(_of_type, target)
    if compat.is_numpy_call(target):
        return partial(_by_numpy, target)
    return _tensor if target is compat.MADE_OF_NUMBERS else target


class _AsMade(TorchFunctionMode):
    """What functions of torch call within makes what they make in eager."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.full and isinstance(args[1], torch.Tensor):  # as NumPy's function calls it
            return args[1].to(kwargs["dtype"]).expand(args[0]).clone(memory_format=torch.contiguous_format)
        return as_made(func)(*args, **(kwargs or {}))


def _by_numpy(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not any(isinstance(number, SYMBOLIC) for number in compat.tree_leaves((args, kwargs))):
        return call(*args, **kwargs)
    with _AsMade():
        return call(*args, **kwargs)


def _where_symbolic(make: Callable[..., Any], data: Any, **kwargs: Any) -> Any:
    if not any(isinstance(number, SYMBOLIC) for number in compat.tree_leaves(data)):
        return make(data, **kwargs)
    kwargs.pop("copy", None)
    return _tensor(data, **kwargs)


def _of_type(make: Any, *args: Any, **kwargs: Any) -> Any:
    of_numbers = len(args) == 1 and isinstance(args[0], (list, tuple)) and not kwargs
    return (
        _where_symbolic(lambda *_, **__: make(*args), args[0], dtype=make.dtype)
        if of_numbers
        else make(*args, **kwargs)
    )


def _tensor(data: Any, **kwargs: Any) -> Any:
    numbers = compat.tree_leaves(data)
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    floats = any(isinstance(number, (float, torch.SymFloat)) for number in numbers)
    others = any(isinstance(number, (complex, torch.Tensor)) for number in numbers)
    if not floats or others or not dtype.is_floating_point or kwargs.get("pin_memory"):
        return compat.MADE_OF_NUMBERS(data, **kwargs)
    data = compat.tree_map(lambda number: _held(number, dtype), data)
    if isinstance(data, torch.Tensor):
        made = data.to(kwargs.get("device") or "cpu", dtype).detach()
        return made.requires_grad_() if kwargs.get("requires_grad") else made
    return compat.MADE_OF_NUMBERS(data, **{**kwargs, "dtype": dtype})


def _held(number: Any, dtype: torch.dtype) -> Any:
    """A number that `scalar_tensor` takes; one that changes as a tensor of the widest dtype."""
    if isinstance(number, torch.SymFloat):
        return torch.scalar_tensor(number, dtype=torch.float64)  # type: ignore[arg-type]
    if not isinstance(number, float) or abs(number) <= torch.finfo(dtype).max:
        return number
    with compat.plain_eager():
        return torch.tensor(number, dtype=dtype, device="cpu").item()

"""Inputs of a repro: drawn from a seed, written out, or kept in a file beside it."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Any

import torch

from ..check.script import literal

LITERAL = 64
"""Entries up to which a tensor that can't be drawn is written out."""

MAKER = '''\
def drawn(seed, shape, strides, dtype, low, high, device="cpu", grad=False):
    """A tensor with entries between low and high, those of floats normally distributed around the middle."""
    random = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        entries = torch.randn(shape, generator=random) * ((high - low) / 6) + (high + low) / 2
    else:
        entries = torch.randint(int(low), int(high) + 1, shape, generator=random)
    made = torch.empty_strided(shape, strides, dtype=dtype).copy_(entries).to(device)
    return made.requires_grad_(grad)
'''
_space: dict[str, Any] = {"torch": torch}
exec(MAKER, _space)
_make = _space["drawn"]


@dataclass(frozen=True)
class SeededTensor:
    """A tensor that a seed makes: the arguments of `drawn` in a script."""

    seed: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    low: float
    high: float
    device: str = "cpu"
    grad: bool = False

    def __str__(self) -> str:
        plain = f"{self.seed}, {self.shape}, {self.strides}, {self.dtype}, {self.low:g}, {self.high:g}"
        more = ("" if self.device == "cpu" else f", device={self.device!r}") + (", grad=True" if self.grad else "")
        return f"drawn({plain}{more})"

    def make(self) -> torch.Tensor:
        """The tensor."""
        made: torch.Tensor = _make(*astuple(self))
        return made

    def resized(self, size: int, small: int) -> SeededTensor:
        """The same with `small` where a size is `size`, laid out in the same order."""
        shape = tuple(small if n == size else n for n in self.shape)
        strides, step = [0] * len(shape), 1
        for d in sorted(range(len(shape)), key=lambda d: (self.strides[d], self.shape[d])):
            if self.strides[d]:
                strides[d], step = step, step * shape[d]
        return replace(self, shape=shape, strides=tuple(strides))


def drawn_like(value: torch.Tensor, seed: int) -> SeededTensor | torch.Tensor:
    """A tensor of about the same numbers as another; that one itself where it can't be drawn."""
    if value.numel() == 0 or value.is_complex():
        return value
    entries = value.detach().double()
    finite = entries[entries.isfinite()]
    low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (-3.0, 3.0)
    if value.dtype.is_floating_point:
        low, high = float(f"{low:.3g}"), float(f"{high:.3g}")
    shape, device = tuple(value.shape), str(value.device)
    return SeededTensor(seed, shape, value.stride(), value.dtype, low, high, device, value.requires_grad)


def written(value: Any, kept: list[torch.Tensor]) -> str:
    """A tensor as an expression; what is large and is not drawn is added to `kept`, a list in a file."""
    if isinstance(value, SeededTensor):
        return str(value)
    if value.numel() <= LITERAL and value.device.type == "cpu":
        return literal(value)
    kept.append(value.detach())
    text = f"kept[{len(kept) - 1}]" + ("" if value.device.type == "cpu" else f'.to("{value.device}")')
    return f"{text}.requires_grad_()" if value.requires_grad else text

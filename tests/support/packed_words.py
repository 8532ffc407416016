"""Weights of few bits in words of 32, with zero points in words as well, as libraries' PyTorch code unpacks them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

DEPTH, COLUMNS, GROUP = 256, 64, 64
ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # the places of an AWQ word's columns
Layout = tuple[Callable[..., torch.Tensor], list[torch.Tensor]]


def _words(*sizes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randint(-(2**31), 2**31 - 1, sizes, dtype=torch.int32, generator=generator)


def _scales(dtype: torch.dtype) -> torch.Tensor:
    return (torch.rand(DEPTH // GROUP, COLUMNS, generator=torch.Generator().manual_seed(0)) * 0.01).to(dtype)


def along_depth(bits: int, dtype: torch.dtype, *, picked: bool = True, added: int = 1) -> Layout:
    """GPTQ: words along the depth, those of zero points along columns, shifts and the group of a place as data."""
    many, most = 32 // bits, 2**bits - 1

    def unpacked(words: torch.Tensor, zeros: torch.Tensor, shifts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        low = torch.bitwise_right_shift(words.unsqueeze(1).expand(-1, many, -1), shifts.unsqueeze(-1)).to(torch.int16)
        z = torch.bitwise_right_shift(zeros.unsqueeze(2).expand(-1, -1, many), shifts.unsqueeze(0)).to(torch.int16)
        return (low & most).reshape(-1, COLUMNS), ((z & most) + added).reshape(-1, COLUMNS)

    def by_index(x: Any, words: Any, zeros: Any, scales: Any, shifts: Any, group: Any) -> torch.Tensor:
        weight, z = unpacked(words, zeros, shifts)
        at = [group.long()]
        return x @ (aten.index.Tensor(scales, at) * (weight - aten.index.Tensor(z, at)))

    def by_groups(x: Any, words: Any, zeros: Any, scales: Any, shifts: Any) -> torch.Tensor:
        weight, z = unpacked(words, zeros, shifts)
        return x @ ((weight.view(-1, GROUP, COLUMNS) - z.unsqueeze(1)) * scales.unsqueeze(1)).view(-1, COLUMNS)

    shifts = torch.arange(0, 32, bits, dtype=torch.int32)[None]
    group = torch.arange(DEPTH, dtype=torch.int32).flip(0) // GROUP
    given = [_words(DEPTH // many, COLUMNS), _words(DEPTH // GROUP, COLUMNS // many), _scales(dtype), shifts]
    return (by_index, [*given, group]) if picked else (by_groups, given)


def along_columns(dtype: torch.dtype) -> Layout:
    """AWQ: words along columns, in the order of the shifts."""

    def unpacked(words: torch.Tensor, shifts: torch.Tensor) -> torch.Tensor:
        return (torch.bitwise_right_shift(words.unsqueeze(-1), shifts) & 15).reshape(words.shape[0], -1)

    def function(x: Any, words: Any, zeros: Any, scales: Any, shifts: Any) -> torch.Tensor:
        weight, z = unpacked(words, shifts), unpacked(zeros, shifts)
        return x @ ((weight.view(-1, GROUP, COLUMNS) - z.unsqueeze(1)) * scales.unsqueeze(1)).view(-1, COLUMNS)

    shifts = torch.tensor([4 * place for place in ORDER], dtype=torch.int32)
    return function, [_words(DEPTH, COLUMNS // 8), _words(DEPTH // GROUP, COLUMNS // 8), _scales(dtype), shifts]


def ordered_columns(dtype: torch.dtype) -> Layout:
    """AWQ: the same by an index of columns, on a CPU."""

    def unpacked(words: torch.Tensor) -> torch.Tensor:
        bits = torch.bitwise_right_shift(words[:, :, None], torch.arange(0, 32, 4)).to(torch.int8)
        order = torch.arange(COLUMNS, dtype=torch.int32).view(-1, 8)[:, ORDER].view(-1)
        return torch.bitwise_and(bits.view(bits.shape[0], -1)[:, order], 15)

    def function(x: Any, words: Any, zeros: Any, scales: Any) -> torch.Tensor:
        zeros = unpacked(zeros).repeat_interleave(GROUP, 0)
        return x @ ((unpacked(words) - zeros) * scales.repeat_interleave(GROUP, 0))

    return function, along_columns(dtype)[1][:3]


LAYOUTS: dict[str, Callable[[torch.dtype], Layout]] = {
    "4 bits, picked": lambda dtype: along_depth(4, dtype),
    "2 bits, picked": lambda dtype: along_depth(2, dtype, added=0),
    "8 bits, groups": lambda dtype: along_depth(8, dtype, picked=False),
    "along columns": along_columns,
}

"""Inputs of random programs: sizes, ints and floats of each call, and tensors as text that makes them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

CALLS = 3  # sets of inputs of one program
SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33)
INTS = (-7, -3, -2, -1, -1, 0, 0, 1, 1, 2, 2, 3, 4, 5, 8, 17, 100, 2**31 + 5, -(2**33))
FLOATS = (-2.5, -1.0, -0.5, -0.0, 0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 1e-5, 1e10)
FLOAT_DTYPES = ("float32",) * 8 + ("float64", "bfloat16", "bfloat16", "float16")
OTHER_DTYPES = ("int64", "int64", "int64", "int32", "uint8", "int8", "int16", "bool", "bool", "complex64")
_EXTENTS = {"int64": (-5, 6), "int32": (-5, 6), "uint8": (0, 9), "int8": (-5, 6), "int16": (-5, 6), "bool": (0, 2)}


@dataclass
class Inputs:
    """What a program is given: names with a value for each call, and tensors.

    Args:
        source: of random numbers.
        lively: whether values differ from call to call.
    """

    source: random.Random
    lively: bool
    dims: dict[str, list[int]] = field(default_factory=dict)
    scalars: dict[str, list[Any]] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    training: bool = False

    def names(self) -> list[str]:
        """Parameters of the program."""
        return [*self.tensors, *self.scalars]

    def dim(self, choices: Sequence[int] = SIZES) -> str:
        """The name of a size, a new one or one that is there."""
        if self.dims and self.source.random() < 0.5:
            name = self.source.choice(list(self.dims))
            if set(self.dims[name]) <= set(choices):
                return name
        name = "abcdeghjl"[len(self.dims) % 9] + ("" if len(self.dims) < 9 else str(len(self.dims) // 9))
        self.dims[name] = self._values(choices)
        return name

    def scalar(self, kind: str) -> str:
        """The name of a new int, float or bool (`n`, `f`, `k`)."""
        name = f"{kind}{sum(known.startswith(kind) for known in self.scalars)}"
        choices: Sequence[Any] = {"n": INTS, "f": FLOATS, "k": (True, False)}[kind]
        self.scalars[name] = self._values(choices)
        return name

    def tensor(self, text: str = "") -> str:
        """The name of a new tensor, made by `text` or at random."""
        name = f"x{len(self.tensors)}"
        self.tensors[name] = text or self._made()
        return name

    def _values(self, choices: Sequence[Any]) -> list[Any]:
        changes = self.lively and self.source.random() < 0.7
        first = self.source.choice(choices)
        return [first, *(self.source.choice(choices) if changes else first for _ in range(CALLS - 1))]

    def _made(self) -> str:
        """A tensor of some dtype and layout, sometimes a view of an earlier one."""
        pick = self.source
        earlier = [name for name, text in self.tensors.items() if "requires_grad" not in text]
        if earlier and pick.random() < 0.08:
            return f"{pick.choice(earlier)}{pick.choice(('', '[1:]', '[..., :1]', '.t()', '.view(-1)', '[::2]'))}"
        sizes = [self.dim() if pick.random() < 0.75 else str(pick.choice((1, 2, 3, 4, 8))) for _ in range(_rank(pick))]
        dtype = pick.choice(FLOAT_DTYPES) if pick.random() < 0.72 else pick.choice(OTHER_DTYPES)
        return self._laid(sizes, dtype)

    def _laid(self, sizes: list[str], dtype: str) -> str:
        pick, after, shape = self.source, "", list(sizes)
        layout = pick.choice(("", "", "", "", "transposed", "stepped", "offset", "expanded", "channels"))
        if layout == "transposed" and len(shape) > 1:
            shape[0], shape[-1] = shape[-1], shape[0]
            after = ".transpose(0, -1)"
        elif layout == "stepped" and shape:
            shape[-1] = f"2 * {shape[-1]}"
            after = "[..., ::2]"
        elif layout == "offset" and shape:
            shape[0] = f"{shape[0]} + 1"
            after = "[1:]"
        elif layout == "expanded" and shape:
            after = f".expand({', '.join(shape)})"
            shape[0] = "1"
        elif layout == "channels" and len(shape) == 4:
            after = ".to(memory_format=torch.channels_last)"
        made = _filled(pick, f"({', '.join(shape)},)" if shape else "()", dtype) + after
        grows = self.training and dtype in FLOAT_DTYPES and layout != "expanded" and pick.random() < 0.7
        return f"{made}.requires_grad_()" if grows else made


def _rank(pick: random.Random) -> int:
    return pick.choice((0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4))


def _filled(pick: random.Random, shape: str, dtype: str) -> str:
    if dtype == "complex64":
        return f"torch.randn({shape}, dtype=torch.complex64)"
    if dtype not in FLOAT_DTYPES:
        low, high = _EXTENTS[dtype]
        return f"torch.randint({low}, {high}, {shape}).to(torch.{dtype})"
    cast = "" if dtype == "float32" else f".to(torch.{dtype})"
    fill = pick.random()
    if fill < 0.12:
        return f"torch.randn({shape}).mul(2).round(){cast}"
    if fill < 0.16:
        return f"torch.randn({shape}).masked_fill(torch.rand({shape}) < 0.2, {_special(pick)}){cast}"
    return f"torch.randn({shape}){cast}"


def _special(pick: random.Random) -> str:
    return pick.choice(('float("nan")', 'float("inf")', 'float("-inf")', "-0.0", "0.0", "1e-42"))

"""Weights of few bits that are looked up: what a formula makes of a few bits of a byte, for all that these can be.

float(packed >> 4) - 8      ->      TABLE[(packed >> 4) & 31]       32 numbers, one instruction for 32 lanes
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from ....rewrites.compat import plain_eager
from ...ir.evaluator import Evaluator
from ...ir.index.index import Var
from ...ir.value import Const, Load, Op, Rewriter, Value, walk

_ENTRIES = 32  # of 16 bits in a vector of 64 bytes
_BYTES = (torch.uint8, torch.int8)


@dataclass(frozen=True)
class LookedUp:
    """A number as an entry of a table: `table[(byte >> shift) % 32]`.

    Args:
        byte: the load of the byte.
        shift: the place of the lowest bit that counts.
        table: the numbers as bfloat16, by their bits.
    """

    byte: Load
    shift: int
    table: tuple[int, ...]


def looked_up(value: Value) -> LookedUp | None:
    """A value as a look-up, if it depends on five bits of one byte at most and bfloat16 holds all that it can be."""
    parts = list(walk([value]))
    loads = [part for part in parts if isinstance(part, Load)]
    if len(loads) != 1 or loads[0].dtype not in _BYTES or value.dtype != torch.float32:
        return None
    if not all(isinstance(part, (Op, Load, Const)) for part in parts):
        return None
    place = Var("byte", 256)
    byte = Load("<byte>", (place.index(),), loads[0].dtype)
    found = _table(Rewriter(lambda part: byte if part == loads[0] else None)(value), byte, place)
    return None if found is None else LookedUp(loads[0], *found)


@functools.lru_cache(maxsize=64)
def _table(value: Value, byte: Load, place: Var) -> tuple[int, tuple[int, ...]] | None:
    """The lowest bit of five and the numbers that they give."""
    with plain_eager():
        given = torch.arange(256, dtype=torch.uint8).view(byte.dtype)
        numbers = Evaluator({byte.buffer: given}, {place: torch.arange(256)}, {}, {}).value(value).expand(256)
        short = numbers.to(torch.bfloat16)
        if not torch.equal(short.float(), numbers) or not numbers.isfinite().all():
            return None
        bits = [number & 0xFFFF for number in short.view(torch.int16).tolist()]
    for shift in range(8):
        table: dict[int, int] = {}
        if all(table.setdefault(raw >> shift & _ENTRIES - 1, number) == number for raw, number in enumerate(bits)):
            return shift, tuple(table.get(entry, 0) for entry in range(_ENTRIES))
    return None

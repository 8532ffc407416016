"""The sizes of blocks, and the facts that plans use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.index.bounds import bounds
from ...ir.index.index import Index, Var, remainder
from ...ir.iteration_space import extent_of, power_of_two
from ...ir.launch import Blocks, Launch

VECTOR = 8  # 16-bit elements that a lane moves at once
PROGRAMS_EACH = 2  # programs of a multiprocessor that keep it busy
_NEARLY = 15 / 16  # part of that number that does as well
POINTWISE = 1024  # elements per program without reductions
WARPS, FEWER_WARPS = 16, 8  # most warps of a program; of one whose lanes have few elements
_ELEMENTS_A_WARP = 256


@dataclass(frozen=True)
class Memory:
    """Facts that a plan uses besides the loops.

    Args:
        bytes_of: the bytes per element of each buffer in memory, by name; 4 if it is not known.
        processors: the multiprocessors of the GPU.
        ragged: whether the number of iterations may be anything, so that lanes do not access several elements at once.
    """

    bytes_of: Mapping[str, int]
    processors: int
    ragged: bool = False

    @property
    def programs(self) -> int:
        """The number of programs that keep the GPU busy."""
        return PROGRAMS_EACH * self.processors

    @property
    def enough(self) -> int:
        """Nearly as many, which take no longer: 2**18 elements in blocks of 1024 are 256, for 132 multiprocessors."""
        return int(self.programs * _NEARLY)


def ways(outer: tuple[Var, ...], blocks: Sequence[Blocks]) -> tuple[Launch, ...]:
    """A launch in several blocks, the best first."""
    return tuple(Launch(outer, one) for one in dict.fromkeys(blocks))


def is_ragged(loops: Sequence[Var]) -> bool:
    """Whether loops may have a number of iterations that is no multiple of a lane's elements."""
    extent = extent_of(loops)
    return isinstance(extent, Index) and remainder(extent, VECTOR) != 0


def power_of(extent: Any) -> int:
    """The smallest power of two that holds an extent; a large one if the extent is symbolic."""
    high = extent if isinstance(extent, int) else bounds(extent)[1]
    return 1 << 30 if high is None else power_of_two(int(high))


def fitting(block: int, extent: Any, least: int, programs: int) -> int:
    """A block of a loop: no larger than the loop, and halved down to `least` while there are fewer programs."""
    block = min(block, power_of(extent))
    while block > least and programs_of(extent, block) < programs:
        block //= 2
    return block


def programs_of(extent: Any, block: int) -> int:
    """The largest possible number of blocks."""
    high = bounds(extent)[1]
    return 1 << 30 if high is None else -(-int(high) // block)


def warps_of(elements: int, each: float = 1) -> int:
    """The warps of a program; each lane has `each` times the usual number of elements."""
    return max(1, min(WARPS, int(elements // (_ELEMENTS_A_WARP * each))))

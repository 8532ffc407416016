"""Bytes moved for nothing where a GPU's programs touch short pieces of memory whose neighbours other programs touch.

    for n, g parallel:                                    a program: 4 numbers of 16 bits, 128 apart: 8 bytes
        fold c < 4, p < 4096: sum of x[n, 4*g + c, p]     of each sector of 32
        for c, p: y[n, p, 4*g + c] = ...

Apart, the programs of the second nest take neighbouring groups, and fill their sectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..ir.index.index import Var, mul
from ..ir.iteration_space import extent_of
from ..ir.program import Buffer
from .affine import digits, never_meet
from .groups import AxisAccess, Member
from .legality import contiguous_axis
from .profit import bytes_of, guess
from .target import NARROWEST, Target

SECTOR = 32  # bytes that memory moves together


def wasted_bytes(members: Iterable[Member], chain: Iterable[Var], buffers: Mapping[str, Buffer], target: Target) -> int:
    """Bytes that maps move beside those that they ask for.

    Args:
        members: of a kernel.
        chain: the loops that they share, whose iterations are programs.
        buffers: of the program.
        target: the GPU; `elements` numbers are a program's at least, so that one takes several short rows.
    """
    chain = list(chain)
    shared = set(chain)
    total = 0
    for member in members:
        own = [axis for axis in member.outer if axis not in shared]
        if member.part != "map" or not own or len(own) == len(member.outer):
            continue
        least = NARROWEST if contiguous_axis(member) is chain[-1] else 1
        rows = max(least, target.elements // guess(extent_of(own)))
        for name, accesses in member.touched.items():
            size = buffers[name].dtype.itemsize
            piece = min((_run(a, own, shared) for a in accesses), default=SECTOR) * size * rows
            if piece < SECTOR:
                total += bytes_of(buffers[name]) * (SECTOR // piece - 1)
    return total


def are_apart(one: Iterable[Member], other: Iterable[Member], buffer: Buffer) -> bool:
    """Whether two kernels touch rows of a buffer that are never the same: sharing loops saves no traffic then.

    Rows are as long as the elements that a kernel's innermost loops touch side by side, in any buffer.

    for i, k: t[i, 0, k] = x[i, 0, k];  for i, j, k: t[i, j + 1, k] = f(x[i, j + 1, k])      of both x and t
    """
    sides = [[(a, m) for m in members for a in m.touched.get(buffer.name, ())] for members in (one, other)]
    for side in sides:
        if any(access.offset is None for access, _ in side):
            return False
        lengths = (_length(a, m.axes) for _, m in side for a in m.accesses if a.offset is not None)
        if max(lengths, default=0) * buffer.dtype.itemsize < SECTOR:
            return False
    return all(never_meet(a.offset, b.offset) for a, _ in sides[0] for b, _ in sides[1])


def _length(access: AxisAccess, axes: Iterable[Var]) -> int:
    """How many numbers side by side the innermost loops touch."""
    strides = {axis: digits(access.offset).stride(axis) for axis in axes}
    run: Any = 1
    while (axis := _next(strides, axes, run)) is not None:
        run = mul(run, axis.extent)
    return guess(run)


def _run(access: AxisAccess, own: Iterable[Var], shared: set[Var]) -> int:
    """How many numbers side by side one row touches; many where no other row touches the neighbours."""
    strides = (
        {axis: digits(access.offset).stride(axis) for axis in (*own, *shared)} if access.offset is not None else {}
    )
    run: Any = 1
    while (axis := _next(strides, own, run)) is not None:
        run = mul(run, axis.extent)
    return guess(run) if _next(strides, shared, run) is not None else SECTOR


def _next(strides: Mapping[Var, Any], axes: Iterable[Var], stride: Any) -> Var | None:
    """The axis whose neighbours lie so far apart."""
    return next((axis for axis in axes if axis.extent != 1 and strides.get(axis) == stride), None)

"""How a loop tree meets the GPU: what programs enumerate, what lanes do, how large the blocks are.

for k < 524288 parallel: y[k] = ...                               one axis of lanes
for i parallel: for j parallel: y[64*i + j] = f(m[i])             tiles of rows i and columns j; m once a row
for i parallel: for j parallel: y[64*i + j] = x[i + 8192*j]       the same, as wide along i as along j
for i parallel: fold (for j < 768: update with x[768*i + j])      a program a row, j in lanes, all at once
for j parallel: fold (for i: update with x[768*i + j])            rows j, columns i in a loop of blocks

Sizes are Hopper's: a lane has 8 elements, 32 bytes of float32, and 16 where it loads one number of 16 bits for each and
others once a row, or rows of such: as many bytes are on their way at once, and what a program does once is done for
more. Machine code keeps to few registers, and where they do not hold all that a lane loads, loads wait for one another:
hence no more elements where two numbers are loaded for each, and 8 where columns of 16 bits are summed, each with a sum
of its own; of few columns a lane sums all, so that lanes need not meet. Blocks are halved where programs would be too
few to go round. What is best depends on more than a plan can see: `candidates` are what is worth measuring.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...ir.accesses import accesses, loop_variables, statements, updated, values
from ...ir.dependence import Dependence
from ...ir.index.bounds import bounds
from ...ir.index.index import Var, add, mul
from ...ir.kernel import Fold, Loop, Statement, Update
from ...ir.value import Result
from .iteration_space import extent_of, number_of

_LANES = 16  # neighbours that an access should find next to each other
_POINTWISE = 1024  # elements of a program without reductions
_NARROW = 64  # lanes of a row of a tile, unless rows are shorter
_FULL = 4  # of five lanes along a row, at least so many have an element
_VECTOR = 8  # elements that a lane moves at once, where they are of 16 bits
_ROW_LOADS = 3  # loads once a row that are worth narrower ones of elements
_TILE = (64, 64)  # of a transposition
_PERSISTENT = 8192  # elements of a row that registers hold
_LOOPED = 2048  # elements of a row's block where the row is longer
_HELD = 96  # numbers that a lane loads at once, and has registers for; of rows that are gone through once
_COLUMN = (64, 64)  # rows (contiguous in memory) and columns of a block of a reduction across
_FEW = 64  # columns that a lane folds all by itself, so that lanes need not meet
_ACROSS = 2048  # elements of such a block where there are fewer columns, at least
_LONELY = 8192  # elements of such a block where programs are so few that nothing else hides what memory takes
_NARROWEST = 16  # neighbours in memory that are not given to different programs
PROGRAMS = 264  # that keep a GPU busy: two a multiprocessor
_NARROW_BYTES = 2  # of numbers that a lane has twice as many of
_MANY = 4 * PROGRAMS  # programs that can do with fewer lanes each
_ELEMENTS_A_WARP = 256
# Folds whose elements take so much that what lanes have in common counts; and those of places, of 64 bits: the fewer
# lanes come together the better.
_MOMENTS, _PLACES = frozenset({"welford"}), frozenset({"argmax", "argmin"})
_STAGES, _FEW_LOADS = 3, 2  # of such folds: steps on their way, where that takes little shared memory
_WARPS = 16
_THREADS = 32  # of a warp


@dataclass(frozen=True)
class Blocks:
    """The sizes of one launch's blocks.

    Args:
        rows: loops that programs enumerate along the tile's first axis, outermost first; `row_block` lanes of them.
        columns: loops that programs enumerate along its second; empty where that axis is for loops inside.
        column_block: lanes of the second axis: at most so many of a loop inside at once.
        warps: of a program.
        stages: steps of a loop inside whose loads are on their way at once.
    """

    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    row_block: int
    column_block: int
    warps: int
    stages: int = 1


@dataclass(frozen=True)
class Launch:
    """One launch: statements over the loops that programs enumerate.

    Args:
        outer: loops of which every program has one iteration, beside those of `blocks`.
        body: what is inside of all these loops.
        others: blocks that may turn out to be better than `blocks`.
    """

    outer: tuple[Var, ...]
    blocks: Blocks
    body: tuple[Statement, ...]
    others: tuple[Blocks, ...] = ()


def candidates(launch: Launch) -> tuple[Launch, ...]:
    """The launch in every way worth measuring, the one to take unmeasured first."""
    return tuple(replace(launch, blocks=blocks, others=()) for blocks in dict.fromkeys([launch.blocks, *launch.others]))


def launches(body: Sequence[Statement], bytes_of: Mapping[str, int] | None = None) -> list[Launch]:
    """The launches of a kernel's body, in order.

    Args:
        body: of the kernel.
        bytes_of: an element of each buffer in memory, by name; 4 where it is not known.
    """
    bytes_of = bytes_of or {}
    if not any(isinstance(s, Loop) and s.parallel for s in body):
        return [_reducing((), tuple(body), bytes_of)]
    return [_launch(statement, bytes_of) for statement in body]


def _launch(statement: Statement, bytes_of: Mapping[str, int]) -> Launch:
    loops: list[Var] = []
    body: tuple[Statement, ...] = (statement,)
    while len(body) == 1 and isinstance(body[0], Loop) and body[0].parallel:
        loops.append(body[0].var)
        body = body[0].body
    if not any(isinstance(s, Loop) for s in statements(body)):
        return _pointwise(tuple(loops), body, bytes_of)
    return _reducing(tuple(loops), body, bytes_of)


def _loaded(body: Sequence[Statement], axes: Sequence[Collection[Var]], bytes_of: Mapping[str, int]) -> list[int]:
    """The bytes of each number that is loaded for every element of a tile, not once for a row or a column."""
    dependence = Dependence()
    along = [frozenset(axis) for axis in axes if axis]
    found = {(a.buffer, a.offset) for a in accesses(body) if not a.stored and a.buffer in bytes_of}
    return [bytes_of[buffer] for buffer, offset in found if all(dependence.of(offset) & axis for axis in along)]


# -- without loops inside ---------------------------------------------------------------------------------------------


def _pointwise(loops: tuple[Var, ...], body: tuple[Statement, ...], bytes_of: Mapping[str, int]) -> Launch:
    across = _across(loops, body)
    if across is None:
        loaded = _loaded(body, (loops[:-1], loops[-1:]), bytes_of)
        return _along(loops, body, 0 < sum(loaded) <= _NARROW_BYTES)
    rows, columns = (_fitting(n, var.extent, n) for n, var in zip(_TILE, (across, loops[-1]), strict=True))
    if _programs(extent_of(loops), rows * columns) < PROGRAMS:
        rows, columns = min(rows, _TILE[0] // 2), min(columns, _TILE[1] // 2)
    outer = tuple(v for v in loops if v is not across and v is not loops[-1])
    tiles = [(rows, columns), (rows // 2, columns // 2), (rows // 2, columns), (rows, columns // 2)]
    made = [Blocks((across,), (loops[-1],), r, c, _warps(r * c, 2)) for r, c in tiles if r and c]
    return Launch(outer, made[0], body, tuple(made[1:]))


def _along(loops: tuple[Var, ...], body: tuple[Statement, ...], narrow: bool) -> Launch:
    """Lanes along the innermost loop, where neighbours are neighbours in memory.

    Where there are loops around one that is long enough, their variables and all that follows from these alone are
    found once a row of a tile, rather than for every element by division.
    """
    total, width = extent_of(loops), _width(loops, body)
    block = _fitting(_POINTWISE, total, _NARROWEST * _LANES)
    sizes = [(block, 1), (2 * block, 1), (2 * block, 2), (block // 2, 1), (4 * block, 2)]
    flat = [Blocks((), loops, 1, n, _warps(n, each)) for n, each in sizes if 1 <= n <= _power(total)]
    if not width:
        return Launch((), flat[0], body, tuple(flat[1:]))
    if narrow and _programs(total, 2 * block) >= _MANY:
        sizes = [(2 * block, 2), *sizes]
    tiles = [(max(1, n // width), min(n, width), each) for n, each in sizes if n]
    tiles = [tile for tile in tiles if tile[0] <= _power(extent_of(loops[:-1]))]
    made = [Blocks(loops[:-1], loops[-1:], r, c, _warps(r * c, each)) for r, c, each in tiles]
    return Launch((), made[0], body, (*made[1:], flat[0]))


def _width(loops: tuple[Var, ...], body: tuple[Statement, ...]) -> int:
    """Lanes of a tile along the innermost loop that leave few idle at its end; 0 where there should be no tiles."""
    extent = loops[-1].extent if len(loops) > 1 else 0
    if not isinstance(extent, int) or extent < _LANES or not _pays_by_rows(loops, body):
        return 0
    width = min(_POINTWISE, _power(extent))
    while width > _NARROW and -(-extent // width) * width * _FULL > extent * (_FULL + 1):
        width //= 2
    return width if -(-extent // width) * width * _FULL <= extent * (_FULL + 1) else 0


def _pays_by_rows(loops: tuple[Var, ...], body: tuple[Statement, ...]) -> bool:
    """Whether tiles of rows load as wide as lanes over all loops would, or save much else."""
    if loops[-1].extent % _VECTOR == 0:
        return True
    flat, dependence, found = number_of(loops), Dependence(), list(accesses(body))
    if not any(isinstance(add(access.offset, mul(flat, -1)), int) for access in found):
        return True
    return len({(a.buffer, a.offset) for a in found if loops[-1] not in dependence.of(a.offset)}) >= _ROW_LOADS


def _across(loops: tuple[Var, ...], body: tuple[Statement, ...]) -> Var | None:
    """The loop along which some loads are contiguous, while stores are along the innermost."""
    if len(loops) < 2:
        return None
    dependence = Dependence()
    for access in accesses(body):
        along = dependence.stride(access.offset, loops[-1], _LANES)
        if access.stored or along in (0, 1):
            continue
        for var in reversed(loops[:-1]):
            if dependence.stride(access.offset, var, _LANES) == 1 and _is_long(var):
                return var
    return None


def _is_long(var: Var) -> bool:
    return not isinstance(var.extent, int) or var.extent >= _LANES // 2


# -- with loops inside ------------------------------------------------------------------------------------------------


def _reducing(loops: tuple[Var, ...], body: tuple[Statement, ...], bytes_of: Mapping[str, int]) -> Launch:
    inner = [leaf for statement in body for leaf in _leaves(statement)]
    longest = max((_power(extent_of(leaf)) for leaf in inner), default=1)
    total = extent_of(loops)
    loaded = _loaded(body, (loops, {var for leaf in inner for var in leaf}), bytes_of)
    narrow, ahead = 0 < max(loaded, default=0) <= _NARROW_BYTES, False
    if _is_contiguous_along(loops, inner, body):
        columns = min(_COLUMN[1], longest)
        rows = _fitting(max(_COLUMN[0], _ACROSS // columns), total, _NARROWEST)
        if _programs(total, rows) < PROGRAMS:
            columns = max(columns, min(longest, _LONELY // rows))
        sizes = [(rows, columns, 2), (rows, columns, 1), (2 * rows, columns // 2, 2), (rows // 2, 2 * columns, 2)]
        ahead = not narrow and _folds(body, _MOMENTS) and _programs(total, rows) >= PROGRAMS
        if ahead:
            sizes = [(rows, columns // 2, 2), *sizes]
        if narrow and not _folds(body, _MOMENTS):
            fewer = columns // 2 if _is_multiple(loops[-1].extent, _VECTOR) else columns
            sizes = [(rows, fewer, 1), (rows // 2, columns, 1), (rows, columns, 1), *sizes]
        if longest <= _FEW and _programs(total, _POINTWISE) >= PROGRAMS:
            columns = min(longest, _VECTOR)
            sizes = [(_POINTWISE, columns, columns), *sizes]
    else:
        spills = len(inner) == 1 and len(loaded) * longest > _HELD * _THREADS * _warps(longest)
        block = longest if longest <= (_LOOPED if spills else _PERSISTENT) else _LOOPED
        rows = _fitting(max(1, _POINTWISE // block), total, 1)
        sizes = [(rows, block, 1), (rows, block, 2), (2 * rows, block, 2), (max(rows // 2, 1), block, 1)]
        if (narrow or _folds(body, _PLACES)) and longest <= block and _programs(total, rows) >= _MANY:
            sizes = [(rows, block, 2), *sizes]
        sizes += [(1, 2 * block, 2)] if longest > block else [(1, _LOOPED, 1)] if block > _LOOPED else []
    sizes = [(r, c, each) for r, c, each in sizes if 1 <= r <= _power(total) and 1 <= c <= longest]
    made = [Blocks(loops, (), r, c, _warps(r * c, each)) for r, c, each in sizes]
    if ahead and longest > sizes[0][1] and len(loaded) <= _FEW_LOADS:
        made = [replace(made[0], stages=_STAGES), *made]
    return Launch((), made[0], body, tuple(made[1:]))


def _folds(body: Sequence[Statement], reducers: frozenset[str]) -> bool:
    """Whether a body has a fold by any of these."""
    return any(isinstance(s, Update) and s.reduction.reducer in reducers for s in statements(body))


def _is_multiple(extent: Any, of: int) -> bool:
    return isinstance(extent, int) and extent % of == 0


def _leaves(statement: Statement) -> list[tuple[Var, ...]]:
    """The loops that become lanes inside: innermost ones, with those that hold nothing else."""
    if isinstance(statement, Fold):
        return [leaf for inner in statement.body for leaf in _leaves(inner)]
    if not isinstance(statement, Loop):
        return []
    loops, body = nest_of(statement)
    if not any(isinstance(s, Loop) for s in statements(body)):
        return [loops]
    return [leaf for inner in statement.body for leaf in _leaves(inner)]


def nest_of(loop: Loop) -> tuple[tuple[Var, ...], tuple[Statement, ...]]:
    """A loop and those right inside of it, outermost first, and what they hold."""
    loops, body = [loop.var], loop.body
    while len(body) == 1 and isinstance(body[0], Loop):
        loops.append(body[0].var)
        body = body[0].body
    return tuple(loops), body


def _is_contiguous_along(loops: tuple[Var, ...], inner: list[tuple[Var, ...]], body: Sequence[Statement]) -> bool:
    """Whether memory stepped by both is contiguous along the loops of programs rather than along those inside."""
    if not loops:
        return False
    dependence, score = Dependence(), 0
    last = {leaf[-1] for leaf in inner}
    for access in accesses(body):
        if access.inner not in last or not {access.inner, loops[-1]} <= dependence.of(access.offset):
            continue
        score += dependence.stride(access.offset, access.inner, _LANES) == 1
        score -= dependence.stride(access.offset, loops[-1], _LANES) == 1
    return score < 0


# -- lanes ------------------------------------------------------------------------------------------------------------


def is_independent(loops: tuple[Var, ...], body: tuple[Statement, ...]) -> bool:
    """Whether iterations of a nest inside a program may run side by side, statement by statement; scans apart."""
    if loop_variables(body):
        return False
    dependence = Dependence()
    inside = list(accesses(body))
    for name in {a.buffer for a in inside if a.stored}:
        offsets = {a.offset for a in inside if a.buffer == name}
        alone = sum(a.buffer == name for a in inside) == 1
        moved = all(dependence.of(offset) & frozenset(loops) for offset in offsets)
        if alone and next(a for a in inside if a.buffer == name).mode is not None:
            continue
        if not moved or not (alone or len(offsets) == 1):
            return False
    return True


def is_scan(body: tuple[Statement, ...]) -> bool:
    """Whether a body reads results that it is still folding."""
    started = {r.name for s in statements(body) if isinstance(s, Fold) for r in s.reductions}
    carried = updated(body).keys() - started
    return any(isinstance(v, Result) and v.reduction in carried for v in values(body))


def _power(extent: Any) -> int:
    """The power of two that holds an extent; a large one where it is symbolic."""
    high = extent if isinstance(extent, int) else bounds(extent)[1]
    return 1 << 30 if high is None else 1 << max(int(high) - 1, 0).bit_length()


def _fitting(block: int, extent: Any, least: int) -> int:
    """A block of a loop: no larger than the loop, and halved down to `least` while programs are few."""
    block = min(block, _power(extent))
    while block > least and _programs(extent, block) < PROGRAMS:
        block //= 2
    return block


def _programs(extent: Any, block: int) -> int:
    """How many blocks there are, at most."""
    high = bounds(extent)[1]
    return 1 << 30 if high is None else -(-int(high) // block)


def _warps(elements: int, each: int = 1) -> int:
    """The warps of a program; a lane has `each` times what is usual."""
    return max(1, min(_WARPS, elements // (_ELEMENTS_A_WARP * each)))

"""Maps a loop tree to the GPU: the iterations of programs and lanes, and the sizes of blocks.

for k < 524288 parallel: y[k] = ...                               one axis of lanes
for i parallel: for j parallel: y[64*i + j] = f(m[i])             tiles of rows i and columns j; m once a row
for i parallel: for j parallel: y[64*i + j] = x[i + 8192*j]       the same, as wide along i as along j
for i parallel: fold (for j < 768: update with x[768*i + j])      one program per row, all of j in lanes
for j parallel: fold (for i: update with x[768*i + j])            rows j, columns i in a loop of blocks

Elements per lane, measured on Hopper:

    8       by default: 32 bytes of float32
    16      if a lane loads one 16-bit value per element, and others once per row: the same bytes are loaded at a time,
            and more elements share the work that a program does once
    8       if two values are loaded per element: more loads need more registers, and then wait for one another
    fewer   if they lie apart in memory, have long code, or are few in all (`lanes.py`)
    all     that are folded together, if they are few: a lane then goes through them without other lanes, one after the
            other in code that is written out for each

Blocks are halved if there would be too few programs for the GPU. The best sizes depend on more than a plan can know:
`candidates` lists those that are worth measuring.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from ...gpu import HOPPER
from ...ir.accesses import accesses, loop_variables, nests, statements, updated, values
from ...ir.dependence import Dependence
from ...ir.examples import on_examples
from ...ir.index import index as ix
from ...ir.index.index import Var, mul
from ...ir.iteration_space import extent_of
from ...ir.kernel import Fold, Loop, Statement, Update
from ...ir.launch import Blocks, Launch
from ...ir.reducers import REDUCERS, Reducer
from ...ir.value import Result
from ..affine import never_meet, proportional
from .blocks import (
    POINTWISE,
    VECTOR,
    WARPS,
    Memory,
    fitting,
    is_ragged,
    power_of,
    programs_of,
    warps_of,
    ways,
)
from .column_blocks import Columns, begin_anywhere, column_blocks, unrolled
from .lanes import MOST, THREADS, Few, LanePlacement, elements_of, is_short
from .line_blocks import NARROW, along
from .row_blocks import SCANNED, RowFold, held, more_rows, special_rows, whole_rows

_LANES = 16  # fewest neighboring elements that an access should read
_TILE = (64, 64)  # tile of a transposition
_WINDOW = 16  # most elements of a window that one lane goes through
_GATHERED = 8192  # most elements of a block whose rows lie beside each other by an index
_ACROSS = 16384  # the same of one whose rows are stored in columns
_NARROW_BYTES = 2  # bytes of values of which a lane has twice as many
_MANY = 4  # times that many programs from which on each needs fewer lanes
_PAIRS = (64, 32)  # rows and columns of a tile whose elements are compared each with each
_SECTOR = 32  # bytes that memory moves together
_SMALL_TILE = 256  # elements of a tile of a transposition that is worth a program


def candidates(
    body: Sequence[Statement],
    bytes_of: Mapping[str, int] | None = None,
    processors: int = HOPPER.processors,
    examples: Mapping[str, int] | None = None,
) -> list[tuple[Launch, ...]]:
    """The launches of a kernel's body, in order, each in all ways worth measuring, the one that is taken first.

    Args:
        body: the body of the kernel.
        bytes_of: the bytes per element of each buffer in memory, by name; 4 if it is not known.
        processors: the multiprocessors of the GPU.
        examples: likely sizes, by name; they only decide how large blocks are.
    """
    memory = Memory(bytes_of or {}, processors)
    plan = _launch if any(isinstance(s, Loop) and s.parallel for s in body) else _reducing
    if not examples:  # numbers, or a count whose multiples are written apart
        return [plan(loops, inside, memory) for loops, inside in nests(body)]
    made = []
    for (loops, inside), (own, _) in zip(nests(on_examples(body, examples)), nests(body), strict=True):
        found = plan(loops, inside, replace(memory, ragged=is_ragged(own)))
        made.append(tuple(one.over(own) for one in found))
    return made


def launches(
    body: Sequence[Statement],
    bytes_of: Mapping[str, int] | None = None,
    processors: int = HOPPER.processors,
    examples: Mapping[str, int] | None = None,
) -> tuple[Launch, ...]:
    """The launches that are taken; arguments as for `candidates`."""
    return tuple(found[0] for found in candidates(body, bytes_of, processors, examples))


def _launch(loops: tuple[Var, ...], body: tuple[Statement, ...], memory: Memory) -> tuple[Launch, ...]:
    if any(isinstance(s, Loop) for s in statements(body)):
        return _reducing(loops, body, memory)
    return _pointwise(loops, body, memory)


def _loaded(body: Sequence[Statement], axes: Sequence[Collection[Var]], bytes_of: Mapping[str, int]) -> list[int]:
    """The bytes of each value that is loaded for every element of a tile, rather than once per row or column."""
    dependence = Dependence()
    along = [frozenset(axis) for axis in axes if axis]
    found = {(a.buffer, a.offset) for a in accesses(body) if not a.stored and a.buffer in bytes_of}
    return [bytes_of[buffer] for buffer, offset in found if all(dependence.of(offset) & axis for axis in along)]


# -- without loops inside ---------------------------------------------------------------------------------------------


def _pointwise(loops: tuple[Var, ...], body: tuple[Statement, ...], memory: Memory) -> tuple[Launch, ...]:
    across = _across(loops, body)
    if across is None:
        loaded = _loaded(body, (loops[:-1], loops[-1:]), memory.bytes_of)
        return along(loops, body, 0 < sum(loaded) <= _NARROW_BYTES, memory)
    line = _line(loops, across, body)
    rows, columns = (
        fitting(n, extent, n, memory.programs)
        for n, extent in zip(_TILE, (across.extent, extent_of(line)), strict=True)
    )
    if rows * columns <= _SMALL_TILE and len(loops) > 2:
        return _thin(loops, across, columns, memory)
    if programs_of(extent_of(loops), rows * columns) < memory.programs:
        rows, columns = min(rows, _TILE[0] // 2), min(columns, _TILE[1] // 2)
    outer = tuple(v for v in loops if v is not across and v not in line)
    tiles = [(rows, columns), (rows // 2, columns // 2), (rows // 2, columns), (rows, columns // 2)]
    made = [Blocks((across,), line, r, c, warps_of(r * c, 2)) for r, c in tiles if r and c]
    return ways(outer, made)


def _line(loops: tuple[Var, ...], across: Var, body: tuple[Statement, ...]) -> tuple[Var, ...]:
    """The innermost loops along which a tile of a transposition stores: several where each is short.

    y[591*k + 3*j + i] = x[403456*i + 2048*j + k], i < 3, j < 197      along j and i: 64 of 591 elements side by side
    """
    stored, line = [a.offset for a in accesses(body) if a.stored], loops[-1:]
    for var in reversed(loops[:-1]):
        together = var is not across and all(proportional(offset, var, line[0]) for offset in stored)
        if not together or power_of(extent_of(line)) >= _TILE[1]:
            break
        line = (var, *line)
    return line


def _thin(loops: tuple[Var, ...], across: Var, columns: int, memory: Memory) -> tuple[Launch, ...]:
    """Tiles of a transposition whose rows are those of all loops but the innermost: along `across`, they are few."""
    lines = (*(v for v in loops[:-1] if v is not across), across)
    rows = fitting(max(_LANES, POINTWISE // columns), extent_of(lines), _LANES, memory.programs)
    sizes = [(rows, 1), (2 * rows, 2), (max(1, rows // 2), 1)]
    made = [Blocks(lines, loops[-1:], r, columns, warps_of(r * columns, each)) for r, each in sizes]
    return ways((), made)


def _across(loops: tuple[Var, ...], body: tuple[Statement, ...]) -> Var | None:
    """The loop along which some loads are contiguous, if stores are contiguous along the innermost loop."""
    if len(loops) < 2:
        return None
    dependence = Dependence()
    for access in accesses(body):
        along = dependence.stride(access.offset, loops[-1], _LANES)
        if access.stored or along in (0, 1):
            continue
        for var in reversed(loops[:-1]):
            near = dependence.stride(access.offset, var, _LANES) == 1 or _near_by_index(access.offset, var, loops[-1])
            if near and _is_long(var):
                return var
    return None


def _near_by_index(offset: Any, var: Var, innermost: Var) -> bool:
    """Whether a computed index sets neighbors along the innermost loop far apart, and those along another one close by.

    As far as can be told: one of both is so by the loop's own variable, the other by an index that depends on it.

        x[512 * j + index[i, j]]  along i, where j is innermost          x[512 * index[i, j] + i]  likewise
    """
    dependence, far, near = Dependence(), set(), set()
    for monomial, coefficient in ix.terms(offset):
        found, own = dependence.of(ix.from_terms({monomial: 1})), any(isinstance(x, Var) for x in monomial)
        far |= {own} if innermost in found and (abs(coefficient) >= _LANES or len(monomial) > 1) else set()
        near |= {own} if var in found and coefficient == 1 and len(monomial) == 1 else set()
    return (True in far and False in near) or (False in far and True in near)


def _rows_at_once(
    loops: tuple[Var, ...], inner: Sequence[tuple[Var, ...]], body: tuple[Statement, ...], block: int
) -> int:
    """Rows of a block; more where neighboring rows share sectors of memory (see above)."""
    offsets = [access.offset for access in accesses(body) if not access.stored]
    across = any(_near_by_index(x, loops[-1], leaf[-1]) for leaf in inner if loops and leaf for x in offsets)
    most = _GATHERED if across else _ACROSS if _stores_across(loops, inner, body) else 0
    return max(1, POINTWISE // block, min(_LANES, most // block))


def _stores_across(loops: tuple[Var, ...], inner: Sequence[tuple[Var, ...]], body: tuple[Statement, ...]) -> bool:
    """Whether results of rows are stored in columns: neighbors in memory are results of rows beside each other.

    for i: for j < 196: fold (for k < 768: ... x[768*j + k]); for k < 768: y[j + 196*k] = ...
    """
    dependence, last = Dependence(), {leaf[-1] for leaf in inner if leaf}
    if not loops or not _is_long(loops[-1]):
        return False
    stored = [(a.offset, a.inner) for a in accesses(body) if a.stored and a.inner is not None and a.inner in last]
    near = [(offset, var) for offset, var in stored if dependence.stride(offset, loops[-1], _LANES) == 1]
    return any(dependence.stride(offset, var, _LANES) not in (0, 1) for offset, var in near)


def _is_long(var: Var) -> bool:
    return not isinstance(var.extent, int) or var.extent >= _LANES // 2


# -- with loops inside ------------------------------------------------------------------------------------------------


def _reducing(loops: tuple[Var, ...], body: tuple[Statement, ...], memory: Memory) -> tuple[Launch, ...]:
    inner = [leaf for statement in body for leaf in _leaves(statement)]
    longest = max((power_of(extent_of(leaf)) for leaf in inner), default=1)
    total = extent_of(loops)
    if _has_scan(body) and _is_contiguous_along(loops, inner, body):
        return _scanning(loops, longest, memory)
    if _compares_pairs(loops, inner, body, memory):
        return _pairing(loops, longest, memory)
    if _is_contiguous_along(loops, inner, body):
        loaded = _loaded(body, (loops, {var for leaf in inner for var in leaf}), memory.bytes_of)
        costly = len(loaded) > 1 or not _all_folds_are_simple(body) or not is_short(body)
        moments, narrow = any(info.costly for info in _reducers(body)), begin_anywhere(inner, body)
        stored = any(a.stored and any(a.inner in leaf for leaf in inner) for a in accesses(body))
        columns = Columns(total, longest, max(loaded, default=4), len(inner) > 1, moments, costly, narrow, stored)
        return _with_blocks(loops, longest, column_blocks(columns, memory))
    return _rows(loops, inner, body, longest, memory)


def _rows(
    loops: tuple[Var, ...], inner: list[tuple[Var, ...]], body: tuple[Statement, ...], longest: int, memory: Memory
) -> tuple[Launch, ...]:
    """Rows that are contiguous in memory, whole or in steps."""
    total, once = extent_of(loops), len(inner) == 1
    loaded = _loaded(body, (loops, {var for leaf in inner for var in leaf}), memory.bytes_of)
    narrow = 0 < max(loaded, default=0) <= _NARROW_BYTES
    scan, moments = _has_scan(body), any(info.costly for info in _reducers(body))
    found = RowFold(loops, inner, max(loaded, default=0), longest, moments or _all_folds_are_simple(body))
    block = held(found, len(loaded), scan, moments)
    rows = fitting(_rows_at_once(loops, inner, body, block), total, 1, memory.enough)
    sizes: list[tuple[int, int, float]]
    sizes = [(rows, block, 1), (rows, block, 2), (2 * rows, block, 2), (max(rows // 2, 1), block, 1)]
    fewer = _fewer_a_lane(loops, inner, body, memory, (rows, block))
    sizes = [*fewer, *sizes]
    many = programs_of(total, rows) >= _MANY * memory.programs
    if (narrow or any(info.has_position for info in _reducers(body))) and longest <= block and many:
        sizes = [(rows if scan else more_rows(rows, block, total, once), block, 2), *sizes]
    if longest <= _WINDOW and _are_windows(loops, inner, body):
        sizes = [unrolled(total, memory), *sizes]
    sizes += [(1, block // 2, 1)]
    made = [(r, c, warps_of(r * c, each)) for r, c, each in sizes]
    if not (scan or fewer):
        whole = whole_rows(rows, block, narrow and len(loaded) == 1) if longest <= block and not moments else []
        made = [*special_rows(found, block, body, memory), *whole, *made]
    return _with_blocks(loops, longest, made)


def _with_blocks(loops: tuple[Var, ...], longest: int, sizes: Sequence[tuple[int, int, int]]) -> tuple[Launch, ...]:
    """A launch with blocks of those rows, columns and warps that fit, the best first."""
    most = power_of(extent_of(loops))
    made = [Blocks(loops, (), r, c, warps) for r, c, warps in sizes if 1 <= r <= most and 1 <= c <= longest]
    return ways((), made)


def _are_windows(loops: tuple[Var, ...], inner: Sequence[tuple[Var, ...]], body: Sequence[Statement]) -> bool:
    """Whether all folds go through a few neighbors, and no access goes through those of one iteration after the other.

    A lane goes through them alone then: lanes beside it would have nothing to read with it.
    """
    dependence, few = Dependence(), VECTOR // 2
    if not loops or any(power_of(leaf[-1].extent) > few for leaf in inner if leaf):
        return False
    of = {leaf[-1]: extent_of(leaf) for leaf in inner if leaf}
    if any(a.stored and a.inner in of and dependence.stride(a.offset, a.inner, _LANES) == 1 for a in accesses(body)):
        return False  # lanes side by side store whole sectors
    strides = [(dependence.stride(a.offset, loops[-1], _LANES), of[a.inner]) for a in accesses(body) if a.inner in of]
    return not any(step == extent == power_of(extent) for step, extent in strides)


def _compares_pairs(
    loops: tuple[Var, ...], inner: list[tuple[Var, ...]], body: Sequence[Statement], memory: Memory
) -> bool:
    """Whether folds go through the same elements for each iteration of the innermost loop of programs.

    for i: for j: fold sum over k < 256 of before(x[256*i + k], x[256*i + j])
    """
    if not loops or not _is_long(loops[-1]) or len(inner) != 1 or power_of(loops[-1].extent) < NARROW:
        return False
    if programs_of(extent_of(loops[:-1]), 1) * programs_of(loops[-1].extent, _LANES) < memory.programs:
        return False  # lanes of all columns would leave the GPU idle
    dependence, folded = Dependence(), frozenset(inner[0])
    inside = [found for access in accesses(body) if (found := dependence.of(access.offset)) & folded]
    fixed = all(loops[-1] not in found for found in inside)
    values_of = [v for s in statements(body) if isinstance(s, Update) for v in s.reduction.values]
    return bool(inside) and fixed and all({*folded, loops[-1]} <= dependence.of(value) for value in values_of)


def _pairing(loops: tuple[Var, ...], longest: int, memory: Memory) -> tuple[Launch, ...]:
    """Tiles in which the elements of rows and those of columns are loaded once, and compared each with each.

    The lanes of a warp have a column each, and go through rows: they share the values of rows, and combine once, at
    the end. Lanes that had a row each, and went through columns, would need a column for each pair.
    """
    outer, around = loops[:-1], extent_of(loops[:-1])
    rows = min(_PAIRS[0], power_of(loops[-1].extent))
    while rows > _LANES and programs_of(around, 1) * programs_of(loops[-1].extent, rows) < memory.programs:
        rows //= 2
    columns = min(_PAIRS[1], longest)
    sizes = [(rows, columns, 1), (2 * rows, columns, 1), (rows, columns, 2), (rows // 2, columns, 1)]
    made = [Blocks(loops[-1:], (), r, c, max(1, r * e // _LANES)) for r, c, e in sizes]
    return ways(outer, made)


def _scanning(loops: tuple[Var, ...], longest: int, memory: Memory) -> tuple[Launch, ...]:
    """Scans across rows of memory: as few columns as memory moves together, or fewer if there are few programs.

    In a scan by Triton, each element is joined with one partial result of each warp: hence few warps. Short ones are
    so many that a program has as many elements as one without scans.
    """
    least = min(memory.bytes_of.values(), default=4)
    rows = min(max(1, _SECTOR // least, POINTWISE // longest), power_of(extent_of(loops)))
    while rows > 1 and programs_of(extent_of(loops), rows) < memory.programs // 2:
        rows //= 2
    programs = programs_of(extent_of(loops), rows)
    each = 1 if programs < memory.programs // 2 else 2 if programs < memory.programs else 4
    columns = min(longest, SCANNED // rows)
    sizes = [(rows, columns, each), (rows, columns, 2 * each), (2 * rows, columns, each), (rows, columns // 2, each)]
    sizes = [(r, c, e) for r, c, e in sizes if r <= power_of(extent_of(loops)) and c]
    made = [Blocks(loops, (), r, c, warps_of(r * c, e)) for r, c, e in sizes]
    return ways((), made)


def _fewer_a_lane(
    loops: tuple[Var, ...],
    inner: list[tuple[Var, ...]],
    body: tuple[Statement, ...],
    memory: Memory,
    block: tuple[int, int],
) -> list[tuple[int, int, float]]:
    """The block with fewer elements per lane, if they lie apart or have long code; nothing otherwise."""
    rows, columns = block
    folds = any(isinstance(s, Update) for s in statements(body))
    few = None if folds else Few(mul(extent_of(loops), columns), memory.processors)
    lanes = [LanePlacement((*loops, *leaf), leaf[-1], inside=True) for leaf in inner if leaf]
    each = min((elements_of(one, body, memory.bytes_of, few) for one in lanes), default=MOST)
    if each == MOST or _has_scan(body):
        return []
    most = WARPS * THREADS * each
    if columns > most and len(inner) == 1:  # columns that are gone through twice stay in registers
        columns = most
    return [(max(1, min(rows, most // columns)), columns, each / MOST)]


def _reducers(body: Sequence[Statement]) -> list[Reducer]:
    """The reducers of all folds of a body."""
    return [REDUCERS[s.reduction.reducer] for s in statements(body) if isinstance(s, Update)]


def _all_folds_are_simple(body: Sequence[Statement]) -> bool:
    return all(info.simple for info in _reducers(body))


def _leaves(statement: Statement) -> list[tuple[Var, ...]]:
    """The loops whose iterations become lanes: innermost loops, with enclosing loops that contain nothing else."""
    if isinstance(statement, Fold):
        return [leaf for inner in statement.body for leaf in _leaves(inner)]
    if not isinstance(statement, Loop):
        return []
    loops, body = nest_of(statement)
    if not any(isinstance(s, Loop) for s in statements(body)):
        return [loops]
    return [leaf for inner in statement.body for leaf in _leaves(inner)]


def nest_of(loop: Loop) -> tuple[tuple[Var, ...], tuple[Statement, ...]]:
    """A loop and the loops perfectly nested in it, outermost first, and their body."""
    loops, body = [loop.var], loop.body
    while len(body) == 1 and isinstance(body[0], Loop):
        loops.append(body[0].var)
        body = body[0].body
    return tuple(loops), body


def _is_contiguous_along(loops: tuple[Var, ...], inner: list[tuple[Var, ...]], body: Sequence[Statement]) -> bool:
    """Whether memory is contiguous along the loops of programs rather than along the inner loops.

    If each element is loaded once, one access that is contiguous along the loops of programs is enough: a tile is long
    in both directions, so that accesses along either touch whole sectors. Otherwise longer inner loops count more:

        for c: fold (for i < 16: update with x[i + 16 * (c // 16)]); for j < 1024: y[c + 512 * j] = ...      along c
    """
    if not loops:
        return False
    dependence, inside, outside = Dependence(), 0, 0
    elements = {leaf[-1]: power_of(extent_of(leaf)) for leaf in inner if leaf}
    for access in accesses(body):
        if access.inner not in elements or not {access.inner, loops[-1]} <= dependence.of(access.offset):
            continue
        inside += elements[access.inner] * (dependence.stride(access.offset, access.inner, _LANES) == 1)
        outside += elements[access.inner] * (dependence.stride(access.offset, loops[-1], _LANES) == 1)
    return outside > inside or (outside > 0 and len(inner) == 1)


# -- lanes ------------------------------------------------------------------------------------------------------------


def is_independent(loops: tuple[Var, ...], body: tuple[Statement, ...], own: Collection[str] = frozenset()) -> bool:
    """Whether iterations of a nest inside a program may run in parallel, statement by statement; except scans.

    Args:
        loops: of the nest.
        body: inside.
        own: buffers of which each iteration has its own elements, kept in registers.
    """
    if loop_variables(body):
        return False
    dependence = Dependence()
    inside = list(accesses(body))
    for name in {a.buffer for a in inside if a.stored and a.buffer not in own}:
        offsets = {a.offset for a in inside if a.buffer == name}
        alone = sum(a.buffer == name for a in inside) == 1
        moved = all(dependence.of(offset) & frozenset(loops) for offset in offsets)
        if alone and next(a for a in inside if a.buffer == name).mode is not None:
            continue
        pieces = all(a.stored for a in inside if a.buffer == name) and all(map(_never_meet, combinations(offsets, 2)))
        if not moved or not (alone or pieces or len(offsets) == 1):
            return False
    return True


def _never_meet(offsets: tuple[Any, Any]) -> bool:
    return never_meet(*offsets)


def _has_scan(body: Sequence[Statement]) -> bool:
    """Whether a loop in a body is a scan."""
    return any(isinstance(s, Loop) and is_scan(s.body) for s in statements(body))


def is_scan(body: tuple[Statement, ...]) -> bool:
    """Whether a body reads results of a fold that is still running."""
    started = {r.name for s in statements(body) if isinstance(s, Fold) for r in s.reductions}
    carried = updated(body).keys() - started
    return any(isinstance(v, Result) and v.reduction in carried for v in values(body))

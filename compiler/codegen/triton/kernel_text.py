"""A launch as the source of a Triton kernel.

for i < 128 parallel:                          x = tl.program_id(0) + tl.arange(0, 1)[:, None]
    fold sum:                                  r = tl.arange(0, 1024)[None, :]
        for j < 768: update with x[768*i+j]    t1 = tl.load(x_ptr + (768 * x + r), mask=r < 768)
    y[i] = sum                           ->    sum = tl.reduce(tl.where(r < 768, t1, 0.0), 1, join_sum, ...)
                                               tl.store(y_ptr + x, sum)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ...ir.accesses import accesses, loaded_buffers, nests, statements, stored_buffers
from ...ir.dependence import Dependence
from ...ir.index.index import Monomial, Size, Var, from_terms, mul, terms
from ...ir.iteration_space import blocks_of, extent_of, is_small, largest
from ...ir.kernel import Kernel, Loop, Statement
from ...ir.launch import Launch
from ...ir.program import Buffer
from .dtypes import signature_name, type_name
from .kernel_body import BodyWriter
from .values import TileAxis, TritonNames, TritonValues, UnservedError
from .writer import TritonWriter, factor

_Launch = TypeVar("_Launch", bound="LaunchText")


@dataclass(frozen=True)
class Workspace:
    """Memory of the kernel's own that no register holds.

    Args:
        buffer: of one iteration of the loops that programs enumerate.
        copies: how many such iterations there are.
    """

    buffer: Buffer
    copies: Any


@dataclass(frozen=True)
class LaunchText:
    """The source of one launch.

    Args:
        name: of the function; `text` its source, without the library.
        params: buffers that it takes, in order; then `sizes`, then `workspaces`.
        signature: Triton's types of all arguments, by parameter.
        programs: how many there are, an index of sizes.
        warps: of a program.
        early: whether it may begin before kernels before it have ended: it waits for them by itself.
        reach: the largest number that 32 bits must hold, an index of sizes; None where it is known to be small.
        wide: the source for larger ones, of the same function.
    """

    name: str
    text: str
    params: tuple[str, ...]
    sizes: tuple[str, ...]
    workspaces: tuple[Workspace, ...]
    signature: dict[str, str]
    programs: Any
    warps: int
    early: bool = False
    reach: Any = field(default=None, kw_only=True)
    wide: str = field(default="", kw_only=True)


def waiting(launch: _Launch) -> _Launch:
    """The launch, begun early: it lets kernels after it begin, which wait in their turn, and waits before all else."""
    wide = _begun_early(launch.wide, launch.name) if launch.wide else ""
    return replace(launch, early=True, text=_begun_early(launch.text, launch.name), wide=wide)


def _begun_early(text: str, name: str) -> str:
    head = re.search(rf"def {re.escape(name)}\([^)]*\):\n", text)
    assert head is not None, text
    return f"{text[: head.end()]}    let_later_begin()\n    await_earlier()\n{text[head.end() :]}"


def launch_texts(kernel: Kernel, names: Sequence[str], *, dealt: bool = False) -> tuple[LaunchText, ...]:
    """Write the launches of a kernel.

    Args:
        kernel: the kernel, which knows its launches.
        names: of their functions.
        dealt: a function that another one calls, with the number of the program before all other arguments.

    Raises:
        UnsupportedDtypeError: a value or a buffer has a dtype that Triton has no type for.
        UnsupportedStoreError: a store needs an atomic operation that does not exist.
    """
    assert kernel.launches, f"{kernel.name} has no launches"
    bodies = [body for _, body in nests(kernel.body)]
    parts = zip(kernel.launches, bodies, names, strict=True)
    return tuple(_launch_text(kernel, launch, body, name, dealt) for launch, body, name in parts)


def _launch_text(kernel: Kernel, launch: Launch, body: tuple[Statement, ...], name: str, dealt: bool) -> LaunchText:
    reach = None if dealt else _reach([*_numbers(launch, body)], kernel.sizes)
    made = _written(kernel, launch, body, name, dealt, wide=reach is None)
    if reach is None:
        return made
    return replace(made, reach=reach, wide=_written(kernel, launch, body, name, dealt, wide=True).text)


def _written(
    kernel: Kernel, launch: Launch, body: tuple[Statement, ...], name: str, dealt: bool, wide: bool
) -> LaunchText:
    """One launch; `wide`: with indices of 64 bits where 32 are not known to hold them."""
    spilled: set[str] = set()
    while True:
        try:
            return _LaunchWriter(kernel, launch, body, name, frozenset(spilled), dealt, wide).run()
        except UnservedError as found:
            spilled.add(found.buffer)


def _numbers(launch: Launch, body: tuple[Statement, ...]) -> list[Any]:
    """All indices of a launch: places in memory, and numbers of iterations."""
    numbers = [a.offset for a in accesses(body)]
    numbers += [extent_of(launch.blocks.rows + launch.blocks.columns + launch.outer)]
    return numbers + [v.extent for v in _loops(body)]


def _reach(numbers: Sequence[Any], sizes: Sequence[Size]) -> Any:
    """A bound of all indices and sizes, computed from sizes alone; None where all indices are known to be small.

    Of bounds whose terms are none of them negative, the largest of each term, added: there may be hundreds of indices.
    """
    if all(map(is_small, numbers)):
        return None
    found: dict[Monomial, int] = {}
    for bound in dict.fromkeys(map(largest, [*numbers, *(size.index() for size in sizes)])):
        for monomial, coefficient in terms(bound):
            found[monomial] = max(coefficient, found.get(monomial, 0))
    return from_terms(found)


class _LaunchWriter:
    def __init__(
        self,
        kernel: Kernel,
        launch: Launch,
        body: tuple[Statement, ...],
        name: str,
        spilled: frozenset[str],
        dealt: bool,
        wide: bool,
    ) -> None:
        self._kernel, self._launch, self._statements, self._name, self._dealt = kernel, launch, body, name, dealt
        self._out = TritonWriter()
        used = loaded_buffers(body) | stored_buffers(body)
        self._params = [p.buffer for p in kernel.params if p.buffer.name in used]
        self._spilled = [b for b in kernel.scratch if b.name in spilled]
        held = [*self._params, *self._spilled]
        names = TritonNames(
            {b.name: b.name if b.scalar else f"{b.name}_ptr" for b in held},
            {b.name: b.dtype for b in (*self._params, *kernel.scratch)},
            frozenset(b.name for b in self._params if b.scalar),
            frozenset(b.name for b in kernel.scratch) - spilled,
        )
        names.variables.update({size.name: size.name for size in kernel.sizes})
        self._index = "tl.int64" if wide and not all(map(is_small, _numbers(launch, body))) else "tl.int32"
        self._narrowed = tuple(size.name for size in kernel.sizes) if not wide else ()
        self._values = TritonValues(self._out, names, Dependence(), self._index)
        self._values.stored = frozenset(stored_buffers(body))
        self._body = BodyWriter(self._out, self._values, body, self._params, launch.blocks)

    def run(self) -> LaunchText:
        for buffer in self._params:
            type_name(buffer.dtype)
        programs = self._programs()
        blocks = self._launch.blocks
        if blocks.rows and blocks.columns:
            self._body.ahead(self._statements, frozenset(blocks.columns))
        self._body.write(self._statements)
        kernel = self._kernel
        arguments = {b.name if b.scalar else f"{b.name}_ptr": self._type(b) for b in (*self._params,)}
        arguments |= {size.name: "i64" for size in kernel.sizes}
        arguments |= {f"{b.name}_ptr": self._type(b) for b in self._spilled}
        given = ["program", *arguments] if self._dealt else arguments
        head = f"@triton.jit\ndef {self._name}({', '.join(given)}):"
        text = "\n".join([head, *self._out.lines]) + "\n"
        workspaces = tuple(Workspace(b, self._copies) for b in self._spilled)
        return LaunchText(
            self._name, text, tuple(b.name for b in self._params), tuple(s.name for s in kernel.sizes), workspaces,
            arguments, programs, self._launch.blocks.warps,
        )  # fmt: skip

    def _type(self, buffer: Buffer) -> str:
        if buffer.scalar:
            return "fp64" if buffer.dtype.is_floating_point else "i64"
        return f"*{signature_name(buffer.dtype)}"

    # -- programs -------------------------------------------------------------------------------------------------

    def _programs(self) -> Any:
        """Write which iterations this program has; gives the number of programs."""
        blocks, outer = self._launch.blocks, self._launch.outer
        for name in self._narrowed:
            self._out.line(f"{name} = {name}.to(tl.int32)")
        wide = ".to(tl.int64)" if self._index == "tl.int64" else ""
        if wide or not self._dealt:
            self._out.line(f"program = {'program' if self._dealt else 'tl.program_id(0)'}{wide}")
        column_blocks = blocks_of(extent_of(blocks.columns), blocks.column_block) if blocks.columns else 1
        row_blocks = blocks_of(extent_of(blocks.rows), blocks.row_block) if blocks.rows else 1
        text = self._values.at
        if blocks.columns:
            at = "program" if not (blocks.rows or outer) else f"program % {text(column_blocks)}"
            at = at if column_blocks != 1 else "0"
            self._values.columns = self._axis("x", at, blocks.columns, blocks.column_block, "[None, :]")
        if blocks.rows:
            at = "program" if column_blocks == 1 else f"program // {text(column_blocks)}"
            at = at if not outer else f"{factor(at)} % {text(row_blocks)}"
            self._values.rows = self._axis("y", at, blocks.rows, blocks.row_block, "[:, None]")
        if outer:
            self._body.decode(f"program // {text(mul(column_blocks, row_blocks))}", outer)
        self._copies = self._place_workspaces(row_blocks, column_blocks)
        return self._launch.programs

    def _place_workspaces(self, row_blocks: Any, column_blocks: Any) -> Any:
        """Give every iteration of the programs its own part of each workspace; gives their number."""
        blocks = self._launch.blocks
        rows, columns = mul(row_blocks, blocks.row_block), blocks.column_block if blocks.columns else 1
        copies = mul(mul(extent_of(self._launch.outer), mul(column_blocks, columns)), rows)
        if not self._spilled:
            return copies
        slot = Var("slot", copies)
        lanes = [f"tl.arange(0, {blocks.row_block})[:, None]"] if blocks.rows else []
        lanes = [f"{lanes[0]} * {columns}"] if lanes and columns != 1 else lanes
        lanes += [f"tl.arange(0, {columns})[None, :]"] if blocks.columns else []
        per_program = (blocks.row_block if blocks.rows else 1) * columns
        self._out.line(f"slot = {' + '.join([f'program * {per_program}', *lanes])}")
        self._values.names.variables[slot] = "slot"
        for axis in (self._values.rows, self._values.columns):
            if axis is not None:
                axis.vars |= {slot}
        self._values.names.bases.update({b.name: mul(slot.index(), b.sizes[0]) for b in self._spilled})
        return copies

    def _axis(self, name: str, at: str, loops: tuple[Var, ...], block: int, turn: str) -> TileAxis:
        """Lanes over `block` consecutive iterations of loops, from the block numbered `at`."""
        first = "" if at == "0" else f"{at} + " if block == 1 else f"{factor(at)} * {block} + "
        self._out.line(f"{name} = {first}tl.arange(0, {block}){turn}")
        return self._body.bound(name, loops, block, extent_of(loops))


def _loops(body: Sequence[Statement]) -> list[Var]:
    return [s.var for s in statements(body) if isinstance(s, Loop)]

"""Values as Triton expressions over the lanes of a tile.

A tile has rows and columns. A value that is the same for all lanes is a scalar or a block of one element, a value that
differs from row to row has shape [ROWS, 1], and so on: operations broadcast. Lanes
outside of the loops load nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ...ir.dependence import Dependence, Sources
from ...ir.index.index import Atom, Index, Loaded, Size, Var, add, atoms, mul
from ...ir.index.ranges import in_range, wraps
from ...ir.iteration_space import is_indirect, is_small
from ...ir.ops import COMPARISONS, OPS
from ...ir.value import HALVES, Const, Guarded, Load, Number, Op, Result, Value, compute_dtype
from ...schedule.affine import never_meet
from .dtypes import bare_literal, literal, type_name
from .index_text import index_text
from .operations import number_operands, operation_text
from .writer import TritonWriter


@dataclass
class TileAxis:
    """One axis of the tile.

    Args:
        vars: loop variables that it enumerates.
        length: of its block: a number, as text.
        mask: the name of the condition that lanes lie inside, None if all do.
        flat: the position along it: an index of `vars`; `position` the variable that stands for it.
    """

    vars: frozenset[Var]
    length: str
    mask: str | None
    flat: Any = 0
    position: Var | None = None


@dataclass
class TritonNames:
    """Names of buffers, variables and sizes in the kernel that is being written.

    Args:
        buffers: pointers (of scalars: the numbers) by buffer name; `dtypes` what they hold.
        results: components of reductions, and the variables that they depend on.
        variables: loop variables and sizes.
        scratch: buffers of the kernel's own: kept under their names, not in memory.
        bases: where an iteration's part of a workspace begins.
    """

    buffers: dict[str, str]
    dtypes: dict[str, torch.dtype]
    scalars: frozenset[str] = frozenset()
    scratch: frozenset[str] = frozenset()
    bases: dict[str, Any] = field(default_factory=dict)
    results: dict[tuple[str, int], str] = field(default_factory=dict)
    variables: dict[Any, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Touch:
    """An access to memory that the kernel writes.

    Args:
        how: ``"read"``, ``"write"``, or what an atomic store does.
        offset: of the element; `shape` the tile's.
        alone: whether each lane touches an element of its own: a number, or a value of a row, is read by all lanes, or
            all of the row, and some of them may be late.
    """

    how: str
    offset: Any
    shape: str
    alone: bool

    def meets(self, earlier: Touch) -> bool:
        """Whether a lane may touch the element of another lane of an earlier access, and their order matters."""
        if (self.how == earlier.how and self.how != "write") or never_meet(self.offset, earlier.offset):
            return False
        if self.how == "read" or (self.offset, self.shape) != (earlier.offset, earlier.shape):
            return True
        return is_indirect(self.offset) or not self.alone


class UnservedError(Exception):
    """A scratch buffer is read where its value is not at hand: it needs memory."""

    def __init__(self, buffer: str) -> None:
        super().__init__(buffer)
        self.buffer = buffer


class TritonValues:
    """Writes values and indices; a value that is computed once keeps its name."""

    def __init__(self, writer: TritonWriter, names: TritonNames, dependence: Dependence, index_type: str) -> None:
        self.writer, self.names, self.dependence, self.index_type = writer, names, dependence, index_type
        self.rows: TileAxis | None = None
        self.columns: TileAxis | None = None
        self.guards: tuple[tuple[str, Sources], ...] = ()
        self.touched: dict[str, frozenset[Touch]] = {}  # by buffer that the kernel writes, since the last barrier
        self.stored: frozenset[str] = frozenset()  # buffers that the kernel writes: a load may give a stored value

    # -- lanes ----------------------------------------------------------------------------------------------------

    def shape(self) -> str:
        """The shape of the whole tile."""
        return f"[{self.rows.length if self.rows else 1}, {self.columns.length if self.columns else 1}]"

    def mask(self, *, always: bool = False, of: Any = None) -> str | None:
        """The condition that lanes are inside, over the axes that `of` varies along (all if `always`)."""
        sources = self.dependence.of(of) if not always else frozenset()
        found = [
            axis.mask
            for axis in (self.rows, self.columns)
            if axis is not None and axis.mask is not None and (always or self._moves(axis, sources))
        ]
        found += [name for name, _ in self.guards]
        return " & ".join(found) if found else None

    def _moves(self, axis: TileAxis, sources: Sources) -> bool:
        # Results and memory may vary along any axis: then lanes outside may hold anything.
        return bool(sources & axis.vars) or any(isinstance(s, tuple) for s in sources)

    @contextmanager
    def guarded(self, condition: str, sources: Sources) -> Iterator[None]:
        """Lanes where `condition` does not hold touch no memory; names given inside stay inside."""
        before, self.guards = self.guards, (*self.guards, (condition, sources))
        with self.writer.apart():
            yield
        self.guards = before

    # -- indices --------------------------------------------------------------------------------------------------

    def at(self, number: Any) -> str:
        """An index as text; numbers that the index reads from memory are loaded and checked first."""
        self._prepare(number)
        return index_text(self._flattened(number), self._atom)

    def _flattened(self, number: Any) -> Any:
        """An index over the positions of axes: 770*i + j is x where that enumerates i and j < 770.

        Then it shows that neighbouring lanes have neighbouring elements.
        """
        for axis in (self.rows, self.columns):
            if axis is None or axis.position is None or not isinstance(number, Index):
                continue
            steps = {m: c for m, c in number.terms if len(m) == 1 and m[0] in axis.vars}
            step = min(steps.values(), key=abs, default=0)
            rest = add(number, mul(axis.flat, -step))
            if step and not self.dependence.of(rest) & axis.vars:
                number = add(rest, mul(axis.position.index(), step))
        return number

    def block(self, number: Any) -> str:
        """An index as a block of the index type, even where all lanes agree."""
        text = self.at(number)
        if self._is_block(number):
            return text
        return f"tl.full([1, 1], {text}, {self.index_type})"

    def _whole(self, number: Any) -> str:
        """An index as a block of a type that holds it: a number of the program's may be larger than any place."""
        if is_small(number) or self.index_type == "tl.int64":
            return self.block(number)
        self._prepare(number)
        text = index_text(number, lambda atom: f"{self._atom(atom)}.to(tl.int64)")
        return text if self._is_block(number) else f"tl.full([1, 1], {text}, tl.int64)"

    def _is_block(self, number: Any) -> bool:
        if not isinstance(number, Index):
            return False
        sources = self.dependence.of(number)
        axes = [axis.vars for axis in (self.rows, self.columns) if axis is not None]
        if any(sources & vars for vars in axes) or any(isinstance(s, tuple) for s in sources):
            return True
        return any(isinstance(atom, Loaded) for atom in atoms(number))  # a value, of constants too

    def _prepare(self, number: Any) -> None:
        if not isinstance(number, Index):
            return
        for monomial, _ in number.terms:
            for atom in monomial:
                if isinstance(atom, Loaded):
                    self._loaded(atom)
                elif not isinstance(atom, (Var, Size)):
                    for part in atom.fields():
                        self._prepare(part)

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Loaded):
            return self._loaded(atom)
        return self.names.variables[atom.name if isinstance(atom, Size) else atom]

    def _loaded(self, atom: Loaded) -> str:
        """The name of an index read from memory: wrapped and checked as eager has it."""
        key = (atom.index(), "loaded")
        found = self.writer.find(key)
        if found is not None:
            return found
        raw = self.get(atom.value)
        size = self.at(atom.size)
        at = f"{raw}.to({self.index_type})"
        made = self.writer.define("", f"wrapped({at}, {size})" if wraps(atom) else at, key)
        if not in_range(atom):
            inside = f"(({made} >= 0) & ({made} < {size}))"
            mask = self.mask(of=atom.value)
            test = f"{inside} | (({mask}) == 0)" if mask else inside
            self.writer.line(f'tl.device_assert({test}, "index out of range")')
        return made

    # -- values ---------------------------------------------------------------------------------------------------

    def get(self, value: Value) -> str:
        """The value: a name, or a short expression."""
        if isinstance(value, Const) and not isinstance(value.number, Index):
            key: Any = (value, "const")
            return self.writer.find(key) or self.writer.define("", literal(value.number, value.dtype), key)
        if isinstance(value, Result):
            return self.names.results[value.reduction, value.component]
        found = self.writer.find(value)
        if found is None:
            found = self.writer.define("", self._text(value), value)
        return found

    def is_whole(self, what: Any) -> bool:
        """Whether a value or an index is written as a block of the whole tile."""
        sources = self.dependence.of(what)
        if any(("buffer", name) in sources for name in self.stored):
            return False  # the stored value that replaces a load may be the same for all lanes
        axes = [axis for axis in (self.rows, self.columns) if axis is not None and axis.length != "1"]
        return all(sources & axis.vars for axis in axes)

    def _text(self, value: Value) -> str:
        if isinstance(value, Load):
            return self._load(value)
        if isinstance(value, (Number, Const)):
            text = self._whole(value.index if isinstance(value, Number) else value.number)
            return f"{text}.to({type_name(value.dtype)})"
        if isinstance(value, Guarded):
            return self._guarded(value)
        assert isinstance(value, Op), value
        if self._compares_places(value):
            left, right = (self._place(arg) for arg in value.args)
            return f"({left} {OPS[value.name].sign} {right})"
        return operation_text(value, self._operands(value))

    def _compares_places(self, value: Op) -> bool:
        """Whether an operation compares indices that 32 bits hold: then they are compared as they are, not as 64."""
        numbers = [v.index if isinstance(v, Number) else v.number for v in value.args if isinstance(v, (Number, Const))]
        if value.name not in COMPARISONS or len(numbers) != 2 or not any(map(self._is_block, numbers)):
            return False
        return not any(isinstance(n, (bool, float)) for n in numbers) and all(map(is_small, numbers))

    def _place(self, value: Value) -> str:
        assert isinstance(value, (Number, Const)), value
        return self.at(value.index if isinstance(value, Number) else value.number)

    def _operands(self, value: Op) -> list[str]:
        """Operands by name, numbers as they are where another one says the dtype."""
        free = () if all(isinstance(arg, Const) for arg in value.args[-2:]) else number_operands(value)
        bare = [_number(arg) if k in free else None for k, arg in enumerate(value.args)]
        return [number or self.get(arg) for number, arg in zip(bare, value.args, strict=True)]

    def _load(self, value: Load) -> str:
        buffer, place = value.buffer, value.indices[0] if value.indices else 0
        if buffer in self.names.scalars:
            return f"tl.full([1, 1], {self.names.buffers[buffer]}, {type_name(value.dtype)})"
        if buffer in self.names.scratch:
            raise UnservedError(buffer)
        offset = add(self.names.bases.get(buffer, 0), place)
        at = self.block(offset)
        self.touch(buffer, place, "read")
        mask = self.mask(of=offset)
        text = f"tl.load({self.names.buffers[buffer]} + {at}{f', mask={mask}' if mask else ''})"
        held = self.names.dtypes[buffer]
        narrow = held in HALVES or (held.itemsize == 1 and held.is_floating_point)
        return f"{text}.to({type_name(value.dtype)})" if narrow else text

    def _guarded(self, value: Guarded) -> str:
        condition = self.get(value.condition)
        sources = self.dependence.of(value.condition)
        with self.guarded(condition, sources):
            chosen = self.get(value.value)
        if isinstance(value.other, Const):
            bare = None if isinstance(value.value, Const) else _number(value.other)
            other = bare or self.get(value.other)
        else:
            opposite = self.writer.define("", f"({condition} == 0)")
            with self.guarded(opposite, sources):
                other = self.get(value.other)
        return f"tl.where({condition}, {chosen}, {other})"

    # -- memory ---------------------------------------------------------------------------------------------------

    def touch(self, buffer: str, offset: Any, how: str) -> None:
        """Note an access that the next line makes; a barrier before it where it must not overtake an earlier one."""
        if buffer not in self.stored:
            return
        alone = self.shape() != "[1, 1]" and self.is_whole(offset)
        touch = Touch(how, offset, self.shape(), alone)
        if any(touch.meets(earlier) for earlier in self.touched.get(buffer, ())):
            self.barrier()
        self.touched[buffer] = self.touched.get(buffer, frozenset()) | {touch}

    def perhaps(self, before: Mapping[str, frozenset[Touch]], iterations: Any) -> None:
        """After a loop that may have had no iteration: buffers touched `before` the loop may still be in that state."""
        if isinstance(iterations, int):
            return
        for buffer, touches in before.items():
            self.touched[buffer] = self.touched.get(buffer, frozenset()) | touches

    def barrier(self) -> None:
        """All lanes are done with memory that they have touched."""
        self.writer.line("tl.debug_barrier()")
        self.touched.clear()

    def pointer(self, buffer: str, offset: Any) -> str:
        """Pointers to an element of a buffer, one a lane of the tile."""
        offset = add(self.names.bases.get(buffer, 0), offset)
        at = self.block(offset)
        at = at if self.is_whole(offset) else f"tl.broadcast_to({at}, {self.shape()})"
        return f"{self.names.buffers[buffer]} + {at}"

    def kept(self, value: str, buffer: str) -> str:
        """A value as a load of a buffer gives it after a store: rounded to the dtype in memory."""
        held = self.names.dtypes[buffer]
        if held not in HALVES:
            return value
        return f"{value}.to({type_name(held)}).to({type_name(compute_dtype(held))})"


def _number(value: Value) -> str | None:
    """A constant as a bare number, None where it needs its dtype."""
    if not isinstance(value, Const) or isinstance(value.number, Index):
        return None
    return bare_literal(value.number, value.dtype)

"""Values as C++: scalars if all lanes agree, vectors if they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ...ir.accesses import index_values
from ...ir.dependence import Dependence, Sources
from ...ir.index.index import Atom, Index, Loaded, Size, Var, atoms, evaluate, from_terms, sub, terms
from ...ir.index.ranges import in_range, wraps
from ...ir.ops import DIVISIONS, OPS
from ...ir.program import Store
from ...ir.value import Const, Guarded, Load, Number, Op, Result, Value, walk
from ..source_writer import Writer
from .arranged import lane_offsets, of_first_lane, span
from .dtypes import lane_type, literal, scalar_type
from .index_text import fits_short, index_text, short_text
from .operations import operation_text
from .woven import Column

_SAMPLES = 8  # number of vectors of a loop that are examined before it is written


@dataclass
class CppNames:
    """The names of buffers, variables and sizes in the function that is being written.

    Args:
        buffers: pointers by buffer name, sizes by size name.
        results: components of reductions, by (name, component) if lanes agree, else by (name, component, copy).
        spans: the number of elements of each buffer, if it is known.
        tables: the buffers of constants.
        variables: loop variables.
    """

    buffers: dict[str, str]
    sizes: dict[str, str]
    spans: dict[str, Any] = field(default_factory=dict)
    tables: frozenset[str] = frozenset()
    results: dict[Any, str] = field(default_factory=dict)
    variables: dict[Var, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Vectors:
    """The loop in lanes that is being written.

    Args:
        var: its variable, a multiple of `lanes`.
        lanes: the lanes of a vector.
        copies: the number of vectors.
        varying: the values that differ from lane to lane.
        expanded: scratch buffers with `spread` elements for each element, one for each lane and copy.
        tiles: transposed loads, with the current row of each.
        rows: stores that will be transposed, with the variable of the current row and the type in memory.
        woven: groups of stores that are made together at the place of the last one; the other groups are empty.
        columns: loads of columns of a table that are read together.
    """

    var: Var
    lanes: int
    copies: int
    varying: Sources
    expanded: frozenset[str] = frozenset()
    spread: int = 1
    tiles: Mapping[Load, str] = field(default_factory=dict)
    rows: Mapping[Store, tuple[str, str]] = field(default_factory=dict)
    woven: Mapping[Store, tuple[Store, ...]] = field(default_factory=dict)
    columns: Mapping[Load, Column] = field(default_factory=dict)


class CppValues:
    """Writes values and indices; a value that is computed in a block keeps its name there."""

    def __init__(self, writer: Writer, names: CppNames, dependence: Dependence) -> None:
        self.writer, self.names, self.dependence = writer, names, dependence
        self.vectors: Vectors | None = None
        self.mask: str | None = None

    # -- results --------------------------------------------------------------------------------------------------

    def varies(self, what: Any) -> bool:
        """Whether a value or an index may differ from lane to lane."""
        return self.vectors is not None and bool(self.dependence.of(what) & self.vectors.varying)

    def get(self, value: Value, copy: int = 0) -> str:
        """The value: a vector (that of one copy) if it varies, else a scalar."""
        if isinstance(value, Const) and not isinstance(value.number, Index):
            return literal(value.number, value.dtype)
        varies = self.varies(value)
        key = (value, copy if varies else None)
        found = self.writer.find(key)
        if found is not None:
            return found
        text = self._vector(value, copy) if varies else self._scalar(value)
        kind = self.vector_type(value.dtype) if varies else scalar_type(value.dtype)
        return self.writer.define(kind, text, key)

    def vector(self, value: Value, copy: int = 0) -> str:
        """The value as a vector, even if it does not vary."""
        text = self.get(value, copy)
        if self.varies(value):
            return text
        key = (value, "splat")
        found = self.writer.find(key)
        return found or self.writer.define(self.vector_type(value.dtype), self._splat(text, value.dtype), key)

    def hoist(self, value: Value) -> None:
        """Compute the parts of a value that do not vary, as vectors, before the loop that will compute the others."""
        seen: set[Value] = set()

        def visit(part: Value) -> None:
            if part in seen or isinstance(part, Const):
                return
            seen.add(part)
            if not self.varies(part):
                self.vector(part)
            elif isinstance(part, Op):
                for operand in part.args:
                    visit(operand)

        visit(value)

    def vector_type(self, dtype: torch.dtype) -> str:
        """The C++ type of a vector of values of a dtype."""
        assert self.vectors is not None
        return f"V<{lane_type(dtype)}, {self.vectors.lanes}>"

    def at(self, number: Any, copy: int = 0) -> str:
        """An index on which lanes agree, or that of the first lane."""
        return index_text(number, lambda atom: self._atom(atom, copy, None))

    def offsets(self, number: Any, copy: int = 0, buffer: str = "") -> str:
        """An index in every lane, or an offset in `buffer` if that is given, as a vector of i64."""
        assert self.vectors is not None
        expanded = buffer in self.vectors.expanded
        key = (number, "lane offsets" if expanded else "offsets", copy)
        found = self.writer.find(key)
        if found is None:
            text = index_text(number, lambda atom: self._atom(atom, copy, "l"))
            if expanded:
                text = f"{text} * {self.vectors.spread} + {copy * self.vectors.lanes} + l"
            found = self.writer.name(key, self.writer.fresh())
            lanes = self.vectors.lanes
            self.writer.line(f"V<i64, {lanes}> {found}; for (int l = 0; l < {lanes}; ++l) {found}[l] = {text};")
        return found

    def short_offsets(self, number: Any, copy: int = 0) -> str:
        """An index that `fits_short` in every lane, as a vector of i32."""
        assert self.vectors is not None
        key, lanes = (number, "short offsets", copy), self.vectors.lanes
        found = self.writer.find(key)
        if found is None:
            text = short_text(number, lambda atom: self._short_atom(atom, copy), lanes)
            found = self.writer.define(f"V<i32, {lanes}>", text, key)
        return found

    def _short_atom(self, atom: Atom, copy: int) -> str:
        """An atom of an index in 32 bits: a vector, or a number if lanes agree."""
        assert self.vectors is not None
        kind = f"V<i32, {self.vectors.lanes}>"
        if atom is self.vectors.var:
            return f"ramp<{kind}>((i32){self._atom(atom, copy, None)}, 1)"
        if isinstance(atom, Loaded) and self.varies(atom.index()):
            return f"convert<{kind}>({self._loaded(atom, copy)})"
        return f"(i32){self._atom(atom, copy, None)}"

    @contextmanager
    def masked(self, mask: str | None) -> Iterator[None]:
        """Within the block, lanes outside of `mask` access no memory and raise no errors."""
        before, self.mask = self.mask, mask
        yield
        self.mask = before

    def prepare(self, number: Any, copy: int = 0) -> None:
        """Read and check the values that an index needs, before it is written."""
        if not isinstance(number, Index):
            return
        for monomial, _ in number.terms:
            for atom in monomial:
                if isinstance(atom, Loaded):
                    self._loaded(atom, copy)
                elif not isinstance(atom, (Var, Size)):
                    for part in atom.fields():
                        self.prepare(part, copy)

    # -- indices --------------------------------------------------------------------------------------------------

    def _atom(self, atom: Atom, copy: int, lane: str | None) -> str:
        if isinstance(atom, Size):
            return self.names.sizes[atom.name]
        if isinstance(atom, Loaded):
            name = self._loaded(atom, copy)
            return f"{name}[{lane or 0}]" if self.varies(atom.index()) else name
        assert isinstance(atom, Var), atom
        name = self.names.variables[atom]
        if self.vectors is None or atom is not self.vectors.var:
            return name
        first = f"{name} + {copy * self.vectors.lanes}" if copy else name
        return f"({first} + {lane})" if lane else f"({first})"

    def _loaded(self, atom: Loaded, copy: int) -> str:
        """The name of an index that is read and checked."""
        varies = self.varies(atom.index())
        key = (atom.index(), copy if varies else None)
        found = self.writer.find(key)
        if found is not None:
            return found
        value = _unwidened(atom.value) if in_range(atom) and not wraps(atom) else atom.value
        raw = self.get(value, copy)
        self.prepare(atom.size, copy)
        size = self.at(atom.size, copy)
        narrow = value.dtype == torch.int32 and in_range(atom) and not wraps(atom)
        kind = f"V<{'i32' if narrow else 'i64'}, {self.vectors.lanes}>" if varies and self.vectors else "i64"
        raw = self.writer.define(kind, f"convert<{kind}>({raw})" if varies else f"(i64){raw}")
        at = self.writer.define(kind, f"wrapped({raw}, {size})", key) if wraps(atom) else self.writer.name(key, raw)
        if not in_range(atom):
            self._check(raw, at, size, varies)
        return at

    def _check(self, raw: str, at: str, size: str, varies: bool) -> None:
        if not varies:
            self.writer.line(f"if (__builtin_expect((u64){at} >= (u64){size}, 0)) FAIL(1, {raw}, {size});")
            return
        test = f"outside_if({self.mask}, {at}, {size})" if self.mask else f"outside({at}, {size})"
        lane = self.writer.define("int", test)
        self.writer.line(f"if (__builtin_expect({lane} >= 0, 0)) FAIL(1, {raw}[{lane}], {size});")

    # -- values ---------------------------------------------------------------------------------------------------

    def _splat(self, text: str, dtype: torch.dtype) -> str:
        assert self.vectors is not None
        if dtype == torch.bool:
            return f"truth<{self.vectors.lanes}>({text})"
        return f"splat<{self.vector_type(dtype)}>({text})"

    def _scalar(self, value: Value) -> str:
        if isinstance(value, Load):
            self.prepare(value.indices[0])
            return f"get({self.address(value.buffer, value.indices[0])})"
        if isinstance(value, (Number, Const)):
            number = value.index if isinstance(value, Number) else value.number
            self.prepare(number)
            return f"({scalar_type(value.dtype)}){self.at(number)}"
        if isinstance(value, Result):
            return self.names.results[value.reduction, value.component]
        if isinstance(value, Guarded):
            return self._guarded_scalar(value)
        assert isinstance(value, Op), value
        if value.name.startswith("philox"):
            return self._random_word(value, 0)
        args = [self.get(arg) for arg in value.args]
        self._check_divisor(value, args, False)
        return operation_text(value, args, None)

    def address(self, buffer: str, offset: Any, copy: int = 0) -> str:
        """A pointer to an element; that of the first lane."""
        text = self.at(offset, copy)
        if self.vectors is not None and buffer in self.vectors.expanded:
            text = f"{text} * {self.vectors.spread} + {copy * self.vectors.lanes}"
        return f"{self.names.buffers[buffer]} + {text}"

    def _vector(self, value: Value, copy: int) -> str:
        assert self.vectors is not None
        if isinstance(value, Load):
            return self._vector_load(value, copy)
        if isinstance(value, Number):
            return self._vector_number(value, copy)
        if isinstance(value, Result):
            found = self.names.results[value.reduction, value.component, copy]
            is_place = value.component > 0 and value.dtype == torch.int64  # which may have been found in 32 bits
            return f"convert<{self.vector_type(value.dtype)}>({found})" if is_place else found
        if isinstance(value, Guarded):
            return self._guarded_vector(value, copy)
        assert isinstance(value, Op), value
        if value.name.startswith("philox"):
            return self._random_word(value, copy)
        args = [self.vector(arg, copy) for arg in value.args]
        self._check_divisor(value, args, True)
        return operation_text(value, args, self.vectors.lanes)

    def _random_word(self, value: Op, copy: int) -> str:
        """One of the four words that are drawn together; a seed that lanes share is a scalar."""
        varies, (seed, offset) = self.varies(value), value.args
        kind = f"V<{{}}64, {self.vectors.lanes}>" if varies and self.vectors else "{}64"
        key = (Op("philox0", value.args, value.dtype), "words", copy if varies else None)
        words = self.writer.find(key)
        if words is None:
            unsigned = kind.format("u")
            by = f"({unsigned}){self.vector(seed, copy)}" if self.varies(seed) else f"(u64){self.get(seed)}"
            at = self.vector(offset, copy) if varies else self.get(offset)
            words = self.writer.define(f"Words<{unsigned}>", f"philox<{unsigned}>({by}, ({unsigned}){at})", key)
        return f"({kind.format('i')}){words}.w[{value.name[-1]}]"

    def stride(self, buffer: str, offset: Any) -> Any:
        """The stride of an address from lane to lane; None if it is not constant."""
        assert self.vectors is not None
        if buffer in self.vectors.expanded:
            return None if self.varies(offset) else 1
        return self.dependence.stride(offset, self.vectors.var, self.vectors.lanes, self.vectors.varying)

    def _vector_load(self, value: Load, copy: int) -> str:
        assert self.vectors is not None
        lanes, buffer, offset = self.vectors.lanes, value.buffer, value.indices[0]
        if value in self.vectors.tiles:
            return self.vectors.tiles[value]
        self.prepare(offset, copy)
        stride = self.stride(buffer, offset)
        suffix, mask = ("_if", f"{self.mask}, ") if self.mask else ("", "")
        if stride is None:
            return self._arranged(buffer, offset, copy) or self._gather(buffer, offset, copy, suffix, mask)
        address = self.address(buffer, offset, copy)
        if stride == 0:
            return self._splat(f"get({address})", value.dtype)
        if stride == 1:
            return f"load{suffix}<{lanes}>({mask}{address})"
        if value in self.vectors.columns and not mask:
            column = self.vectors.columns[value]
            self.prepare(column.first, copy)
            kept = f"{lanes}, {self.at(stride, copy).removesuffix('ll')}, {column.place}, {column.span}"
            return f"column<{kept}>({self.address(buffer, column.first, copy)})"
        return f"strided{suffix}<{lanes}>({mask}{address}, {self.at(stride, copy)})"

    def _arranged(self, buffer: str, offset: Any, copy: int) -> str:
        """A few elements in an order that all vectors share; empty if lanes do not read such."""
        assert self.vectors is not None
        offsets = self._lane_offsets(offset)
        many = 0 if self.mask or buffer in self.vectors.expanded else span(offsets)
        if not many or offsets is None:
            return ""
        first = of_first_lane(offset, self.vectors.var, self.vectors.lanes)
        return f"arranged<{many}, {', '.join(map(str, offsets))}>({self.address(buffer, first, copy)})"

    def _lane_offsets(self, number: Any) -> tuple[int, ...] | None:
        assert self.vectors is not None
        return lane_offsets(number, self.vectors.var, self.vectors.lanes, self.dependence, self.vectors.varying)

    def _gather(self, buffer: str, offset: Any, copy: int, suffix: str, mask: str) -> str:
        """Gather elements; whole vectors are read and selected from if the places turn out to be near each other."""
        assert self.vectors is not None
        lanes, pointer, span = self.vectors.lanes, self.names.buffers[buffer], self.names.spans.get(buffer)
        own, whole = self._own(offset), buffer not in self.vectors.expanded  # else lanes have elements of their own
        few = whole and isinstance(span, int) and 1 < span <= 2 * lanes
        if few and own == offset and _is_loaded(own) and fits_short(own):
            return f"looked_up<{span}, {lanes}>({pointer}, {self.short_offsets(own, copy)})"
        near = span is not None and fits_short(own) and self._is_regular(own) and self._is_near(own)
        if buffer in self.vectors.expanded or not near:
            return f"gather{suffix}<{lanes}>({mask}{pointer}, {self.offsets(offset, copy, buffer)})"
        at = self.short_offsets(own, copy)
        shared = self.at(sub(offset, own))
        key = (own, "near", copy, self.mask)
        found = self.writer.find(key)
        if found is None:
            found = self.writer.define(f"Near<{lanes}>", f"near{suffix}<{lanes}>({mask}{at})", key)
        return f"pick({found}, {pointer} + {shared}, {self.at(span)} - {shared})"

    def _own(self, number: Any) -> Any:
        """The terms of an index that differ from lane to lane."""
        varying = {monomial: c for monomial, c in terms(number) if self.varies(from_terms({monomial: 1}))}
        return from_terms(varying)

    def _is_regular(self, number: Any) -> bool:
        """Whether an index depends on positions and constants only, not on inputs."""
        loaded = (atom.value for atom in atoms(number) if isinstance(atom, Loaded))
        return all(value.buffer in self.names.tables for value in walk(loaded) if isinstance(value, Load))

    def _is_near(self, number: Any) -> bool:
        """Whether the lanes of at least half of the vectors lie within two vectors, with other variables at 0."""
        assert self.vectors is not None
        var, lanes = self.vectors.var, self.vectors.lanes
        if any(isinstance(atom, Loaded) for atom in atoms(number)) or not isinstance(var.extent, int):
            return True  # a table that the kernel reads
        spread = []
        for first in range(0, var.extent, max(lanes, var.extent // _SAMPLES // lanes * lanes)):
            lane = range(first, min(first + lanes, var.extent))
            places = [evaluate(number, _at(var, i)) for i in lane]
            spread.append(max(places) - min(places) < 2 * lanes)
        return 2 * sum(spread) >= len(spread)

    def _vector_number(self, value: Number, copy: int) -> str:
        assert self.vectors is not None
        self.prepare(value.index, copy)
        kind, scalar = self.vector_type(value.dtype), scalar_type(value.dtype)
        stride = self.stride("", value.index)
        offsets = None if stride is not None or value.dtype.is_floating_point else self._lane_offsets(value.index)
        if offsets is not None:
            first = self.at(of_first_lane(value.index, self.vectors.var, self.vectors.lanes), copy)
            return f"(splat<{kind}>(({scalar}){first}) + {kind}{{{', '.join(map(str, offsets))}}})"
        if stride is None and fits_short(value.index):
            return f"convert<{kind}>({self.short_offsets(value.index, copy)})"
        if stride is None:
            return f"convert<{kind}>({self.offsets(value.index, copy)})"
        return f"ramp<{kind}>(({scalar}){self.at(value.index, copy)}, ({scalar}){self.at(stride, copy)})"

    def _check_divisor(self, value: Op, args: list[str], vector: bool) -> None:
        if value.name not in DIVISIONS or value.dtype.is_floating_point:
            return
        divisor = value.args[1]
        if isinstance(divisor, Const) and divisor.number != 0:
            return
        zero = f"{args[1]} == 0"
        if vector:
            zero = f"any({f'{self.mask} & ' if self.mask else ''}mask({zero}))"
        self.writer.line(f"if (__builtin_expect({zero}, 0)) FAIL(2, 0, 0);")
        if vector and self.mask:
            args[1] = f"sel({self.mask}, {args[1]}, {args[1]} * 0 + 1)"

    # -- guards ---------------------------------------------------------------------------------------------------

    def _guarded_scalar(self, value: Guarded) -> str:
        condition, made = self.get(value.condition), self.writer.fresh()
        self.writer.line(f"{scalar_type(value.dtype)} {made};")
        with self.writer.block(f"if ({condition})"):
            self.writer.line(f"{made} = {self.get(value.value)};")
        with self.writer.block("else"):
            self.writer.line(f"{made} = {self.get(value.other)};")
        return made

    def _guarded_vector(self, value: Guarded, copy: int) -> str:
        if self.varies(value.condition) and not any(may_fail(v) for v in walk([value.value, value.other])):
            parts = [self.vector(part, copy) for part in (value.condition, value.value, value.other)]
            return f"sel({', '.join(parts)})"
        made, kind = self.writer.fresh(), self.vector_type(value.dtype)
        self.writer.line(f"{kind} {made} = {{}};")
        condition = self.get(value.condition, copy)
        if not self.varies(value.condition):
            for test, part in ((condition, value.value), (f"!{condition}", value.other)):
                with self.writer.block(f"if ({test})"):
                    self.writer.line(f"{made} = {self.vector(part, copy)};")
            return made
        for test, part in ((condition, value.value), (f"~{condition}", value.other)):
            if isinstance(part, Const):
                self.writer.line(f"{made} = sel({test}, {self.vector(part, copy)}, {made});")
                continue
            mask = self.writer.define(self.vector_type(torch.bool), f"{test} & {self.mask}" if self.mask else test)
            with self.writer.block(f"if (any({mask}))"), self.masked(mask):
                self.writer.line(f"{made} = sel({mask}, {self.vector(part, copy)}, {made});")
        return made


def _is_loaded(number: Any) -> bool:
    """Whether an index is a place that data say, and nothing else."""
    return isinstance(number, Index) and any(isinstance(a, Loaded) and a.index() == number for a in atoms(number))


def _unwidened(value: Value) -> Value:
    """An index that fits in 32 bits, in these."""
    source = value.args[0] if isinstance(value, Op) and value.name == "cast" else value
    if value.dtype != torch.int64 or source.dtype not in (torch.uint8, torch.int8, torch.int16, torch.int32):
        return value
    return source if source.dtype == torch.int32 else Op("cast", (source,), torch.int32)


def may_fail(value: Value) -> bool:
    """Whether the computation of an unused value could fail or take long."""
    if isinstance(value, Load):
        return True
    if isinstance(value, Number):
        return bool(index_values(value.index))
    return isinstance(value, Op) and (value.name in DIVISIONS or OPS[value.name].costly)


def _at(var: Var, place: int) -> Callable[[Any], int]:
    """The values of atoms in one iteration of a loop; all other variables are 0."""
    return lambda atom: place if atom is var else 0


def depends_on(dependence: Dependence, sources: Sources) -> Any:
    """A test for keys of named expressions: whether the expression depends on `sources`."""
    return lambda key: bool(dependence.of(key[0]) & sources)


__all__ = ["CppNames", "CppValues", "Vectors", "depends_on", "may_fail"]

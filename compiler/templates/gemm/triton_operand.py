"""Operands of the product's Triton kernel that are computed as they are read.

before the steps:    loads that are the same in all of them: scales of columns, factors of rows
in each step:        b = (w[k, j].to(float32) * scale[j]).to(bfloat16), 0 beyond the depth
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

import torch

from ...codegen.flatten import flatten_value
from ...codegen.triton.dtypes import type_name
from ...codegen.triton.values import TileAxis
from ...ir.index import index as ix
from ...ir.index.index import Index, Var
from ...ir.value import Const, Guarded, Load, Op, Value, walk
from ...schedule.fast_math import fast_values
from .description import Matrix, Prologue
from .triton_bytes import as_bytes
from .triton_text import ProductText
from .triton_tiles import GemmTile

_MOST = 127  # of int8
_BFLOAT16 = 256  # up to which it holds all whole numbers
_RANGES = {torch.int8: (-128, 127), torch.uint8: (0, 255)}


class LoadedOperand:
    """An operand that is loaded as it is.

    Args:
        text: the launch that is being written.
        name: ``"a"``, ``"b"``, or ``"c"`` for the other right operand.
        matrix: where it lies.
        tile: sizes of the operand's tile.
        first: places along the depth in the first step, as text.
        policy: further arguments of its loads, as text.
    """

    def __init__(
        self, text: ProductText, name: str, matrix: Matrix, tile: GemmTile, first: str, policy: str = ""
    ) -> None:
        self._text, self._name, self._matrix, self._first, self._depth = text, name, matrix, first, tile.depth
        self._policy = policy
        self._mask = text.row_mask(tile.rows) if name == "a" else text.column_mask(tile.columns)

    def ahead(self) -> None:
        """Write pointers to the tile of the first step."""
        x, name = self._matrix, self._name
        begin = base(self._text, x)
        if name == "a":
            self._text.line(f"a_at = {begin} + i * {x.row} + {self._first}[None, :] * {x.column}")
        else:
            self._text.line(f"{name}_at = {begin} + {self._first}[:, None] * {x.row} + j * {x.column}")

    def load(self) -> None:
        """Write the operand's tile of a step."""
        turned = "[None, :]" if self._name == "a" else "[:, None]"
        masks = [f"inside{turned}"] if self._text.product.depth % self._depth else []
        masks += [self._mask] if self._mask is not None else []
        where = f", mask={' & '.join(masks)}, other=0.0" if masks else ""
        self._text.line(f"{self._name} = tl.load({self._name}_at{where}{self._policy})")

    def advance(self) -> None:
        """Write where the next step's tile lies."""
        stride = self._matrix.column if self._name == "a" else self._matrix.row
        self._text.line(f"{self._name}_at += {self._depth * stride}")


def base(text: ProductText, x: Matrix) -> str:
    """The start of the matrix of the program's batch."""
    name = text.values.names.buffers[x.buffer.name]
    return f"{name} + g * {x.batch}" if text.product.batch.extent > 1 and x.batch else name


class ComputedOperand:
    """An operand with a prologue.

    Args:
        text: the launch that is being written; `axes` are the tile's.
        name: ``"a"``, ``"b"``, or ``"c"`` for the other right operand.
        prologue: its formula.
        tile: sizes of the operand's tile.
    """

    def __init__(self, text: ProductText, name: str, prologue: Prologue, tile: GemmTile) -> None:
        assert text.product.step is not None
        self._text, self._name, self._prologue, self._depth = text, name, prologue, tile.depth
        self._step: Var = text.product.step
        (value,) = fast_values([(prologue.value, prologue.dtype)])
        self._value = flatten_value(value, text.product.reads)
        self._outer = text.values.rows if name == "a" else text.values.columns
        self._shape = f"[{tile.rows}, {tile.depth}]" if name == "a" else f"[{tile.depth}, {tile.columns}]"
        self._turned = "[None, :]" if name == "a" else "[:, None]"

    def ahead(self) -> None:
        """Write the loads that do not depend on the step."""
        parts = list(walk([self._value]))
        if any(isinstance(part, Guarded) for part in parts):  # what is not chosen may lie outside
            return
        self._set_axes(None)
        for part in parts:
            if isinstance(part, Load) and self._step not in self._text.values.dependence.of(part):
                self._text.values.get(part)
            for chosen in _read_indices(part):
                if self._step not in self._text.values.dependence.of(chosen):
                    self._text.values.at(chosen)

    def ask(self) -> dict[Value, str]:
        """Write the loads of the step that begins at `start`, for `load` later; gives what holds them."""
        if any(isinstance(part, Guarded) for part in walk([self._value])):
            return {}
        text = self._text
        self._place()
        with text.writer.apart():
            found = [part for part in walk([self._value]) if isinstance(part, Load)]
            return {part: text.values.get(part) for part in found if self._step in text.values.dependence.of(part)}

    def load(self, asked: Mapping[Value, str] | None = None) -> None:
        """Write the operand's tile of the step that begins at `start`, given what holds what was asked for."""
        text = self._text
        cut = self._place()
        with text.writer.apart():
            for part, name in (asked or {}).items():
                text.writer.name(part, name)
            self._bytes_to_floats()
            made = self._whole(self._value)
        if cut:
            made = f"tl.where({cut}, {made}, 0.0)"
        exact = text.multiplies_float32 and (self._is_as_loaded() or _is_exact(self._value))
        text.line(f"{self._name} = {made}" + ("" if exact else f".to({type_name(self._prologue.dtype)})"))

    def _is_as_loaded(self) -> bool:
        """Whether elements are what memory holds: chosen, not computed."""
        held = {b.name: b.dtype for b in self._prologue.buffers}
        return isinstance(self._value, Load) and held[self._value.buffer] == self._prologue.dtype

    def _place(self) -> str:
        """Write the places of the step that begins at `start`; gives which are inside, "" where all are."""
        text, place = self._text, f"{self._name}_k"
        text.line(f"{place} = (start + k){self._turned}")
        cut = f"{place}_inside" if text.product.depth % self._depth else ""
        if cut:
            text.line(f"{cut} = {place} < {text.product.depth}")
        text.values.names.variables[self._step] = place
        self._set_axes(TileAxis(frozenset({self._step}), str(self._depth), cut or None))
        return cut

    def advance(self) -> None:
        """Nothing: places are computed from where the step begins."""

    def _bytes_to_floats(self) -> None:
        """Have bytes become float32 in other ways than by a GPU's conversions, which take turns.

        For tensor cores by way of bfloat16, which holds them all.
        """
        for part in walk([self._value]):
            found = as_bytes(part) if self._text.multiplies_float32 else None
            if found is not None:
                self._text.writer.define("", found.text(self._text.values.get(found.loaded)), part)
            elif _is_cast_byte(part):
                loaded = self._text.values.get(part.args[0])
                signed = "" if part.args[0].dtype == torch.int8 else ".to(tl.int8)"
                made = f"{loaded}{signed}.to(tl.float32).to(tl.bfloat16).to(tl.float32)"
                self._text.writer.define("", made, part)

    def _set_axes(self, step: TileAxis | None) -> None:
        values = self._text.values
        values.rows, values.columns = (self._outer, step) if self._name == "a" else (step, self._outer)

    def _whole(self, value: Value) -> str:
        made = self._text.values.get(value)
        return made if self._text.values.is_whole(value) else f"tl.broadcast_to({made}, {self._shape})"


def _read_indices(value: Value) -> list[Index]:
    """The indices of a load that are read from memory."""
    indices = value.indices if isinstance(value, Load) else ()
    found = [atom for n in indices if isinstance(n, Index) for atom in ix.atoms(n) if isinstance(atom, ix.Loaded)]
    return [made for atom in found if isinstance(made := atom.index(), Index)]


def _is_exact(value: Value) -> bool:
    """Whether 16-bit floats hold a value as it is: a whole number of no more than 8 bits."""
    found = _whole_numbers(value)
    return found is not None and -_BFLOAT16 <= found[0] <= found[1] <= _BFLOAT16


def _whole_numbers(value: Value) -> tuple[int, int] | None:
    """Between which whole numbers a value lies, None where it may be no such number."""
    if isinstance(value, Load):
        return _RANGES.get(value.dtype)
    if isinstance(value, Const):
        whole = float(value.number).is_integer() if isinstance(value.number, (int, float)) else False
        return (int(value.number), int(value.number)) if whole else None
    if not isinstance(value, Op):
        return None
    parts = [_whole_numbers(part) for part in value.args]
    if value.name == "cast" and value.dtype.is_floating_point:
        return parts[0]
    if len(parts) != 2 or parts[0] is None or parts[1] is None:
        return None
    (low, high), (least, most) = parts[0], parts[1]
    if value.dtype == torch.uint8:
        bits = {"bitwise_and": (0, most), "rshift": (0, high >> least)} if least == most and least >= 0 else {}
        return bits.get(value.name)
    signed = {"sub": (low - most, high - least), "add": (low + least, high + most)}
    return signed.get(value.name) if value.dtype.is_floating_point else None


def _is_cast_byte(value: Value) -> TypeGuard[Op]:
    """Whether a value is such a byte as float32."""
    return isinstance(value, Op) and value.name == "cast" and value.dtype == torch.float32 and _is_byte(value.args[0])


def _is_byte(value: Value) -> bool:
    """Whether a value is a byte that int8 holds: such a one itself, or some bits of one without a sign."""
    if isinstance(value, Op) and value.dtype == torch.uint8 and isinstance(value.args[-1], Const):
        least = {"bitwise_and": value.args[-1].number <= _MOST, "rshift": value.args[-1].number >= 1}
        return bool(least.get(value.name, False))
    return isinstance(value, Load) and value.dtype == torch.int8

"""Operands of the product's Triton kernel that are computed as they are read.

before the steps:    loads that are the same in all of them: scales of columns, factors of rows
in each step:        b = (w[k, j].to(float32) * scale[j]).to(bfloat16), 0 beyond the depth
"""

from __future__ import annotations

from ..cpp.flatten import flatten_value
from ..ir.index import Var
from ..ir.value import Guarded, Load, Value, walk
from ..triton.dtypes import type_name
from ..triton.values import Axis
from .gemm_triton_text import ProductText
from .gemm_triton_tiles import GemmTile
from .product import Prologue


class Operand:
    """An operand with a prologue.

    Args:
        text: the launch that is being written; `axes` have been named.
        name: ``"a"`` or ``"b"``.
        prologue: its formula.
        tile: sizes of the operand's tile.
    """

    def __init__(self, text: ProductText, name: str, prologue: Prologue, tile: GemmTile) -> None:
        assert text.product.step is not None
        self._text, self._name, self._prologue, self._depth = text, name, prologue, tile.depth
        self._step: Var = text.product.step
        self._value = flatten_value(prologue.value, text.product.reads)
        self._outer = text.values.rows if name == "a" else text.values.columns
        self._shape = f"[{tile.rows}, {tile.depth}]" if name == "a" else f"[{tile.depth}, {tile.columns}]"

    def ahead(self) -> None:
        """Write the loads that do not depend on the step."""
        parts = list(walk([self._value]))
        if any(isinstance(part, Guarded) for part in parts):  # what is not chosen may lie outside
            return
        self._set_axes(None)
        for part in parts:
            if isinstance(part, Load) and self._step not in self._text.values.dependence.of(part):
                self._text.values.get(part)

    def write(self) -> None:
        """Write the operand's tile of the step that begins at `start`."""
        text, values = self._text, self._text.values
        place = f"{self._name}_k"
        turned = "[None, :]" if self._name == "a" else "[:, None]"
        text.line(f"{place} = (start + k){turned}")
        cut = text.product.depth % self._depth != 0
        if cut:
            text.line(f"{place}_inside = {place} < {text.product.depth}")
        values.names.variables[self._step] = place
        self._set_axes(Axis(frozenset({self._step}), str(self._depth), f"{place}_inside" if cut else None))
        with text.writer.apart():
            made = self._whole(self._value)
        if cut:
            made = f"tl.where({place}_inside, {made}, 0.0)"
        text.line(f"{self._name} = {made}.to({type_name(self._prologue.dtype)})")

    def _set_axes(self, step: Axis | None) -> None:
        values = self._text.values
        values.rows, values.columns = (self._outer, step) if self._name == "a" else (step, self._outer)

    def _whole(self, value: Value) -> str:
        made = self._text.values.get(value)
        return made if self._text.values.is_whole(value) else f"tl.broadcast_to({made}, {self._shape})"

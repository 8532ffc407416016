"""Products of a few rows with weights of bytes: each lane has its own, and tensor cores multiply them.

    a lane's four bytes of a column     ->   four 16-bit floats, two at a time           (see `gemm.triton_bytes`)
    four lanes' sixteen                 ->   one line of the left operand of an instruction (m16n8k16)
    what they hold of the activations   ->   the column of the right operand with the same number
    the diagonal of 8 x 8 results       ->   the sums of eight times four lanes, each of its own places

The rest of the results is thrown away: tensor cores have the time. Lanes have not, where they turn each byte into a
float32, multiply and add (see `gemm.triton_lanes`). Nothing moves between lanes until the sums of all do, products are
exact, and sums are float32. Which products and tiles are of the kind: see `gemm.fits_cores`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...ir.value import Value
from .description import Prologue
from .triton_bytes import Bytes, as_bytes
from .triton_lanes import HIGH, LanesTriton
from .triton_operand import ComputedOperand, LoadedOperand
from .triton_text import ProductText
from .triton_tiles import GemmTile


class CoresTriton(LanesTriton):
    """Writes the first launch of a tile with `GemmTile.cores`."""

    def _weights(self, first: str) -> dict[str, LoadedOperand | ComputedOperand]:  # noqa: ARG002
        product = self.product
        given = {"b": product.right, "c": product.also}
        given |= {HIGH[name]: made for name, made in self._high.items()}
        bytes_read = {name: as_bytes(made.value) for name, made in given.items() if made is not None}
        self._bytes: dict[str, Bytes] = {name: made for name, made in bytes_read.items() if made is not None}
        return {name: _Bytes(self, name, made, self.tile) for name, made in given.items() if made is not None}

    def _add(self, rows: Sequence[Any], weights: list[str]) -> None:
        for row in rows:
            row.load()
            totals = {"b": f"total{row.row}", "c": f"others{row.row}"}
            for places, names in zip(row.names, (tuple(totals), tuple(HIGH.values())), strict=False):
                self.line(f"turned = every_other({places})")
                for name, total in zip(names, totals.values(), strict=True):
                    if name in weights:
                        self.line(f'{total} = add_products_of_bytes({total}, turned, {name}, "{self._multiply(name)}")')
            row.advance()

    def _multiply(self, name: str) -> str:
        """Assembly: the bytes as floats, times those of the row."""
        floats = self._bytes[name].pairs(self.product.dtype, "$6")
        kind = "f16" if self.product.dtype == torch.float16 else "bf16"
        return (
            f"{{ .reg .b32 zero; mov.b32 zero, 0; {floats} "
            f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{$0, $1, $2, $3}}, "
            "{even, zero, odd, zero}, {$4, $5}, {$7, $8, $9, $10}; }"
        )

    def _gather(self, name: str, total: str) -> None:
        for row in self._rows_there:
            self.line(f"{total}{row} = own_sums({total}{row})")
        super()._gather(name, total)


class _Bytes(ComputedOperand):
    """A right operand's bytes, as they are; beyond the depth any, where the activations are 0."""

    def __init__(self, text: ProductText, name: str, prologue: Prologue, tile: GemmTile) -> None:
        super().__init__(text, name, prologue, tile)
        found = as_bytes(self._value)
        assert found is not None
        self._value = found.loaded

    def load(self, asked: Mapping[Value, str] | None = None) -> None:
        """Write the bytes of the step that begins at `start`, given what holds those that were asked for."""
        self._place()
        with self._text.writer.apart():
            for part, name in (asked or {}).items():
                self._text.writer.name(part, name)
            made = self._whole(self._value)
        self._text.line(f"{self._name} = {made}")

"""The attention kernel: from a description to Triton.

    program of one lead iteration and block of queries i:
        load q
        for each block of keys j from `onset` to `horizon`:
            s = q k^T                                         tensor cores, float32 sums
            x = f(s)                                          written by `triton.values`: rows i, columns j
            p = exp(x - row maximum), row sums                rescaling what earlier blocks came to
            p = 0 where weights are dropped                   the sums are of all
            acc = acc * rescale + p v                         tensor cores, p in v's dtype
        out = acc / row sum * kept

Scores are float32 and never leave registers. NaN and infinities of q, k and `f` spread as in eager, and rows without a
finite score give NaN, or 0 in the safe variant. Blocks of keys that `f` hides from all rows of a program (see
`mask_bounds`) are not read: infinities and NaN of v spread from the others only, as in PyTorch's fused attention.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...codegen.triton import KernelSource
from ...codegen.triton.dtypes import type_name
from ...codegen.triton.source import module_text
from ...ir.program import Buffer
from ...ir.value import Value
from .description import Attention
from .mask_bounds import Limit, inside
from .score import LOG2_E
from .triton_text import AttentionText, both, check_operands, contiguous, rows_of
from .triton_tiles import Tile, programs, tiles

STATISTICS = "statistics"


def attention_triton(
    attention: Attention, tile: Tile | None = None, *, statistics: bool = False, precision: str = "ieee"
) -> KernelSource:
    """The kernel's source; equal attentions have the same, whatever their buffers are called.

    Args:
        attention: what to compute; the devices of its buffers are not looked at.
        tile: one of `attention.triton_tiles.tiles`; None is the first of them.
        statistics: whether to write maxima and sums of rows too, for a backward pass: see `statistics_buffer`.
        precision: of float32 products: ``"ieee"``, or ``"tf32"`` where the user allows that.

    Raises:
        UnsupportedDtypeError: `f` computes with a dtype that Triton has no type for.
        UnsupportedAttentionError: operands of other dtypes than `OPERANDS`.
    """
    check_operands(attention)
    tile = tile or tiles(attention)[0]
    more = [attention.out.buffer, *([statistics_buffer(attention)] if statistics else [])]
    launch = WholeForward(attention, tile, more, precision).launch("attention")
    return KernelSource(module_text([launch.text]), (launch,))


def statistics_buffer(attention: Attention) -> Buffer:
    """Memory for each row's largest score (over ln 2, see `in_powers_of_two`) and its sum of exp(score - largest).

    Float32 of (2, lead loops, queries), contiguous. Their logsumexp alone would not do: next to a mask of -1e9 or the
    lowest float, a float has no room for the logarithm of a sum.
    """
    sizes = (2, *(var.extent for var in (*attention.lead, attention.row)))
    return contiguous(STATISTICS, torch.float32, sizes, attention.out.buffer.device)


class ByQueries(AttentionText):
    """A kernel whose programs have a block of queries each, and go through the keys."""

    def _has_one_block(self) -> bool:
        return self._first is None and self._last is None and self._a.key.extent <= self._t.keys

    def _queries(self) -> None:
        """Begin a program: of causal ones those with most keys first."""
        rows, block = self._a.row.extent, self._t.queries
        self._program(-(-rows // block), block, self._last is not None)
        self._line(f"i = first + tl.arange(0, {block})[:, None]")
        self._values.rows = self._axis("i", self._a.row, rows, block)
        self._row_mask = self._values.rows.mask
        heads = (("q", self._a.q), ("k", self._a.k), ("v", self._a.v))
        self._line(*(f"{name}_head = {self._head(x)}" for name, x in heads))
        self._load("q", self._a.q, "i", self._row_mask, "d")

    def _sinks(self) -> None:
        """The sink's score, in the units of maxima."""
        assert self._sink is not None
        scale = "" if self._log2_base != 1.0 else f" * {LOG2_E}"
        self._line(f"sink = tl.broadcast_to({self._values.get(self._sink)}, [{self._t.queries}, 1]){scale}")

    def _keys(self, step: Callable[[str | None], None]) -> None:
        """The loops over blocks of keys: what limits hide is left out, what they see wholly comes first.

        Args:
            step: writes one block, given the condition that keys are there.
        """
        self._hoisted(self._a.key)
        extent, block = self._a.key.extent, self._t.keys
        begin, end = "0", f"{extent}"
        if self._first is not None:
            self._line(f"begin = tl.maximum({self._at_row(self._first, 'first')}, 0) // {block} * {block}")
            begin = "begin"
        if self._last is not None:
            self._line(f"last = tl.minimum(first + {self._t.queries}, {self._a.row.extent}) - 1")
            self._line(f"end = tl.minimum({self._at_row(self._last, 'last')}, {extent})")
            self._line(f"whole = tl.minimum({self._at_row(self._last, 'first')}, {extent})")
            self._line(f"whole = tl.maximum(whole // {block} * {block}, {begin})")
            with self._w.block(f"for start in range({begin}, whole, {block})"):
                self._block(inside(self._score, self._last), extent // block * block, step)
            begin, end = "whole", "end"
        with self._w.block(f"for start in range({begin}, {end}, {block})"):
            self._block(self._score, extent, step)

    def _block(self, score: Value, extent: int, step: Callable[[str | None], None]) -> None:
        """One block of keys, of which the first `extent` are there, and its products."""
        self._line(f"at = start + tl.arange(0, {self._t.keys}){self._long}", "j = at[None, :]")
        columns = self._values.columns = self._axis("j", self._a.key, extent, self._t.keys)
        there = None
        if columns.mask is not None:
            there = "at_inside"
            self._line(f"{there} = (at < {extent})[:, None]")
        self._load("k", self._a.k, "at[:, None]", there, "d")
        self._product("s", "q", "k", self._depth)
        self._w.name(self._raw, "s")
        x = self._whole(score)
        self._line(f"x = {x}" if columns.mask is None else f'x = tl.where({columns.mask}, {x}, float("-inf"))')
        step(there)
        self._values.columns = None

    def _at_row(self, limit: Limit, name: str) -> str:
        """The limit at one row, a scalar."""
        variables = self._values.names.variables
        held, variables[self._a.row] = variables[self._a.row], name
        text = self._values.at(limit.index)
        variables[self._a.row] = held
        return text


class WholeForward(ByQueries):
    """All keys in one program."""

    def _write(self) -> int:
        self._queries()
        self._start()
        self._keys(self._step)
        self._finish()
        return programs(self._t, self._a)

    def _start(self) -> None:
        """Maxima, sums and results before any key: those of the sink, where there is one; and what all keys share."""
        rows = self._t.queries
        if self._sink is None:
            self._line(f'top = tl.full([{rows}], float("-inf"), tl.float32)')
            self._line(f"total = tl.zeros([{rows}], tl.float32)")
        else:
            self._sinks()
            self._line(f"top = tl.reshape(sink, [{rows}])")
            self._line('total = tl.where(top == float("-inf"), 0.0, tl.exp(top - top))')
        for number, (_, size) in enumerate(self._width):
            self._line(f"acc{number} = tl.zeros([{rows}, {size}], tl.float32)")

    def _step(self, there: str | None) -> None:
        step, number = ("softmax_step", self._log2_base)
        if self._factor != 1.0:
            step, number = ("scaled_softmax_step", self._factor)
        self._line(f"p, top, total, rescale = {step}(x, top, total, {number})")
        self._kept("p", "p")
        self._load("v", self._a.v, "at[:, None]", there, "e")
        for number, _ in enumerate(self._width):
            weights = f"p.to({type_name(self._a.v.buffer.dtype)})"
            self._line(f"acc{number} = {self._dot(weights, f'v{number}', f'acc{number} * rescale[:, None]')}")

    def _finish(self) -> None:
        x = self._a.out
        self._line(f"share = {self._a.kept} / total[:, None]")
        if self._a.safe:
            self._line("share = tl.where(total[:, None] == 0.0, 0.0, share)")
        self._line(f"out_head = {self._head(x, self._more[0])}")
        for number, mask in enumerate(self._width_masks):
            result = f"acc{number} * share"
            conditions = both(self._row_mask, mask)
            where = f", mask={conditions}" if conditions else ""
            place = f"out_head + i * {x.row} + e{number} * {x.column}"
            self._line(f"tl.store({place}, ({result}).to({type_name(x.buffer.dtype)}){where})")
        if len(self._more) > 1:
            where = f", mask={self._row_mask}" if self._row_mask else ""
            place = f"{self._more[1]} + lead * {self._a.row.extent} + i"
            self._line(f"tl.store({place}, top[:, None]{where})")
            self._line(f"tl.store({place} + {rows_of(self._a)}, total[:, None]{where})")

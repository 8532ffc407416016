"""The backward pass of the attention kernel: scores are computed again, block by block, from row maxima and sums.

    p = exp(f(s) - maximum) / sum;   delta = row sums of out * dout;   ds = p * (dout v^T - delta) * f'(s)

    programs by queries:   delta, and dq = sum over blocks of keys of ds k
    programs by keys:      dv = sum over blocks of queries of p^T dout,   dk = the same of ds^T q

The first launch writes what the second needs of a row: delta, and `shift` and `share` of p = 2^(f(s) + shift + share):
minus the maximum, and minus the logarithm of the sum. The shift is both if scores are level (see `is_level`) and
operands have 16 bits.

`keep` is drawn again if weights are dropped: p is `kept` times as large, delta over `kept`, and

    ds = p * (keep * dout v^T - delta) * f'(s);     dv = sum of (keep * p)^T dout

The gradients of q, k and v have a matrix for each lead iteration: where heads or batches share one (repeated KV heads,
expanded batches), the caller adds up, as the backward of `expand` does. What `f` loads gets no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...codegen.triton import KernelSource
from ...codegen.triton.dtypes import bare_literal, type_name
from ...codegen.triton.source import module_text
from ...ir.index.index import from_terms, terms
from ...ir.program import Buffer
from ...ir.value import Value
from .description import Attention, Operand
from .gradient import ONE, NoDerivativeError, apart, derivative, is_finite
from .gradient_layout import SCORES, SINKS, AttentionGradients, Places
from .mask_bounds import Limit, inside
from .mask_fill import may_hide_rows
from .score import is_level, lean
from .triton_forward import ByQueries, statistics_buffer
from .triton_text import (
    AttentionText,
    UnsupportedAttentionError,
    both,
    check_operands,
    contiguous,
    rows_of,
)
from .triton_tiles import Tile, backward_tiles, turned

DELTA = "delta"
_PLACES = Places()
_NOTHING = 'float("-inf")'


@dataclass(frozen=True)
class Backward:
    """A backward pass.

    Args:
        source: two launches; their parameters are `Attention.reads`, then those named below.
        gradient: of the result; read, like the result and `statistics_buffer`.
        delta: memory that the first launch writes for the second.
        results: gradients of q, k and v: where `Places` says.
        scores: that of `f`'s values, and so of a bias that is added last; None where nobody asked.
        partial: whether keys are left out, for which no scores are written: they must hold zeros.
        sinks: that of the sink's values: (lead loops, queries), contiguous, float32; None where nobody asked.
    """

    source: KernelSource
    gradient: Buffer
    delta: Buffer
    results: tuple[Buffer, Buffer, Buffer]
    scores: Buffer | None = None
    partial: bool = False
    sinks: Buffer | None = None


def attention_backward(
    attention: Attention,
    tile: Tile | None = None,
    *,
    scores: bool = False,
    sinks: bool = False,
    places: Places = _PLACES,
    precision: str = "ieee",
    by_keys: Tile | None = None,
) -> Backward:
    """The kernels of an attention's backward pass.

    Args:
        attention: what the forward pass computed, with statistics.
        tile: one of `attention.triton_tiles.backward_tiles`; None is the first of them.
        scores: whether to write the gradient of `f`'s values too, for that of a bias.
        sinks: whether to write the gradient of the sink's values too.
        places: where gradients are read and written.
        precision: of float32 products: ``"ieee"``, or ``"tf32"`` where the user allows that.
        by_keys: of the second launch; None is `tile` turned round.

    Raises:
        UnsupportedDtypeError: `f` computes with a dtype that Triton has no type for.
        UnsupportedAttentionError: operands of other dtypes than the kernels take, or a score function without a
            derivative.
        ValueError: the gradient of a sink where there is none.
    """
    check_operands(attention)
    if sinks and attention.sink is None:
        raise ValueError("the attention has no sink")
    tile = tile or backward_tiles(attention)[0]
    made, delta = AttentionGradients(attention, places, scores=scores, sinks=sinks), _delta(attention)
    read = [attention.out.buffer, made.out.buffer, statistics_buffer(attention)]
    first = _Queries(attention, tile, [*read, delta, *made.by_queries], precision, made)
    by_keys = by_keys or turned(tile, attention)
    second = _Keys(attention, by_keys, [made.out.buffer, delta, *made.by_keys], precision, made)
    launches = (first.launch("attention_queries"), second.launch("attention_keys"))
    source = KernelSource(module_text([launch.text for launch in launches]), launches)
    results = (made.q.buffer, made.k.buffer, made.v.buffer)
    found = None if made.scores is None else made.scores.buffer
    return Backward(source, made.out.buffer, delta, results, found, first.leaves_out, made.sinks)


def _delta(attention: Attention) -> Buffer:
    """The numbers of a row that the second launch reads, up to three: see above."""
    return contiguous(DELTA, torch.float32, (3, *statistics_buffer(attention).sizes[1:]), attention.out.buffer.device)


class _Backward(AttentionText):
    """The code for a block of scores that both kernels share."""

    def __init__(
        self,
        attention: Attention,
        tile: Tile,
        more: Sequence[Buffer],
        precision: str,
        made: AttentionGradients,
    ) -> None:
        super().__init__(attention, tile, more, precision)
        self._made = made
        try:
            self._slope, self._scale = apart(lean(derivative(self._plain)))
        except NoDerivativeError as error:
            raise UnsupportedAttentionError(f"no backward pass: {error}") from error
        self._level = attention.q.buffer.dtype.itemsize == 2 and is_level(self._score)
        self._hides_rows = may_hide_rows(self._plain, attention.row, attention.key)

    def _pointer(self, name: str) -> str:
        """The parameter that is a buffer of the kernel's own."""
        names = [buffer.name for buffer in self._buffers]
        return self._arguments[names.index(name, len(self._a.reads))]

    def _of_rows(self, name: str, number: int = 0) -> str:
        """Pointers to number `number` of rows `i`."""
        after = f" + {number * rows_of(self._a)}" if number else ""
        return f"{self._pointer(name)} + lead * {self._a.row.extent} + i{after}"

    @property
    def _numbers(self) -> tuple[tuple[str, float], ...]:
        """What is known of a row: names, and what they are in rows that are not there, so that their weights are 0."""
        found = (("delta", 0.0), ("shift", float("-inf")), ("share", float("-inf")))
        return found[:2] if self._level else found

    def _weights(self) -> None:
        """Weights `p` and gradients of `f`'s values `ds`, from `x` and `dp`."""
        self._line(f"p = {self._power('x')}")
        self._kept("dp", "dp")
        self._line("ds = p * (dp - delta)")

    def _power(self, x: str, factor: float | None = None) -> str:
        """The weight of a score."""
        factor = self._factor if factor is None else factor
        if not self._level:
            multiple = x if factor == 1.0 else f"{x} * {factor}"
            return f"shifted_power({multiple} + shift, share, {self._log2_base})"
        if factor != 1.0:
            return f"shifted_power({x}, shift, {factor})"
        return f"libdevice.exp2(({x} + shift){'' if self._log2_base == 1.0 else f' * {self._log2_base}'})"

    def _products_gradient(self, slope: Value) -> None:
        """Gradients of the products in place of those of `f`'s values, but for a factor: see `_scaled`.

        Keys that are selected out get none, in rows that are NaN as they have no key either.
        """
        if self._hides_rows:
            self._line(f"ds = tl.where(x == {_NOTHING}, 0.0, ds)")
        if slope is ONE:
            return
        made = f"ds * {self._whole(slope)}"
        self._line(f"ds = {made}" if is_finite(slope) else f"ds = tl.where(p == 0.0, 0.0, {made})")

    @property
    def _scaled(self) -> str:
        """The factor of the gradients of q and k at the end."""
        return "" if self._scale == 1.0 else f" * {self._scale}"

    def _cast_dout(self) -> None:
        """The gradient of the result in v's dtype: it is multiplied with v and p."""
        if self._made.out.buffer.dtype != self._a.v.buffer.dtype:
            kind = type_name(self._a.v.buffer.dtype)
            self._line(*(f"dout{number} = dout{number}.to({kind})" for number, _ in enumerate(self._width)))

    def _zeros(self, name: str, rows: int, columns: list[tuple[int, int]]) -> None:
        for number, (_, size) in enumerate(columns):
            self._line(f"{name}{number} = tl.zeros([{rows}, {size}], tl.float32)")

    def _add(self, name: str, weights: str, rows: str, dtype: torch.dtype, columns: list[tuple[int, int]]) -> None:
        """``name += weights rows``, part by part."""
        for number, _ in enumerate(columns):
            made = self._dot(f"{weights}.to({type_name(dtype)})", f"{rows}{number}", f"{name}{number}")
            self._line(f"{name}{number} = {made}")

    def _store(self, name: str, x: Operand, lanes: str, mask: str | None, columns: str, factor: str = "") -> None:
        """Store a gradient, its rows at `lanes` (variable i or j)."""
        self._line(f"{name}_head = {self._head(x, self._pointer(x.buffer.name))}")
        for number, inside_ in enumerate(self._depth_masks if columns == "d" else self._width_masks):
            place = f"{name}_head + {lanes} * {x.row} + {columns}{number} * {x.column}"
            result = f"({name}{number}{factor}).to({type_name(x.buffer.dtype)})"
            self._line(f"tl.store({place}, {result}{_where(both(mask, inside_))})")


class _Queries(_Backward, ByQueries):
    def _write(self) -> int:
        self._queries()
        self._line(f"out_head = {self._head(self._a.out, self._more[0])}")
        self._line(f"dout_head = {self._head(self._made.out, self._more[1])}")
        self._load("out", self._a.out, "i", self._row_mask, "e")
        self._load("dout", self._made.out, "i", self._row_mask, "e")
        self._rows()
        self._cast_dout()
        self._zeros("dq", self._t.queries, self._depth)
        if self._made.scores is not None:
            self._line(f"ds_head = {self._head(self._made.scores, self._pointer(SCORES))}")
        self._keys(self._step)
        self._store("dq", self._made.q, "i", self._row_mask, "d", self._scaled)
        blocks = -(-self._a.row.extent // self._t.queries)
        return blocks * rows_of(self._a) // self._a.row.extent

    def _rows(self) -> None:
        """What is known of rows, for this kernel and the next one, from the statistics of the forward pass."""
        sums = (f"tl.sum(out{n}.to(tl.float32) * dout{n}.to(tl.float32), 1)" for n, _ in enumerate(self._width))
        factor = "" if self._a.kept == 1.0 else f" * {1.0 / self._a.kept}"
        self._line(f"delta = ({' + '.join(sums)})[:, None]{factor}")
        for number, (name, other) in enumerate((("top", 0.0), ("total", 1.0))):
            self._line(f"{name} = tl.load({self._of_rows('statistics', number)}{_where(self._row_mask, other)})")
        self._line('shift = tl.where(top == float("-inf"), 0.0, top * -1.0)')
        name, made = "share", f"libdevice.log2({self._a.kept} / total)"
        if self._level:
            name, made = "shift", f"shift + {made}{'' if self._log2_base == 1.0 else f' * {1.0 / self._log2_base}'}"
        self._line(f"{name} = {f'tl.where(total == 0.0, {_NOTHING}, {made})' if self._a.safe else made}")
        for number, (name, _) in enumerate(self._numbers):
            self._line(f"tl.store({self._of_rows(DELTA, number)}, {name}{_where(self._row_mask)})")
        if self._made.sinks is not None:
            self._sinks()
            gradient = f"{self._power('sink', 1.0)} * delta * -1.0"
            self._line(f"tl.store({self._of_rows(SINKS)}, {gradient}{_where(self._row_mask)})")

    @property
    def leaves_out(self) -> bool:
        """Whether there may be keys that no program looks at."""
        return self._first is not None or self._last is not None

    def _step(self, there: str | None) -> None:
        self._load("v", self._a.v, "at[:, None]", there, "e")
        self._product("dp", "dout", "v", self._width)
        self._weights()
        if self._made.scores is not None:
            self._store_scores(self._made.scores)
        self._products_gradient(self._slope)
        self._add("dq", "ds", "k", self._a.k.buffer.dtype, self._depth)

    def _store_scores(self, x: Operand) -> None:
        assert self._values.columns is not None
        where = _where(both(self._row_mask, self._values.columns.mask))
        place = f"ds_head + i * {x.row} + j * {x.column}"
        self._line(f"tl.store({place}, ds.to({type_name(x.buffer.dtype)}){where})")


class _Keys(_Backward):
    """Programs have a block of keys each, and go through the queries: rows of tiles are keys here."""

    def _has_one_block(self) -> bool:
        return self._a.row.extent <= self._t.queries

    def _write(self) -> int:
        a, block = self._a, self._t.keys
        blocks = -(-a.key.extent // block)
        self._program(blocks, block, False)
        self._line(f"j = first + tl.arange(0, {block})[:, None]")
        self._values.rows = self._axis("j", a.key, a.key.extent, block)
        self._key_mask = self._values.rows.mask
        heads = (("q", a.q, None), ("k", a.k, None), ("v", a.v, None), ("dout", self._made.out, self._more[0]))
        self._line(*(f"{name}_head = {self._head(x, pointer)}" for name, x, pointer in heads))
        self._load("k", a.k, "j", self._key_mask, "d")
        self._load("v", a.v, "j", self._key_mask, "e")
        self._zeros("dk", block, self._depth)
        self._zeros("dv", block, self._width)
        self._hoisted(a.row)
        self._queries()
        self._store("dk", self._made.k, "j", self._key_mask, "d", self._scaled)
        self._store("dv", self._made.v, "j", self._key_mask, "e")
        return blocks * rows_of(a) // a.row.extent

    def _queries(self) -> None:
        """The loops over blocks of queries: those before all keys are left out, what looks at all keys comes last."""
        rows, queries, begin, end = self._a.row.extent, self._t.queries, "0", f"{self._a.row.extent}"
        if self._first is not None and self._slope_of(self._first):
            self._line(f"last = first + {self._t.keys - 1}")
            self._line(f"end = tl.minimum(tl.maximum({self._row_at(self._first, 'last')}, 0) + 1, {rows})")
            end = "end"
        score = self._score
        if self._last is not None and self._slope_of(self._last):
            slope = self._slope_of(self._last)
            self._line(f"seen = first + {slope}", f"past = first + {self._t.keys + slope - 1}")
            self._line(f"begin = tl.maximum({self._row_at(self._last, 'seen')}, 0) // {queries} * {queries}")
            self._line(f"whole = tl.maximum({self._row_at(self._last, 'past')}, 0) + {queries - 1}")
            self._line(f"whole = tl.minimum(whole // {queries} * {queries}, {end})")
            with self._w.block(f"for start in range(begin, whole, {queries})"):
                self._step(score, self._slope)
            begin, score = "whole", inside(score, self._last)
        with self._w.block(f"for start in range({begin}, {end}, {queries})"):
            self._step(score, self._slope)

    def _slope_of(self, limit: Limit) -> int:
        return dict(terms(limit.index)).get((self._a.row,), 0)

    def _row_at(self, limit: Limit, key: str) -> str:
        """About the row (rounded towards 0) whose limit is at a key."""
        rest: Any = from_terms({m: c for m, c in terms(limit.index) if m != (self._a.row,)})
        return f"({key} - {self._values.at(rest)}) // {self._slope_of(limit)}"

    def _step(self, score: Value, slope: Value) -> None:
        a, queries = self._a, self._t.queries
        self._line(f"at = start + tl.arange(0, {queries}){self._long}", "i = at[None, :]")
        columns = self._values.columns = self._axis("i", a.row, a.row.extent, queries)
        there = None
        if columns.mask is not None:
            there = "at_inside"
            self._line(f"{there} = (at < {a.row.extent})[:, None]")
        self._load("q", a.q, "at[:, None]", there, "d")
        self._load("dout", self._made.out, "at[:, None]", there, "e")
        self._cast_dout()
        self._product("s", "k", "q", self._depth)
        self._product("dp", "v", "dout", self._width)
        for number, (name, other) in enumerate(self._numbers):
            self._line(f"{name} = tl.load({self._of_rows(DELTA, number)}{_where(columns.mask, other)})")
        self._w.name(self._raw, "s")
        x = self._whole(score)
        # Scores of keys that are not there are of no row that is stored; of queries, they may be anything but level.
        masked = columns.mask is not None and not self._level
        self._line(f'x = tl.where({columns.mask}, {x}, float("-inf"))' if masked else f"x = {x}")
        self._weights()
        self._kept("p", "kept")
        self._add("dv", "p" if self._keep is None else "kept", "dout", a.v.buffer.dtype, self._width)
        self._products_gradient(slope)
        self._add("dk", "ds", "q", a.q.buffer.dtype, self._depth)
        self._values.columns = None


def _where(mask: str | None, other: float | None = None) -> str:
    """Arguments of a load or store that not all lanes take part in."""
    if not mask:
        return ""
    return f", mask={mask}" if other is None else f", mask={mask}, other={bare_literal(other, torch.float32)}"

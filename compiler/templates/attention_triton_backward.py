"""The backward pass of the attention kernel: scores are computed again, block by block, from row maxima and sums.

    p = exp(f(s) - maximum) / sum;   delta = row sums of out * dout;   ds = p * (dout v^T - delta) * f'(s)

    programs by queries:   delta, and dq = sum over blocks of keys of ds k
    programs by keys:      dv = sum over blocks of queries of p^T dout,   dk = the same of ds^T q

Where weights are dropped, `keep` is drawn again: p is `kept` times as large, delta over `kept`, and

    ds = p * (keep * dout v^T - delta) * f'(s);     dv = sum of (keep * p)^T dout

The gradients of q, k and v have a matrix for each lead iteration: where heads or batches share one (repeated KV heads,
expanded batches), the caller adds up, as the backward of `expand` does. What `f` loads gets no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..ir.index import from_terms, terms
from ..ir.program import Buffer
from ..ir.value import Const
from ..triton import KernelSource
from ..triton.dtypes import type_name
from ..triton.source import module_text
from .attention import Attention, Operand
from .attention_gradient import NoDerivativeError, derivative
from .attention_text import (
    AttentionText,
    UnsupportedAttentionError,
    both,
    check_operands,
    contiguous,
    rows_of,
)
from .attention_tiles import Tile, backward_tiles
from .attention_triton import ByQueries, statistics_buffer
from .horizon import Limit

GRADIENT, DELTA = "grad_out", "delta"


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
    """

    source: KernelSource
    gradient: Buffer
    delta: Buffer
    results: tuple[Buffer, Buffer, Buffer]
    scores: Buffer | None = None
    partial: bool = False


@dataclass(frozen=True)
class Places:
    """Where gradients lie, by the lead variables, rows and columns; None is where and as is said here.

    Args:
        out: of the result: as the result.
        q, k, v: (lead loops, rows, columns), contiguous, in the dtype of what they are the gradients of.
        scores: (lead loops, queries, keys), contiguous, in the dtype of q.
    """

    out: Operand | None = None
    q: Operand | None = None
    k: Operand | None = None
    v: Operand | None = None
    scores: Operand | None = None


def attention_backward(
    attention: Attention,
    tile: Tile | None = None,
    *,
    scores: bool = False,
    places: Places = Places(),
    precision: str = "ieee",
) -> Backward:
    """The kernels of an attention's backward pass.

    Args:
        attention: what the forward pass computed, with statistics.
        tile: one of `attention_tiles.backward_tiles`; None is the first of them.
        scores: whether to write the gradient of `f`'s values too, for that of a bias.
        places: where gradients are read and written.
        precision: of float32 products: ``"ieee"``, or ``"tf32"`` where the user allows that.

    Raises:
        UnsupportedDtypeError: `f` computes with a dtype that Triton has no type for.
        UnsupportedAttentionError: operands of other dtypes than the kernels take, or a score function without a
            derivative.
    """
    check_operands(attention)
    tile = tile or backward_tiles(attention)[0]
    made = _Made(attention, places, scores)
    delta = _own(attention, DELTA, torch.float32, attention.row.extent)
    shared = [made.out.buffer, statistics_buffer(attention), delta]
    by_queries = _Queries(attention, tile, [attention.out.buffer, *shared, *made.by_queries], precision, made)
    by_keys = _Keys(attention, tile, [*shared, *made.by_keys], precision, made)
    launches = (by_queries.launch("attention_queries"), by_keys.launch("attention_keys"))
    source = KernelSource(module_text([launch.text for launch in launches]), launches)
    results = (made.q.buffer, made.k.buffer, made.v.buffer)
    found = None if made.scores is None else made.scores.buffer
    return Backward(source, made.out.buffer, delta, results, found, by_queries.leaves_out)


class _Made:
    """The gradients, each with its place."""

    def __init__(self, a: Attention, places: Places, scores: bool) -> None:
        dtype = a.q.buffer.dtype
        self.out = _named(GRADIENT, places.out or a.out)
        self.q = _named("grad_q", places.q or _dense(a, dtype, a.row.extent, a.depth))
        self.k = _named("grad_k", places.k or _dense(a, a.k.buffer.dtype, a.key.extent, a.depth))
        self.v = _named("grad_v", places.v or _dense(a, a.v.buffer.dtype, a.key.extent, a.width))
        dense = _dense(a, dtype, a.row.extent, a.key.extent)
        self.scores = _named("grad_score", places.scores or dense) if scores else None

    @property
    def by_queries(self) -> list[Buffer]:
        """What the first launch writes beside `delta`."""
        return [x.buffer for x in (self.q, self.scores) if x is not None]

    @property
    def by_keys(self) -> list[Buffer]:
        """What the second launch writes."""
        return [self.k.buffer, self.v.buffer]


def _named(name: str, x: Operand) -> Operand:
    return replace(x, buffer=replace(x.buffer, name=name))


def _dense(a: Attention, dtype: torch.dtype, rows: int, columns: int) -> Operand:
    """A matrix for each lead iteration, one after the other."""
    buffer = _own(a, "", dtype, rows, columns)
    base: Any = 0
    for var, stride in zip(a.lead, buffer.strides, strict=False):
        base = base + var.index() * stride if var.extent > 1 else base
    return Operand(buffer, base, columns, 1)


def _own(attention: Attention, name: str, dtype: torch.dtype, *sizes: int) -> Buffer:
    """A buffer of something for each lead iteration."""
    lead = (var.extent for var in attention.lead)
    return contiguous(name, dtype, (*lead, *sizes), attention.out.buffer.device)


class _Backward(AttentionText):
    """What both kernels do with a block of scores."""

    def __init__(self, attention: Attention, tile: Tile, more: Sequence[Buffer], precision: str, made: _Made) -> None:
        super().__init__(attention, tile, more, precision)
        self._made = made
        try:
            self._slope = derivative(self._exact)
        except NoDerivativeError as error:
            raise UnsupportedAttentionError(f"no backward pass: {error}") from error

    def _statistics(self, place: str, mask: str | None) -> None:
        """Maxima and sums of rows at lanes `place`; those of rows that are not there are harmless."""
        at = f"{self._arguments[self._position('statistics')]} + lead * {self._a.row.extent} + {place}"
        top, total = (f", mask={mask}, other={other}" if mask else "" for other in (0.0, 1.0))
        self._line(f"top = tl.load({at}{top})", f"total = tl.load({at} + {rows_of(self._a)}{total})")
        self._line('top = tl.where(top == float("-inf"), 0.0, top)')
        inverse = f"{self._a.kept} / total"
        self._line(f"share = {f'tl.where(total == 0.0, 0.0, {inverse})' if self._a.safe else inverse}")

    def _position(self, name: str) -> int:
        return [buffer.name for buffer in self._buffers].index(name, len(self._a.reads))

    def _weights(self) -> None:
        """Weights `p` and gradients of `f`'s values `ds`, from `x` and `dp`."""
        base = "" if self._log2_base == 1.0 else f" * {self._log2_base}"
        self._line(f"p = libdevice.exp2((x - top){base}) * share")
        self._kept("dp", "dp")
        self._line("ds = p * (dp - delta)")

    def _products_gradient(self) -> None:
        """Gradients of the products in place of those of `f`'s values, but for constants: see `_factor`."""
        if not isinstance(self._slope, Const):
            self._line(f"ds = tl.where(p == 0.0, 0.0, ds * {self._whole(self._slope)})")

    def _factor(self) -> str:
        """What gradients of q and k are to be multiplied with at the end."""
        return f" * {self._slope.number}" if isinstance(self._slope, Const) else ""

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
            factors = f"{weights}.to({type_name(dtype)})", f"{rows}{number}, {name}{number}"
            self._line(f"{name}{number} = {self._dot(*factors)}")

    def _store(self, name: str, x: Operand, lanes: str, mask: str | None, columns: str, factor: str = "") -> None:
        """Store a gradient, its rows at `lanes` (variable i or j)."""
        masks = self._depth_masks if columns == "d" else self._width_masks
        kind = type_name(x.buffer.dtype)
        self._line(f"{name}_head = {self._head(x, self._pointer(x))}")
        for number, inside in enumerate(masks):
            conditions = both(mask, inside)
            where = f", mask={conditions}" if conditions else ""
            place = f"{name}_head + {lanes} * {x.row} + {columns}{number} * {x.column}"
            self._line(f"tl.store({place}, ({name}{number}{factor}).to({kind}){where})")

    def _pointer(self, x: Operand) -> str:
        return self._arguments[self._position(x.buffer.name)]


class _Queries(_Backward, ByQueries):
    def _write(self) -> int:
        self._queries()
        self._line(f"out_head = {self._head(self._a.out, self._more[0])}")
        self._line(f"dout_head = {self._head(self._made.out, self._more[1])}")
        self._load("out", self._a.out, "i", self._row_mask, "e")
        self._load("dout", self._made.out, "i", self._row_mask, "e")
        sums = (f"tl.sum(out{n}.to(tl.float32) * dout{n}.to(tl.float32), 1)" for n, _ in enumerate(self._width))
        factor = "" if self._a.kept == 1.0 else f" * {1.0 / self._a.kept}"
        self._line(f"delta = ({' + '.join(sums)})[:, None]{factor}")
        where = f", mask={self._row_mask}" if self._row_mask else ""
        self._line(f"tl.store({self._more[3]} + lead * {self._a.row.extent} + i, delta{where})")
        self._cast_dout()
        self._statistics("i", self._row_mask)
        self._zeros("dq", self._t.queries, self._depth)
        if self._made.scores is not None:
            self._line(f"ds_head = {self._head(self._made.scores, self._pointer(self._made.scores))}")
        self._keys(self._step)
        self._store("dq", self._made.q, "i", self._row_mask, "d", self._factor())
        blocks = -(-self._a.row.extent // self._t.queries)
        return blocks * rows_of(self._a) // self._a.row.extent

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
        self._products_gradient()
        self._add("dq", "ds", "k", self._a.k.buffer.dtype, self._depth)

    def _store_scores(self, x: Operand) -> None:
        assert self._values.columns is not None
        conditions = both(self._row_mask, self._values.columns.mask)
        where = f", mask={conditions}" if conditions else ""
        place = f"ds_head + i * {x.row} + j * {x.column}"
        self._line(f"tl.store({place}, ds.to({type_name(x.buffer.dtype)}){where})")


class _Keys(_Backward):
    """Programs have a block of keys each, and go through the queries: rows of tiles are keys here."""

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
        begin, end = self._rows()
        self._hoisted(a.row)
        with self._w.block(f"for start in range({begin}, {end}, {self._t.queries})"):
            self._step()
        self._store("dk", self._made.k, "j", self._key_mask, "d", self._factor())
        self._store("dv", self._made.v, "j", self._key_mask, "e")
        return blocks * rows_of(a) // a.row.extent

    def _rows(self) -> tuple[str, str]:
        """The first query that may look at the program's keys, and the one after the last."""
        rows, queries, begin, end = self._a.row.extent, self._t.queries, "0", f"{self._a.row.extent}"
        if self._last is not None and self._slope_of(self._last):
            self._line(f"begin = tl.maximum({self._row_at(self._last, 'first')}, 0) // {queries} * {queries}")
            begin = "begin"
        if self._first is not None and self._slope_of(self._first):
            self._line(f"last = first + {self._t.keys - 1}")
            self._line(f"end = tl.minimum(tl.maximum({self._row_at(self._first, 'last')}, 0) + 1, {rows})")
            end = "end"
        return begin, end

    def _slope_of(self, limit: Limit) -> int:
        return dict(terms(limit.index)).get((self._a.row,), 0)

    def _row_at(self, limit: Limit, key: str) -> str:
        """About the row (rounded towards 0) whose limit is at a key."""
        rest: Any = from_terms({m: c for m, c in terms(limit.index) if m != (self._a.row,)})
        return f"({key} - {self._values.at(rest)}) // {self._slope_of(limit)}"

    def _step(self) -> None:
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
        self._statistics("i", columns.mask)
        where = f", mask={columns.mask}, other=0.0" if columns.mask else ""
        self._line(f"delta = tl.load({self._more[2]} + lead * {a.row.extent} + i{where})")
        self._w.name(self._raw, "s")
        x, inside = self._whole(self._score), both(columns.mask, self._key_mask)
        self._line(f'x = tl.where({inside}, {x}, float("-inf"))' if inside else f"x = {x}")
        self._weights()
        self._kept("p", "kept")
        self._add("dv", "p" if self._keep is None else "kept", "dout", a.v.buffer.dtype, self._width)
        self._products_gradient()
        self._add("dk", "ds", "q", a.q.buffer.dtype, self._depth)
        self._values.columns = None

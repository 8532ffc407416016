"""Few queries and many keys: parts of the keys are gone through side by side, then put together.

    program (lead, part):   parts[part, lead, i]  = sum over the part's keys of exp(score - largest) v,   largest, sum
    second launch:          out[lead, i]          = parts, each scaled to the largest of all, over the sum of all

Which keys a mask lets count at all (see `seen_keys`) every program looks up itself, and takes its part of those: what
of a cache is not filled is not read. Nothing depends on which program comes first: results are the same in every run.
"""

from __future__ import annotations

from typing import Any

import torch

from ...codegen.triton import KernelSource
from ...codegen.triton.dtypes import type_name
from ...codegen.triton.kernel_text import waiting
from ...codegen.triton.source import module_text
from ...codegen.triton.values import TileAxis
from ...ir.iteration_space import power_of_two
from ...ir.program import Buffer
from ...ir.value import Value
from .description import Attention
from .score import LOG2_E
from .seen_keys import seen_keys
from .triton_forward import WholeForward
from .triton_text import AttentionText, both, check_operands, contiguous, rows_of
from .triton_tiles import SplitTile, Tile, parts

PARTS, STATISTICS = "<parts>", "<statistics>"
_LOOKED_AT = 2048  # keys whose mask is looked at together


def workspaces(attention: Attention, tile: Tile) -> tuple[Buffer, ...]:
    """What one launch leaves to the next, float32: sums of (parts, rows, columns); largest scores and sums of each."""
    if not isinstance(tile, SplitTile) or tile.splits == 1:
        return ()
    device, rows = attention.out.buffer.device, rows_of(attention)
    return (
        contiguous(PARTS, torch.float32, (tile.splits, rows, attention.width), device),
        contiguous(STATISTICS, torch.float32, (2, tile.splits, rows), device),
    )


def split_attention(
    attention: Attention, tile: SplitTile, *, precision: str = "ieee", early: bool = False
) -> KernelSource:
    """The kernel's source: two launches (one of one part), which take what is read, the result and `workspaces`.

    Args:
        attention: what to compute, all of its queries in one block of the tile.
        tile: one of `attention.triton_tiles.split_tiles`.
        precision: as of `attention_triton`.
        early: whether it begins before kernels before it have ended, and waits for them.

    Raises:
        UnsupportedDtypeError, UnsupportedAttentionError: see `attention_triton`.
    """
    check_operands(attention)
    kind = "early_" if early else ""
    launches = [_PartialForward(attention, tile, precision).launch(f"attention_{kind}keys")]
    if tile.splits > 1:
        launches.append(_Whole(attention, tile, precision).launch(f"attention_{kind}parts"))
    if early:
        launches = list(map(waiting, launches))
    return KernelSource(module_text([launch.text for launch in launches]), tuple(launches))


class _PartialForward(WholeForward):
    """The first launch: a program is one lead iteration, all of its queries, and a part of the keys."""

    def __init__(self, attention: Attention, tile: SplitTile, precision: str) -> None:
        super().__init__(attention, tile, [attention.out.buffer, *workspaces(attention, tile)], precision)
        self._splits = tile.splits
        self._seen: Value | None = seen_keys(self._exact, attention.row, attention.key)

    def _write(self) -> int:
        self._queries()
        self._start()
        self._keys(self._step)
        self._finish()
        return self._splits * rows_of(self._a) // self._a.row.extent

    def _order(self, blocks: int) -> str:
        assert blocks == 1, "all rows in one block"
        self._line(f"program = tl.program_id(0){self._long}")
        if self._splits == 1:
            self._line("lead = program")
            return "0"
        self._line(f"lead = program // {self._splits}", f"part = program % {self._splits}")
        return "0"

    def _sinks(self) -> None:
        super()._sinks()
        if self._splits == 1:
            return
        self._line('sink = tl.where(part == 0, sink, float("-inf"))')

    def _keys(self, step: Any) -> None:
        """The loop over the part's blocks of keys."""
        self._hoisted(self._a.key)
        extent, block = self._a.key.extent, self._t.keys
        begin, end = "0", f"{extent}"
        if self._seen is not None:
            self._look()
            begin, end = "begin", "end"
        elif self._first is not None or self._last is not None:
            begin, end = self._limits()
        if self._splits == 1:
            self._line(f"begin = {begin}", f"end = {end}")
        else:
            self._part(begin, end)
        with self._w.block(f"for start in range(begin, end, {block})"):
            self._block(self._score, extent, step)

    def _part(self, begin: str, end: str) -> None:
        """The keys between `begin`, the first of a block, and `end` that the program goes through."""
        block = self._t.keys
        self._line(f"span = ({end} - {begin} + {self._splits * block - 1}) // {self._splits * block} * {block}")
        self._line(f"begin = {begin} + part * span")
        self._line(f"end = tl.minimum(begin + span, {end})")

    def _look(self) -> None:
        """Between which keys all lie that the mask does not hide: `begin`, the first of a block, and `end`."""
        extent, values = self._a.key.extent, self._values
        size = min(_LOOKED_AT, power_of_two(extent))
        assert self._seen is not None
        self._line(f"first_seen = tl.full([1], {extent}, tl.int32)", "past_seen = tl.zeros([1], tl.int32)")
        rows, values.rows = values.rows, None
        variables = values.names.variables
        key, variables[self._a.key] = variables[self._a.key], "place"
        with self._w.block(f"for place_start in range(0, {extent}, {size})"):
            self._line(f"place = (place_start + tl.arange(0, {size}){self._long})[None, :]")
            mask = "place_inside" if extent % size else None
            if mask is not None:
                self._line(f"{mask} = place < {extent}")
            values.columns = TileAxis(frozenset({self._a.key}), str(size), mask)
            seen = f"({values.get(self._seen)}) != 0"
            self._line(f"seen = {both(mask, f'({seen})')}")
            for name, other, how in (("first_seen", str(extent), "min"), ("past_seen", "0", "max")):
                place = "place" if how == "min" else "place + 1"
                found = f"tl.{how}(tl.where(seen, {place}, {other}), 1).to(tl.int32)"
                self._line(f"{name} = tl.{how}imum({name}, {found})")
            values.columns = None
        values.rows, variables[self._a.key] = rows, key
        self._line("none = tl.max(past_seen) == 0")
        self._line(f"begin = tl.where(none, 0, tl.min(first_seen) // {self._t.keys} * {self._t.keys})")
        self._line(f"end = tl.where(none, {extent}, tl.max(past_seen))")

    def _limits(self) -> tuple[str, str]:
        """Between which keys all lie that limits of the score function do not hide."""
        begin, end, block = "0", f"{self._a.key.extent}", self._t.keys
        if self._first is not None:
            self._line(f"begin = tl.maximum({self._at_row(self._first, '0')}, 0) // {block} * {block}")
            begin = "begin"
        if self._last is not None:
            last = self._at_row(self._last, str(self._a.row.extent - 1))
            self._line(f"end = tl.minimum({last}, {end})")
            end = "end"
        return begin, end

    def _finish(self) -> None:
        if self._splits == 1:
            super()._finish()
            return
        rows, width, line = rows_of(self._a), self._a.width, f"lead * {self._a.row.extent} + i"
        sums, statistics = self._more[1:]
        self._line(f"line = part * {rows} + {line}")
        for number, mask in enumerate(self._width_masks):
            conditions = both(self._row_mask, mask)
            where = f", mask={conditions}" if conditions else ""
            self._line(f"tl.store({sums} + line * {width} + e{number}, acc{number}{where})")
        where = f", mask={self._row_mask}" if self._row_mask else ""
        self._line(f"tl.store({statistics} + line, top[:, None]{where})")
        self._line(f"tl.store({statistics} + {self._splits * rows} + line, total[:, None]{where})")


class _Whole(AttentionText):
    """The second launch: a program is one row of the result."""

    def __init__(self, attention: Attention, tile: SplitTile, precision: str) -> None:
        super().__init__(attention, tile, [attention.out.buffer, *workspaces(attention, tile)], precision)
        self._splits = tile.splits

    def _write(self) -> int:
        a, rows, splits = self._a, rows_of(self._a), self._splits
        sums, statistics = self._more[1:]
        self._line(f"line = tl.program_id(0){self._long}")
        self._line(f"i = line % {a.row.extent}", f"lead = line // {a.row.extent}")
        self._lead()
        self._line(f"part = tl.arange(0, {power_of_two(splits)}){self._long}[:, None]")
        inside = "" if power_of_two(splits) == splits else f"part < {splits}"
        place, other = f"part * {rows} + line", f", mask={inside}, other=" if inside else ""
        lowest = f'{other}float("-inf")' if inside else ""
        self._line(f"top = tl.load({statistics} + {place}{lowest})")
        self._line(f"total = tl.load({statistics} + {splits * rows} + {place}{f'{other}0.0' if inside else ''})")
        self._line("highest = tl.max(top)", 'shift = tl.where(highest == float("-inf"), 0.0, highest)')
        base = "" if self._log2_base == 1.0 else f" * {LOG2_E}"
        self._line(f"scale = libdevice.exp2((top - shift){base})")
        self._line("total = tl.sum(total * scale)", f"share = {a.kept} / total")
        if a.safe:
            self._line("share = tl.where(total == 0.0, 0.0, share)")
        self._line(f"out_head = {self._head(a.out, self._more[0])} + i * {a.out.row}")
        for number, (first, size) in enumerate(parts(a.width)):
            self._line(f"e{number} = {first} + tl.arange(0, {size}){self._long}[None, :]")
            outside = f"e{number} < {a.width}" if first + size > a.width else None
            masks = both(f"({inside})" if inside else None, f"({outside})" if outside else None)
            where = f", mask={masks}, other=0.0" if masks else ""
            self._line(f"acc{number} = tl.load({sums} + ({place}) * {a.width} + e{number}{where})")
            self._line(f"acc{number} = tl.sum(acc{number} * scale, 0)[None, :] * share")
            where = f", mask={outside}" if outside else ""
            to = f"out_head + e{number} * {a.out.column}"
            self._line(f"tl.store({to}, acc{number}.to({type_name(a.out.buffer.dtype)}){where})")
        return rows

"""Parts of all Triton kernels of an attention: names, loops over lead variables, axes of tiles, parts of operands."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...codegen.triton.dtypes import signature_name
from ...codegen.triton.values import TileAxis, TritonNames, TritonValues
from ...codegen.triton.writer import TritonWriter
from ...ir.dependence import Dependence
from ...ir.index.index import Var
from ...ir.iteration_space import has_small_offsets, is_indirect, is_small
from ...ir.program import Buffer
from ...ir.value import Const, Number, Op, Value, walk
from ..common.triton_launch import TemplateLaunch
from .description import SCORE, Attention, Operand
from .mask_bounds import first_limit, last_limit
from .score import LOG2_E, flat, in_powers_of_two, lean, unscaled
from .triton_tiles import Tile, parts

OPERANDS = (torch.float32, torch.bfloat16, torch.float16)
_TURNS = 512  # programs that take turns: about two for each that a GPU has room for


class UnsupportedAttentionError(Exception):
    """An attention that the kernels have no form for."""


def check_operands(attention: Attention) -> None:
    """Refuse dtypes that the kernels do not multiply.

    Raises:
        UnsupportedAttentionError: operands of other dtypes than `OPERANDS`, or queries and keys of two, or a factor of
            the weights that undoes them.
    """
    if not 0.0 < attention.kept < math.inf:
        raise UnsupportedAttentionError(f"weights that stay are multiplied with {attention.kept}")
    for x in (attention.q, attention.k, attention.v, attention.out):
        if x.buffer.dtype not in OPERANDS:
            raise UnsupportedAttentionError(f"{x.buffer.name} is {x.buffer.dtype}; the kernel takes {OPERANDS}")
    if attention.q.buffer.dtype != attention.k.buffer.dtype:
        kinds = f"{attention.q.buffer.dtype} and {attention.k.buffer.dtype}"
        raise UnsupportedAttentionError(f"queries and keys differ in dtype: {kinds}")


def contiguous(name: str, dtype: torch.dtype, sizes: Sequence[int], device: torch.device) -> Buffer:
    """A buffer of its own, dense."""
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * size)
    return Buffer(name, dtype, tuple(sizes), tuple(strides), device)


def rows_of(attention: Attention) -> int:
    """How many rows of scores there are."""
    return math.prod(var.extent for var in (*attention.lead, attention.row))


class AttentionText:
    """Writes one kernel: a program is one lead iteration and one block of queries, or of keys.

    Args:
        attention: what it is about.
        tile: sizes of its blocks.
        more: buffers that it takes beside `Attention.reads`, which come first.
        precision: of products of float32.
    """

    def __init__(self, attention: Attention, tile: Tile, more: Sequence[Buffer], precision: str) -> None:
        self._a, self._t, self._precision = attention, tile, precision
        self._buffers = (*attention.reads, *more)
        # By position, as the call has it: a result may be called like what it is made from.
        self._arguments = [f"p{number}_ptr" for number in range(len(self._buffers))]
        self._more = self._arguments[len(attention.reads) :]
        reads = list(zip(attention.reads, self._arguments, strict=False))
        names = TritonNames({b.name: name for b, name in reads}, {b.name: b.dtype for b, _ in reads})
        names.variables = {var: f"g{number}" for number, var in enumerate(attention.lead)}
        names.variables |= {attention.row: "i", attention.key: "j"}
        self._w = TritonWriter()
        self._dependence = Dependence()
        is_short = all(map(has_small_offsets, self._buffers)) and all(map(is_small, _numbers(attention)))
        self._long = "" if is_short else ".to(tl.int64)"
        self._values = TritonValues(self._w, names, self._dependence, "tl.int64" if self._long else "tl.int32")
        self._raw = flat(attention, SCORE)
        self._exact = self._plain = flat(attention, attention.score)
        self._sink = None if attention.sink is None else flat(attention, attention.sink)
        self._keep = None if attention.keep is None else flat(attention, attention.keep)
        if attention.q.buffer.dtype.itemsize == 2:
            self._plain = lean(self._plain)
        powers = in_powers_of_two(self._plain, self._is_shared)
        self._log2_base, self._score = (LOG2_E, self._plain) if powers is None else (1.0, powers)
        # Exponents of 2 are scores times `log2_base`; or `factor`, where that is all there is to a score.
        apart = None if powers is None else unscaled(powers)
        self._score, self._factor = (self._score, 1.0) if apart is None else apart
        limits = (find(self._score, attention.key, attention.row) for find in (first_limit, last_limit))
        self._first, self._last = (None if limit is None or is_indirect(limit.index) else limit for limit in limits)
        together = self._has_one_block()
        self._depth, self._width = parts(attention.depth, together), parts(attention.width, together)

    def _has_one_block(self) -> bool:
        """Whether Triton sees that the loop over blocks runs once, and removes it.

        Triton 3.6 then multiplies operands of two parts wrongly on Hopper, and reads shared memory that is not there:
        16-bit heads of 40, 48, 72, 80, 88, 96, 136 and 160 columns with 49 keys. The interpreter does not show it.
        """
        return False

    def _is_shared(self, value: Value) -> bool:
        """Whether a part of the score is the same for all queries."""
        return not self._dependence.of(value) & {self._a.row, ("buffer", SCORE.buffer)}

    def launch(self, kind: str) -> TemplateLaunch:
        """Write the kernel; `kind` goes into its name."""
        programs = self._write()
        text = "\n".join([*(str(buffer.dtype) for buffer in self._buffers), str(self._t), *self._w.lines])
        name = f"{kind}_{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"
        kinds = {name: f"*{signature_name(b.dtype)}" for name, b in zip(self._arguments, self._buffers, strict=True)}
        head = f"@triton.jit\ndef {name}({', '.join(self._arguments)}):"
        return TemplateLaunch(
            name, "\n".join([head, *self._w.lines]) + "\n", tuple(b.name for b in self._buffers), (), (), kinds,
            programs, self._t.warps, stages=self._t.stages,
        )  # fmt: skip

    def _write(self) -> int:
        """Write the lines; gives how many programs there are."""
        raise NotImplementedError

    def _line(self, *lines: str) -> None:
        for line in lines:
            self._w.line(line)

    # -- a program ------------------------------------------------------------------------------------------------

    def _program(self, blocks: int, block: int, last_first: bool) -> None:
        """The lead iteration and the block of `blocks` that this program has; `first` is where the block begins."""
        at = self._order(blocks)
        self._lead()
        self._line(f"first = ({f'{blocks - 1} - {at}' if last_first else at}) * {block}")
        self._depth_masks = self._columns("d", self._depth, self._a.depth)
        self._width_masks = self._columns("e", self._width, self._a.width)

    def _lead(self) -> None:
        """Lead variables, of the number of the lead iteration."""
        rest = "lead"
        for number, var in reversed(list(enumerate(self._a.lead))):
            self._line(f"g{number} = {rest} % {var.extent}")
            rest += f" // {var.extent}"

    def _order(self, blocks: int) -> str:
        """Write the program's lead iteration, give its block: blocks of a lead iteration one after the other.

        Blocks that take more or less time (causal masks) of many lead iterations take turns, so that the long ones of
        all come first and little is left to wait for in the end; not of all, whose keys caches would not hold.
        """
        leads = math.prod(var.extent for var in self._a.lead)
        group = min(leads, max(_TURNS // blocks, 1))
        self._line(f"program = tl.program_id(0){self._long}")
        if (self._first is None) == (self._last is None) or blocks == 1 or group == 1:
            self._line(f"lead = program // {blocks}")
            return f"program % {blocks}"
        self._line(f"turn = program // {group * blocks} * {group}", f"rest = program % {group * blocks}")
        self._line(f"turns = tl.minimum({leads} - turn, {group})" if leads % group else f"turns = {group}")
        self._line("lead = turn + rest % turns")
        return "rest // turns"

    def _axis(self, name: str, var: Var, extent: int, block: int) -> TileAxis:
        """The axis of lanes `name`, whose condition is written where any lane may lie outside."""
        mask = f"{name}_inside" if extent % block else None
        if mask is not None:
            self._line(f"{mask} = {name} < {extent}")
        return TileAxis(frozenset({var}), str(block), mask)

    def _columns(self, name: str, columns: list[tuple[int, int]], extent: int) -> list[str | None]:
        """Positions of an operand's columns, part by part; gives their conditions."""
        masks: list[str | None] = []
        for number, (first, size) in enumerate(columns):
            begin = f"{first} + " if first else ""
            self._line(f"{name}{number} = {begin}tl.arange(0, {size}){self._long}[None, :]")
            masks.append(f"{name}{number}_inside" if first + size > extent else None)
            if masks[-1] is not None:
                self._line(f"{masks[-1]} = {name}{number} < {extent}")
        return masks

    def _head(self, x: Operand, name: str | None = None) -> str:
        pointer = name or self._values.names.buffers[x.buffer.name]
        base = self._values.at(x.base)
        return pointer if base == "0" else f"{pointer} + {base}"

    def _hoisted(self, var: Var) -> None:
        """Compute what scores, and weights that stay, do not depend on `var` for: before the loop over it."""
        seen: set[Value] = set()
        self._hoist(self._score, var, seen)
        if self._keep is not None:
            self._hoist(self._keep, var, seen)

    def _hoist(self, value: Value, var: Var, seen: set[Value]) -> None:
        """Compute what does not depend on `var` before the loop over it."""
        if value in seen or isinstance(value, Const):
            return
        seen.add(value)
        if not self._dependence.of(value) & {var, ("buffer", SCORE.buffer)}:
            self._values.get(value)
        elif isinstance(value, Op):
            for arg in value.args:
                self._hoist(arg, var, seen)

    def _whole(self, value: Value) -> str:
        """A value in every lane of the tile."""
        return f"tl.broadcast_to({self._values.get(value)}, {self._values.shape()})"

    def _kept(self, name: str, made: str) -> None:
        """``made = name`` where weights stay, 0 elsewhere; `Attention.kept` is left for later."""
        if self._keep is not None:
            self._line(f"{made} = tl.where({self._whole(self._keep)}, {name}, 0.0)")

    def _load(self, name: str, x: Operand, lanes: str, mask: str | None, columns: str) -> None:
        """Load the parts of an operand's rows `lanes`, 0 outside: what is multiplied with 0 must not be NaN."""
        for number, inside in enumerate(self._depth_masks if columns == "d" else self._width_masks):
            place = f"{name}_head + {lanes} * {x.row} + {columns}{number} * {x.column}"
            conditions = both(mask, inside)
            self._line(f"{name}{number} = tl.load({place}{f', mask={conditions}, other=0.0' if conditions else ''})")

    def _product(self, name: str, a: str, b: str, columns: list[tuple[int, int]]) -> None:
        """``name = a b^T``, over the parts of their columns."""
        for number, _ in enumerate(columns):
            self._line(f"{name} = {self._dot(f'{a}{number}', f'tl.trans({b}{number})', name if number else '')}")

    def _dot(self, a: str, b: str, so_far: str) -> str:
        if self._precision == "tf32" and self._a.q.buffer.dtype == torch.float32:
            a, b = f"tensor_float({a})", f"tensor_float({b})"
        return f'tl.dot({a}, {b}, {f"{so_far}, " if so_far else ""}input_precision="{self._precision}")'


def both(*masks: str | None) -> str:
    """Conditions that all hold; empty where there are none."""
    return " & ".join(mask for mask in masks if mask is not None)


def _numbers(attention: Attention) -> Iterator[Any]:
    """Places of random bits: of every score, which may be more than elements in any buffer."""
    values = () if attention.keep is None else (attention.keep,)
    return (value.index for value in walk(values) if isinstance(value, Number))

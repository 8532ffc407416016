"""The loop IR as text: deterministic, and no longer than the tree has distinct parts.

    softmax: for i0 < 4:
        fold fold = softmax over r0 < 16 of t0
            where t0 = x[i0, r0] / 8.0
        ...

Parts that are used twice, and parts that would make a line too long, get names: ``t0 = ...``, printed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .index.index import Var, number_text
from .kernel import Assign, Fold, Kernel, Loop, Statement
from .lanes import HowInLanes, LoopTile, Threads, Turned
from .launch import Launch
from .ops import OPS
from .program import Buffer, Definition, Extern, Program, Reduction, Store
from .value import Const, Guarded, Load, Number, Op, Result, Value, operands, walk

_LONGEST = 90
_STORE = {None: "=", "add": "+=", "mul": "*=", "max": "max=", "min": "min=", "or": "|=", "and": "&="}
_PLAIN = (torch.bool, torch.int64, torch.float32)


def index_text(number: Any) -> str:
    """An index: ``768*i + d``, ``(i + 3)//8``, ``index(ids[i])`` for one read from memory."""
    return _ValueTexts().index(number)


def value_text(value: Value) -> str:
    """A value; shared parts follow it: ``t0 * t0  where t0 = exp(x[i])``."""
    writer = _ValueTexts([value])
    text = writer.value(value)
    names = "; ".join(writer.named())
    return f"{text}  where {names}" if names else text


def buffer_text(buffer: Buffer) -> str:
    """A buffer: ``x: float32[8, 128]``, with strides where they are not those of contiguous memory."""
    text = f"{buffer.name}: {dtype_text(buffer.dtype)}"
    text += " scalar" if buffer.scalar else f"[{_list(buffer.sizes)}]"
    if buffer.strides != _contiguous(buffer.sizes):
        text += f" strides [{_list(buffer.strides)}]"
    return text if buffer.device.type == "cpu" else f"{text} on {buffer.device}"


def dtype_text(dtype: torch.dtype) -> str:
    """``float32`` rather than ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def program_text(program: Program) -> str:
    """A program: buffers, items in order, outputs."""
    lines = ["program"]
    lines += [f"    {buffer.kind} {buffer_text(buffer)}" for buffer in program.buffers.values()]
    for item in program.items:
        lines += _indented(_extern(item) if isinstance(item, Extern) else _definition(item))
    lines.append(f"    return {', '.join(program.outputs)}".rstrip())
    return "\n".join(lines) + "\n"


def kernel_text(kernel: Kernel) -> str:
    """A kernel: params, scratch, the loop tree."""
    lines = [f"kernel {kernel.name}{', which may begin early' if kernel.early else ''}"]
    lines += [f"    {param.access} {buffer_text(param.buffer)}" for param in kernel.params]
    lines += [f"    size {size.name}" for size in kernel.sizes]
    lines += [f"    scratch {buffer_text(buffer)}" for buffer in kernel.scratch]
    if not kernel.parts:
        lines += _indented([*map(launch_text, kernel.launches), *map(threads_text, kernel.threads)])
        lines += _indented(_body(kernel.body))
    launch_of = {number: k for k, shared in enumerate(kernel.shared) for number in shared}
    for number, part in enumerate(kernel.parts):
        inside = [*map(launch_text, part.launches), *_body(part.body)]
        where = f", in launch {launch_of[number]}" if number in launch_of else ""
        lines += [f"    beside the others, {part.name}{where}:", *_indented(_indented(inside))]
    return "\n".join(lines) + "\n"


def launch_text(launch: Launch) -> str:
    """A launch: ``launch of 4 (i) x 256 (j), 8 warps``, for ``each k`` of the loops that programs do not tile."""
    blocks, each = launch.blocks, f" for each {_names(launch.outer)}" if launch.outer else ""
    axes = [(blocks.row_block, blocks.rows)] if blocks.rows or not blocks.columns else []
    axes.append((blocks.column_block, blocks.columns))
    tile = " x ".join(f"{block} ({_names(loops) or 'inside'})" for block, loops in axes)
    return f"launch of {tile}{each}, {blocks.warps} warp{'s' * (blocks.warps != 1)}"


def threads_text(threads: Threads) -> str:
    """How threads share a statement: ``threads share i0, i1, 512 iterations of i1 at a time``."""
    if not threads.loops:
        return "one thread"
    piece = f", {threads.piece} iterations of {threads.loops[-1].name} at a time" if threads.piece > 1 else ""
    return f"threads share {_names(threads.loops)}{piece}"


def lanes_text(how: HowInLanes) -> str:
    """How a loop runs in vectors: ``16 lanes, 4 vectors at a time``, ``tiles of 16 x 16``, ``rows of x, y``."""
    if isinstance(how, Turned):
        names = [*(load.buffer for load in how.loads), *(store.buffer for store in how.stores)]
        return f"rows of {', '.join(dict.fromkeys(names))}"
    if isinstance(how, LoopTile):
        below = f", {how.copies} of them below each other" if how.copies > 1 else ""
        return f"tiles of {how.lanes} x {how.lanes}{below}{', unrolled' if how.unrolled else ''}"
    expanded = f", an element a lane of {', '.join(sorted(how.expanded))}" if how.expanded else ""
    return f"{how.lanes} lanes{f', {how.copies} vectors at a time' if how.copies > 1 else ''}{expanded}"


def definition_text(definition: Definition) -> str:
    """One definition, as in `program_text`."""
    return "\n".join(_definition(definition)) + "\n"


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _list(numbers: Iterable[Any]) -> str:
    return ", ".join(map(index_text, numbers))


def _contiguous(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(sizes):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def _loops(loops: Iterable[Var]) -> str:
    return ", ".join(f"{var.name} < {index_text(var.extent)}" for var in loops)


def _names(loops: Iterable[Var]) -> str:
    return ", ".join(var.name for var in loops)


def _extern(item: Extern) -> list[str]:
    reason = f"  ({item.reason})" if item.reason else ""
    return [f"{item.name}: extern({', '.join(item.reads)}) -> {', '.join(item.writes)}{reason}"]


def _definition(item: Definition) -> list[str]:
    writer = _ValueTexts([*(v for r in item.reductions for v in r.values), *(s.value for s in item.stores)])
    lines = [f"{item.name}: for {_loops(item.loops)}:" if item.loops else f"{item.name}:"]
    body: list[str] = []
    for reduction in item.reductions:
        how = "scan" if item.scan else "fold"
        values = writer.operands(reduction)
        text = f"{how} {reduction.name} = {reduction.reducer} over {_loops(item.reduced)} of {values}"
        body += writer.with_names(text)
    for store in item.stores:
        body += writer.with_names(writer.store(store))
    return lines + _indented(body)


def _body(body: Iterable[Statement]) -> list[str]:
    return [line for statement in body for line in _statement(statement)]


def _statement(statement: Statement) -> list[str]:
    if isinstance(statement, Loop):
        how = "" if statement.lanes is None else f", {lanes_text(statement.lanes)}"
        head = f"for {_loops([statement.var])}{' parallel' if statement.parallel else ''}{how}:"
        return [head, *_indented(_body(statement.body))]
    if isinstance(statement, Fold):
        head = f"fold {', '.join(f'{r.name} = {r.reducer}' for r in statement.reductions)}:"
        return [head, *_indented(_body(statement.body))]
    if isinstance(statement, Assign):
        writer = _ValueTexts([statement.store.value])
        return writer.with_names(writer.store(statement.store))
    writer = _ValueTexts(statement.reduction.values)
    return writer.with_names(f"update {statement.reduction.name} with {writer.operands(statement.reduction)}")


class _ValueTexts:
    """Texts of values that share names for shared parts."""

    def __init__(self, roots: Iterable[Value] = ()) -> None:
        roots = list(roots)
        self._uses = Counter(used for value in walk(roots) for used in operands(value))
        self._texts: dict[Value, str] = {}
        self._pending: list[str] = []
        self._named = 0

    def named(self) -> Iterator[str]:
        """The names given since the last call, each with what it stands for."""
        pending, self._pending = self._pending, []
        yield from pending

    def with_names(self, line: str) -> list[str]:
        """The names that a line needs, then the line."""
        return [*self.named(), line]

    def operands(self, reduction: Reduction) -> str:
        return ", ".join(map(self.value, reduction.values))

    def store(self, store: Store) -> str:
        return f"{store.buffer}[{self.indices(store.indices)}] {_STORE[store.mode]} {self.value(store.value)}"

    def value(self, root: Value) -> str:
        for value in walk([root]):
            if value not in self._texts:
                self._texts[value] = self._kept(value, self._written(value))
        return self._texts[root]

    def _kept(self, value: Value, text: str) -> str:
        shared = self._uses[value] > 1 and isinstance(value, (Op, Guarded))
        if not shared and len(text) <= _LONGEST:
            return text
        name = f"t{self._named}"
        self._named += 1
        self._pending.append(f"{name} = {_bare(text)}")
        return name

    def _written(self, value: Value) -> str:
        if isinstance(value, Const):
            return self._typed(repr(value.number), value.dtype)
        if isinstance(value, Number):
            text = self.index(value.index)
            return f"({text})" if value.dtype == torch.int64 and " " in text else self._typed(text, value.dtype, True)
        if isinstance(value, Load):
            return f"{value.buffer}[{self.indices(value.indices)}]"
        if isinstance(value, Result):
            return value.reduction if value.component == 0 else f"{value.reduction}.{value.component}"
        if isinstance(value, Guarded):
            parts = (value.value, value.condition, value.other)
            return "({} if {} else {})".format(*(self._texts[part] for part in parts))
        assert isinstance(value, Op), value
        return self._operation(value)

    def _operation(self, value: Op) -> str:
        args = [self._texts[arg] for arg in value.args]
        info = OPS.get(value.name)
        if info is not None and info.sign:
            return f"({args[0]} {info.sign} {args[1]})"
        name = {"cast": "", "bitcast": "bits_as_"}.get(value.name)
        head = value.name if name is None else name + dtype_text(value.dtype)
        return f"{head}({', '.join(map(_bare, args))})"

    @staticmethod
    def _typed(text: str, dtype: torch.dtype, spelled: bool = False) -> str:
        bare = dtype in (_PLAIN if not spelled else (torch.int64,))
        return text if bare else f"{dtype_text(dtype)}({text})"

    def indices(self, numbers: Iterable[Any]) -> str:
        return ", ".join(map(self.index, numbers))

    def index(self, number: Any) -> str:
        return number_text(number, lambda value: _bare(self.value(value)))


def _bare(text: str) -> str:
    """`text` without parentheses around the whole of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and at < len(text) - 1:
            return text
    return text[1:-1]


__all__ = [
    "buffer_text",
    "definition_text",
    "dtype_text",
    "index_text",
    "kernel_text",
    "lanes_text",
    "launch_text",
    "program_text",
    "threads_text",
    "value_text",
]

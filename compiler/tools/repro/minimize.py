"""A failing program made small: one thing at a time is taken away, as long as it fails in the same way.

outputs       all but one
the end       what comes after the first value that is wrong
the start     what comes before it: its values become inputs
in between    single calls, replaced by an input or by what they read
values        inputs drawn from a seed in place of the model's own
sizes         768 -> 4, wherever the number stands
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx

from ....rewrites.compat import OpOverload, is_mutable
from .program import ReproProgram, cut
from .values import SeededTensor, drawn_like

_SMALL = (1, 2, 3, 4, 8, 16)


@dataclass
class Minimizer:
    """Makes a program small.

    Args:
        fails: whether a program fails in the way that is looked for.
        seconds: that it may take; what has been reached then is given.
    """

    fails: Callable[[ReproProgram], bool]
    seconds: float = 120.0

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.seconds
        self.tried = 0

    def run(self, program: ReproProgram) -> ReproProgram:
        """The smallest that was found."""
        if not _writes(program):
            for step in (self._one_output, self._shorter, self._one_output, self._later, self._fewer):
                program = step(program)
        program = self._drawn(program)
        return self._smaller(program)

    def _try(self, make: Callable[[], ReproProgram]) -> ReproProgram | None:
        """The program that is made, where it fails too; None where there is no time, or no such program."""
        if time.monotonic() > self._until:
            return None
        try:
            found = make()
            self.tried += 1
            return found if found.calls and self.fails(found) else None
        except Exception:  # no program: sizes that do not fit, a dtype that an operator does not take
            return None

    def _one_output(self, program: ReproProgram) -> ReproProgram:
        names = [node.name for node in program.outputs]
        for name in names if len(names) > 1 else ():
            found = self._try(partial(cut, program, [name]))
            if found is not None:
                return found
        return program

    def _shorter(self, program: ReproProgram) -> ReproProgram:
        """Without what comes after the first values that are wrong."""
        calls = program.calls
        return self._halved(program, len(calls), lambda count: cut(program, _open(calls[:count])))

    def _later(self, program: ReproProgram) -> ReproProgram:
        """Without what comes before: its values are inputs."""
        calls, outputs = program.calls, [node.name for node in program.outputs]
        total = len(calls)

        def last(count: int) -> ReproProgram:
            given = {n.name for n in calls[: total - count] if n.name in program.values}
            return cut(program, outputs, given)

        return self._halved(program, total, last)

    def _halved(self, program: ReproProgram, total: int, make: Callable[[int], ReproProgram]) -> ReproProgram:
        """The program of the smallest count that fails, found by halves."""
        best, low, high = program, 0, total
        while high - low > 1:
            middle = (low + high) // 2
            found = self._try(partial(make, middle))
            best, low, high = (best, middle, high) if found is None else (found, low, middle)
        return best

    def _fewer(self, program: ReproProgram) -> ReproProgram:
        """Without single calls, until none can be spared."""
        while True:
            for made in _without_one(program):
                found = self._try(made)
                if found is not None and len(found.calls) < len(program.calls):
                    program = found
                    break
            else:
                return program

    def _drawn(self, program: ReproProgram) -> ReproProgram:
        """With inputs drawn from seeds: all of them, or those with which it still fails."""
        names = [n.name for n in program.graph.find_nodes(op="placeholder")]
        every = self._try(lambda: _with_drawn(program, names))
        if every is not None:
            return every
        for name in names:
            program = self._try(partial(_with_drawn, program, [name])) or program
        return program

    def _smaller(self, program: ReproProgram) -> ReproProgram:
        """With smaller sizes, each wherever it stands."""
        for size in sorted({n for x in program.inputs for n in x.shape}, reverse=True):
            for small in (n for n in _SMALL if n < size):
                found = self._try(partial(_resized, program, size, small))
                if found is not None:
                    program = found
                    break
        return program


def _open(calls: Sequence[fx.Node]) -> list[str]:
    """The tensors that nothing among these calls reads."""
    inside = set(calls)
    wanted = [n for n in calls if not inside & set(n.users)]
    return [n.name for n in wanted if isinstance(n.meta.get("val"), torch.Tensor)]


def _without_one(program: ReproProgram) -> Iterator[Callable[[], ReproProgram]]:
    outputs = [node.name for node in program.outputs]
    for node in reversed(program.calls):
        if node.name not in program.values:
            continue
        for read in node.all_input_nodes:
            if _alike(program.values.get(read.name), program.values[node.name]):
                yield partial(cut, program, outputs, same={node.name: read.name})
        yield partial(cut, program, outputs, {node.name})


def _alike(a: Any, b: Any) -> bool:
    tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    return tensors and (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


def _with_drawn(program: ReproProgram, names: Sequence[str]) -> ReproProgram:
    drawn = {name: drawn_like(program.values[name], seed) for seed, name in enumerate(names)}
    return replace(program, values={**program.values, **drawn})


def _resized(program: ReproProgram, size: int, small: int) -> ReproProgram:
    """With `small` for `size` in shapes of inputs and in lists of numbers, also as a factor."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    values: dict[str, Any] = {}
    for node in program.graph.nodes:
        copies[node] = made = graph.node_copy(node, copies.__getitem__)
        if node.op == "placeholder":
            value = program.values[node.name]
            if size in value.shape and not isinstance(value, SeededTensor):
                raise ValueError("it has the model's own values")
            values[made.name] = value.resized(size, small) if isinstance(value, SeededTensor) else value
        elif node.op == "call_function":
            made.args = tuple(_renumbered(a, size, small) for a in made.args)
    return ReproProgram(graph, values)


def _renumbered(value: Any, size: int, small: int) -> Any:
    if not isinstance(value, (list, tuple)):
        return value
    return type(value)(_scaled(n, size, small) if isinstance(n, int) and n is not True else n for n in value)


def _scaled(number: int, size: int, small: int) -> int:
    return number // size * small if number >= size and number % size == 0 else number


def _writes(program: ReproProgram) -> bool:
    """Whether calls write to what others read, so that none can be taken away by itself."""
    return any(
        (isinstance(n.target, OpOverload) and is_mutable(n.target))
        or not (isinstance(n.target, OpOverload) or n.target is operator.getitem)
        for n in program.calls
    )

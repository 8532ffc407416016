"""Regions: functions over a range of iterations that threads share.

static void KERNEL_0(const Call* call, i64 begin, i64 end) { ... }
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.index.index import Var
from ...ir.kernel import Fold, Loop, Statement
from ..source_writer import Writer
from .dtypes import scalar_type
from .layout import KernelLayout
from .loops import Loops
from .reductions import Accumulators
from .value_text import CppValues

_GROUP = 16  # number of chunks whose results are joined into a group, before groups are joined


class RegionFunction:
    """One function.

    Args:
        layout: the layout of the kernel.
        name: the name of the function.
        body: the statements that it runs.
        parallel: variables of the loops whose iterations threads share.
    """

    def __init__(self, layout: KernelLayout, name: str, body: Sequence[Statement], parallel: frozenset[Var]) -> None:
        self._layout, self._name, self._body = layout, name, body
        names, self._lines = layout.names(body)
        self._writer = Writer()
        self._out = CppValues(self._writer, names, layout.dependence)
        self._loops = Loops(self._out, layout.apart, parallel)

    def text(self) -> str:
        """The text of the function, after one of the methods below has written its body."""
        head = f"static void {self._name}(const Call* call, i64 begin, i64 end) {{"
        return "\n".join([head, *("  " + line for line in self._lines), *self._writer.lines, "}"])

    def serial(self) -> None:
        """Run the body once, and keep the results of folds."""
        for statement in self._body:
            if isinstance(statement, Fold):
                for key, name in self._loops.fold(statement).items():
                    self._writer.line(f"keep(call->results + {self._layout.slots[key]}, {name});")
            else:
                self._loops.block([statement])

    def iterate(self, loops: Sequence[Loop], chunked: Loop | None, each: int) -> None:
        """Run iterations `begin` to `end` of perfectly nested loops, the innermost (`chunked`) in chunks of `each`."""
        if chunked is None and len(loops) == 1:
            self._loops.loop(loops[0], "begin", "end")
        elif not loops:
            assert chunked is not None
            limit = self._out.at(chunked.var.extent)
            end = self._writer.define("i64", f"least<i64>(end * {each}, {limit})")
            self._loops.loop(chunked, f"begin * {each}", end)
        else:
            self._iterations(loops, chunked, each)

    def _iterations(self, loops: Sequence[Loop], chunked: Loop | None, each: int) -> None:
        """Count the loops' variables up beside `q`: to divide it each time would take as long as a short row."""
        counters: list[tuple[str, str]] = []  # the innermost first: variable and number of values
        rest, limit = "begin", ""
        if chunked is not None:
            limit = self._out.at(chunked.var.extent)
            pieces = self._writer.define("i64", f"({limit} + {each - 1}) / {each}")
            rest = self._counter(rest, pieces, counters)
        for loop in reversed(loops[1:]):
            rest = self._counter(rest, self._out.at(loop.var.extent), counters)
            self._out.names.variables[loop.var] = counters[-1][0]
        first = self._writer.fresh("v")
        self._writer.line(f"i64 {first} = {rest};")
        self._out.names.variables[loops[0].var] = first
        with self._writer.block("for (i64 q = begin; q < end; ++q)"):
            if chunked is None:
                self._loops.block(loops[-1].body)
            else:
                start = self._writer.define("i64", f"{counters[0][0]} * {each}")
                self._loops.loop(chunked, start, self._writer.define("i64", f"least<i64>({start} + {each}, {limit})"))
            step = f"++{first};"
            for name, size in reversed(counters):
                step = f"if (++{name} == {size}) {{ {name} = 0; {step} }}"
            self._writer.line(step)

    def _counter(self, rest: str, size: str, counters: list[tuple[str, str]]) -> str:
        """Define a variable that starts at ``begin`` modulo its number of values; gives the quotient."""
        name = self._writer.fresh("v")
        self._writer.line(f"i64 {name} = {rest} % {size};")
        counters.append((name, size))
        return self._writer.define("i64", f"{rest} / {size}")

    def partial(self, fold: Fold, loop: Loop, each: int, memory: int) -> None:
        """Run chunks `begin` to `end` of a fold; the partial results of each chunk go to memory."""
        self._writer.line(f"i64* const partial = (i64*)call->buffers[{memory}];")
        limit = self._out.at(loop.var.extent)
        with self._writer.block("for (i64 q = begin; q < end; ++q)"):
            end = self._writer.define("i64", f"least<i64>(q * {each} + {each}, {limit})")
            states = self._loops.part(fold, loop, self._writer.define("i64", f"q * {each}"), end)
            names = [n for state in states for n in self._finished(state)]
            for k, name in enumerate(names):
                self._writer.line(f"keep(partial + q * {len(names)} + {k}, {name});")

    def _finished(self, state: Accumulators) -> list[str]:
        state.join_copies()
        return state.join_lanes()

    def joined(self, fold: Fold, memory: int, chunks: str) -> None:
        """Join the partial results of a fold in order: those of groups of chunks, then the groups."""
        states = self._neutral(fold)
        self._writer.line(f"const i64* partial = (const i64*)call->buffers[{memory}];")
        with self._writer.block(f"for (i64 first = 0; first < {chunks}; first += {_GROUP})"):
            groups = self._neutral(fold)
            last = self._writer.define("i64", f"least<i64>(first + {_GROUP}, {chunks})")
            count = sum(len(state.dtypes) for state in groups)
            with self._writer.block(f"for (i64 q = first; q < {last}; ++q, partial += {count})"):
                self._join_stored(groups)
            for state, group in zip(states, groups, strict=True):
                state.join(group, 0)
        for state in states:
            for component, name in enumerate(state.names[0]):
                slot = self._layout.slots[state.reduction.name, component]
                self._writer.line(f"keep(call->results + {slot}, {name});")

    def _neutral(self, fold: Fold) -> list[Accumulators]:
        """New scalar accumulators of a fold, at the identity."""
        states = [Accumulators(self._writer, reduction, None) for reduction in fold.reductions]
        for state in states:
            state.start()
        return states

    def _join_stored(self, states: Sequence[Accumulators]) -> None:
        """Join the states that `partial` points to."""
        parts, k = [Accumulators(self._writer, state.reduction, None) for state in states], 0
        for state, part in zip(states, parts, strict=True):
            part.start()
            for name, dtype in zip(part.names[0], part.dtypes, strict=True):
                self._writer.line(f"__builtin_memcpy(&{name}, partial + {k}, sizeof({scalar_type(dtype)}));")
                k += 1
            state.join(part, 0)

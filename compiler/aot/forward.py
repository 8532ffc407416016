"""The functions of an artifact: the checks of its inputs and its graph, and what it does when it is loaded."""

from __future__ import annotations

import dataclasses
from itertools import combinations
from typing import Any

import torch
from torch import fx

from ...rewrites.purity import written
from ..codegen.cpp_wrapper.emit import CppFunction
from ..codegen.cpp_wrapper.numbers import dtype_text, expression_text, integer_text, string_text
from ..codegen.cpp_wrapper.tables import Tables
from ..codegen.kernel_call import KernelCall
from ..codegen.wrapper.memory_plan import plan_memory
from ..freezing import Folded
from .artifact import room
from .errors import AotError
from .program import AotProgram, Input
from .ranges import divisors, tightened

_LARGEST = "INT64_MAX"
_LETTERS = {"tensor": "t", "none": "t", "int": "i", "float": "f", "bool": "b"}
SIMPLY = '__attribute__((optimize("O0")))\n'
"""Of functions whose time is that of what they call: optimizing takes longer than all else of compiling them."""


@dataclasses.dataclass(frozen=True)
class Bound:
    """A symbolic size: its name in C++, where it is read, and what it may be.

    Args:
        name: of the variable.
        where: ``"dim 0 of input 'x'"``.
        low: least value.
        high: greatest value, None where there is none.
    """

    name: str
    where: str
    low: int
    high: int | None


class ForwardFunction:
    """The function `forward` of a program's compiled graph.

    Args:
        program: what was compiled.
        graph_module: with generated kernels.
        tables: gets what it refers to.

    Attributes:
        symbols: what is known of each symbol.
        conditions: what was assumed of the sizes, beyond their ranges, as text.
        writes: names of inputs and state that the program writes.
    """

    def __init__(self, program: AotProgram, graph_module: fx.GraphModule, tables: Tables) -> None:
        self._program = program
        self.symbols: dict[Any, Bound] = {}
        self.conditions: list[str] = []
        self._lines: list[str] = []
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        state, given = placeholders[: len(program.state)], placeholders[len(program.state) :]
        self._taken = [one for one in program.inputs if one.kind != "constant"]
        if len(given) != len(self._taken):
            raise AotError("the inputs of the compiled graph differ from those of the program")
        updated = _written(graph_module.graph)
        self.writes = [name for name, node in zip(program.state, state, strict=True) if node in updated]
        changed = {one.name for one, node in zip(self._taken, given, strict=True) if node in updated}
        self.changed_inputs = sorted(changed)
        self._ranges, self._assumed = self._served(graph_module.graph)
        self._inputs(changed)
        texts = {node: f"input{k}" for k, node in enumerate(given)}
        for (name, value), node in zip(program.state.items(), state, strict=True):
            if node.users:
                texts[node] = tables.constant(name, value)
        names = {symbol: bound.name for symbol, bound in self.symbols.items()}
        function = CppFunction(graph_module, plan_memory(graph_module.graph), tables, texts, names)
        self._lines += function.lines
        self.kinds = [function.kind(result) for result in function.results]
        self._results(function)

    def text(self) -> str:
        """The function's C++."""
        body = "\n".join(f"  {line}" for line in self._lines)
        kinds = "".join("t" if one.kind == "tensor" else "i" for one in self._taken)
        given = "".join(_LETTERS[kind] for kind in self.kinds)
        told = f'const char regraft_inputs[] = "{kinds}", regraft_outputs[] = "{given}";'
        return f"{told}\n{SIMPLY}void regraft_call(Frame& frame, const void* in, Value* out) {{\n{body}\n}}\n"

    def _served(self, graph: fx.Graph) -> tuple[dict[Any, tuple[int, int | None]], list[Any]]:
        """The range of each symbol, and what else is assumed of them."""
        facts = self._program.facts
        known = {symbol: facts.range_of(symbol) for symbol in facts.symbols.values()}
        dynamic = {symbol: (low, high) for symbol, (low, high) in known.items() if low != high}
        ranges, conditions = tightened(dynamic, [*facts.conditions(), *divisors(graph)])
        for symbol, (low, high) in ranges.items():
            if high is not None and low > high:
                raise AotError(
                    f"no value of the size {symbol} meets the conditions of both the program and its kernels"
                )
        return {**known, **ranges}, conditions

    def _inputs(self, changed: set[str]) -> None:
        for position, one in enumerate(self._taken):
            self._read(position, one)
        for bound in self.symbols.values():
            high = _LARGEST if bound.high is None else integer_text(bound.high)
            where = string_text(bound.where)
            self._lines.append(f"in_range({bound.name}, {where}, {integer_text(bound.low)}, {high});")
        names = {symbol: bound.name for symbol, bound in self.symbols.items()}
        for position, one in enumerate(self._taken):
            if one.kind == "tensor":
                self._check_sizes(position, one, names)
        self._check_conditions(names)
        self._check_memory(changed)
        for position, one in enumerate(self._taken):
            if one.kind == "tensor" and (one.sizes or one.name in changed):
                self._place(position, one, names, one.name in changed)

    def _read(self, position: int, one: Input) -> None:
        name, shown = f"input{position}", string_text(one.name)
        if one.kind == "int":
            self._lines.append(f"const int64_t {name} = given_number(in, {position}, {shown});")
            self._bind(one.sizes[0], name, f"input '{one.name}'")
            return
        assert one.dtype is not None
        made = f"given(in, {position}, {shown}, {dtype_text(one.dtype)}, {len(one.sizes)})"
        self._lines.append(f"Tensor {name} = {made};")
        for dim, size in enumerate(one.sizes):
            if not isinstance(size, int) and size.is_Symbol:
                self._bind(size, f"{name}.size({dim})", f"dim {dim} of input '{one.name}'")

    def _bind(self, symbol: Any, text: str, where: str) -> None:
        if symbol in self.symbols or not symbol.is_Symbol:
            return
        low, high = self._ranges[symbol]
        if low == high:
            raise AotError(f"{where} was to be dynamic, but the program is for {low} alone there: export it so")
        self.symbols[symbol] = Bound(f"size{len(self.symbols)}", where, low, high)
        self._lines.append(f"const int64_t {self.symbols[symbol].name} = {text};")

    def _check_sizes(self, position: int, one: Input, names: dict[Any, str]) -> None:
        for dim, size in enumerate(one.sizes):
            why = ""
            if not isinstance(size, int):
                bound = self.symbols.get(size)
                if bound is not None and bound.where == f"dim {dim} of input '{one.name}'":
                    continue
                why = f", as is {bound.where}" if bound is not None else ", which follows from other sizes"
            arguments = (
                f"input{position}, {string_text(one.name)}, {dim}, {expression_text(size, names)}, {string_text(why)}"
            )
            self._lines.append(f"is_size({arguments});")

    def _check_conditions(self, names: dict[Any, str]) -> None:
        shown = {symbol: f"({bound.where})" for symbol, bound in self.symbols.items()}
        for condition in self._assumed:
            if not condition.free_symbols or not condition.free_symbols <= names.keys():
                continue
            text = expression_text(condition, shown).replace("int64_t(", "(").replace("ll)", ")")
            self.conditions.append(text)
            self._lines.append(f"holds({expression_text(condition, names)}, {string_text(text)});")

    def _check_memory(self, changed: set[str]) -> None:
        """What is written shares its memory with no other input, which would be read as it was before."""
        tensors = [(position, one.name) for position, one in enumerate(self._taken) if one.kind == "tensor"]
        for (k, name), (other, beside) in combinations(tensors, 2):
            if name in changed or beside in changed:
                pairs = [(k, name), (other, beside)][:: 1 if name in changed else -1]
                told = ", ".join(f"input{position}, {string_text(shown)}" for position, shown in pairs)
                self._lines.append(f"apart({told});")

    def _place(self, position: int, one: Input, names: dict[Any, str], changed: bool) -> None:
        sizes, strides = (
            "{" + ", ".join(expression_text(n, names) for n in part) + "}" for part in (one.sizes, one.strides)
        )
        if changed:
            self._lines.append(f"unchanged(in, {position}, {string_text(one.name)}, {strides});")
            self._lines.append(f"touched(input{position});")
            return
        self._lines.append(f"input{position} = placed(input{position}, {sizes}, {strides});")

    def _results(self, function: CppFunction) -> None:
        last = {result: k for k, result in enumerate(function.results) if isinstance(result, fx.Node)}
        for position, result in enumerate(function.results):
            text = function.name(result) if isinstance(result, fx.Node) else _constant_result(result)
            if text.startswith(("constant(", "input")) and self.kinds[position] == "tensor":
                text = f"cloned({text})"
            elif self.kinds[position] == "tensor" and last.get(result) == position:
                text = f"moved({text})"
            self._lines.append(f"give(out[{position}], {text});")


def _constant_result(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return integer_text(value)
    raise AotError(f"a result of the compiled graph is a {type(value).__name__}, which no artifact gives")


def _written(graph: fx.Graph) -> set[fx.Node]:
    """The inputs that a graph writes."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if isinstance(node.target, KernelCall):
            names = dict(zip(node.target.given, node.args, strict=False))
            found.update(names[name] for name in node.target.updates)  # type: ignore[misc]
        else:
            found.update(written(node))
    return found


def loading_text(tables: Tables, folded: Folded | None, state: dict[str, torch.Tensor]) -> str:
    """The function `regraft_load`: constants from the file's memory; what has a layout of a library is computed.

    Args:
        tables: with all constants that functions refer to; gets those that others are computed from.
        folded: what computes the constants that have no place in a file.
        state: the program's parameters and buffers by name.
    """
    computed = _computing(tables, folded, state)
    lines: list[str] = []
    offset = 0
    for position, value in enumerate(tables.constants.values()):
        if value is None:
            continue
        sizes, strides = ("{" + ", ".join(map(integer_text, part)) + "}" for part in (value.shape, value.stride()))
        place = f"memory + {integer_text(offset)}" if value.numel() else "memory"
        made = f"stored({place}, {sizes}, {strides}, {dtype_text(value.dtype)})"
        lines.append(f"keep(frame, {position}, {made});")
        offset += room(value)
    body = "\n".join(f"  {line}" for line in [*lines, *computed])
    count = f"const int64_t regraft_constants = {len(tables.constants)};"
    return f"{count}\n{SIMPLY}void regraft_load(Frame& frame, char* memory) {{\n{body}\n}}\n"


def _computing(tables: Tables, folded: Folded | None, state: dict[str, torch.Tensor]) -> list[str]:
    """Statements that compute the constants that cannot be stored, as they were computed while compiling."""
    wanted = [name for name, value in tables.constants.items() if value is None]
    if not wanted:
        return []
    if folded is None:
        raise AotError(f"the constants {', '.join(wanted)} have a layout that an artifact cannot store")
    names = list(folded.constants)
    positions = [names.index(name.removeprefix("constant ")) for name in wanted]
    module = fx.GraphModule(folded.prepare, fx.Graph())
    values: dict[fx.Node, fx.Node] = {}
    results = module.graph.graph_copy(folded.prepare.graph, values)
    module.graph.output(tuple(results[k] for k in positions))  # type: ignore[index]
    module.graph.eliminate_dead_code()
    given = {}
    for node, weight in zip(module.graph.find_nodes(op="placeholder"), folded.weights, strict=True):
        if node.users:
            known = (n for n, v in state.items() if v.data_ptr() == weight.data_ptr() and v.shape == weight.shape)
            name = next(known, f"weight {node.name}")
            given[node] = tables.constant(name, weight.detach())
    function = CppFunction(module, plan_memory(module.graph), tables, given, {}, reads_memory=False)
    stored = [
        f"keep(frame, {list(tables.constants).index(name)}, {function.name(result)});"
        for name, result in zip(wanted, function.results, strict=True)
    ]
    return [*function.lines, *stored]

"""A compiled graph as C++ for this process: one function, and what it refers to.

extern "C" void regraft_call(Frame& frame, Value* in, Value* out) {
  Tensor x(in[0].tensor), w(in[1].tensor);
  Tensor mm = tensor(call(op0(), x, w), 0);
  ...
  give(out[0], moved(mm));
}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ....rewrites.symbolic import SYMBOLIC
from ..cpp.compiler import LibrarySource
from ..wrapper.memory_plan import MemoryPlan
from .emit import CppFunction
from .errors import NotInCppError, refusal
from .operators import kind_of
from .prelude import PRELUDE, PROCESS
from .tables import Tables

_KINDS = {"tensor": "t", "int": "i", "float": "f", "bool": "b", "none": "t"}
_READ = {"i": "const int64_t {} = in[{}].whole;", "f": "const double {} = in[{}].real;",
         "b": "const bool {} = in[{}].whole;", "t": "Tensor {}(in[{}].tensor);"}  # fmt: skip
_UNREAD = "-"
_FIXED = "c"


@dataclass(frozen=True)
class CppGraph:
    """A graph's function in C++.

    Args:
        body: C++ that follows the prelude: the function, and what binds it to this process.
        kernels: functions that it launches, and the C++ that holds each.
        constants: tensors that it reads.
        functions: what it calls of Python.
        inputs: the kind of each input: ``t`` a tensor, ``i``, ``f`` and ``b`` numbers, ``-`` one that nobody reads.
        outputs: the kind of each result, ``c`` for one of `fixed`.
        fixed: results that are the same at every call, by position.
        sites: lines of the user's program, as statements number them.
        alone: whether the only result is given as it is, not in a tuple (the condition of a loop).
    """

    body: str
    kernels: tuple[tuple[str, LibrarySource], ...]
    constants: tuple[torch.Tensor, ...]
    functions: tuple[Callable[..., Any], ...]
    inputs: str
    outputs: str
    fixed: tuple[Any, ...]
    sites: tuple[str, ...]
    alone: bool

    @property
    def text(self) -> str:
        """The C++ of its library."""
        return PRELUDE + self.body


def in_cpp(graph_module: fx.GraphModule, plan: MemoryPlan) -> CppGraph:
    """The C++ of a compiled graph for CPUs.

    Args:
        graph_module: with generated kernels.
        plan: what is written over what.

    Raises:
        NotInCppError: something in it cannot be called from C++.
    """
    graph = graph_module.graph
    _refuse_devices(graph)
    tables = Tables(PROCESS)
    given, symbols = dict[fx.Node, str](), dict[Any, str]()
    kinds, reads = "", list[str]()
    for position, node in enumerate(graph.find_nodes(op="placeholder")):
        kind = _kind(node)
        kinds += kind
        if kind == _UNREAD:
            continue
        given[node] = name = f"in{position}"
        reads.append(f"{_READ[kind].format(name, position)}  // {node.name}")
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            symbols.setdefault(value.node.expr, name)
    function = CppFunction(graph_module, plan, tables, given, symbols)
    outputs, fixed, results = _results(function)
    statements = "\n".join(f"  {line}" for line in [*reads, *function.lines, *results])
    return CppGraph(
        "\n".join(_lines(tables, statements)) + "\n",
        tuple(tables.kernels.items()),
        tuple(value for value in tables.constants.values() if value is not None),
        tuple(function.functions),
        kinds,
        outputs,
        fixed,
        tuple(function.sites),
        not isinstance(graph.output_node().args[0], (list, tuple)),
    )


def _refuse_devices(graph: fx.Graph) -> None:
    for node in graph.nodes:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(tensor, torch.Tensor) and tensor.device.type not in ("cpu", "meta"):
                raise refusal("device", node, f"is on {tensor.device}; C++ calls kernels on CPUs alone")


def _kind(node: fx.Node) -> str:
    """How an input is read."""
    if not node.users:
        return _UNREAD
    value = node.meta.get("val")
    kind = kind_of(value)
    if kind not in _KINDS or ("val" not in node.meta):
        raise refusal("input", node, f"is an input of type {type(value).__name__}")
    return _KINDS[kind]


def _results(function: CppFunction) -> tuple[str, tuple[Any, ...], list[str]]:
    """Kinds of results, those that are fixed, and the statements that give the others."""
    kinds, fixed, lines = "", list[Any](), list[str]()
    last = {result: k for k, result in enumerate(function.results) if isinstance(result, fx.Node)}
    for position, result in enumerate(function.results):
        if not isinstance(result, (fx.Node, *SYMBOLIC)):
            if not isinstance(result, (type(None), bool, int, float, str)):
                raise NotInCppError("result", f"a result is a {type(result).__name__}")
            kinds += _FIXED
            fixed.append(result)
            continue
        fixed.append(None)
        kind, text = function.kind(result), function.name(result)
        if kind not in _KINDS:
            raise NotInCppError("result", f"a result is of kind {kind}")
        kinds += _KINDS[kind]
        moves = _KINDS[kind] == "t" and function.owns(result) and last[result] == position
        lines.append(f"give(out[{position}], {f'moved({text})' if moves else text});")
    return kinds, tuple(fixed), lines


def _lines(tables: Tables, statements: str) -> Iterator[str]:
    yield from (f"static Kernel* {name};" for name in tables.kernels)
    yield tables.handles()
    yield 'extern "C" void regraft_bind(const Api* given, void* const* kernels) {\n  api = given;'
    yield from (f"  {name} = (Kernel*)kernels[{k}];" for k, name in enumerate(tables.kernels))
    yield from (f"  op{k}();" for k in tables.operators.values())
    # Its time is that of what it calls: optimizing it takes five times as long as all else of compiling.
    yield '}\nextern "C" __attribute__((optimize("O0")))'
    yield f"void regraft_call(Frame& frame, Value* in, Value* out) {{\n{statements}\n}}"

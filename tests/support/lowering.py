"""Lowering against eager: trace a function, lower it, run the loop program by the interpreter, compare.

agree(lambda x: x.relu(), torch.randn(3, 4))               everything is lowered, results and metadata are eager's
agree(f, x, extern={"aten.mm.default"})                    exactly these calls stay calls
agree(f, x, dynamic=True)                                  sizes symbolic
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from regraft.compiler.ir.interpreter import run_program
from regraft.compiler.ir.program import Extern
from regraft.compiler.lowering import Lowered, lower
from regraft.compiler.lowering.agreement import hold_sizes
from regraft.compiler.lowering.sizes import size_name
from regraft.rewrites.compat import new_fake_mode, tree_leaves

HALVES = (torch.bfloat16, torch.float16)
SYMBOLIC = (torch.SymInt, torch.SymFloat)


@contextlib.contextmanager
def deterministic(*, fill: bool = True) -> Iterator[None]:
    """Deterministic algorithms are asked for inside; `fill`: so that memory nobody wrote holds the same everywhere."""
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = fill
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = filled


def trace(function: Callable[..., Any], *inputs: Any, dynamic: bool = False, numbers: bool = False) -> fx.GraphModule:
    """The functional ATen graph of `function`; writes to inputs are `copy_` calls at its end.

    Args:
        function: of tensors and numbers.
        inputs: what it is traced with.
        dynamic: sizes are symbolic.
        numbers: so are the ints and floats among the inputs.
    """
    mode = new_fake_mode(ShapeEnv(duck_shape=False) if dynamic or numbers else None)
    fakes = [mode.from_tensor(x, static_shapes=not dynamic) if isinstance(x, torch.Tensor) else x for x in inputs]
    if numbers:
        fakes = [
            symbolic_number(mode.shape_env, x, f"n{k}") if isinstance(x, (int, float)) else x
            for k, x in enumerate(fakes)
        ]
    with mode:
        # Twice: composite operators write in place, and only what is an operator of the graph is functionalized.
        module = make_fx(functionalize(make_fx(lambda *args: function(*args))(*fakes)))(*fakes)
    module.graph.eliminate_dead_code()
    return module


def symbolic_number(shape_env: ShapeEnv, value: int | float, name: str) -> torch.SymInt | torch.SymFloat:
    """A number that a program is given, as Dynamo makes it: nothing is known of it."""
    source = ConstantSource(name)
    symbol = shape_env.create_unspecified_symbol(value, source, DimDynamic.DYNAMIC)
    make = shape_env.create_symfloatnode if isinstance(value, float) else shape_env.create_symintnode
    return make(symbol, hint=value, source=source)


def lowered(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> Lowered:
    """The loop program of a function."""
    return lower(trace(function, *inputs, dynamic=dynamic), strict=True)


def agree(
    function: Callable[..., Any],
    *inputs: Any,
    dynamic: bool = False,
    extern: set[str] = frozenset(),
    exact: bool = False,
    **tolerance: Any,
) -> Lowered:
    """Assert that the lowered function computes what eager does, and that exactly `extern` stays calls."""
    module = trace(function, *inputs, dynamic=dynamic)
    hold_sizes(module)
    made = lower(module, strict=True)
    assert {kept.operator for kept in made.kept} == set(extern), made.kept
    eager_inputs, own_inputs = fresh(inputs), fresh(inputs)
    expected = function(*eager_inputs)
    compare(run(module, made, own_inputs), expected, exact=exact, **tolerance)
    for ours, theirs in zip(own_inputs, eager_inputs, strict=True):
        compare(ours, theirs, exact=exact, **tolerance)
    return made


def agree_on_call(target: Any, args: Sequence[Any], expected: Any, **tolerance: Any) -> Lowered:
    """Assert that one call gives `expected`: of an operator that tracing on this device would take apart."""
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{i}") if isinstance(a, torch.Tensor) else a for i, a in enumerate(args)]
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    for node, tensor in zip(graph.nodes, tensors, strict=True):
        node.meta["val"] = tensor
    result = graph.call_function(target, tuple(nodes))
    result.meta["val"] = expected
    parts = expected if isinstance(expected, tuple) else ()
    items = {k: graph.call_function(operator.getitem, (result, k)) for k, part in enumerate(parts) if part is not None}
    for k, item in items.items():
        item.meta["val"] = parts[k]
    graph.output(tuple(items.values()) or result)
    module = fx.GraphModule({}, graph)
    made = lower(module, strict=True)
    assert not made.kept, made.kept
    compare(run(module, made, tensors), tuple(parts[k] for k in items) or expected, **tolerance)
    return made


def fresh(inputs: Sequence[Any]) -> list[Any]:
    """Inputs of their own memory, strides kept."""
    return [copy.deepcopy(x) if isinstance(x, torch.Tensor) else x for x in inputs]


def run(module: fx.GraphModule, made: Lowered, inputs: Sequence[Any]) -> Any:
    """What the lowered graph gives, by the interpreter; calls that stayed calls run in eager."""
    replay = Replay(module, inputs)
    tensors = run_program(made.program, replay.given(made), sizes=replay.symbols(), extern=replay.extern)
    output = next(node for node in module.graph.nodes if node.op == "output")
    return fx.map_arg(output.args[0], lambda node: replay.value(node, tensors))


class Replay:
    """Runs nodes of a graph again, on buffers of a loop program."""

    def __init__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> None:
        self._module = module
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self._inputs = dict(zip(placeholders, inputs, strict=True))
        self._results: dict[fx.Node, Any] = {}
        self._written: Mapping[str, str] = {}

    def given(self, made: Lowered) -> dict[str, Any]:
        self._written = made.written
        nodes = {node.name: node for node in self._module.graph.nodes}
        return {name: self.value(nodes[name], {}) for name, b in made.program.buffers.items() if b.kind != "made"}

    def symbols(self) -> dict[str, int]:
        found: dict[Any, int] = {}
        for node, value in self._inputs.items():
            meta = node.meta.get("val")
            pairs = zip(meta.shape, value.shape, strict=True) if isinstance(meta, torch.Tensor) else [(meta, value)]
            found |= {s.node.expr: n for s, n in pairs if isinstance(s, SYMBOLIC) and s.node.expr.is_Symbol}
        return {
            size_name(expr): int(expr.xreplace(found)) for expr in self._expressions() if expr.free_symbols <= {*found}
        }

    def _expressions(self) -> set[Any]:
        """The symbolic ints that the graph's metadata is made of."""
        leaves = [x for node in self._module.graph.nodes for x in tree_leaves(node.meta.get("val"))]
        numbers = [n for x in leaves for n in ((*x.shape, *x.stride()) if isinstance(x, torch.Tensor) else (x,))]
        return {n.node.expr for n in numbers if isinstance(n, torch.SymInt)}

    def value(self, node: fx.Node, tensors: Mapping[str, torch.Tensor]) -> Any:
        if node in self._results:  # first: a result that is no tensor has a buffer without elements
            return self._results[node]
        if isinstance(self._inputs.get(node), (bool, int, float)):
            return self._inputs[node]
        name = self._written.get(node.name, node.name)
        if name in tensors:
            return tensors[name]
        if node in self._inputs:
            return self._inputs[node]
        if node.op == "get_attr":
            return getattr(self._module, node.target)
        return self._call(node, tensors)

    def _call(self, node: fx.Node, tensors: Mapping[str, torch.Tensor]) -> Any:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: self.value(n, tensors))
        return node.target(*args, **kwargs)

    def extern(self, item: Extern, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        result = self._results[item.node] = self._call(item.node, tensors)
        if item.name in item.writes and isinstance(result, (bool, int, float)):
            return {
                item.name: torch.tensor([result], dtype=torch.float64 if isinstance(result, float) else torch.int64)
            }
        if isinstance(result, torch.Tensor):
            return {item.name: result} if item.name in item.writes else {}
        made = {u.name: result[u.args[1]] for u in item.node.users if u.name in item.writes}
        token = {item.name: torch.empty(0, dtype=torch.bool)} if item.name in item.writes else {}
        return made | token


def compare(ours: Any, expected: Any, *, exact: bool = False, **tolerance: Any) -> None:
    """Assert that results agree: values (NaN equals NaN), dtypes, sizes and strides."""
    if isinstance(expected, (list, tuple)):
        assert len(ours) == len(expected)
        for a, b in zip(ours, expected, strict=True):
            compare(a, b, exact=exact, **tolerance)
        return
    if not isinstance(expected, torch.Tensor):
        assert ours == expected
        return
    limits = {"rtol": 0, "atol": 0} if exact else tolerance
    torch.testing.assert_close(ours, expected, equal_nan=True, **limits)
    if expected.numel() > 1:
        assert _strides(ours) == _strides(expected), (ours.stride(), expected.stride())


def _strides(tensor: torch.Tensor) -> list[int]:
    """Strides of the dims that have more than one element: those of the others mean nothing."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]

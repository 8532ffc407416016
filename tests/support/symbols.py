"""Programs of tensors and numbers whose numbers are symbolic, compiled by either code generator and held against eager.

check(lambda x, n: x + n // 3, [(x, -4), (x, 5)])                         traced with the first call, run on all
check(lambda x, n: x + n // 3, [(x, -4), (x, 5)], "interpreter")          GPU kernels, interpreted
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from regraft.compiler.codegen.assemble import assemble
from regraft.compiler.codegen.wrapper.wrapper import generate
from regraft.compiler.lowering import lower
from regraft.compiler.lowering.agreement import hold_sizes
from regraft.compiler.schedule import CPU, gpu, overwrites, schedule

from .fuzzing import BUILDERS
from .lowering import compare, fresh, trace


def check(
    function: Callable[..., Any],
    calls: Sequence[Sequence[Any]],
    device: str = "cpu",
    *,
    dynamic: bool = True,
    **tolerance: Any,
) -> list[tuple[str, str]]:
    """Assert that every call gives what eager gives, or raises where eager does; gives the calls that stayed calls.

    Where the guards of a program do not hold, the function is compiled again, as Dynamo does.
    """
    programs: list[Program] = []
    for call in calls:
        try:
            expected = function(*fresh(call))
        except (RuntimeError, IndexError, ZeroDivisionError, OverflowError) as error:
            _assert_raises(programs, call, error)
            continue
        if not any(program.takes(call) for program in programs):
            programs.append(compiled(function, call, device))
        run = next(program for program in programs if program.takes(call)).run
        compare(run(*fresh(call)), expected, **tolerance)
    return [kept for program in programs for kept in program.kept]


@dataclass(frozen=True)
class Traced:
    """A graph of symbolic numbers.

    Args:
        module: the graph.
        guards: what it was traced for, in symbols.
        inputs: a number, or a tensor of symbolic sizes, each.
    """

    module: fx.GraphModule
    guards: list[Any]
    inputs: list[Any]

    def takes(self, call: Sequence[Any]) -> bool:
        """Whether all guards hold for these inputs."""
        known = {}
        for meta, given in zip(self.inputs, call, strict=True):
            pairs = zip(meta.shape, given.shape, strict=True) if isinstance(meta, torch.Tensor) else [(meta, given)]
            known |= {symbol.node._expr: n for symbol, n in pairs if not isinstance(symbol, (int, float))}
        return all(bool(guard.xreplace(known)) for guard in self.guards)


def traced(function: Callable[..., Any], inputs: Sequence[Any], dynamic: bool = True) -> Traced:
    """A function traced with symbolic numbers, and symbolic sizes where `dynamic`."""
    module = trace(function, *inputs, dynamic=dynamic, numbers=True)
    given = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    leaves = tree_leaves([tuple(g.shape) if torch.is_tensor(g) else g for g in given])
    (shape_env,) = {leaf.node.shape_env for leaf in leaves if not isinstance(leaf, (int, float))}
    hold_sizes(module)
    return Traced(module, [guard.expr for guard in shape_env.guards], given)


@dataclass(frozen=True)
class Program:
    """A compiled function: `run` runs it, `kept` are operator and code of the calls that stayed calls."""

    run: Callable[..., Any]
    kept: list[tuple[str, str]]
    source: Traced

    def takes(self, call: Sequence[Any]) -> bool:
        """Whether it was compiled for such inputs."""
        return self.source.takes(call)


def compiled(function: Callable[..., Any], inputs: Sequence[Any], device: str = "cpu", dynamic: bool = True) -> Program:
    """A function compiled for symbolic numbers, and symbolic sizes where `dynamic`."""
    source = traced(function, inputs, dynamic)
    made = lower(source.module, strict=True)
    plan = schedule(made.program, target=CPU if device == "cpu" else gpu(132))
    functions = dict(zip((k.name for k in plan.kernels), BUILDERS[device](plan.kernels), strict=True))
    graph = assemble(source.module.graph, plan, functions, overwrites, made.written)
    wrapper = generate(fx.GraphModule(source.module, graph), name="symbols")

    def run(*args: Any) -> Any:
        with torch.no_grad():
            return wrapper.call(list(args))

    return Program(run, [(kept.operator, kept.code) for kept in made.kept], source)


def _assert_raises(programs: Sequence[Program], call: Sequence[Any], error: Exception) -> None:
    for program in programs:
        if program.takes(call):
            try:
                program.run(*fresh(call))
            except (RuntimeError, IndexError, ZeroDivisionError, OverflowError):
                continue
            raise AssertionError(f"eager raises {type(error).__name__} for {call[1:]}: {error}")

"""Facts held against the truth: every node of a graph is computed, and compared with what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from regraft.rewrites.compat import capture_function
from regraft.rewrites.facts import Conditional, Fact, Positions, Table, Uniform, facts_of_graph
from regraft.rewrites.facts.evaluate import elements
from regraft.rewrites.functional import functionalize_temporaries


def captured(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> fx.GraphModule:
    """The ATen graph of a function before autograd, what it writes to temporaries made functional."""
    module, _ = capture_function(function, inputs, dynamic=dynamic)
    functionalize_temporaries(module.graph)
    return module


def facts(module: fx.GraphModule) -> dict[fx.Node, Fact]:
    """What is known of each node; asserts that no guard was needed to know it."""
    env = module.graph.find_nodes(op="placeholder")[0].meta["val"].fake_mode.shape_env
    guards = len(env.guards)
    found = facts_of_graph(module.graph, set())
    assert len(env.guards) == guards, env.guards[guards:]
    return found


def fact(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> Fact | None:
    """What is known of the result of a function."""
    module = captured(function, *inputs, dynamic=dynamic)
    (result,) = module.graph.output_node().all_input_nodes
    return facts(module).get(result)


def agree(module: fx.GraphModule, known: dict[fx.Node, Fact], inputs: list[torch.Tensor]) -> None:
    """Assert that every fact is true when the graph runs on `inputs`, to the bit where it says so."""
    _Held(module, known).run(*inputs)


class _Held(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, known: dict[fx.Node, Fact]) -> None:
        super().__init__(module)
        self._known = known
        self._sizes: dict[Any, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        value = n.meta.get("val")
        if n.op == "placeholder" and isinstance(value, torch.Tensor):
            pairs = zip(value.shape, result.shape, strict=True)
            self._sizes |= {s.node.expr: size for s, size in pairs if isinstance(s, torch.SymInt)}
        if n in self._known:
            self._hold(n, self._known[n], result)
        return result

    def _hold(self, node: fx.Node, known: Fact, truth: torch.Tensor) -> None:
        claimed = elements(self._concrete(known), truth)
        assert claimed.dtype == truth.dtype, f"{node.format_node()}: {known}"
        if getattr(known, "exact", True):
            signs = torch.equal(claimed.signbit() & ~claimed.isnan(), truth.signbit() & ~truth.isnan())
            same = signs and torch.equal(claimed.nan_to_num(7.5), truth.nan_to_num(7.5))
            same = same and torch.equal(claimed.isnan(), truth.isnan()) and torch.equal(claimed.isinf(), truth.isinf())
        else:
            same = torch.allclose(claimed, truth, equal_nan=True, rtol=1e-2)
        assert same, f"{node.format_node()}\n{known}\nclaimed {claimed}\ntruth {truth}"

    def _concrete(self, known: Fact) -> Fact:
        if isinstance(known, (Uniform, Table)):
            return known
        if isinstance(known, Conditional):
            return replace(known, conditions=tuple(map(self._numbers, known.conditions)))
        return self._numbers(known)

    def _numbers(self, positions: Positions) -> Positions:
        return Positions(self._number(positions.offset), tuple(map(self._number, positions.steps)))

    def _number(self, size: Any) -> int:
        return int(size.node.expr.xreplace(self._sizes)) if isinstance(size, torch.SymInt) else size

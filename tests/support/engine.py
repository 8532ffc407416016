"""Small graphs and rules for tests of the engine: capture a function, rewrite its graph, look at what came out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.rewrites import rule as rules
from regraft.rewrites.binding import Binding
from regraft.rewrites.compat import new_fake_mode
from regraft.rewrites.driver import Settings, rewrite
from regraft.rewrites.graph import op_name
from regraft.rewrites.matcher import Matcher
from regraft.rewrites.reason import Reason
from regraft.rewrites.record import GraphRecord
from regraft.rewrites.rule import ROUNDING, Rule, register_pattern
from regraft.rewrites.sample import Sample, T

X = torch.linspace(-2, 2, 12).reshape(3, 4)
ANY = (Sample(x=T("N N")),)


def capture(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False) -> fx.GraphModule:
    """The ATen graph of `function` before autograd; every node comes from a line of its own of ``user.py``."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = new_fake_mode(ShapeEnv(duck_shape=False))
    own = [x.clone() for x in inputs]  # fake modes know tensors by identity
    fakes = [mode.from_tensor(x, static_shapes=not dynamic) for x in own]
    with mode:
        module = make_fx(function, pre_dispatch=True)(*fakes)
    for line, node in enumerate(calls(module), start=1):
        node.meta["stack_trace"] = f'File "user.py", line {line}, in model\n    {node.name} = ...\n'
    return module


def calls(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "call_function"]


def ops(module: fx.GraphModule) -> list[str]:
    """Names of the operators that a graph calls, in order."""
    return [op_name(node).removeprefix("aten.") for node in calls(module)]


def guards(module: fx.GraphModule) -> list[str]:
    """The assumptions that were made about symbolic sizes."""
    value = next(iter(module.graph.nodes)).meta["val"]
    return [str(guard.expr) for guard in value.fake_mode.shape_env.guards]


def rule(pattern: Callable[..., Any], replacement: Any, name: str = "rule", **declaration: Any) -> Rule:
    """A rule whose samples do not matter; it takes the place of an earlier one of its name."""
    rules._declared.pop(name, None)
    operand = next(iter(pattern.__code__.co_varnames))
    given = {"samples": [Sample(**{operand: T("N")})], "numerics": ROUNDING} | declaration
    return register_pattern(name, replacement=replacement, **given)(pattern)


def applied(module: fx.GraphModule, rules: Rule | Sequence[Rule], **settings: Any) -> GraphRecord:
    """The record of rewriting `module`."""
    record = GraphRecord("test")
    given = {"verify": "structure", "near_miss_depth": 0} | settings
    rewrite(module, [rules] if isinstance(rules, Rule) else rules, Settings(**given), record)
    module.graph.lint()
    return record


def match(one: Rule, module: fx.GraphModule, root: int = -1) -> tuple[list[Binding], Reason | None]:
    """All matches of a rule at a call of a graph as it is, and why the deepest attempt failed."""
    matcher = Matcher(one)
    found = list(matcher.match(calls(module)[root]))
    return found, matcher.failure.reason if matcher.failure else None

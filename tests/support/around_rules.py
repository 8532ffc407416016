"""Programs around the library's rules: what a rule's sample computes, changed in a place or two.

relu(exp(x))      ->      relu(exp(neg(x))), relu(exp(x)) with exp(x) returned, relu(sin(x)), ...
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

import regraft
from regraft.compiler.tools.check.case import Case
from regraft.compiler.tools.check.drawn import Drawn
from regraft.rewrites.compat import capture_function
from regraft.rewrites.graph import is_tensor, val
from regraft.rewrites.rule import Rule

_UNARY = (torch.neg, torch.tanh, torch.abs, torch.clone)


@dataclass
class Program:
    """A program around a rule.

    Args:
        rule: whose sample it was made of.
        change: what was done to it.
        module: the program; `inputs` what it runs on.
    """

    rule: Rule
    change: str
    module: fx.GraphModule
    inputs: list[Any]


def programs(
    generator: random.Random, count: int, rules: Sequence[Rule] | None = None, changes: int = 1
) -> Iterator[Program]:
    """Programs around rules, of stage "forward" and "lowered" by default, each changed in up to so many places."""
    chosen = list(rules or (rule for rule in regraft.default_rules() if rule.stage != "simplify"))
    while count:
        rule = generator.choice(chosen)
        sample = generator.choice([s for s in rule.samples if not s.refused])
        case = Case.of(rule, sample, Drawn.plain(sample))
        module, places = capture_function(case.program, list(case.operands), dynamic=False)
        drawn = [generator.choice(list(_CHANGES)) for _ in range(generator.randint(1, changes))]
        if not all(_CHANGES[change](module.graph, generator) for change in drawn):
            continue
        module.recompile()
        count -= 1
        yield Program(rule, " and ".join(drawn), module, [case.operands[i].detach() for i in places])


def agreement(program: Program) -> str | None:
    """How often `torch.compile` and `explain` say that the rule matched, where they differ."""
    options = {"profit": "always"}
    torch.compiler.reset()
    with torch.no_grad():
        with regraft.coverage() as cov:
            torch.compile(program.module, backend="regraft", options=options)(*program.inputs)
        compiled = sum(m.rule == program.rule.name for m in (*cov.applied, *cov.declined))
        torch.compiler.reset()
        found = regraft.explain(program.rule, program.module, *program.inputs, options=options)
    explained = len(found.matches) + len(found.declined)
    if compiled != explained:
        return f"{program.rule.name}, {program.change}: {compiled} compiled, {explained} explained"
    if not (explained or found.near_misses or found.fallbacks or found.later):
        return f"{program.rule.name}, {program.change}: nothing is told"
    return None


def _calls(graph: fx.Graph) -> list[fx.Node]:
    floats = [n for n in graph.nodes if n.op == "call_function" and is_tensor(n) and val(n).is_floating_point()]
    return [n for n in floats if n.target is not operator.getitem]


def _as_it_is(_graph: fx.Graph, _generator: random.Random) -> bool:
    return True


def _between(graph: fx.Graph, generator: random.Random) -> bool:
    """An operator behind one of its values."""
    node = generator.choice(_calls(graph))
    with graph.inserting_after(node):
        new = graph.call_function(generator.choice(_UNARY), (node,))
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new, lambda user: user is not new)
    return True


def _returned(graph: fx.Graph, generator: random.Random) -> bool:
    """One of its values returned."""
    output, node = graph.output_node(), generator.choice(_calls(graph))
    results = output.args[0] if isinstance(output.args[0], (list, tuple)) else (output.args[0],)
    output.args = ((*results, node),)
    return True


def _constant(graph: fx.Graph, generator: random.Random) -> bool:
    """Another number."""
    places = [(n, i) for n in _calls(graph) for i, a in enumerate(n.args) if type(a) is float and 0 < a < 1]
    if not places:
        return False
    node, place = generator.choice(places)
    node.args = (*node.args[:place], node.args[place] * 0.5, *node.args[place + 1 :])
    return True


_CHANGES: dict[str, Callable[[fx.Graph, random.Random], bool]] = {
    "as it is": _as_it_is, "an operator between": _between, "a value returned": _returned, "a number": _constant,
}  # fmt: skip

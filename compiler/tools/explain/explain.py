"""Why did a rule match, or not? `explain` compiles a model and tells of one rule only, down to single operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ....rewrites.coverage import coverage
from ....rewrites.record import Fallback, Match, NearMiss
from ....rewrites.rule import Rule
from ...backend import Compilation, resolve_rules
from ...options import Options


@dataclass(frozen=True)
class Explanation:
    """What became of one rule in one model.

    Attributes:
        purpose: what the rule does, in one line.
        matches: where it matched (all were applied: the question is legality).
        near_misses: where it did not, deepest first.
        fallbacks: parts of the model that no rule saw, and why.
    """

    rule: str
    matches: list[Match] = field(default_factory=list)
    near_misses: list[NearMiss] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    graphs: int = 0
    purpose: str = ""

    def __str__(self) -> str:
        from .text import explanation_text

        return explanation_text(self)


def explain(rule: Rule | str, model: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Compile `model`, run it on the arguments, and tell what became of `rule` in it.

    Args:
        rule: a rule or the name of one.
        model: a module or function; it is run once. It is not changed.
        *args: its arguments.
        **kwargs: its keyword arguments.

    Raises:
        OptionError: no rule has that name.
    """
    (chosen,) = resolve_rules((rule,))
    options = Options(profit="always", rules=(chosen,))

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return Compilation(gm, example_inputs, options, near_miss_depth=0).run()

    with coverage() as cov:
        torch.compile(model, backend=backend)(*args, **kwargs)
    return Explanation(
        chosen.name,
        [m for g in cov.graphs for m in g.applied if m.rule == chosen.name],
        sorted((m for g in cov.graphs for m in g.near_misses if m.rule == chosen.name), key=lambda m: -m.depth),
        [f for g in cov.graphs for f in g.fallbacks],
        len(cov.graphs),
        chosen.doc.split("\n\n")[0].replace("\n", " "),
    )

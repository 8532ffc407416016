"""Why did a rule match, or not? `explain` compiles a model and tells of one rule only, down to single operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..rewrites.coverage import coverage
from ..rewrites.record import Fallback, Match, NearMiss
from ..rewrites.rule import Rule
from .backend import Compilation, resolve_rules
from .options import Options


@dataclass(frozen=True)
class Explanation:
    """What became of one rule in one model.

    Attributes:
        matches: where it matched (all were applied: the question is legality).
        near_misses: where it did not, deepest first.
        fallbacks: parts of the model that no rule saw, and why.
    """

    rule: str
    matches: list[Match] = field(default_factory=list)
    near_misses: list[NearMiss] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    graphs: int = 0

    def __str__(self) -> str:
        lines = [
            f"{self.rule}: {len(self.matches)} matched, {len(self.near_misses)} near misses in {self.graphs} graphs"
        ]
        for match in self.matches:
            lines.append(f"  matched   {match.module or '-'}  [{', '.join(match.tags)}]")
            lines.append(f"            {match.site or 'source unknown'}")
        for miss in self.near_misses:
            lines += ["", *_describe(miss)]
        for fallback in self.fallbacks:
            lines.append(f"  not seen  {fallback.code}: {fallback.message}")
        return "\n".join(lines)


def _describe(miss: NearMiss) -> list[str]:
    lines = [
        f"  near miss {miss.module or '-'}  ({miss.depth} of up to {miss.size} operators matched)",
        f"    reason    {miss.code}: {miss.message}",
    ]
    if miss.expected:
        lines += [f"    expected  {miss.expected}", f"    found     {miss.found}"]
    if miss.site is not None:
        lines.append(f"    at        {miss.site}")
    if miss.root is not None and miss.root != miss.site:
        lines.append(f"    root      {miss.root}")
    return lines


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
    )

"""An explanation as text that can be read at a glance: what is equal is told once, what came closest first.

sdpa: 24 matched, 2 near misses in 1 graph
  looks for softmax(query @ key_t * scale + mask) @ value, ...

  matched   x 24  encoder.layer.0.attention.self ... encoder.layer.11.attention.self
...
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, TypeVar

from .advice import advice

if TYPE_CHECKING:
    from ....rewrites.record import Match, NearMiss
    from .explain import Explanation

SHOWN = 6  # kinds of near misses told of; the rest are counted
TELLING = 2  # operators that must have matched, where the rule matched or others came closer than that

_Item = TypeVar("_Item")


def explanation_text(found: Explanation) -> str:
    """The text of an explanation."""
    missed, graphs = _misses(len(found.near_misses)), _counted(found.graphs, "graph", "graphs")
    lines = [f"{found.rule}: {len(found.matches)} matched, {missed} in {graphs}"]
    if found.purpose:
        lines.append(f"  looks for {found.purpose}")
    for matches in _grouped(found.matches, lambda m: (m.tags, m.site)):
        lines += ["", *_matched(matches)]
    kinds = _grouped(found.near_misses, lambda m: (m.code, m.message, m.expected, m.found, m.depth, m.site, m.root))
    telling = [misses for misses in kinds if misses[0].depth >= TELLING] or ([] if found.matches else kinds)
    for misses in telling[:SHOWN]:
        lines += ["", *_missed(misses)]
    rest = len(found.near_misses) - sum(map(len, telling[:SHOWN]))
    if rest:
        lines += ["", f"  and {_misses(rest)} that got no further"]
    for fallbacks in _grouped(found.fallbacks, lambda f: (f.code, f.message)):
        lines += ["", f"  not seen  {_times(fallbacks)}{fallbacks[0].code}: {fallbacks[0].message}"]
    if not found.matches and not found.near_misses:
        lines.append("  nothing in the model looks like it")
    return "\n".join(lines)


def _matched(same: list[Match]) -> list[str]:
    first = same[0]
    return [
        f"  matched   {_times(same)}{_modules(same)}",
        f"    as      {', '.join(first.tags) or 'written'}",
        f"    at      {first.site or 'source unknown'}",
    ]


def _missed(same: list[NearMiss]) -> list[str]:
    miss = same[0]
    lines = [
        f"  near miss {_times(same)}{_modules(same)}  ({miss.depth} of up to {miss.size} operators matched)",
        f"    reason    {miss.code}: {miss.message}",
    ]
    if miss.expected:
        lines += [f"    expected  {miss.expected}", f"    found     {miss.found}"]
    if (change := advice(miss)) != "":
        lines.append(f"    try       {change}")
    if miss.site is not None:
        lines.append(f"    at        {miss.site}")
    if miss.root is not None and miss.root != miss.site:
        lines.append(f"    root      {miss.root}")
    return lines


def _grouped(items: Iterable[_Item], key: Callable[[_Item], Hashable]) -> list[list[_Item]]:
    """Items with equal keys together, in the order of the first of each."""
    found: dict[Hashable, list[_Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


def _times(same: list[_Item]) -> str:
    return f"x {len(same)}  " if len(same) > 1 else ""


def _modules(same: list[Match] | list[NearMiss]) -> str:
    names = list(dict.fromkeys(_module(item.module) for item in same))
    return names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}"


def _module(name: str) -> str:
    """Dynamo's name of a module without what it adds: ``L['self'].layer.0``  ->  ``layer.0``."""
    return name.removeprefix("L['self']").removeprefix("L['fn']").lstrip(".") or "-"


def _misses(number: int) -> str:
    return _counted(number, "near miss", "near misses")


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"

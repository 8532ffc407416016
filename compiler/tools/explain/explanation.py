"""An explanation as text: equal matches are listed once, the closest near misses first.

sdpa: 24 matched, 2 near misses in 1 graph
  looks for softmax(query @ key_t * scale + mask) @ value, ...

  matched   x 24  encoder.layer.0.attention.self ... encoder.layer.11.attention.self
...
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ....rewrites.reason import Site
from ....rewrites.record import Fallback, Match, NearMiss, PassRun, Refusal
from ....rewrites.words import counted
from .advice import advice

TOP = "(top level)"
SHOWN = 6  # kinds of near misses that are listed by default

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Explanation:
    """The matches and near misses of one rule in one model; of a pass, its runs.

    Attributes:
        purpose: what the rule does, in one line.
        matches: where it matched and was applied.
        declined: where it matched, but was measured to be slower; only with option ``profit="measured"``.
        near_misses: where it nearly matched, deepest first, as reports count them. If it matched nowhere, and there
            are none: the closest places, or the operators that are missing; `is_telling` of these is False.
        others: places with too little in common.
        fallbacks: parts of the model that no rule saw, with the reason; rules that raised errors.
        later: what other rules and templates did at the source line of a match or near miss, by that line.
        advice: the advice of the rule's author, by the codes of reasons.
        runs: the runs of a pass over the graphs of the model, also those that its conditions prevented.
        normal: the graphs in normal form as text, by graph and stage of the rules.
    """

    rule: str
    matches: list[Match] = field(default_factory=list)
    near_misses: list[NearMiss] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    graphs: int = 0
    purpose: str = ""
    declined: list[Match] = field(default_factory=list)
    others: list[NearMiss] = field(default_factory=list)
    later: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    advice: Mapping[str, str] = field(default_factory=dict)
    runs: list[PassRun] = field(default_factory=list)
    normal: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text()

    def text(self, *, everything: bool = False) -> str:
        """The explanation as text; `everything` lists all kinds of near misses, and places with little in common."""
        return _text(self, everything=everything)


def _text(found: Explanation, *, everything: bool = False) -> str:
    """The text of an explanation; `everything` that it knows."""
    if found.runs and not (found.matches or found.declined or found.near_misses):
        return "\n".join(_of_pass(found))
    missed = counted(sum(miss.is_telling for miss in found.near_misses), "near miss", "near misses")
    graphs = counted(found.graphs, "graph", "graphs")
    declined = f"{len(found.declined)} declined, " if found.declined else ""
    lines = [f"{found.rule}: {len(found.matches)} matched, {declined}{missed} in {graphs}"]
    if found.purpose:
        lines.append(f"  looks for {found.purpose}")
    for matches in _grouped(found.matches, lambda m: (m.tags, m.site)):
        lines += ["", *_matched(matches, "matched ", found)]
    for matches in _grouped(found.declined, lambda m: (m.tags, m.site)):
        lines += ["", *_matched(matches, "declined", found)]
    kinds = _grouped(found.near_misses, _kind)
    shown = kinds if everything else kinds[:SHOWN]
    for misses in shown:
        lines += ["", *_missed(misses, found)]
    lines += _rest(found, len(kinds) - len(shown), everything)
    for fallbacks in _grouped(found.fallbacks, lambda f: (f.code, f.message)):
        how = "failed  " if fallbacks[0].rule else "not seen"
        lines += ["", f"  {how}  {_times(fallbacks)}{fallbacks[0].code}: {fallbacks[0].message}"]
        lines += [f"    see     {fallbacks[0].traceback}"] if fallbacks[0].traceback else []
    failed = any(fallback.rule for fallback in found.fallbacks)
    if not (found.matches or found.declined or found.near_misses or failed):
        lines.append("  nothing in the model looks like it")
    return "\n".join(lines)


def _of_pass(found: Explanation) -> list[str]:
    """The runs of a pass that records no matches: what it changed, and why not more."""
    total = sum(sum(run.changes.values()) for run in found.runs)
    lines = [f"{found.rule}: {counted(total, 'change', 'changes')} in {counted(found.graphs, 'graph', 'graphs')}"]
    if found.purpose:
        lines.append(f"  it does   {found.purpose}")
    for run in found.runs:
        changed = ", ".join(f"{count} {kind}" for kind, count in run.changes.items())
        told = changed or ("no changes" if run.ran else "not run")
        lines += ["", f"  {run.graph + ' graph':<16}  {told}"]
        groups = _grouped(run.refusals, lambda refusal: refusal)
        lines += [line for same in groups for line in _refused(same)]
        if run.ran and not run.changes and not run.refusals:
            lines.append("    reason    nothing-found: no part of the graph has the form that it looks for")
    return lines


def _refused(same: list[Refusal]) -> list[str]:
    first = same[0]
    lines = [f"    reason    {_times(same)}{first.code}: {first.message}"]
    return lines + ([f"    at        {first.site}"] if first.site is not None else [])


def _kind(miss: NearMiss) -> Hashable:
    return miss.code, miss.message, miss.expected, miss.found, miss.depth, miss.site, miss.root, miss.taken_by


def _rest(found: Explanation, kinds: int, everything: bool) -> list[str]:
    """The number of near misses that are not listed; with `everything`, the places with little in common."""
    if everything:
        return [line for misses in _grouped(found.others, _kind) for line in ("", *_missed(misses, found, "place"))]
    lines = [f"  and {counted(kinds, 'further kind', 'further kinds')} of near miss"] if kinds else []
    places = counted(len(found.others), "place", "places")
    lines += [f"  and {places} with no more in common than the first operators"] if found.others else []
    return ["", *lines, "  to list all: text(everything=True), or --all on the command line"] if lines else []


def _matched(same: list[Match], how: str, found: Explanation) -> list[str]:
    first = same[0]
    lines = [
        f"  {how}  {_times(same)}{_modules(same)}",
        f"    as      {', '.join(first.tags) or 'written'}",
        f"    at      {first.site or 'source unknown'}",
    ]
    others = len({match.root for match in same}) - 1
    more = f", and {counted(others, 'other', 'others')}" if others else ""
    lines += [f"    root    {first.root}{more}"] if first.root else []
    lines += [f"    then    {first.settled_by} took its place"] if first.settled_by else []
    if first.evidence is not None and first.evidence.note and how == "declined":
        lines.append(f"    because {first.evidence.note}")
    return lines + _also(found, first.module, first.site, first.settled_by, 8)


def _missed(same: list[NearMiss], found: Explanation, label: str = "") -> list[str]:
    miss = same[0]
    label = label or ("near miss" if miss.is_telling else "closest" if miss.depth else "nowhere")
    size = counted(miss.size, "operator")
    lines = [
        f"  {label:<9} {_times(same)}{_modules(same)}  ({miss.depth} of up to {size} matched)",
        f"    reason    {miss.code}: {miss.message}",
    ]
    if miss.expected:
        lines += [f"    expected  {miss.expected}", f"    found     {miss.found}"]
    if (change := advice(miss, found.advice)) != "":
        lines.append(f"    try       {change}")
    if miss.site is not None:
        lines.append(f"    at        {miss.site}")
    if miss.operator:
        line = f", {miss.root}" if miss.root is not None and miss.root != miss.site else ""
        lines.append(f"    root      {miss.operator}{line}")
    if miss.taken_by:
        lines.append(f"    then      {miss.taken_by} replaced it")
    return lines + _also(found, miss.module, miss.root, miss.taken_by, 10)


def _also(found: Explanation, module: str, site: Site | None, told: str, width: int) -> list[str]:
    """The matches of other rules and templates at the same source line, behind a label of that width."""
    others = [rule for rule in found.later.get((module, str(site)), []) if rule != told] if site is not None else []
    return [f"    {'also':<{width}}{', '.join(others)} matched at this line"] if others else []


def _grouped(items: Iterable[_Item], key: Callable[[_Item], Hashable]) -> list[list[_Item]]:
    """Groups of items with equal keys, in the order of their first items."""
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
    """A module's name without Dynamo's prefix: ``L['self'].layer.0``  ->  ``layer.0``; empty for the model itself."""
    for prefix in ("L['self']", "L['fn']", "L['function']"):
        name = name.removeprefix(prefix)
    return name.lstrip(".") or TOP

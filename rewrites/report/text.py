"""Reports in the terminal, as rich renderables; `plain` turns one into text.

A report answers three questions: did it match, is it right, was it worth it?
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..words import counted
from .budget import budget
from .summary import (
    RuleRow,
    code_line,
    declined_groups,
    fallback_groups,
    frozen_line,
    kept_calls,
    layout_line,
    miss_groups,
    options_line,
    rule_rows,
)
from .timing import duration, plus_minus

if TYPE_CHECKING:
    from ..reason import Site
    from ..record import Evidence, GraphRecord, Match
    from .entry import Entry, Outcome

SHOWN = 8
"""Rows of a detail table in the terminal; files hold all."""


def plain(renderable: RenderableType, width: int = 120) -> str:
    """The renderable as text without colours, `width` columns wide."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, force_terminal=False, emoji=False).print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")


def report_view(entries: Sequence[Entry], environment: Mapping[str, str]) -> RenderableType:
    """A whole report: the environment, then every target."""
    head = Text(" · ".join(f"{name} {value}" for name, value in environment.items()), style="dim")
    return Group(head, *(entry_view(entry) for entry in entries))


def entry_view(entry: Entry) -> RenderableType:
    """One target: the three answers, then the tables behind them."""
    title = Text(f"\n{entry.label}", style="bold")
    return Group(title, Text(""), answers(entry), Text(""), coverage_view(entry.graphs))


def answers(entry: Entry) -> Table:
    """The three questions and their answers, one line each (the last two only where the target was run)."""
    grid = Table.grid(padding=(0, 2))
    grid.add_row("Did it match?", matched_line(entry.graphs))
    if entry.outcome is not None:
        grid.add_row(
            "Is it right?", Text(right_line(entry.outcome), style="green" if entry.outcome.right else "bold red")
        )
        grid.add_row("Was it worth it?", worth_line(entry.outcome))
        if busy := entry.outcome.busy:
            grid.add_row("", Text(busy, style="yellow"))
    if code := code_line(entry.graphs):
        grid.add_row("Generated code", code)
    if frozen := frozen_line(entry.graphs):
        grid.add_row("Frozen", frozen)
    if layout := layout_line(entry.graphs):
        grid.add_row("Layout", layout)
    if stages := budget(entry.graphs, entry.outcome).stages:
        grid.add_row("Compile time", ", ".join(f"{stage.name} {stage.seconds:.2f} s" for stage in stages))
    if matching := matching_line(entry.graphs):
        grid.add_row("Matching", matching)
    return grid


def matching_line(graphs: Sequence[GraphRecord]) -> str:
    """`0.53 s for all rules, 3.0% of compile time`; empty where nothing was matched."""
    spent = budget(graphs)
    return f"{spent.matching:.2f} s for all rules, {spent.share:.1%} of compile time" if spent.matching else ""


def matched_line(graphs: Sequence[GraphRecord]) -> str:
    """`attention 12, linear 72 applied; linear 2 declined; 4 near misses; 0 fallbacks; 1 graph`.

    Matches that only simplified are told apart: `...; 1 graph; 63 simplifications`.
    """
    applied = _by_family(match for graph in graphs for match in graph.applied if not match.simplifies)
    simplified = sum(match.simplifies for graph in graphs for match in graph.applied)
    besides = f"; {counted(simplified, 'simplification')}" if simplified else ""
    declined = _by_family(match for graph in graphs for match in graph.open_declined)
    misses = counted(sum(len(graph.near_misses) for graph in graphs), "near miss", "near misses")
    fallbacks = counted(sum(len(graph.fallbacks) for graph in graphs), "fallback")
    faults = Counter(fallback.culprit for graph in graphs for fallback in graph.fallbacks if fallback.fault)
    told = ", ".join(f"{counted(count, 'fault')} of {culprit}" for culprit, count in faults.items())
    fallbacks += f" ({told})" if told else ""
    return f"{applied} applied; {declined} declined; {misses}; {fallbacks}; {counted(len(graphs), 'graph')}{besides}"


def _by_family(matches: Iterable[Match]) -> str:
    given = list(matches)
    later: dict[str, dict[str, None]] = {}
    for match in given:
        later.setdefault(match.family, {}).update({match.settled_by: None} if match.settled_by else {})
    notes = {family: f" (then {', '.join(names)})" if names else "" for family, names in later.items()}
    counts = Counter(match.family for match in given)
    return ", ".join(f"{family} {count}{notes[family]}" for family, count in counts.items()) or "none"


def right_line(outcome: Outcome) -> str:
    """The errors against eager, and whether they are within tolerance."""
    parts = [f"relative error {outcome.error:.1e} against eager"]
    if outcome.gradient_error is not None:
        parts.append(f"{outcome.gradient_error:.1e} in the gradients")
    verdict = "within" if outcome.right else "NOT within"
    return f"{', '.join(parts)}; {verdict} {outcome.tolerance:.0e}"


def worth_line(outcome: Outcome) -> str:
    """`eager 3.2 ms ± 4%, regraft 1.6 ms ± 2%: 2.00x (medians of 25); first call 1.2 s, with what caches hold`."""
    first = f"first call {outcome.compile_seconds:.1f} s, with what caches hold"
    if outcome.eager_seconds is None or outcome.compiled_seconds is None:
        return f"not timed; {first}"
    timed = (outcome.eager_seconds, outcome.eager_spread), (outcome.compiled_seconds, outcome.compiled_spread)
    eager, compiled = (f"{duration(seconds)} {plus_minus(part)}".strip() for seconds, part in timed)
    return f"eager {eager}, regraft {compiled}: {outcome.speed:.2f}x (medians of {outcome.rounds}); {first}"


def coverage_view(graphs: Sequence[GraphRecord]) -> RenderableType:
    """The rules' table, then declined matches, near misses and fallbacks, where there are any."""
    if not graphs:
        return Text("No graph was compiled inside this coverage block.")
    rows = rule_rows(graphs)
    options = options_line(graphs)
    parts: list[RenderableType] = [
        *([Text(f"Options: {options}", style="dim")] if options else []),
        rule_table(rows) if rows else Text(f"{counted(len(graphs), 'graph')}, no rule matched."),
    ]
    views = (interruption_table, declined_table, near_miss_table, kept_table, fallback_table)
    tables = [view(graphs) for view in views]
    return Group(*parts, *(table for table in tables if table.row_count))


def rule_table(rows: Sequence[RuleRow]) -> Table:
    """One row a rule: applied, declined, near misses by reason, time spent on it, measured gain."""
    errors = any(row.error is not None for row in rows)
    table = _table(
        "", "rule", "family", "#applied", "#declined", "near misses", "#time", "#gain", *(["#error"] if errors else [])
    )
    for row in rows:
        misses = ", ".join(f"{count} {code}" for code, count in row.near_misses.most_common())
        cells = [row.rule, row.family, _number(row.applied), _number(row.declined), misses]
        cells += [f"{row.seconds:.3f} s" if row.seconds else "", f"{row.gain:.2f}x" if row.gain else ""]
        table.add_row(*map(escape, cells), *([_error(row.error)] if errors else []))
    return table


def interruption_table(graphs: Sequence[GraphRecord]) -> Table:
    """Graphs that were compiled again, or end before the program does: why, where, and what would avoid it."""
    table = _table("Compiled again, and graph breaks", "graph", "what", "reason", "source")
    found = [
        (graph.name, what, graph.details[name])
        for graph in graphs
        for name, what in (("recompiled", "compiled again"), ("graph_break", "graph break"))
        if isinstance(graph.details.get(name), dict)
    ]
    for graph, what, told in found[:SHOWN]:
        why = "\n".join(filter(None, [told["why"], f"avoid: {told['avoid']}" if told.get("avoid") else ""]))
        table.add_row(*map(escape, [graph, what, why, told.get("at", "")]))
    return _more(table, len(found))


def declined_table(graphs: Sequence[GraphRecord]) -> Table:
    """Legal matches that were not worth it, with the evidence."""
    table = _table("Legal, but declined", "rule", "#times", "evidence", "source")
    for group in (groups := declined_groups(graphs))[:SHOWN]:
        cells = [group.first.rule, str(group.count), evidence_line(group.first.evidence), place(group.first.site)]
        table.add_row(*map(escape, cells))
    return _more(table, len(groups))


def near_miss_table(graphs: Sequence[GraphRecord]) -> Table:
    """Partial matches, those that came closest first: what was expected, what was found, and where."""
    table = _table("Near misses", "rule", "#times", "#reached", "reason", "source")
    for group in (groups := miss_groups(graphs))[:SHOWN]:
        miss = group.first
        reason = f"{miss.code}: {miss.message}" + (f"\nexpected {miss.expected}" if miss.expected else "")
        reason += f"\nfound {miss.found}" if miss.found else ""
        cells = [miss.rule, str(group.count), f"{miss.depth}/{miss.size}", reason, place(miss.site or miss.root)]
        table.add_row(*map(escape, cells))
    return _more(table, len(groups))


def fallback_table(graphs: Sequence[GraphRecord]) -> Table:
    """Work that was left to a slower but correct path."""
    table = _table("Fallbacks", "stage", "#times", "reason", "source")
    for group in (groups := fallback_groups(graphs))[:SHOWN]:
        why = f"{group.first.code}: {group.first.message}"
        why += f"\na fault of {group.first.culprit}, traceback: {group.first.traceback}" if group.first.fault else ""
        cells = [group.first.stage, str(group.count), why, place(group.first.site)]
        table.add_row(*map(escape, cells))
    return _more(table, len(groups))


def kept_table(graphs: Sequence[GraphRecord]) -> Table:
    """Operators that generated code calls, with the reason."""
    table = _table("Calls kept", "operator", "#times", "reason")
    for call in (calls := kept_calls(graphs))[:SHOWN]:
        table.add_row(*map(escape, [call.operator, str(call.count), f"{call.code}: {call.message}"]))
    return _more(table, len(calls))


def evidence_line(evidence: Evidence | None) -> str:
    """`original 1.20 ms, flash 1.40 ms (measured)`."""
    if evidence is None:
        return ""
    times = ", ".join(f"{name} {seconds * 1e3:.3g} ms" for name, seconds in evidence.times.items())
    return "; ".join(part for part in (f"{times} ({evidence.source})" if times else "", evidence.note) if part)


def place(site: Site | None) -> str:
    """The source line, its path cut to the last two parts."""
    if site is None:
        return ""
    short = "/".join(site.file.split("/")[-2:])
    return f"{short}:{site.line}\n{site.code}"


def _table(title: str, *columns: str) -> Table:
    """A table; a column name that starts with # holds numbers, which are aligned to the right."""
    table = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        wraps = column in ("near misses", "reason", "evidence", "source")
        table.add_column(column.lstrip("#"), justify="right" if column.startswith("#") else "left", no_wrap=not wraps,
                         overflow="fold")  # fmt: skip
    return table


def _more(table: Table, total: int) -> Table:
    if total > SHOWN:
        table.caption = f"and {total - SHOWN} more: see the JSON or HTML report"
        table.caption_justify = "left"
    return table


def _number(value: int) -> str:
    return str(value) if value else "·"


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.1e}"

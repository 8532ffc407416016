"""Reports as one self-contained HTML page: no script, no font, no image from elsewhere; dark and light.

The templates lie in `page/`: the page, the overview of many targets, one target and its parts, the style, the script.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..machine import origin
from ..words import counted
from . import budget, gains, overview, summary, text
from .steps import GraphStage, Steps
from .timing import duration, plus_minus

if TYPE_CHECKING:
    import jinja2

    from ..reason import Site
    from .entry import Entry

PAGE = "page.html"
SOURCES = 1_000_000
"""Characters of generated wrappers that one page shows, over all its targets."""


def render(entries: Sequence[Entry], environment: Mapping[str, str]) -> str:
    """A report as an HTML page: its targets, and the environment in which they were compiled."""
    steps, hues = Steps(len(entries)), overview.hues(entries)
    allowance = SOURCES // max(len(entries), 1)
    targets = [TargetSection(i, entry, steps.of(entry.graphs), allowance) for i, entry in enumerate(entries)]
    return _environment(hues).get_template(PAGE).render(
        title=_title(entries),
        origin=origin(),
        environment_line=" · ".join(f"{name} {value}" for name, value in environment.items()),
        many=len(targets) > 1,
        shared=_shared_choices(entries),
        targets=targets,
        headline=overview.headline(entries),
        grid=overview.matrix(entries),
        data=_script_json({"strings": list(steps.strings.table), "drawings": steps.drawings, "hues": hues}),
    )  # fmt: skip


def _shared_choices(entries: Sequence[Entry]) -> str:
    """The choices that most targets have in common, as on the command line; empty where there are no such."""
    given = Counter(_choices(entry) for entry in entries)
    return next((own for own, count in given.items() if 2 * count > len(entries)), "")


def _choices(entry: Entry, shared: str = "") -> str:
    """The choices of a target, unless they are told elsewhere."""
    own = entry.label.removeprefix(entry.name or "coverage").strip()
    return "" if own == shared else own or "no options"


def _each_choice(choices: str) -> list[str]:
    """``--layers 2 --mask``  ->  ``--layers 2``, ``--mask``: a line may break between them."""
    return re.split(r" (?=--)", choices)


def _title(entries: Sequence[Entry]) -> str:
    names = [entry.label for entry in entries]
    return f"regraft report: {names[0] if len(names) == 1 else f'{len(names)} models'}"


class TargetSection:
    """The part of the page that shows one target.

    Args:
        number: of the target on the page.
        entry: the target.
        steps: its drawings.
        allowance: characters of generated wrappers to show.
    """

    def __init__(self, number: int, entry: Entry, steps: list[GraphStage], allowance: int) -> None:
        self.number, self.entry, self.steps, self.allowance = number, entry, steps, allowance
        graphs = entry.graphs
        self.nodes = sum(graph.nodes for graph in graphs)
        self.rows = summary.rule_rows(graphs)
        self.misses = summary.miss_groups(graphs)
        self.fallbacks = summary.fallback_groups(graphs)
        self.kept = summary.kept_calls(graphs)
        self.code_line = summary.code_line(graphs)
        self.frozen_line = summary.frozen_line(graphs)
        self.options_line = summary.options_line(graphs)
        self.layout_line = summary.layout_line(graphs)
        self.gains = gains.gains(graphs)
        self.errors = gains.error_rows(graphs)
        self.unmeasured = gains.unmeasured_errors(graphs)
        self.budget = budget.budget(graphs, entry.outcome)

    @cached_property
    def sums(self) -> overview.Headline:
        """The three answers of this target alone."""
        return overview.headline([self.entry])

    @cached_property
    def kinds(self) -> str:
        """``"inference"``, ``"training"`` or both."""
        return " and ".join(dict.fromkeys(graph.kind for graph in self.entry.graphs))

    @cached_property
    def dtype(self) -> str:
        """The floating-point type that it computes in."""
        return gains.dtype(self.entry)

    @cached_property
    def rounding(self) -> float:
        """The rounding of that type."""
        return gains.ROUNDING[self.dtype]

    @cached_property
    def errors_by_rule(self) -> dict[str, gains.ErrorRow]:
        """The error of each rule that has one."""
        return {row.rule: row for row in self.errors}

    @cached_property
    def error_note(self) -> str:
        """What the errors of rules are errors of, and of which rules there are none."""
        where = {
            True: "on your own inputs (verify='live')",
            False: "on the inputs that both were timed on",
        }
        shown = " or ".join(where[live] for live in dict.fromkeys(row.live for row in self.errors))
        told = [f"A rule's error is that of one replacement against what it replaces, {shown}."] if shown else []
        if self.unmeasured:
            names = ", ".join(self.unmeasured)
            told.append(f"Not measured: {names}. Nothing was timed, or results are random.")
        return " ".join(told)

    @cached_property
    def steps_json(self) -> str:
        """The steps as JSON, for the page's script."""
        return json.dumps([vars(step) for step in self.steps])

    @cached_property
    def undrawn(self) -> str:
        """Why there is no drawing."""
        if not self.entry.graphs:
            return "No graph was compiled inside this coverage block."
        if self.budget.recalled:
            return (
                "This graph came from the cache, where it was put while no coverage block was open, so that no drawing "
                "was kept. options={'debug': True} compiles it anew."
            )
        return "The record holds no snapshots of its graphs."

    @cached_property
    def sources(self) -> list[tuple[str, str]]:
        """The generated wrappers that the page has room for, with their names."""
        shown, left = [], self.allowance
        for name, source in self._wrappers():
            if len(source) <= left:
                shown.append((name, source))
                left -= len(source)
        return shown

    @cached_property
    def omitted(self) -> int:
        """How many wrappers there was no room for."""
        return len(self._wrappers()) - len(self.sources)

    def _wrappers(self) -> list[tuple[str, str]]:
        return [
            (f"{graph.name} {name.removeprefix('source:')}".strip(), source)
            for graph in self.entry.graphs
            for name, source in graph.details.items()
            if name.startswith("source:")
        ]


def _script_json(value: Any) -> Any:
    """JSON that may stand inside a script element."""
    from markupsafe import Markup

    plain = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(plain.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _environment(hues: dict[str, int]) -> jinja2.Environment:
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent / "page")
    env = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    env.undefined = jinja2.StrictUndefined
    env.globals.update(hue=partial(_hue, hues), stage_hue=_stage_hue)
    env.filters.update(
        counted=counted,
        matched=text.matched_line,
        right=text.right_line,
        duration=duration,
        plus_minus=plus_minus,
        on_scale=gains.on_scale,
        thousands="{:,}".format,
        sortable=lambda number: number if math.isfinite(number) else 1e300,
        fill=lambda count: f"{min(count / 24, 1):.2f}",
        short_file=_short_file,
        choices=_choices,
        each_choice=_each_choice,
    )
    return env


def _hue(hues: dict[str, int], rule: str) -> int:
    return hues.get(rule, 220)


def _stage_hue(stage: str) -> int:
    order = list(budget.STAGES)
    return (200 + 47 * (order.index(stage) if stage in order else len(order))) % 360


def _short_file(site: Site) -> str:
    return "/".join(site.file.split("/")[-2:])

"""Reports as one self-contained HTML page: no script, no font, no image from elsewhere; dark and light."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from . import summary, text

if TYPE_CHECKING:
    import jinja2

    from .document import Report

PAGE = "page.html"


def render(report: Report) -> str:
    """The report as an HTML page."""
    return _environment().get_template(PAGE).render(report=report)


def _environment() -> jinja2.Environment:
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    env = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    env.undefined = jinja2.StrictUndefined
    env.globals.update(
        rule_rows=summary.rule_rows,
        stage_seconds=summary.stage_seconds,
        miss_groups=summary.miss_groups,
        declined_groups=summary.declined_groups,
        fallback_groups=summary.fallback_groups,
        kept_calls=summary.kept_calls,
        code_line=summary.code_line,
        frozen_line=summary.frozen_line,
        layout_line=summary.layout_line,
    )
    env.filters.update(
        counted=text.counted,
        matched=text.matched_line,
        evidence=text.evidence_line,
        right=text.right_line,
        worth=text.worth_line,
    )
    return env

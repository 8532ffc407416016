"""The kernel report as data and as files.

Schema, version 1::

    {"schema": "regraft-kernels", "version": 1, "kind": "inference" | "training", "environment": {...},
     "limits": {"device": "cuda:0", "bandwidth": bytes/s, "rates": {"bfloat16": FLOP/s}},
     "totals": {"call_seconds": s, "rounds": n, "kernel_seconds": s, "gap_seconds": s, "calls": n, "bound_seconds": s},
     "kernels": [{"name", "kind", "graph", "count", "seconds", "share", "shapes", "dtype", "rule", "module",
                  "read", "written", "flops", "operations",                    # of one call
                  "bytes_per_second", "flops_per_second", "bandwidth_fraction", "rate_fraction",
                  "bound": "memory" | "matrix" | "", "bound_seconds", "bound_fraction",
                  "sites": [{"file", "line", "function", "code"}]}]}

`seconds` and `bound_seconds` are of all `count` calls in one call of the program; fields are only ever added.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....rewrites.report.document import ReportError
from .rows import KernelTimes

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA = "regraft-kernels"
VERSION = 1


@dataclass(frozen=True)
class KernelReport(KernelTimes):
    """The time of one call of a program, kernel by kernel.

    Attributes:
        rows: equal calls merged, slowest first.
        limits: what the device can do, measured.
        call_seconds: median time of a whole call, on the wall clock.
        rounds: how many calls were timed, whole and by kernel alike.
        kind: ``"inference"`` or ``"training"``.
        environment: versions and devices.
        name: of the program.
    """

    def __str__(self) -> str:
        from ....rewrites.report.text import plain

        return plain(self.view(), width=80)

    def view(self, top: int = 20) -> RenderableType:
        """The report for a terminal: totals, and the slowest kernels."""
        from .table import report_view

        return report_view(self, top)

    def to_json(self) -> dict[str, Any]:
        """The report as data; see the head of this module."""
        totals = {
            name: getattr(self, name)
            for name in ("call_seconds", "rounds", "kernel_seconds", "gap_seconds", "calls", "bound_seconds")
        }
        return {
            "schema": SCHEMA, "version": VERSION, "name": self.name, "kind": self.kind,
            "environment": self.environment, "limits": asdict(self.limits), "totals": totals,
            "kernels": [row.facts(self.kernel_seconds) for row in self.rows],
        }  # fmt: skip

    def write(self, path: Path | str) -> Path:
        """Write the report, as its ending says: ``.json`` or ``.html``.

        Raises:
            ReportError: another ending.
        """
        path = Path(path)
        if path.suffix not in (".json", ".html"):
            raise ReportError(f"{path}: a kernel report is written as .json or .html")
        if path.suffix == ".json":
            text = json.dumps(self.to_json(), indent=1) + "\n"
        else:
            from .page import render

            text = render(self)
        path.write_text(text, encoding="utf-8")
        return path

"""A folder of everything that compilations made, with an index page: what `REGRAFT_DEBUG` asks for.

index.html
4711-graph-0-0/summary.txt         matches, near misses, fallbacks, seconds
               graph-captured.txt  ...  normal-forward.txt  program-inference.txt  fusion-inference.txt
               c++-inference.cpp   source-inference.py
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

from ..record import GraphRecord
from .text import coverage_view, plain

_SUFFIXES = {"c++": ".cpp", "triton": ".py", "source": ".py"}
_PAGE = """<!doctype html>
<meta charset="utf-8"><title>regraft: compilations</title>
<meta name="viewport" content="width=device-width"><style>
:root {{ color-scheme: light dark }} body {{ font: 15px system-ui; margin: 2em }}
pre {{ background: color-mix(in srgb, CanvasText 6%, Canvas); padding: 1em; overflow: auto }}
</style>
<h1>Compilations</h1>
{graphs}
"""


def write_dump(record: GraphRecord, folder: Path) -> Path:
    """Write the texts of a record, and the index anew; gives the record's folder.

    Raises:
        OSError: the folder can't be written to.
    """
    own = folder / f"{os.getpid()}-{_file_name(record.name)}"
    own.mkdir(parents=True, exist_ok=True)
    (own / "summary.txt").write_text(plain(coverage_view([record])), encoding="utf-8")
    for name, text in record.details.items():
        if isinstance(text, str):
            suffix = _SUFFIXES.get(name.partition(":")[0], ".txt")
            (own / f"{_file_name(name)}{suffix}").write_text(text, encoding="utf-8")
    (folder / "index.html").write_text(_index(folder), encoding="utf-8")
    return own


def _index(folder: Path) -> str:
    graphs = sorted(path for path in folder.iterdir() if (path / "summary.txt").is_file())
    return _PAGE.format(graphs="\n".join(map(_section, graphs)))


def _section(graph: Path) -> str:
    files = sorted(path.name for path in graph.iterdir())
    links = " &middot; ".join(f'<a href="{graph.name}/{html.escape(name)}">{html.escape(name)}</a>' for name in files)
    summary = html.escape((graph / "summary.txt").read_text(encoding="utf-8"))
    return f"<h2>{html.escape(graph.name)}</h2>\n<p>{links}</p>\n<pre>{summary}</pre>"


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.+]+", "-", name).strip("-") or "graph"

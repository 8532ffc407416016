"""The tables of small programs: the options that choose among them, what is chosen, and the file that rows go to."""

from __future__ import annotations

import importlib
import random
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

TABLES = {
    "operators": ["operator_programs"],
    "models": ["model_programs", "data_programs"],
    "blocks": ["block_programs", "block_tokens", "block_steps"],
    "nets": ["net_programs"],
    "odd": ["odd_programs"],
    "drawn": ["drawn_programs"],
    "folds": ["fold_programs"],
    "layouts": ["layout_programs"],
    "fields": ["field_programs", "science_programs", "unit_programs"],
}

Tables = Annotated[str, typer.Option(help=f"By commas: {', '.join(TABLES)}.")]
Names = Annotated[str, typer.Option(help="A regular expression of programs.")]
Dtype = Annotated[str, typer.Option(help="What floating inputs are cast to.")]
Train = Annotated[bool, typer.Option(help="Gradients of all programs that have them.")]
Jobs = Annotated[int, typer.Option(help="Processes that share the GPU.")]
Budget = Annotated[float, typer.Option(help="Seconds that all may take; what is left then is not run.")]
Json = Annotated[str, typer.Option("--json", help="A file to which each program adds a line.")]


def programs(tables: str, names: str = ".*") -> list[tuple[str, str, str, Any]]:
    """The module, kind, name and program of all rows of tables, in their order."""
    modules = [name for table in tables.split(",") for name in TABLES[table]]
    rows = [
        (m, kind, row)
        for m in modules
        for kind, rows in importlib.import_module(m).PROGRAMS.items()
        for row in rows.items()
    ]
    return [(module, kind, name, program) for module, kind, (name, program) in rows if re.fullmatch(names, name)]


def shuffled(tables: str, names: str) -> list[tuple[str, str, str]]:
    """The module, kind and name of all rows, so that what a budget leaves out is of all kinds."""
    found = [row[:3] for row in programs(tables, names)]
    random.Random(1).shuffle(found)
    return found


@contextmanager
def rows_file(to: str) -> Iterator[str]:
    """The path that rows are written to: `to`, or for as long as this lasts."""
    with tempfile.TemporaryDirectory() as folder:
        yield to or f"{folder}/rows.jsonl"

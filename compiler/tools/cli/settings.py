"""The commands that list what there is to set: `regraft options`, `regraft modes`, `regraft templates`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from .shared import output_console

if TYPE_CHECKING:
    from ...options.configurations import Configuration

Json = Annotated[bool, typer.Option("--json", help="As data, on standard output.")]


def options(as_json: Json = False) -> None:
    """List the options of `torch.compile(..., backend="regraft", options={...})`: values, default, what each does."""
    from ...options import list_options

    found = list_options()
    if as_json:
        typer.echo(json.dumps({name: asdict(option) for name, option in found.items()}, indent=1))
        return
    table = _table("option", "default", "values", "what it does")
    for option in found.values():
        cells = [option.name, _word(option.default), ", ".join(map(_word, option.values)), option.doc.replace("``", "")]
        table.add_row(*map(escape, cells))
    output_console().print(table)


def modes(as_json: Json = False) -> None:
    """List the modes, and the values of options that each sets."""
    from ...options import list_modes

    _show("mode", list_modes(), as_json)


def templates(as_json: Json = False) -> None:
    """List the configuration templates: the mode that each implies, and the values of options that it sets."""
    from ...options import list_templates

    _show("template", list_templates(), as_json)


def _show(what: str, found: Mapping[str, Configuration], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({name: asdict(one) for name, one in found.items()}, indent=1))
        return
    implied = any(one.mode for one in found.values())
    table = _table(what, *(["implied mode"] if implied else []), "values", "what it is for")
    for name, one in found.items():
        values = "\n".join(f"{option}={_word(value)}" for option, value in one.values.items())
        table.add_row(*map(escape, [name, *([one.mode] if implied else []), values, one.doc]))
    output_console().print(table)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns[:-1]:
        table.add_column(column, no_wrap=column != "values")
    table.add_column(columns[-1], ratio=1)
    return table


def _word(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)

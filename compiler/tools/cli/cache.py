"""`regraft cache`: what is kept on disk, and how it goes or travels."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from ....rewrites.words import counted
from .shared import UsageError, output_console, usage_errors

if TYPE_CHECKING:
    from ...storage.space import Stored

cache = typer.Typer(name="cache", no_args_is_help=True, help="What is kept on disk: see it, clear it, carry it along.")


@cache.command()
def info(as_json: Annotated[bool, typer.Option("--json", help="As data, on standard output.")] = False) -> None:
    """Say where the cache is, how much it holds, and when that was used last."""
    from ...options import cache_dir
    from ...options.environment import cache_limit
    from ...storage.space import KINDS, stored

    kinds: dict[str, list[Stored]] = defaultdict(list)
    for one in stored():
        kinds[one.kind].append(one)
    facts = {
        "folder": str(cache_dir() or ""),
        "limit_bytes": cache_limit(),
        "bytes": sum(one.size for some in kinds.values() for one in some),
        "kinds": {kind: _facts(kinds[kind]) for kind in KINDS},
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    typer.echo(facts["folder"] or "no cache: REGRAFT_DISABLE_CACHE is set")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "files", "MiB", "last used"):
        table.add_column(column, justify="left" if column in ("", "last used") else "right")
    for kind in KINDS:
        fact = _facts(kinds[kind])
        table.add_row(kind, str(fact["files"]), _mib(fact["bytes"]), str(fact["used"] or ""))
    output_console().print(table)
    typer.echo(f"{_mib(facts['bytes'])} of {_mib(facts['limit_bytes'])} MiB; REGRAFT_CACHE_LIMIT says how many")


@cache.command()
def clear(
    kinds: Annotated[
        list[str] | None, typer.Argument(help="decisions, graphs, code, triton, faults. [default: all]")
    ] = None,
) -> None:
    """Delete what is kept, or some kinds of it."""
    from ...storage import space

    with usage_errors():
        for kind in kinds or ():
            if kind not in space.KINDS:
                raise UsageError(f"the cache holds no {kind!r}; there are: {', '.join(space.KINDS)}")
    gone = space.clear(tuple(kinds or space.KINDS))
    typer.echo(f"deleted: {counted(len(gone), 'file')}, {_mib(sum(one.size for one in gone))} MiB")


@cache.command("export")
def export_(path: Annotated[Path, typer.Argument(help="The file to write.")]) -> None:
    """Write the cache into one file, for another machine of the same kind."""
    from ...storage.bundle import exported

    with usage_errors():
        data, count = exported()
        try:
            path.write_bytes(data)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}") from error
    typer.echo(f"written: {path}, {counted(count, 'file')}, {_mib(len(data))} MiB")


@cache.command("import")
def import_(path: Annotated[Path, typer.Argument(help="What `regraft cache export` wrote.")]) -> None:
    """Take over what another machine exported. It holds code that will run here: take only what you would run."""
    from ....rewrites.machine import environment
    from ...storage.bundle import BundleError, imported

    with usage_errors():
        try:
            count, made_on = imported(path.read_bytes())
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}") from error
        except BundleError as error:
            raise UsageError(f"{path}: {error}") from error
    here = environment()
    for name in ("regraft", "torch", "python", "cpu", "device"):
        if made_on.get(name) != here[name]:
            typer.echo(f"note: made with {name} {made_on.get(name)}, here {here[name]}: entries may not be found")
    typer.echo(f"imported: {counted(count, 'file')}")


def _facts(files: list[Stored]) -> dict[str, int | str | None]:
    used = max((one.used for one in files), default=None)
    last = None if used is None else datetime.fromtimestamp(used, UTC).isoformat(timespec="seconds")
    return {"files": len(files), "bytes": sum(one.size for one in files), "used": last}


def _mib(count: object) -> str:
    return f"{int(str(count)) / 2**20:.1f}"

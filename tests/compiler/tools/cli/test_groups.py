from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from regraft.compiler.tools.cli.groups import CommandOptions, grouped


@dataclass(frozen=True)
class Where(CommandOptions):
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu"
    as_fast: Annotated[bool, typer.Option("--fast", "--quick")] = False


@dataclass(frozen=True)
class WhereAndHow(Where):
    by_parts: Annotated[list[str] | None, typer.Option()] = None


def told(command, *words):
    app = typer.Typer()
    app.command()(grouped(command))
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def one(target: str, where: WhereAndHow, count: int = 1) -> None:
    """Say where."""
    typer.echo(f"{target} {where.device} {where.as_fast} {where.by_parts} {count}")


@pytest.mark.parametrize(
    "words, expected",
    [
        ((), "cpu False None 1"),
        (("--device", "cuda", "--fast"), "cuda True None 1"),
        (("--by-parts", "a", "--count", "3", "--by-parts", "b"), "cpu False ['a', 'b'] 3"),
    ],
)
def test_the_fields_of_a_group_are_options(words, expected):
    assert told(one, "x", *words) == f"x {expected}"


def test_help_lists_the_options_of_a_group():
    text = told(one, "--help")
    assert "Say where." in text and all(part in text for part in ("--device", "cpu, cuda", "--fast", "--count"))
    assert "--where" not in text


@pytest.mark.parametrize("given", [{}, {"device": "cuda"}, {"as_fast": True, "by_parts": ["a", "b"]}])
def test_the_words_of_a_group_give_the_group(given):
    group = WhereAndHow(**given)
    assert told(one, "x", *group.arguments()) == f"x {group.device} {group.as_fast} {group.by_parts or None} 1"


def test_options_that_have_their_default_need_no_words():
    assert WhereAndHow().arguments() == []
    assert WhereAndHow(as_fast=True, by_parts=["a", "b"]).arguments() == [
        "--fast",
        "--by-parts",
        "a",
        "--by-parts",
        "b",
    ]

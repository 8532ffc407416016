"""Rules of installed packages are known to the commands by their offer's, their own and their family's name."""

from types import SimpleNamespace

import pytest
import torch
from support.engine import rule
from typer.testing import CliRunner

from regraft.compiler.tools.cli.main import app
from regraft.compiler.tools.cli.own_rules import own_rules, plugin_rules_named, rules_named, with_offered
from regraft.compiler.tools.cli.shared import UsageError
from regraft.rewrites import ruleset

NAME = "offered_rule"


@pytest.fixture(autouse=True)
def package(monkeypatch):
    """A package that offers one rule, and one whose offer cannot be loaded."""
    offered = rule(lambda x: torch.relu(torch.relu(x)), lambda x: torch.relu(x), NAME)
    dist = SimpleNamespace(name="acme-rules", version="1.2")

    def load():
        raise ImportError("no acme")

    offers = [
        SimpleNamespace(name="broken", load=load, dist=dist),
        SimpleNamespace(name="acme", load=lambda: [offered], dist=dist),
    ]
    monkeypatch.setattr(ruleset, "entry_points", lambda group: offers)
    return offered


@pytest.mark.parametrize("name", ["acme", NAME])
def test_found_by_name(package, name):
    assert rules_named(name) == [package] and plugin_rules_named(name) == [package]
    assert with_offered([], rules_named(name)) == [package]


def test_given_as_own_rules(package):
    assert own_rules(["acme"]) == [package]
    assert with_offered([package], rules_named(NAME, [package])) == [package], "once"


def test_the_library_comes_first():
    (found,) = rules_named("sdpa")
    assert with_offered([], [found]) == []


def test_errors_name_the_package():
    for ask in (lambda: own_rules(["broken"]), lambda: rules_named("broken")):
        with pytest.raises(UsageError, match=r"'broken' of acme-rules 1.2 cannot be loaded: ImportError: no acme"):
            ask()
    with pytest.raises(UsageError, match="did you mean acme"):
        rules_named("acmee")


def test_listed():
    listed = CliRunner().invoke(app, ["rules"]).output
    assert "acme-rules 1.2 offers rules as 'acme': --rules acme" in " ".join(listed.split())
    assert CliRunner().invoke(app, ["rules", "acme"]).output.startswith(NAME)

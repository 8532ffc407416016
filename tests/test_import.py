"""`import regraft` costs next to nothing, and every public name is there."""

import functools
import gc
import subprocess
import sys
from types import SimpleNamespace

import pytest

import regraft

HEAVY = ("torch._dynamo", "torch._inductor", "transformers", "rich", "jinja2", "typer", "hypothesis")


@functools.cache
def modules_after(*statements: str) -> list[set[str]]:
    """The modules that a process has after each of some statements."""
    code = "import sys\n" + "\n".join(f"{statement}\nprint(*sys.modules)" for statement in statements)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_import_and_coverage_add_little_to_torch():
    torchs, imported, covering = modules_after("import torch", "import regraft", "regraft.coverage()")
    assert imported - torchs == {"regraft", "regraft._version"}
    assert not [name for name in HEAVY if name in covering - torchs]


@pytest.mark.parametrize("name", regraft.__all__)
def test_public_names_exist(name):
    assert getattr(regraft, name) is not None
    assert name in dir(regraft)


def test_every_lazy_name_is_public():
    assert set(regraft._HOMES) == set(regraft.__all__) - {"__version__"}


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        regraft.nonsense  # noqa: B018


def test_names_are_imported_without_the_garbage_collector(monkeypatch):
    """The first call of a process imports the compiler: collections walk all that torch has, which survives."""
    enabled = []

    def importing(home, package):
        enabled.append(gc.isenabled())
        return SimpleNamespace(late=1)

    monkeypatch.setitem(regraft._HOMES, "late", ".late")
    monkeypatch.setattr(regraft, "import_module", importing)
    was_enabled = gc.isenabled()
    gc.enable()
    try:
        assert regraft.late == 1
        assert gc.isenabled() and enabled == [False]
    finally:
        vars(regraft).pop("late", None)
        if not was_enabled:
            gc.disable()

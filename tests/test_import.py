"""`import regraft` costs next to nothing, and every public name is there."""

import functools
import subprocess
import sys

import pytest

import regraft

HEAVY = ("torch._dynamo", "torch._inductor", "transformers", "rich", "jinja2", "typer", "hypothesis")


@functools.cache
def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_import_adds_only_its_own_small_modules_to_torch():
    added = modules_after("import torch, regraft") - modules_after("import torch")
    assert added == {"regraft", "regraft._version"}


def test_coverage_stays_light():
    added = modules_after("import torch, regraft; regraft.coverage()") - modules_after("import torch")
    assert not [name for name in HEAVY if name in added]


@pytest.mark.parametrize("name", regraft.__all__)
def test_public_names_exist(name):
    assert getattr(regraft, name) is not None
    assert name in dir(regraft)


def test_every_lazy_name_is_public():
    assert set(regraft._HOMES) == set(regraft.__all__) - {"__version__"}


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        regraft.nonsense  # noqa: B018

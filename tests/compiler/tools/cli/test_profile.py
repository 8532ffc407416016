"""`regraft kernels` and `regraft bench` as commands."""

import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest
from support.caches import cache_in
from typer.testing import CliRunner

from regraft.compiler.options import list_templates
from regraft.compiler.tools.cli import profile
from regraft.compiler.tools.cli.empty_caches import empty_caches
from regraft.compiler.tools.cli.main import app
from regraft.compiler.tools.generation import comparison as generation
from regraft.compiler.tools.profile import comparison, limits, profiler

FACTORY = """
import torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), torch.ones(2, 8)

def function():
    return (lambda x: x + 1), torch.ones(3)

def nothing():
    return (lambda x: x), 3
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    (tmp_path / "small.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profiler, "SECONDS", 0.0)
    monkeypatch.setattr(comparison, "SECONDS", 0.0)
    monkeypatch.setattr(limits, "_known", lambda what, device, measure: 1e10)


@contextlib.contextmanager
def no_graphs(folder):
    """What `empty_caches` does, but for compiled code: that is of all runs."""
    with cache_in(folder):
        yield lambda: shutil.rmtree(folder, ignore_errors=True)


def run(*args: str, code: int = 0):
    result = CliRunner().invoke(app, args, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_kernels_writes_what_is_asked_for(tmp_path):
    out = run("kernels", "small.py:model", "--json", "k.json", "--html", "k.html", "--top", "1")
    assert "whole call" in out and "inference" in out and "written: k.json, k.html" in out
    data = json.loads((tmp_path / "k.json").read_text())
    assert data["name"] == "small.py:model" and data["kernels"]
    assert "small.py:model" in (tmp_path / "k.html").read_text()


@pytest.mark.parametrize("flag", ["--train", "--training"])
def test_kernels_of_training(flag):
    out = run("kernels", "small.py:model", flag)
    assert "training (median" in out and "backward of " in out and "written" not in out


def test_kernels_of_nothing():
    assert "no compiled graph ran" in run("kernels", "small.py:nothing", code=2)


def test_bench(tmp_path):
    out = run("bench", "small.py:model", "--backends", "eager,regraft", "--json", "b.json")
    assert "eager" in out and "regraft" in out and "written: b.json" in out
    assert [one["backend"] for one in json.loads((tmp_path / "b.json").read_text())["contestants"]] == [
        "eager",
        "regraft",
    ]


def test_first_calls_find_empty_caches(tmp_path, monkeypatch):
    """The cache of the user is neither read nor written; one's own is empty for each backend."""
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    with empty_caches() as forget:
        own = Path(os.environ["REGRAFT_CACHE_DIR"])
        (own / "code").mkdir(parents=True)
        forget()
        assert own != tmp_path / "cache" and not own.exists() and "TRITON_CACHE_DIR" in os.environ
    assert os.environ["REGRAFT_CACHE_DIR"] == str(tmp_path / "cache") and "TRITON_CACHE_DIR" not in os.environ
    out = run("bench", "small.py:model", "--backends", "regraft")
    assert "first call" in out and "all caches on disk empty" in out and not list((tmp_path / "cache").rglob("*.*"))


def test_bench_names_what_there_is():
    assert "there is no backend 'fast'" in run("bench", "small.py:model", "--backends", "fast", code=2)
    assert "there is no mode 'fast'" in run("bench", "small.py:model", "--modes", "fast", code=2)
    assert "no backend is given" in run("bench", "small.py:model", "--backends", ",", code=2)


def test_bench_of_templates(tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "empty_caches", lambda: no_graphs(tmp_path / "cold"))
    out = run("bench", "small.py:model", "--templates", "all", "--config", '{"profit": "never"}', "--json", "b.json")
    rows = {row["name"]: row for row in json.loads((tmp_path / "b.json").read_text())["contestants"]}
    assert list(rows) == ["eager", *(f"regraft {name}" for name in list_templates())]
    assert all(row["error"] < 1e-5 and not row["failed"] for row in rows.values())
    assert rows["regraft tma"]["values"]["triton.tma"] == "always" and rows["regraft aten"]["not_applied"] == []
    assert all(row["values"]["profit"] == "never" for name, row in rows.items() if name != "eager")
    assert "CUTLASS" in rows["regraft cutlass"]["not_applied"][0] and "CUTLASS" in out
    assert "there is no template 'atn'" in run("bench", "small.py:model", "--templates", "atn", code=2)


def test_bench_of_generation(tmp_path, monkeypatch):
    monkeypatch.setattr(generation, "SECONDS", 0.0)
    small = ("--tiny", "--layers", "1", "--generate", "3", "--prompt", "4")
    out = run("bench", "hf:llama", *small, "--backends", "eager", "--json", "g.json")
    assert "roof" in out and "3/3" in out and "written: g.json" in out
    assert json.loads((tmp_path / "g.json").read_text())["schema"] == "regraft-generate"
    assert "goes without --mask, --seq" in run("bench", "hf:llama", *small, "--mask", "--seq", "9", code=2)
    assert "no torch.nn.Module" in run("bench", "small.py:function", *small[3:], code=2)

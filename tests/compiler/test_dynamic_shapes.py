"""A sample of `benchmarks/dynamic_shapes.py`: few compilations for many shapes, all of them right."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from support.thorough import in_thorough_runs

pytest.importorskip("transformers")

TOOL = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "dynamic_shapes.py"


@in_thorough_runs
def test_a_model_through_many_shapes():
    spec = importlib.util.spec_from_file_location("dynamic_shapes", TOOL)
    assert spec is not None and spec.loader is not None
    tool = sys.modules["dynamic_shapes"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    made = tool.run("bert", 4, layers=1, shortest=1)
    assert made.right(3), made
    assert made.compiled == made.traced == 3, "one for each choice of dims that are 1, which torch traces apart"
    assert len(made.reasons) == made.compiled - 1

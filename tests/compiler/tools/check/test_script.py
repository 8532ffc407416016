"""A counterexample is a program of its own, which shows the same failure."""

from __future__ import annotations

import importlib.util
import linecache
import runpy
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest
import torch
from support.fresh import run_fresh

from regraft.compiler.tools.check import check
from regraft.compiler.tools.check.drawn import DrawnExample
from regraft.compiler.tools.check.operands import LAYOUTS, laid_out
from regraft.compiler.tools.check.replay import load
from regraft.compiler.tools.check.script import literal

WRONG = """
import torch
from regraft import Reason, Sample, T, register_pattern

SIZE = {size}

@register_pattern(
    "{name}",
    replacement=lambda x, y: torch.add(x, y, alpha=2.02),
    samples=[Sample(x=T("B N"), y=T("B N"), sizes={{"N": SIZE}})] + {more},
)
def wrong(x, y):
    return x + y * 2.0
"""


def failure_of(file: Path, size: int = 6, more: str = "[]"):
    file.write_text(WRONG.format(name=file.stem, size=size, more=more))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return check(module.wrong, examples=1).failures[0]


def ran(script: str, folder: Path, capsys: pytest.CaptureFixture) -> tuple[int, str]:
    """Exit code and output of a script, run in this process."""
    (folder / "counterexample.py").write_text(script)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(folder / "counterexample.py"), run_name="__main__")
    return end.value.code, capsys.readouterr().out


def test_the_script_runs_elsewhere(tmp_path):
    failure = failure_of(tmp_path / "runs_elsewhere.py")
    file = tmp_path / "counterexample.py"
    file.write_text(failure.script)
    own_cache = {"REGRAFT_CACHE_DIR": str(tmp_path / "cache")}
    (done,) = run_fresh([[file]], cwd=tmp_path, environment=own_cache, code_of_all_runs=True)
    assert done.code == 1, done.errors
    assert f"runs_elsewhere fails: {failure.problem}" in done.output
    assert all(part in done.output for part in ("torch.ops.aten.add.Tensor", "result 0, eager:", "difference:"))


def test_it_fails_until_the_rule_is_repaired(tmp_path, capsys):
    failure = failure_of(tmp_path / "to_repair.py")
    assert "x = torch.tensor([[" in failure.script
    code, output = ran(failure.script, tmp_path, capsys)
    assert code == 1 and f"to_repair fails: {failure.problem}" in output

    repaired = (tmp_path / "to_repair.py").read_text().replace("2.02", "2.0")
    (tmp_path / "to_repair.py").write_text(repaired)
    linecache.clearcache()
    code, output = ran(failure.script, tmp_path, capsys)
    assert code == 0 and "to_repair holds" in output


def test_large_operands_are_drawn_again(tmp_path, capsys):
    failure = failure_of(tmp_path / "large.py", size=300)
    failure = replace(failure, drawn=DrawnExample.plain(failure.sample))
    assert "x = make(T(\"B N\"), {'B': 2, 'N': 300}, torch.float32" in failure.script
    code, output = ran(failure.script, tmp_path, capsys)
    assert code == 1 and "result 0 is off" in output


def test_a_near_miss_that_matches_has_a_script(tmp_path, capsys):
    failure = failure_of(tmp_path / "near.py", more='[Sample(x=T("B N"), y=T("B N"), refused="too-near")]')
    code, output = ran(failure.script, tmp_path, capsys)
    assert code == 1 and "should be refused with 'too-near', but matches" in output


def test_a_rule_that_is_not_there(tmp_path):
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(LookupError, match="declares no rule 'gone'"):
        load("gone", str(tmp_path / "empty.py"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_literals_are_exact(layout, dtype):
    x = torch.randn(3, 4, dtype=torch.float64)
    x[0, 0], x[1, 1], x[1, 2], x[2, 0], x[2, 1] = nan, inf, -inf, -0.0, torch.finfo(dtype).tiny / 2
    x = laid_out(x.to(dtype), layout).requires_grad_()
    again = eval(literal(x), {"torch": torch, "nan": nan, "inf": inf})
    assert (again.shape, again.stride(), again.storage_offset(), again.dtype) == (
        x.shape, x.stride(), x.storage_offset(), x.dtype
    )  # fmt: skip
    assert torch.equal(again, x) or bool(((again == x) | (again.isnan() & x.isnan())).all())
    assert torch.equal(again.signbit()[~x.isnan()], x.signbit()[~x.isnan()]) and again.requires_grad


@pytest.mark.parametrize(
    "x", [torch.tensor(3), torch.tensor([True, False]), torch.zeros(2, 0), torch.tensor([1, 2], dtype=torch.int32)]
)
def test_other_literals(x):
    again = eval(literal(x), {"torch": torch})
    assert again.dtype == x.dtype and again.shape == x.shape and torch.equal(again, x)

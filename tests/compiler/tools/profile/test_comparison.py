"""Backends by turns: medians, errors, failures."""

import json

import pytest
import torch

from regraft.compiler.tools.profile import comparison
from regraft.compiler.tools.profile.comparison import compare
from regraft.compiler.tools.profile.contestants import Contestant, contestants
from regraft.rewrites.report.text import plain


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(comparison, "SECONDS", 0.0)


def run(function, *args, backends=("eager", "regraft"), modes=("default",), **options):
    return compare(function, args, {}, contestants(backends, modes), **options)


def test_eager_comes_first_and_once():
    names = [one.name for one in contestants(["regraft", "eager", "inductor"], ["default", "max-autotune"])]
    assert names == ["eager", "regraft", "regraft max-autotune", "inductor", "inductor max-autotune"]


def test_inference_is_timed_and_compared(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU()).eval()
    with torch.no_grad():
        made = run(model, torch.randn(8, 32), name="small")
    eager, ours = made.contestants
    assert eager.error == 0 and ours.error < 1e-5 and not ours.failed
    assert len(ours.samples) == len(eager.samples) >= comparison.MIN_ROUNDS
    assert made.speed(ours) == pytest.approx(eager.seconds / ours.seconds) and ours.cold_seconds > ours.seconds
    data = json.loads(made.write(tmp_path / "bench.json").read_text())
    assert (data["schema"], data["version"], data["name"]) == ("regraft-bench", 1, "small")
    assert [row["name"] for row in data["contestants"]] == ["eager", "regraft"]
    assert "regraft" in plain(made.view(), width=80) and made.note == ""


def test_gradients_are_compared_and_left_alone():
    model = torch.nn.Linear(8, 8)
    made = run(model, torch.randn(4, 8))
    assert made.contestants[1].error < 1e-5
    assert model.weight.grad is None


def test_random_values_are_not_compared():
    model = torch.nn.Dropout(0.5)
    made = run(model, torch.ones(64, 64))
    assert made.contestants[1].error is None and "random" in made.note
    assert "random numbers" in plain(made.view(), width=80)


def test_what_fails_is_told_and_left_out(monkeypatch):
    def refuse(function, one):
        raise RuntimeError("no such kernel")

    real = comparison.compiled
    monkeypatch.setattr(
        comparison,
        "compiled",
        lambda f, one: (lambda *_: refuse(f, one)) if one.mode == "max-autotune" else real(f, one),
    )
    with torch.no_grad():
        made = run(torch.nn.ReLU(), torch.ones(4), modes=("default", "max-autotune"))
    assert made.contestants[2].failed == "RuntimeError: no such kernel" and not made.contestants[2].samples
    assert made.speed(made.contestants[2]) is None and made.contestants[1].samples
    text = plain(made.view(), width=80)
    assert "failed" in text and "no such kernel" in text


def test_spreads_are_told_and_a_busy_machine():
    made = run(torch.nn.ReLU(), torch.ones(4))
    eager, ours = made.contestants
    eager.samples, ours.samples = [1.0] * 5, [0.5, 1.0, 1.0, 1.5, 2.0]
    assert eager.spread == 0.0 and ours.spread == 0.25
    text = plain(made.view(), width=80)
    assert "± <1%" in text and "± 25%" in text and "too busy to tell" in text and "first call" in text
    ours.samples = [1.0] * 5
    assert "too busy" not in plain(made.view(), width=80) and made.to_json()["contestants"][1]["spread"] == 0.0


def test_the_error_is_that_of_reports():
    """An infinity that eager has not is an error; gradients count together, since some are only roundings."""
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([1e-9])
    assert comparison._error([one, one], [one, one], 1) == 0.0
    assert comparison._error([torch.tensor([1.0, torch.inf]), one], [one, one], 1) == torch.inf
    assert comparison._error([one, one, 2 * two], [one, one, two], 2) < 1e-8
    assert comparison._error([one, 2 * two], [one, two], 0) == 1.0


def test_caches_are_emptied_before_each_one():
    told = []
    made = run(
        torch.nn.ReLU(), torch.ones(4), forget=lambda: told.append("empty"), progress=lambda d, _: told.append(d)
    )
    assert told[:4] == ["eager: compiling", "empty", "regraft: compiling", "empty"] and told.count("empty") == 2
    assert "all caches on disk empty" in plain(made.view(), width=80) and made.to_json()["empty_caches"]


def test_names():
    assert [Contestant("eager", "").name, Contestant("x", "default").name] == ["eager", "x"]


def test_rounds_have_several_orders(monkeypatch):
    """Whoever is always next after one that fills the caches would be told to be slower."""
    seen = []
    monkeypatch.setattr(comparison, "seconds_of", lambda step: seen.append(step) or 1.0)
    names = ["a", "b", "c"]
    comparison._take_turns([Contestant(name, "") for name in names], {name: name for name in names}, lambda *_: None)
    rounds = [tuple(seen[k : k + 3]) for k in range(0, len(seen), 3)]
    assert all(sorted(one) == names for one in rounds) and len(set(rounds)) > 1

"""Kernel reports of real programs on the CPU: what is listed, and that nothing of the program changes."""

import copy
import json
import time

import pytest
import torch

import regraft
from regraft.compiler.options import OptionError
from regraft.compiler.tools.profile import limits, profiler, record
from regraft.compiler.tools.profile.profiler import NothingRanError
from regraft.rewrites.compat import memory


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Few rounds, and limits that need no measuring."""
    monkeypatch.setattr(profiler, "SECONDS", 0.0)
    monkeypatch.setattr(limits, "_known", lambda what, device, measure: 2e10 if what == "copy" else 1e11)


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(100, 32)
        self.first = torch.nn.Linear(32, 64)
        self.norm = torch.nn.BatchNorm1d(64)
        self.second = torch.nn.Linear(64, 16)

    def forward(self, ids):
        hidden = torch.nn.functional.dropout(self.first(self.table(ids)), 0.1, self.training)
        return self.second(torch.relu(self.norm(hidden)))


IDS = torch.arange(24) % 7


def product_rows(report):
    return [row for row in report.rows if row.flops]


def test_inference_lists_kernels_and_products():
    model = Small().eval()
    with torch.no_grad():
        report = regraft.kernels(model, IDS)
    assert report.kind == "inference" and {row.graph for row in report.rows} == {"inference"}
    assert sum(row.flops * row.count for row in product_rows(report)) == 2 * 24 * (32 * 64 + 64 * 16)
    assert any(row.kind == "generated" for row in report.rows)
    assert report.rounds >= 3 and report.call_seconds > 0 and report.kernel_seconds > 0
    assert [row.seconds for row in report.rows] == sorted((row.seconds for row in report.rows), reverse=True)


def test_rows_name_the_users_lines_of_all_that_is_fused():
    def program(x, y):
        z = x * y
        return torch.exp(z) + 1

    with torch.no_grad():
        (row,) = regraft.kernels(program, torch.ones(32, 32), torch.ones(32, 32)).rows
    assert [site.code for site in row.sites] == ["z = x * y", "return torch.exp(z) + 1"]
    assert "exp" in row.name and row.kind == "generated"


def test_modules_stand_in_for_lines_that_are_not_the_users():
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8))
    with torch.no_grad():
        (row,) = regraft.kernels(layers, torch.ones(2, 8)).rows
    assert row.sites == [] and row.module.endswith("0")


def test_training_runs_both_graphs_and_leaves_no_trace():
    model = Small().train()
    model.first.weight.grad = torch.full_like(model.first.weight, 3.0)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    report = regraft.kernels(model, IDS)
    assert report.kind == "training" and {row.graph for row in report.rows} == {"forward", "backward"}
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(model.first.weight.grad, torch.full_like(model.first.weight, 3.0))
    assert model.second.weight.grad is None and torch.equal(torch.get_rng_state(), state)


def test_equal_calls_are_merged():
    layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(3)))
    with torch.no_grad():
        report = regraft.kernels(layers, torch.ones(32, 64))
    (row,) = product_rows(report)
    assert row.count == 3 and report.calls == sum(one.count for one in report.rows)


def test_timed_calls_give_what_others_give(monkeypatch):
    results = []
    real = profiler.step_of

    def kept(*args):
        step = real(*args)
        return lambda: results.append(step())

    monkeypatch.setattr(profiler, "step_of", kept)
    model = Small().eval()
    with torch.no_grad():
        regraft.kernels(model, IDS)
        expected = model(IDS)
    assert len(results) > 6
    assert all(torch.allclose(found[0], expected, atol=1e-5) for found in results)


def test_a_write_to_an_argument_happens_once_a_call(monkeypatch):
    monkeypatch.setattr(profiler, "MIN_ROUNDS", 4)
    counter = torch.zeros(4)

    def program(x):
        counter.add_(1)
        return x + counter

    with torch.no_grad():
        regraft.kernels(program, torch.ones(4))
    assert counter.unique().tolist() == [1 + 2 + 1 + 2 * 4]  # compiling, warming up, finding launches, by turns


def test_graphs_apart_are_all_there():
    def program(x):
        y = torch.exp(x @ x)
        torch._dynamo.graph_break()
        return torch.sin(y) @ x

    with torch.no_grad():
        report = regraft.kernels(program, torch.ones(16, 16))
    assert sum(row.count for row in product_rows(report)) == 2


def test_options_are_checked():
    with pytest.raises(OptionError, match="unknown mode"):
        regraft.kernels(torch.sin, torch.ones(3), mode="fastest")


def test_freezing():
    with torch.no_grad():
        report = regraft.kernels(Small().eval(), IDS, options={"freezing": True})
    assert product_rows(report)


def test_reports_do_not_use_up_what_dynamo_compiles_of_one_function():
    model = torch.nn.Linear(4, 4)
    with torch.no_grad():
        for _ in range(10):  # Dynamo's limit is 8
            assert regraft.kernels(model, torch.ones(2, 4)).rows


def test_nothing_to_report():
    with pytest.raises(NothingRanError, match="no compiled graph ran"):
        regraft.kernels(lambda x: x, 3)


def test_bounds_and_json(tmp_path):
    with torch.no_grad():
        report = regraft.kernels(Small().eval(), IDS)
    data = json.loads(report.write(tmp_path / "kernels.json").read_text())
    assert (data["schema"], data["version"]) == ("regraft-kernels", 1)
    assert data["limits"] == {"device": "cpu", "bandwidth": 2e10, "rates": {"float32": 1e11}}
    assert data["totals"]["kernel_seconds"] == pytest.approx(sum(row["seconds"] for row in data["kernels"]))
    assert sum(row["share"] for row in data["kernels"]) == pytest.approx(1)
    for row in data["kernels"]:
        moved = row["count"] * (row["read"] + row["written"])
        assert row["bytes_per_second"] * row["seconds"] == pytest.approx(moved)
        assert row["bound_seconds"] == pytest.approx(max(moved / 2e10, row["count"] * row["flops"] / 1e11))
        assert all(site["file"].endswith(".py") for site in row["sites"])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu():
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU()).cuda().bfloat16()
    x = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)
    report = regraft.kernels(model, x)
    assert report.limits.device.startswith("cuda") and report.kernel_seconds > 0
    with torch.no_grad():
        report = regraft.kernels(model, x, mode="reduce-overhead")
    assert 1e-6 < sum(row.seconds for row in product_rows(report)) < 1e-2


class WallEvent:
    """An event of a GPU that is the CPU."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = time.perf_counter()

    def elapsed_time(self, end):
        return (end.at - self.at) * 1e3


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_the_way_of_gpus_on_a_cpu(monkeypatch, mode):
    monkeypatch.setattr(record, "_on_cuda", lambda graph: True)
    monkeypatch.setattr(memory, "cuda_spin", lambda seconds: None)
    monkeypatch.setattr(torch.cuda, "Event", WallEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    report = regraft.kernels(Small().train(), IDS, mode=mode)
    assert report.limits.device == "cuda:0" and report.kind == "training"
    assert {row.graph for row in report.rows} == {"forward", "backward"}
    assert 0 < report.kernel_seconds < report.call_seconds * 10

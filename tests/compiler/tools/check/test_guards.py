"""Dropping a condition of a rule is noticed by a near miss made for it, and by nothing else."""

from __future__ import annotations

import pytest
import torch

from regraft import Candidate, Reason, Sample, T, register_pattern
from regraft.compiler.tools.check import noticed, unguarded, weakened

PLAIN = Sample(x=T("B N"), y=T("B N"))
INTEGERS = Sample(x=T("B N", dtype=torch.int64), y=T("B N", dtype=torch.int64), refused="not-floating")
ELSEWHERE = Sample(x=T("B N", device="meta"), y=T("B N", device="meta"), refused="device-unsupported")
BROADCAST = Sample(x=T("B N"), y=T("B 1"), refused="dims-differ")


def floating(x):
    return None if x.meta["val"].is_floating_point() else Reason("not-floating", "it is not")


def on_cpu(x):
    return None if x.meta["val"].device.type == "cpu" else Reason("device-unsupported", "it is elsewhere")


def large(match, policy):
    size = match.operands["x"].meta["val"].numel()
    return None if size > 100 else Reason("kernel-unavailable", "too small")


def declare(name, *samples):
    def replacement(x, y):
        return torch.add(x, y, alpha=2.0)

    candidates = [Candidate("large", replacement, large), Candidate("any", replacement)]
    return register_pattern(
        name, replacement=candidates, samples=samples, guards=(floating, on_cpu), dims={"x": "B N", "y": "B N"}
    )(lambda x, y: x + y * 2.0)


def test_each_condition_is_dropped_alone():
    rule = declare("guards_all", PLAIN)
    found = {w.condition: w.rule for w in weakened(rule)}
    assert list(found) == ["guard floating", "guard on_cpu", "dims x", "dims y", "applies large"]
    assert [g.function for g in found["guard floating"].guards] == [on_cpu]
    assert list(found["dims x"].dims) == ["y"]
    assert len(found["guard on_cpu"].candidates) == 2 and len(found["applies large"].candidates) == 1


def test_near_misses_notice():
    rule = declare("guards_noticed", PLAIN, INTEGERS, ELSEWHERE, BROADCAST)
    assert noticed(rule) == {
        "guard floating": INTEGERS,
        "guard on_cpu": ELSEWHERE,
        "dims x": BROADCAST,
        "dims y": BROADCAST,
        "applies large": PLAIN,
    }
    assert unguarded(rule) == []


@pytest.mark.parametrize(
    ("samples", "missed"),
    [
        ([INTEGERS, ELSEWHERE], ["dims x", "dims y"]),
        ([INTEGERS, BROADCAST], ["guard on_cpu"]),
        ([], ["guard floating", "guard on_cpu", "dims x", "dims y"]),
    ],
)
def test_without_a_near_miss_nothing_does(samples, missed):
    assert unguarded(declare(f"guards_missed_{len(samples)}_{len(missed)}", PLAIN, *samples)) == missed

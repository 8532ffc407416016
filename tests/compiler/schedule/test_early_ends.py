"""The last readers of much memory run before later calls."""

from __future__ import annotations

import pytest
import torch
from support.schedules import Builder, assert_same, op

from regraft.compiler.ir.program import Extern
from regraft.compiler.schedule import early_ends, fusion

CALLS = 3


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for where, name, size in ((early_ends, "_MUCH", 1000), (fusion, "_HELD", 1000), (fusion, "_WORTH_HOLDING", 0)):
        monkeypatch.setattr(where, name, size)


def joined(readers, shared):
    """What calls make, sums of it before the next call, and columns of it that are joined after the last call."""
    b = Builder()
    x = b.given("x", (64, 64))
    made, sums = [], []
    for k in range(CALLS):
        made.append(b.made(f"c{k}", (64, 64)))
        b.extern(f"c{k}", ["x"], [f"c{k}"])
        if shared:  # a value of each block that another reads: computing both together delays what follows from one
            scaled = b.map(f"scaled{k}", (64,), lambda i, k=k: op("exp", x.at((*i, k))))
            sums.append(scaled)
            sums.append(
                b.sum(f"s{k}", (64,), (64,), lambda o, r, k=k, s=scaled: op("mul", made[k].at((*o, *r)), s.at(o)))
            )
        else:
            sums.append(b.sum(f"s{k}", (64,), (64,), lambda o, r, k=k: made[k].at((*o, *r))))
    out = [b.made(f"out{n}", (CALLS, 64)) for n in range(readers)]
    for n in range(readers):
        for k in range(CALLS):
            b.write(f"part{n}{k}", out[n], (64,), lambda i, k=k: (k, *i), lambda i, k=k, n=n: made[k].at((*i, n)))
    return b.program(*out, *sums)


@pytest.mark.parametrize("readers", [0, 1, 2])
@pytest.mark.parametrize("shared", [False, True])
def test_what_a_call_makes_is_read_before_the_next_call(readers, shared):
    rows = torch.arange(64.0 * 64).view(64, 64) / 4096
    found = assert_same(joined(readers, shared), extern=lambda item, tensors: {item.name: rows})
    steps = [step.name if isinstance(step, Extern) else {p.buffer.name for p in step.params} for step in found.steps]
    for k in range(CALLS - 1):
        readers_of = [at for at, step in enumerate(steps) if not isinstance(step, str) and f"c{k}" in step]
        assert readers_of and max(readers_of) < steps.index(f"c{k + 1}")


def test_what_makes_more_than_it_frees_stays():
    b = Builder()
    b.given("x", (64,))
    made = b.made("c0", (64, 64))
    b.extern("c0", ["x"], ["c0"])
    b.extern("c1", ["x"], [])
    b.map("out", (4, 64, 64), lambda i: op("exp", made.at(i[1:])))
    out = b.low.buffers["out"]
    assert [item.name for item in early_ends.end_early(b.low.items, b.low.buffers, ())] == ["c0", "c1", out.name]

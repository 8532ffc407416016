"""Rounds of fusion: what is tried first, order of steps, the score and the log."""

from __future__ import annotations

import pytest
import torch
from support.lowering import trace
from support.schedules import Builder, assert_same, layer_norm, op, softmax

from regraft.compiler.ir.index.index import Size
from regraft.compiler.ir.kernel import Fold, Loop
from regraft.compiler.ir.printer import kernel_text
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import CPU, GPU, fusion, schedule, score_fusion
from regraft.compiler.schedule.flat_access import flatten
from regraft.compiler.schedule.groups import Axes, Group, members_of
from regraft.compiler.schedule.profit import bytes_of, guess


def test_the_score_is_the_traffic_saved():
    b, axes = Builder(), Axes()
    x = b.given("x", (64, 64))
    t = b.map("t", (64, 64), lambda i: op("exp", x.at(i)))
    b.map("u", (64, 64), lambda i: op("add", t.at(i), x.at(i)))
    first, second = (
        Group(m := members_of(flatten(item, b.low.buffers), 2 * k, axes), m[-1].outer, k)
        for k, item in enumerate(b.low.items)
    )
    size = 64 * 64 * 4
    weights = dict.fromkeys("xtu", size)

    def score(users, kept):
        return score_fusion(first, second, weights, {"x": frozenset(), "t": users, "u": frozenset()}, kept)

    assert score(frozenset({0, 1}), frozenset()) == 3 * size  # t neither written nor read, x read once
    assert score(frozenset({0, 1}), frozenset("t")) == 2 * size
    assert score(frozenset({0, 1, 2}), frozenset()) == 2 * size


@pytest.mark.parametrize("target", [CPU, GPU])
@pytest.mark.parametrize(
    "more",
    [
        lambda x, total: total,
        lambda x, total: (total, total * 2),
        lambda x, total: (total.exp(), total + x.new_ones(x.shape[2])),
        lambda x, total: torch.cat([total * 2, total], 1),
    ],
    ids=["alone", "with its double", "with a row", "joined"],
)
def test_folds_read_memory_in_order_whatever_reads_their_results(target, more):
    few, x = (torch.randn(2, 64, n, 16).to(memory_format=torch.channels_last) for n in (3, 32))
    small, program = (lower(trace(lambda x: more(x, x.sum(-1)), x), strict=True).program for x in (few, x))
    assert_same(small, target=target)
    found = [loops for kernel in schedule(program, target=target).kernels for loops in around_folds(kernel.body)]
    assert [loops[-1].extent for loops in found] == [64]


def around_folds(body, loops=()):
    """The loops around each fold, outermost first."""
    for statement in body:
        if isinstance(statement, Fold):
            yield loops
        elif isinstance(statement, Loop):
            yield from around_folds(statement.body, (*loops, statement.var))


def test_loops_that_what_is_shared_says_nothing_of_are_the_same_if_they_are_alike():
    """y and z of 2 times x: the loop over 2 occurs in neither read of x."""

    def program(columns):
        b = Builder()
        x = b.given("x", (columns,))
        y = b.map("y", (2, columns), lambda i: op("exp", x.at(i[1:])))
        z = b.map("z", (2, columns), lambda i: op("neg", x.at(i[1:])))
        return b.program(y, z)

    assert len(schedule(program(1 << 20), target=GPU).kernels) == 1
    assert_same(program(64), target=GPU)


def test_pieces_of_a_stack_share_the_loops_of_a_fold():
    """Both halves of a stack in the middle, and a product of columns: one loop over columns for all three."""

    def program(x):
        return torch.stack([x, x * 2], 2), x.prod(0)

    x = torch.randn(128, 96, 12)
    (kernel,) = schedule(lower(trace(program, x), strict=True).program, target=GPU).kernels
    (outer,) = kernel.body
    (inner,) = outer.body
    assert (outer.var.extent, inner.var.extent) == (96, 12) and outer.parallel and inner.parallel


def test_reading_a_small_buffer_together_is_no_reason():
    b = Builder()
    x, y, bias = b.given("x", (64, 64)), b.given("y", (64, 64)), b.given("bias", (64,))
    made = [b.map(f"{t.buffer.name}_b", (64, 64), lambda i, t=t: op("add", t.at(i), bias.at(i[1:]))) for t in (x, y)]
    found = schedule(b.program(*made))
    assert not found.log.candidates


def test_bytes_of_buffers():
    b = Builder()
    s = Size("s", 1, 100).index()
    assert bytes_of(b.given("x", (4, 8)).buffer) == 128
    assert bytes_of(b.given("e", (4, 8), (0, 1)).buffer) == 32
    assert bytes_of(b.given("d", (s, 8)).buffer) == 3200
    assert guess(Size("t", 1, None).index()) > 1000


def test_steps_keep_the_order_of_the_program():
    b = Builder()
    x = b.given("x", (200, 200))
    names = []
    for k in range(4):
        t = b.map(f"t{k}", (200, 200), lambda i, x=x: op("exp", x.at(i)))
        made = b.made(f"c{k}", (200, 200))
        b.extern(f"c{k}", [t.buffer.name], [f"c{k}"], pure=False)
        x, names = made, [*names, t.buffer.name, f"c{k}"]
    found = schedule(b.program(x))
    assert [s.name.split("_")[-1] for s in found.steps] == names


def test_the_log_says_what_was_fused_and_why_not():
    b = Builder()
    x = b.given("x", (2, 64, 32))
    t = b.map("t", (2, 64, 32), lambda i: op("exp", x.at(i)))
    out = layer_norm(b, t)
    columns = b.sum("columns", (32,), (2, 64), lambda o, r: t.at((*r, *o)))
    found = assert_same(b.program(out, columns), tolerance=1e-3)
    log = found.log
    assert log.rounds >= 2
    assert {c.second for c in log.candidates if c.fused} >= {"ln"}
    refused = next(c for c in log.candidates if c.refusal is not None and c.second == "columns")
    assert refused.refusal.code in ("loop-order", "unaligned") and refused.score > 0
    assert log.refusals[refused.refusal.code] >= 1
    assert "round 0\n" in str(log) and "saves" in str(log) and refused.refusal.message in str(log)
    assert dict(log.inlined)["t"]  # why it was not


def test_schedules_are_deterministic():
    def texts():
        b = Builder()
        out = softmax(b, b.given("x", (64, 64)))
        found = schedule(b.program(layer_norm(b, b.given("y", (2, 64, 64))), out))
        return repr(found.steps), str(found.log)

    assert texts() == texts()


def test_one_kernel_a_definition_without_fusion():
    b = Builder()
    program = b.program(layer_norm(b, b.given("x", (2, 8, 16))))
    assert len(schedule(program, fuse=False).kernels) == len(program.items)


@pytest.mark.parametrize("apart", [True, False])
def test_a_small_sum_does_not_hold_much_memory_until_a_call_has_run(monkeypatch, apart):
    """Sums of what calls make, and what reads them all at the end: each is computed while its operand is there."""
    monkeypatch.setattr(fusion, "_HELD", 1000 if apart else 1 << 30)
    b = Builder()
    b.given("x", (256,))
    sums = []
    for k in range(3):
        made = b.made(f"c{k}", (256, 256))
        b.extern(f"c{k}", ["x"], [f"c{k}"])
        sums.append(b.sum(f"s{k}", (), (256,), lambda o, r, made=made: made.at((*r, *r))))
    out = b.map("out", (), lambda i: op("add", op("add", sums[0].at(()), sums[1].at(())), sums[2].at(())))
    rows = torch.outer(torch.arange(256.0), torch.ones(256))
    found = assert_same(b.program(out), extern=lambda item, tensors: {item.name: rows})
    assert ("memory" in found.log.refusals) == apart
    assert ("read c0" in kernel_text(found.steps[-1])) == (not apart)

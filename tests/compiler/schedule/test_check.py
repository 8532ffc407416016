"""The checker finds schedules that are wrong: bugs planted in the scheduler, and schedules changed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.kernels import flat_buffer, kernel
from support.schedules import Builder, layer_norm, number, op, softmax

from regraft.compiler.ir.index.index import Late, Var
from regraft.compiler.ir.kernel import Assign, Fold, Kernel, Loop
from regraft.compiler.ir.program import Store
from regraft.compiler.ir.value import Load, Number, Rewriter
from regraft.compiler.schedule import (
    check_schedule,
    contraction,
    dependences,
    fusion,
    inlining,
    kernels,
    legality,
    loop_tree,
    schedule,
)
from regraft.compiler.schedule.check_loops import loop_findings


def codes(program, found):
    return {finding.code for finding in check_schedule(program, found)}


def changed(found, at, step):
    steps = list(found.steps)
    steps[at : at + 1] = [step] if step is not None else []
    return replace(found, steps=tuple(steps))


def updates():
    """An input is read, overwritten, read again; a call with effects on either side."""
    b = Builder()
    x = b.given("x", (96, 96))
    before = b.map("before", (96, 96), lambda i: op("exp", x.at((i[1], i[0]))))
    b.write("copy_", x, (96, 96), lambda i: i, lambda i: op("neg", x.at(i)))
    after = b.map("after", (96, 96), lambda i: op("exp", x.at((i[1], i[0]))))
    for name in ("draw", "draw_1"):
        made = b.made(name, (96, 96))
        b.extern(name, ["after"], [made.buffer.name], pure=False)
    last = b.map("last", (96, 96), lambda i: op("add", made.at(i), before.at(i)))
    return b.program(before, after, last)


def test_right_schedules_have_no_findings():
    b = Builder()
    out = softmax(b, layer_norm(b, b.given("x", (2, 8, 16)), views=True))
    for program in (updates(), b.program(out)):
        for fuse in (True, False):
            assert not check_schedule(program, schedule(program, fuse=fuse))


def known_later(use):
    """A call makes a number known, and nothing but the number is used: as a value, an offset or an extent."""
    b = Builder()
    x = b.given("x", (96,))
    b.map("count", (), lambda i: x.at((0,)))
    b.made("known u0", (0,))
    b.extern("read", ["count"], ["known u0"])
    u0 = Late("u0", 0, 9, ("known u0",)).index()
    shift = Number(u0, torch.float32)
    uses = {
        "value": lambda: b.map("out", (96,), lambda i: op("mul", x.at(i), shift)),
        "offset": lambda: b.map("out", (80,), lambda i: x.at((i[0] + u0,))),
        "extent": lambda: b.sum("out", (8,), (u0,), lambda o, k: x.at((o[0] + 8 * k[0],))),
        "memory": lambda: b.map("out", (u0, 0), lambda i: x.at((i[1],))),
    }
    return b.program(uses[use]())


@pytest.mark.parametrize("use", ["value", "offset", "extent", "memory"])
def test_a_number_orders_its_call_and_what_uses_it(use):
    program = known_later(use)
    found = schedule(program)
    assert not check_schedule(program, found)
    names = [step.name for step in found.steps]
    at = names.index("read")
    assert 0 < at < len(names) - 1
    assert "missing" in codes(program, changed(found, at, None))
    steps = [*found.steps[:at], *found.steps[at + 1 :], found.steps[at]]
    assert codes(program, replace(found, steps=steps)) == {"unwritten"}


@pytest.mark.parametrize("at", range(5))
def test_swapped_steps_are_found(at):
    program = updates()
    found = schedule(program)
    assert [s.name for s in found.steps] == ["k0_before", "k1_copy_", "k2_after", "draw", "draw_1", "k5_last"]
    steps = list(found.steps)
    steps[at], steps[at + 1] = steps[at + 1], steps[at]
    assert codes(program, replace(found, steps=tuple(steps))) & {"stale-read", "effects"}


@pytest.mark.parametrize("at", range(6))
def test_missing_steps_are_found(at):
    program = updates()
    assert "missing" in codes(program, changed(schedule(program), at, None))


def test_a_step_that_runs_twice_is_found():
    program = updates()
    found = schedule(program)
    twice = replace(found, steps=(*found.steps[:2], *found.steps[1:]))
    assert "wrong-store" in codes(program, twice)


def norm():
    b = Builder()
    return b.program(layer_norm(b, b.given("x", (2, 8, 16))))


def rewritten(kernel: Kernel, statement):
    """A kernel with statements replaced, innermost first."""

    def body(statements):
        return tuple(new for s in statements for new in statement(inside(s)))

    def inside(s):
        return replace(s, body=body(s.body)) if isinstance(s, (Loop, Fold)) else s

    return replace(kernel, body=body(kernel.body))


def test_scratch_that_is_read_before_it_is_written():
    program = norm()
    found = schedule(program)
    (kernel,) = found.kernels
    name = kernel.scratch[0].name
    without = rewritten(kernel, lambda s: () if isinstance(s, Assign) and s.store.buffer == name else (s,))
    assert "unwritten" in codes(program, changed(found, 0, without))


def test_scratch_that_another_iteration_wrote():
    b = Builder()
    program = b.program(softmax(b, b.given("x", (8, 16))))
    found = schedule(program)
    (kernel,) = found.kernels

    def late(value):
        if isinstance(value, Load) and value.buffer == "softmax_exp":
            return Load(value.buffer, (value.indices[0] + 16,), value.dtype)
        return None

    def shifted(s):
        if isinstance(s, Assign) and s.store.buffer == "softmax":
            s = Assign(replace(s.store, value=Rewriter(value=late)(s.store.value)))
        return (s,)

    assert codes(program, changed(found, 0, rewritten(kernel, shifted))) == {"unwritten", "outside"}


def test_loops_that_are_not_parallel():
    b = Builder()
    x = b.given("x", (4, 4))
    b.write("rows", x, (8, 4), lambda i: (i[0] // 2, i[1]), lambda i: number(1.0))
    program = b.program()
    found = schedule(program)
    (kernel,) = found.kernels

    def all_parallel(s):
        return (replace(s, parallel=True),) if isinstance(s, Loop) else (s,)

    assert codes(program, found) == set()
    assert codes(program, changed(found, 0, rewritten(kernel, all_parallel))) == {"race"}


@pytest.mark.parametrize("begin, found", [(8, set()), (7, {"crossing"})])
def test_elements_written_in_several_iterations_are_no_others(begin, found):
    """Of sizes that are equal only when the program runs, a sample may say that rows of one statement overlap."""
    i, j, k = Var("i", 2), Var("j", 4), Var("k", 2)
    rows = Loop(j, (Assign(Store("out", (i.index() + 2 * j.index(),), number(1.0))),))
    bias = Loop(k, (Assign(Store("out", (i.index() + k.index() + begin,), number(2.0))),))
    made = kernel("k0", [], [flat_buffer("out", 12)], [Loop(i, (rows, bias))])
    assert {finding.code for finding in loop_findings(made)} == found


# -- bugs planted in the scheduler ------------------------------------------------------------------------------------


def neighbours():
    """Each element is made from its neighbour's value: loops must not be shared."""
    b = Builder()
    x = b.given("x", (32, 16))
    t = b.map("t", (32, 16), lambda i: op("exp", x.at(i)))
    u = b.map("u", (32, 16), lambda i: op("add", t.at(i), t.at((31 - i[0], i[1]))))
    return b.program(t, u)


def between():
    """A call stands between two kernels."""
    b = Builder()
    x = b.given("x", (64, 64))
    t = b.map("t", (64, 64), lambda i: op("exp", x.at(i)))
    made = b.made("mm", (64, 64))
    b.extern("mm", ["t"], ["mm"])
    u = b.map("u", (64, 64), lambda i: op("add", t.at(i), made.at(i)))
    return b.program(u)


def in_the_way():
    """What a value reads is overwritten before its reader."""
    b = Builder()
    x = b.given("x", (64,))
    t = b.map("t", (64,), lambda i: op("neg", x.at(i)))
    b.write("copy_", x, (64,), lambda i: i, b.given("y", (64,)).at)
    u = b.map("u", (64,), lambda i: op("neg", t.at(i)))
    return b.program(u)


def always(answer):
    return lambda *args, **kwargs: answer


def no_write_after_read(all_effects):
    return dependences.order_of([replace(e, reads=frozenset()) for e in all_effects])


BUGS = {
    "every access is separate": (neighbours, [(legality, "separate", always(True)),
                                              (loop_tree, "separate", always(True))]),
    "members never conflict": (neighbours, [(loop_tree, "in_conflict", always(False)),
                                            (loop_tree, "conflicts", always(()))]),
    "all loops are parallel": (neighbours, [(loop_tree, "_independent", always(True)),
                                            (loop_tree, "separate", always(True)),
                                            (legality, "separate", always(True))]),
    "inlining past writes": (in_the_way, [(inlining._Inliner, "_overwritten", always(False))]),
    "forwarding past writes": (in_the_way, [(kernels._KernelBuilder, "_lasts", always(True))]),
    "reads have no order": (updates, [(fusion, "order_of", no_write_after_read)]),
    "scratch loses too much": (norm, [(contraction, "_parted", always((0, 0, 0)))]),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_bugs_planted_in_the_scheduler_are_found(bug, monkeypatch):
    make, patches = BUGS[bug]
    program = make()
    assert not check_schedule(program, schedule(program))
    for owner, name, wrong in patches:
        monkeypatch.setattr(owner, name, wrong)
    assert check_schedule(program, schedule(program))


def test_a_cycle_of_groups_is_no_schedule(monkeypatch):
    monkeypatch.setattr(fusion.Fuser, "_between", always(False))
    with pytest.raises(AssertionError, match="cycle"):
        schedule(between())

"""Which kernels begin before those before them have ended: all on a GPU after one that does not."""

from __future__ import annotations

from dataclasses import replace

import torch
from support.schedules import Builder, number, op

from regraft.compiler.ir.canonical import canonical
from regraft.compiler.ir.index.index import Size
from regraft.compiler.ir.kernel import Kernel
from regraft.compiler.ir.printer import kernel_text
from regraft.compiler.schedule import GPU, schedule
from regraft.compiler.schedule.begin_early import begin_early


def steps(device="cuda"):
    """Kernel, call, kernel, kernel."""
    b = Builder()
    x = b.given("x", (64,))
    for k in range(3):
        y = b.made(f"y{k}", (64,))
        b.write(f"w{k}", y, (64,), lambda i: i, lambda i, x=x: op("mul", x.at(i), number(2.0)))
        x = b.made(f"c{k}", (64,))
        b.extern(f"e{k}", [f"y{k}"], [f"c{k}"], pure=False)
    made = [step for step in schedule(b.program(), target=GPU).steps if isinstance(step, Kernel) or step.name != "e1"]
    return [on(step, device) if isinstance(step, Kernel) else step for step in made]


def on(kernel, device):
    place = torch.device(device)
    return replace(kernel, params=tuple(replace(p, buffer=replace(p.buffer, device=place)) for p in kernel.params))


def early(found):
    return [step.early for step in found if isinstance(step, Kernel)]


def test_all_but_the_first_begin_early():
    given = steps()
    made = begin_early(given)
    assert early(made) == [False, True, True]
    assert [step.name for step in made] == [step.name for step in given]
    last = [step for step in made if isinstance(step, Kernel)][-1]
    assert "begin early" in kernel_text(last) and "begin early" not in kernel_text(given[0])
    assert canonical(last) != canonical(replace(last, early=False))


def test_what_may_have_no_programs_is_not_the_first():
    first, *others = steps()
    made = begin_early([replace(first, sizes=(Size("n", 0, 100),)), *others])
    assert early(made) == [False, False, True]


def test_nothing_on_a_cpu():
    assert early(begin_early(steps("cpu"))) == [False, False, False]
    first, *others = steps()
    assert early(begin_early([on(first, "cpu"), *others])) == [False, False, True]

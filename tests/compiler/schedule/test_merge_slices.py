"""Parts that fill a buffer become one choice, where nothing stands against it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from regraft.compiler.ir.index.index import Size, Var, add
from regraft.compiler.ir.kernel import Loop
from regraft.compiler.ir.value import Load, Rewriter
from regraft.compiler.schedule import CPU, GPU, check_schedule, schedule
from regraft.compiler.schedule.merge_slices import join_parts

from ...support.schedules import Builder, assert_same, op
from ...support.triton_kernels import interpreted_agrees


def halves(b, x, lengths=(3, 5), dim=1):
    """Negated parts of x side by side, the last first; shapes (4, 8)."""
    sizes = list(x.sizes)
    into = b.made("t", sizes)
    start = 0
    for length in lengths:
        part = [*sizes[:dim], length, *sizes[dim + 1 :]]
        shift = [start if d == dim else 0 for d in range(len(sizes))]
        at = lambda i, shift=shift: tuple(map(add, i, shift))  # noqa: E731
        b.write(f"t_{start}", into, part, at, lambda i, k=start: op("mul" if k else "add", x.at(i), x.at(i)))
        start = add(start, length)
    return into


N = Size("n", 4, None)


@pytest.mark.parametrize("lengths", [(3, N.index() - 3), (N.index() - 2, 2), (1, N.index() - 3, 2)])
@pytest.mark.parametrize("dim", [0, 1])
def test_parts_of_symbolic_lengths_become_a_choice(lengths, dim):
    b = Builder()
    x = b.given("x", [N.index(), 8] if dim == 0 else [8, N.index()])
    t = halves(b, x, lengths, dim)
    program = b.program(b.map("y", x.sizes, lambda i: op("mul", t.at(i), x.at(i))))
    for n in (4, 7):
        assert len(assert_same(program, target=GPU, sizes={"n": n}).kernels[0].body) == 1
    for other in ((3, N.index() - 4), (N.index() - 2, 3)):  # a gap, beyond the end
        b = Builder()
        x = b.given("x", (N.index(), 8))
        t = halves(b, x, other, 0)
        program = b.program(b.map("y", x.sizes, lambda i, t=t, x=x: op("mul", t.at(i), x.at(i))))
        assert joined(program) == list(program.items)


def joined(program):
    return join_parts(program.items, program.buffers, program.outputs)


@pytest.mark.parametrize("lengths", [(3, 5), (1, 7), (2, 2, 4), (1, 1, 1, 5)])
@pytest.mark.parametrize("dim", [0, 1])
def test_parts_become_a_choice(lengths, dim):
    b = Builder()
    x = b.given("x", (8, 8))
    t = halves(b, x, lengths, dim)
    y = b.map("y", (8, 8), lambda i: op("mul", t.at(i), x.at(i)))
    program = b.program(y)
    assert len(joined(program)) == 2
    assert len(assert_same(program, target=GPU).kernels[0].body) == 1
    assert_same(program, target=CPU)


def kept_parts(lengths=(1, 5, 2)):
    """Tensors side by side, read at two places: they are joined once, and kept."""
    b = Builder()
    t, start = b.made("t", (sum(lengths), 8)), 0
    for length in lengths:
        x = b.given(f"x_{start}", (length, 8))
        at = lambda i, start=start: (add(i[0], start), i[1])  # noqa: E731
        b.write(f"t_{start}", t, (length, 8), at, lambda i, x=x: x.at(i))
        start += length
    return b.program(b.map("y", (start - 1, 8), lambda i: op("sub", t.at((add(i[0], 1), i[1])), t.at(i))))


def changed(found, change):
    """A schedule whose first kernel stores something else."""

    def statement(s):
        return replace(s, body=tuple(map(statement, s.body))) if isinstance(s, Loop) else change(s)

    first, *others = found.steps
    return replace(found, steps=(replace(first, body=tuple(map(statement, first.body))), *others))


@pytest.mark.parametrize("lengths", [(1, 5, 2), (2, 1, 1, 4)])
def test_a_choice_that_is_kept_makes_the_stores_of_all_parts(lengths):
    program = kept_parts(lengths)
    found = schedule(program, target=GPU)
    assert len(found.kernels) == 2 and not check_schedule(program, found)
    assert_same(program, target=GPU)


def test_a_choice_that_lacks_a_part_is_found():
    program = kept_parts()
    found = schedule(program, target=GPU)

    def lacking(s):
        """The last part is the first again."""
        first = lambda v: Load("x_0", v.indices, v.dtype) if getattr(v, "buffer", "") == "x_6" else None  # noqa: E731
        return replace(s, store=replace(s.store, value=Rewriter(value=first)(s.store.value)))

    assert "missing" in {f.code for f in check_schedule(program, changed(found, lacking))}


def test_a_choice_that_ends_early_is_found():
    program = kept_parts()
    found = schedule(program, target=GPU)
    (loop,) = found.kernels[0].body
    less = Var(loop.var.name, 7)
    again = Rewriter(atom={loop.var: less.index()}.get)

    def shorter(s):
        at = tuple(map(again.index, s.store.indices))
        return replace(s, store=replace(s.store, indices=at, value=again(s.store.value)))

    first, *others = changed(found, shorter).steps
    first = replace(first, body=(replace(first.body[0], var=less),))
    assert "missing" in {f.code for f in check_schedule(program, replace(found, steps=(first, *others)))}


def test_a_choice_is_read_when_all_parts_are_there():
    b = Builder()
    t, x = b.made("t", (8, 8)), b.given("x", (4, 8))
    b.write("t_0", t, (4, 8), lambda i: i, lambda i: x.at(i))
    early = b.map("early", (4, 8), lambda i: op("exp", t.at(i)))
    b.write("t_1", t, (4, 8), lambda i: (add(i[0], 4), i[1]), lambda i: op("neg", x.at(i)))
    program = b.program(early, b.map("y", (7, 8), lambda i: op("sub", t.at((add(i[0], 1), i[1])), t.at(i))))
    assert not check_schedule(program, schedule(program, target=GPU))


def test_what_must_exist_is_filled_part_by_part():
    b = Builder()
    t = halves(b, b.given("x", (4, 8)))
    program = b.program(t)
    assert joined(program) == list(program.items)


def test_so_is_what_is_not_filled_by_parts():
    for lengths in ((3, 4), (1, 1, 1, 1, 4)):  # a gap, too many
        b = Builder()
        x = b.given("x", (4, 8))
        t = halves(b, x, lengths)
        program = b.program(b.map("y", (4, 8), lambda i, t=t: op("add", t.at(i), t.at(i))))
        assert joined(program) == list(program.items)


def test_parts_that_overlap_stay():
    b = Builder()
    x = b.given("x", (4, 8))
    t = halves(b, x)
    b.write("more", t, (4, 2), lambda i: i, lambda i: x.at(i))
    program = b.program(b.map("y", (4, 8), lambda i: op("add", t.at(i), t.at(i))))
    assert joined(program) == list(program.items)


def test_cpus_keep_parts():
    assert GPU.choices and not replace(CPU).choices


def test_rotary_embeddings_are_one_pass():
    def rotary(x, cos, sin):
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat((-high, low), -1) * sin

    x, cos, sin = torch.randn(2, 3, 4, 16), torch.randn(4, 16), torch.randn(4, 16)
    (source,) = interpreted_agrees(rotary, x, cos, sin)
    assert len(source.launches) == 1 and "barrier" not in source.text

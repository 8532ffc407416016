"""Parts that fill a buffer become one choice, where nothing stands against it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from regraft.compiler.schedule import CPU, GPU
from regraft.compiler.schedule.parts import join_parts

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
        at = lambda i, shift=shift: tuple(n + s for n, s in zip(i, shift, strict=True))  # noqa: E731
        b.write(f"t_{start}", into, part, at, lambda i, k=start: op("mul" if k else "add", x.at(i), x.at(i)))
        start += length
    return into


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

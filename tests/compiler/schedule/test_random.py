"""Random programs: whatever is fused, the schedule computes what the program does, and the checker agrees."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.schedules import SMALL_GPU, Builder, assert_same, number, op
from support.thorough import examples

from regraft.compiler.ir.index.index import Loaded
from regraft.compiler.schedule import CPU

SHAPES = [(2, 3, 4), (6, 4), (24,), (3, 8), (2, 12), (1, 24)]
NAMES = ["exp", "neg", "abs"]


def flat_at(tensor, offset, sizes):
    """The element of a tensor at a row-major offset: what views do."""
    indices, rest = [], offset
    for size in reversed(sizes):
        indices.append(rest % size if size != 1 else 0)
        rest = rest // size
    return tensor.at(tuple(reversed(indices)))


def offset_of(indices, sizes):
    total = 0
    for index, size in zip(indices, sizes, strict=True):
        total = total * size + index
    return total


class Maker:
    """Draws one program."""

    def __init__(self, draw):
        self.draw, self.b, self.pool, self.count = draw, Builder(), [], 0
        for k in range(draw(st.integers(1, 2))):
            self.pool.append(self.b.given(f"x{k}", draw(st.sampled_from(SHAPES))))
        self.rows = self.b.given("row", (4,))
        self.ids = self.b.given("ids", (24,), dtype=torch.int64)

    def name(self, kind):
        self.count += 1
        return f"{kind}{self.count}"

    def full(self):
        return self.draw(st.sampled_from(self.pool))

    def map(self):
        sizes, a, c = self.draw(st.sampled_from(SHAPES)), self.full(), self.full()
        f = self.draw(st.sampled_from(NAMES))
        reverse = self.draw(st.booleans())

        def compute(i):
            at = offset_of(i, sizes)
            there = 23 - at if reverse else at
            return op("add", op("mul", flat_at(a, at, a.sizes), number(0.5)), op(f, flat_at(c, there, c.sizes)))

        return self.b.map(self.name("map"), sizes, compute)

    def broadcast(self):
        a, r = self.full(), self.rows
        return self.b.map(
            self.name("bias"), (6, 4), lambda i: op("mul", flat_at(a, offset_of(i, (6, 4)), a.sizes), r.at(i[1:]))
        )

    def transpose(self):
        a = self.full()
        return self.b.map(self.name("t"), (4, 6), lambda i: flat_at(a, i[1] * 4 + i[0], a.sizes))

    def reduce(self):
        """Over rows or columns, then back to full size."""
        a, rows = self.full(), self.draw(st.booleans())
        reducer = self.draw(st.sampled_from(["sum", "max"]))
        made = self.b.sum(
            self.name("red"), (6,) if rows else (4,), (4,) if rows else (6,),
            lambda o, r: flat_at(a, (o[0] * 4 + r[0]) if rows else (r[0] * 4 + o[0]), a.sizes), reducer=reducer,
        )  # fmt: skip
        return self.b.map(
            self.name("back"), (6, 4),
            lambda i: op("sub", flat_at(a, i[0] * 4 + i[1], a.sizes), made.at((i[0],) if rows else (i[1],))),
        )  # fmt: skip

    def total(self):
        a = self.full()
        made = self.b.sum(self.name("total"), (), (24,), lambda o, r: flat_at(a, r[0], a.sizes))
        return self.b.map(self.name("norm"), (24,), lambda i: op("sub", flat_at(a, i[0], a.sizes), made.at(())))

    def scan(self):
        a = self.full()
        return self.b.scan(self.name("scan"), (6,), 4, lambda i: flat_at(a, i[0] * 4 + i[1], a.sizes))

    def scatter(self):
        a = self.full()
        made = self.b.map(self.name("base"), (24,), lambda i: number(0.25))
        self.b.write(
            self.name("scatter"), made, (24,), lambda i: (Loaded(self.ids.at(i), 24, True).index(),),
            lambda i: flat_at(a, i[0], a.sizes), "add",
        )  # fmt: skip
        return made

    def cat(self):
        made = self.b.made(self.name("cat"), (48,))
        for part, source in enumerate((self.full(), self.full())):
            self.b.write(
                self.name("part"), made, (24,), lambda i, part=part: (i[0] + 24 * part,),
                lambda i, source=source: op("neg", flat_at(source, i[0], source.sizes)),
            )  # fmt: skip
        shift = self.draw(st.sampled_from([0, 12, 24]))
        return self.b.map(self.name("slice"), (24,), lambda i: made.at((i[0] + shift,)))

    def gather(self):
        a = self.full()
        return self.b.map(
            self.name("gather"), (24,), lambda i: flat_at(a, Loaded(self.ids.at(i), 24, True).index(), a.sizes)
        )

    def write_input(self):
        target, a = self.pool[0], self.full()
        self.b.write(
            self.name("copy_"), target, target.sizes, lambda i: i,
            lambda i: op("add", flat_at(a, offset_of(i, target.sizes), a.sizes), number(1.0)),
        )  # fmt: skip

    def call(self):
        a, name = self.full(), self.name("call")
        made = self.b.made(name, (24,))
        self.b.extern(name, [a.buffer.name], [made.buffer.name], pure=self.draw(st.booleans()))
        return made


KINDS = ["map", "map", "broadcast", "transpose", "reduce", "reduce", "total", "scan", "scatter", "cat", "gather",
         "write_input", "call"]  # fmt: skip


@st.composite
def programs(draw):
    maker = Maker(draw)
    for _ in range(draw(st.integers(1, 7))):
        made = getattr(maker, draw(st.sampled_from(KINDS)))()
        if made is not None:
            maker.pool.append(made)
    outputs = {t.buffer.name: t for t in draw(st.lists(st.sampled_from(maker.pool), min_size=1, max_size=2))}
    last = maker.pool[-1]
    return maker.b.program(*{**outputs, last.buffer.name: last}.values())


def call(item, tensors):
    source = tensors[item.reads[0]].reshape(-1)
    return {item.writes[0]: source.flip(0).mul(0.5)}


@settings(max_examples=examples(60, 150), deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.integers(0, 3))
def test_schedules_compute_what_programs_do(program, seed):
    assert_same(program, extern=call, seed=seed, tolerance=1e-4)


@settings(max_examples=examples(40, 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.integers(0, 3))
def test_so_do_those_of_large_programs(program, seed):
    """Nothing is small: loops stay parallel, and kernels apart."""
    assert_same(program, extern=call, seed=seed, tolerance=1e-4, target=replace(CPU, small=0))


@settings(max_examples=examples(40, 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.integers(0, 3))
def test_so_do_those_for_gpus(program, seed):
    assert_same(program, extern=call, seed=seed, tolerance=1e-4, target=SMALL_GPU)


@settings(max_examples=examples(15, 30), deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_so_do_those_without_fusion(program):
    assert_same(program, extern=call, tolerance=1e-4, fuse=False)

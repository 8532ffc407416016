"""Loop trees, contraction and what a kernel says of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.schedules import Builder, assert_same, body_text, loops_of, number, op

from regraft.compiler.ir.index.index import Loaded, Size
from regraft.compiler.schedule import CPU, schedule


def test_params_say_what_is_done_with_them():
    b = Builder()
    x, y = b.given("x", (64,)), b.given("y", (64,))
    b.write("add_", x, (64,), lambda i: i, y.at, "add")
    t = b.map("t", (64,), lambda i: op("exp", y.at(i)))
    (kernel,) = assert_same(b.program(t)).kernels
    assert {p.buffer.name: p.access for p in kernel.params} == {"x": "update", "y": "read", "t": "write"}
    assert all(p.buffer.strides == (1,) for p in kernel.params)
    assert kernel.nodes == ("add_", "t")


def test_sizes_are_those_in_loops_and_indices():
    b = Builder()
    s, t = (Size(name, 1, None).index() for name in "st")
    x, ids = b.given("x", (t, 4)), b.given("ids", (s,), dtype=torch.int64)
    out = b.map("out", (s, 4), lambda i: x.at((Loaded(ids.at(i[:1]), t, True).index(), i[1])))
    (kernel,) = assert_same(b.program(out), sizes={"s": 3, "t": 5}).kernels
    assert [size.name for size in kernel.sizes] == ["s", "t"]


def rows(b, columns, **more):
    x = b.given("x", (8, columns))
    t = b.map("t", (8, columns), lambda i: op("exp", x.at(i)), **more)
    s = b.sum("s", (8,), (columns,), lambda o, r: t.at((*o, *r)))
    return b.map("out", (8, columns), lambda i: op("div", t.at(i), s.at(i[:1])))


@pytest.mark.parametrize(("limit", "scratch"), [(64, ["t"]), (16, [])])
def test_scratch_has_a_limit(limit, scratch):
    b = Builder()
    found = assert_same(b.program(rows(b, 32)), target=replace(CPU, scratch=limit))
    (kernel,) = found.kernels
    assert [s.name for s in kernel.scratch] == scratch
    assert ("t" in found.buffers) is not bool(scratch)


def test_so_has_all_of_a_kernel():
    b = Builder()
    assert not assert_same(b.program(rows(b, 32)), target=replace(CPU, scratch_bytes=100)).kernels[0].scratch


def test_scratch_of_padded_rows():
    b = Builder()
    (kernel,) = assert_same(b.program(rows(b, 6, strides=(10, 1)))).kernels
    assert [s.sizes for s in kernel.scratch] == [(6,)]


@pytest.mark.parametrize("at", [lambda j: j * -1 + 31, lambda j: (j + 30) % 32, lambda j: 5 * j % 32])
def test_scratch_is_read_in_any_order(at):
    b = Builder()
    x = b.given("x", (70, 32))
    t = b.map("t", (70, 32), lambda i: op("exp", x.at(i)))
    u = b.map("u", (70, 32), lambda i: op("sub", t.at(i), t.at((i[0], at(i[1])))))
    found = assert_same(b.program(b.map("out", (70, 32), lambda i: op("mul", u.at(i), u.at((i[0], i[1] * -1 + 31))))))
    (kernel,) = found.kernels
    assert {s.name for s in kernel.scratch} == {"t", "u"} and not {"t", "u"} & found.buffers.keys()


def test_outputs_are_stored_and_their_values_used_on():
    b = Builder()
    x = b.given("x", (32,))
    t = b.map("t", (32,), lambda i: op("exp", x.at(i)))
    u = b.map("u", (32,), lambda i: op("neg", t.at(i)))
    (kernel,) = assert_same(b.program(t, u)).kernels
    assert (
        body_text(kernel)
        == """\
for i0 < 32 parallel:
    t[i0] = exp(x[i0])
    u[i0] = neg(exp(x[i0]))"""
    )


def test_a_value_is_not_used_on_past_a_write_to_what_it_reads():
    b = Builder()
    x = b.given("x", (32,))
    t = b.map("t", (32,), lambda i: op("exp", x.at(i)))
    b.write("copy_", x, (32,), lambda i: i, lambda i: number(0.0))
    u = b.map("u", (32,), lambda i: op("neg", t.at(i)))
    (kernel,) = assert_same(b.program(u)).kernels
    assert [s.sizes for s in kernel.scratch] == [(1,)]
    assert len(loops_of(kernel)) == 1


def test_small_kernels_in_a_row_are_one():
    b = Builder()
    x, y = b.given("x", (32,)), b.given("y", (7, 3))
    t = b.map("t", (32,), lambda i: op("exp", x.at(i)))
    u = b.map("u", (7, 3), lambda i: op("exp", y.at(i)))
    (kernel,) = assert_same(b.program(t, u)).kernels
    assert [loop.var.extent for loop in loops_of(kernel)] == [32, 21]


def test_large_ones_are_not():
    b = Builder()
    x, y = b.given("x", (300, 100)), b.given("y", (200, 100))
    t = b.map("t", (300, 100), lambda i: op("exp", x.at(i)))
    u = b.map("u", (200, 100), lambda i: op("exp", y.at(i)))
    assert len(schedule(b.program(t, u)).kernels) == 2


def test_an_optimizer_step_is_few_kernels():
    """Every parameter: m = m*b + g, p = p - lr*m, written back; all of one kind of operation at a time."""
    b = Builder()
    shapes = [(300, 100), (100,), (50, 300), (7,), (200, 150)]
    given = [[b.given(f"{kind}{k}", shape) for kind in "pgm"] for k, shape in enumerate(shapes)]
    moments = [
        b.map(f"m_new{k}", s, lambda i, m=m, g=g: op("add", op("mul", m.at(i), number(0.9)), g.at(i)))
        for k, ((_, g, m), s) in enumerate(zip(given, shapes, strict=True))
    ]
    params = [
        b.map(f"p_new{k}", s, lambda i, p=p, m=m: op("sub", p.at(i), op("mul", m.at(i), number(0.1))))
        for k, ((p, _, _), m, s) in enumerate(zip(given, moments, shapes, strict=True))
    ]
    for k, ((p, _, m), shape) in enumerate(zip(given, shapes, strict=True)):
        b.write(f"copy_m{k}", m, shape, lambda i: i, moments[k].at)
        b.write(f"copy_p{k}", p, shape, lambda i: i, params[k].at)
    found = schedule(b.program())
    assert len(found.kernels) == 1
    assert not found.buffers
    assert len(loops_of(found.kernels[0])) == len(shapes)


def test_decoding_one_token_needs_no_memory_in_between():
    b = Builder()
    x, y = b.given("x", (1, 1, 64)), b.given("y", (1, 1, 64))
    h = b.map("h", (1, 1, 64), lambda i: op("add", x.at(i), y.at(i)))
    m = b.sum(
        "m", (1, 1), (64,), lambda o, r: op("mul", h.at((*o, *r)), h.at((*o, *r))), lambda i, c: op("rsqrt", c[0])
    )
    out = b.map("out", (1, 1, 64), lambda i: op("mul", h.at(i), m.at(i[:2])))
    found = assert_same(b.program(out))
    assert len(found.kernels) == 1 and list(found.buffers) == ["out"]


def test_scans_run_in_order_and_share_outer_loops():
    b = Builder()
    x = b.given("x", (64, 16))
    t = b.map("t", (64, 16), lambda i: op("exp", x.at(i)))
    s = b.scan("s", (64,), 16, t.at)
    out = b.map("out", (64, 16), lambda i: op("sub", t.at(i), s.at((i[0], 15))))
    (kernel,) = assert_same(b.program(s, out), tolerance=1e-3).kernels
    assert [loop.var.extent for loop in loops_of(kernel) if loop.parallel] == [64]


@pytest.mark.parametrize(("dtype", "factor"), [(torch.bfloat16, 1e10), (torch.float16, 6e4)])
def test_loops_over_one_value_see_the_same_16_bits(dtype, factor):
    """A softmax of large numbers: the largest one of them is one of them."""

    def program(x, factor):
        return (torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1) * factor).softmax(-1)

    torch._dynamo.reset()
    x = torch.linspace(-1, 1, 5 * 8 * 5 * 6).reshape(5, 8, 5, 6).sin().to(dtype)
    ours = torch.compile(program, backend="regraft", dynamic=True)(x, factor)
    assert not ours.isnan().any()
    torch.testing.assert_close(ours, program(x, factor))

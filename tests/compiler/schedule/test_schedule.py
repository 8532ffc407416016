"""Whole schedules: the kernels that known programs become."""

from __future__ import annotations

import time

import pytest
import torch
from support.schedules import Builder, assert_same, body_text, layer_norm, loops_of, number, op, softmax

from regraft.compiler.ir.index.index import Loaded, Size, quotient
from regraft.compiler.ir.printer import kernel_text
from regraft.compiler.schedule import CPU, GPU, schedule


def test_layer_norm_with_residual_is_one_pass_over_rows():
    b = Builder()
    x, y, w = b.given("x", (2, 8, 16)), b.given("y", (16, 16)), b.given("w", (16,))
    t = b.map("add", (2, 8, 16), lambda i: op("add", x.at(i), y.at((8 * i[0] + i[1], i[2]))))
    out = layer_norm(b, t, weight=w, views=True)
    (kernel,) = assert_same(b.program(out)).kernels
    assert (
        body_text(kernel)
        == """\
for i0 < 16 parallel:
    fold fold = sum:
        for i1 < 16:
            add[i1] = (x[16*i0 + i1] + y[16*i0 + i1])
            update fold with (x[16*i0 + i1] + y[16*i0 + i1])
    fold fold_1_ = sum:
        for i1 < 16:
            t0 = add[i1] - (fold * 0.0625)
            update fold_1_ with (t0 * t0)
    ln_var[0] = rsqrt(fold_1_ + 9.999999747378752e-06)
    for i1 < 16:
        ln[16*i0 + i1] = (((add[i1] - (fold * 0.0625)) * ln_var[0]) * w[i1])"""
    )


def test_softmax_keeps_its_row():
    b = Builder()
    out = softmax(b, b.given("x", (8, 16)))
    found = assert_same(b.program(out))
    (kernel,) = found.kernels
    assert [s.name for s in kernel.scratch] == ["softmax_exp"]
    assert kernel.scratch[0].sizes == (16,)
    assert list(found.buffers) == ["softmax"]


def test_elementwise_operations_on_dense_memory_are_one_flat_loop():
    b = Builder()
    x, y = b.given("x", (2, 3, 4, 5)), b.given("y", (6, 20))
    t = b.map("t", (2, 3, 4, 5), lambda i: op("exp", x.at(i)))
    u = b.map("u", (2, 3, 4, 5), lambda i: op("mul", t.at(i), y.at((i[0] * 3 + i[1], i[2] * 5 + i[3]))))
    (kernel,) = assert_same(b.program(t, u)).kernels
    assert [loop.var.extent for loop in loops_of(kernel)] == [120]


def test_channels_last_is_flat_too():
    b = Builder()
    x = b.given("x", (2, 3, 4, 5), (60, 1, 15, 3))
    u = b.map("u", (2, 3, 4, 5), lambda i: op("exp", x.at(i)), strides=(60, 1, 15, 3))
    (kernel,) = assert_same(b.program(u)).kernels
    assert [loop.var.extent for loop in loops_of(kernel)] == [120]


def test_the_innermost_loop_is_contiguous_in_what_is_stored():
    b = Builder()
    x = b.given("x", (4, 6))
    u = b.map("u", (6, 4), lambda i: op("exp", x.at((i[1], i[0]))), strides=(1, 6))
    v = b.map("v", (6, 4), lambda i: op("exp", x.at((i[1], i[0]))))
    first, second = assert_same(b.program(u, v), fuse=False).kernels
    assert [loop.var.extent for loop in loops_of(first)] == [24]
    assert [loop.var.extent for loop in loops_of(second)] == [6, 4]


def test_heads_are_split_without_div_and_mod():
    """(b, s, h*d) -> (b, h, s, d), scaled: one kernel, its indices affine."""
    b = Builder()
    x = b.given("x", (2, 8, 24))
    t = b.map("t", (16, 24), lambda i: op("exp", x.at((i[0] // 8, i[0] % 8, i[1]))))
    u = b.map("u", (2, 6, 8, 4), lambda i: op("neg", t.at((8 * i[0] + i[2], 4 * i[1] + i[3]))))
    (kernel,) = assert_same(b.program(t, u)).kernels
    assert "//" not in kernel_text(kernel) and "%" not in kernel_text(kernel)


def test_sibling_reductions_share_one_pass():
    b = Builder()
    x, y = b.given("x", (16, 8)), b.given("y", (16, 8))
    p = b.sum("p", (8,), (16,), lambda o, r: x.at((*r, *o)))
    q = b.sum("q", (8,), (16,), lambda o, r: op("mul", x.at((*r, *o)), y.at((*r, *o))))
    (kernel,) = assert_same(b.program(p, q)).kernels
    assert len(loops_of(kernel)) == 2


def test_a_reduction_to_one_number_and_what_follows():
    b = Builder()
    x = b.given("x", (6, 16))
    total = b.sum("total", (), (6, 16), lambda o, r: op("mul", x.at(r), x.at(r)))
    mean = b.map("mean", (), lambda i: op("mul", total.at(()), number(1 / 96)))
    (kernel,) = assert_same(b.program(mean)).kernels
    assert [loop.var.extent for loop in loops_of(kernel)] == [96]
    assert not kernel.scratch


def test_16_bit_buffers_that_vanish_are_not_rounded():
    b = Builder()
    x = b.given("x", (8, 16), dtype=torch.bfloat16)
    h = b.map("h", (8, 16), lambda i: op("exp", x.at(i)), torch.bfloat16)
    s = b.sum("s", (8,), (16,), lambda o, r: h.at((*o, *r)), dtype=torch.bfloat16)
    out = b.map("out", (8, 16), lambda i: op("div", h.at(i), s.at(i[:1])), torch.bfloat16)
    (kernel,) = assert_same(b.program(out), tolerance=2e-2).kernels
    assert {s.dtype for s in kernel.scratch} == {torch.float32}


def test_a_call_in_between_separates():
    b = Builder()
    x = b.given("x", (4, 4))
    t = b.map("t", (4, 4), lambda i: op("exp", x.at(i)))
    mm = b.made("mm", (4, 4))
    b.extern("mm", ["t"], ["mm"])
    u = b.map("u", (4, 4), lambda i: op("add", t.at(i), mm.at(i)))
    found = assert_same(b.program(u), extern=lambda item, tensors: {"mm": tensors["t"] @ tensors["t"]})
    assert [step.name for step in found.steps] == ["k0_t", "mm", "k2_u"]
    assert "cycle" in found.log.refusals


@pytest.mark.parametrize("sizes", [{"s0": 3, "s1": 5}, {"s0": 1, "s1": 1}, {"s0": 2, "s1": 9}])
def test_symbolic_sizes(sizes):
    s0, s1 = (Size(name, 1, None).index() for name in ("s0", "s1"))
    b = Builder()
    out = softmax(b, b.given("x", (s0, s1)))
    rows = b.given("rows", (s0, 4))
    flat = b.map("flat", (4 * s0,), lambda i: op("neg", rows.at((i[0] // 4, i[0] % 4))))
    found = assert_same(b.program(out, flat), sizes=sizes)
    assert len(found.kernels) == 2
    assert [s.name for k in found.kernels for s in k.sizes] == ["s0", "s1", "s0"]


@pytest.mark.parametrize("target", [CPU, GPU], ids=["CPU", "GPU"])
@pytest.mark.parametrize("known", [(), (0,), (3,), (0, 3), (1, 2)], ids=str)
def test_loops_over_several_symbolic_sizes_are_parallel(known, target):
    """Places of a permuted tensor are products of sizes, which are as far apart as known ones."""
    s0, s1, s2, s3 = (5 if d in known else Size(f"s{d}", 2, None).index() for d in range(4))
    b = Builder()
    x = b.given("x", (s0, s2, s1, s3))
    moved = b.map("moved", (s0, s1, s2, s3), lambda i: op("exp", x.at((i[0], i[2], i[1], i[3]))))
    sizes = {f"s{d}": n for d, n in enumerate((3, 4, 2, 5))}
    found = assert_same(b.program(moved), sizes=sizes, target=target)
    for kernel in found.kernels:
        loop = loops_of(kernel)[0]
        assert loop.parallel, kernel_text(kernel)


@pytest.mark.parametrize("target", [CPU, GPU], ids=["CPU", "GPU"])
def test_loops_over_what_windows_give_are_parallel(target):
    """Nothing is written if a size of a result is 0: if something is, windows fit into the image."""
    s0, s1, s2 = (Size(f"s{d}", 2, None).index() for d in range(3))
    b = Builder()
    height, width = quotient(s1 - 3, 2) + 1, s2 - 2
    x = b.given("x", (s0, height, 4, width))
    y = b.map("y", (s0, 4, height, width), lambda i: op("neg", x.at((i[0], i[2], i[1], i[3]))))
    for given in ((3, 6, 5), (2, 2, 3), (2, 5, 2)):
        found = assert_same(b.program(y), sizes={f"s{d}": n for d, n in enumerate(given)}, target=target)
        (kernel,) = found.kernels
        assert loops_of(kernel)[0].parallel, kernel_text(kernel)


def test_scatter_in_place_and_the_read_after():
    b = Builder()
    x, ids, rows = b.given("x", (6, 4)), b.given("ids", (3,), dtype=torch.int64), b.given("rows", (3, 4))
    b.write(
        "index_add", x, (3, 4), lambda i: (Loaded(ids.at(i[:1]), 6, True).index(), i[1]), rows.at, "add"
    )  # fmt: skip
    after = b.map("after", (6, 4), lambda i: op("exp", x.at(i)))
    found = assert_same(b.program(after))
    assert not any(loop.parallel for k in found.kernels for loop in loops_of(k) if loop.var.extent == 3)


def test_empty_loops():
    b = Builder()
    x = b.given("x", (0, 4))
    t = b.map("t", (0, 4), lambda i: op("exp", x.at(i)))
    s = b.sum("s", (4,), (0,), lambda o, r: t.at((*r, *o)))
    assert_same(b.program(t, s))


def test_many_layers_are_scheduled_fast():
    b = Builder()
    x = b.given("x", (2, 128, 768))
    for layer in range(40):
        x = layer_norm(b, x, f"ln{layer}")
        c = b.made(f"c{layer}", (2, 128, 768))
        b.extern(f"c{layer}", [x.buffer.name], [c.buffer.name])
        x = b.map(f"act{layer}", (2, 128, 768), lambda i, c=c, x=x: op("add", op("erf", c.at(i)), x.at(i)))
    program = b.program(x)
    start = time.process_time()
    found = schedule(program)
    assert time.process_time() - start < 3  # takes a tenth of that on an idle machine
    assert len(found.kernels) == 41

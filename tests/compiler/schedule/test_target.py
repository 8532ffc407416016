"""What depends on the target: sizes that are worth something, what may run side by side, what is computed again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.lowering import trace
from support.schedules import SMALL_GPU, Builder, assert_same, body_text, loops_of, number, op, softmax
from support.thorough import one_row_in

import regraft.compiler.passes.recompute_softmax  # noqa: F401 (declares an operator)
from regraft.compiler.ir.accesses import statements
from regraft.compiler.ir.index.index import Loaded
from regraft.compiler.ir.kernel import Fold
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import CPU, GPU, check_schedule, gpu, legality, schedule
from regraft.compiler.schedule.inlining import inline


def test_gpus_differ_in_how_many_processors_they_have():
    assert gpu() == GPU and gpu(66).programs == GPU.programs // 2
    assert CPU.programs == 0


def test_small_loops_are_packed_for_cpus_only():
    b = Builder()
    x, y = b.given("x", (7,)), b.given("y", (5,))
    program = b.program(b.map("t", (7,), lambda i: op("exp", x.at(i))), b.map("u", (5,), lambda i: op("neg", y.at(i))))
    assert len(assert_same(program).kernels) == 1
    assert len(assert_same(program, target=replace(GPU, shared=0)).kernels) == 2


def test_no_loop_is_too_small_to_run_side_by_side():
    b = Builder()
    x = b.given("x", (8, 16))
    t = b.map("t", (8, 16), lambda i: op("exp", x.at(i)))
    u = b.map("u", (16, 8), lambda i: op("neg", t.at((i[1], i[0]))))
    for kernel in assert_same(b.program(t, u), target=GPU).kernels:
        assert all(loop.parallel for loop in loops_of(kernel))


def scatter(mode, read=False):
    b = Builder()
    x, ids = b.given("x", (12, 4)), b.given("ids", (12,), dtype=torch.int64)
    made = b.map("made", (5, 4), lambda i: number(1.0))

    def value(i):
        return op("add", x.at(i), made.at((0, i[1]))) if read else x.at(i)

    b.write("scatter", made, (12, 4), lambda i: (Loaded(ids.at(i[:1]), 5, True).index(), i[1]), value, mode)
    return b.program(made)


def rows_of_the_scatter(program, target):
    return loops_of(schedule(program, target=target).kernels[-1])[-2:]


@pytest.mark.parametrize("mode", ["add", "max"])
def test_additions_to_memory_run_side_by_side_where_they_are_atomic(mode):
    program = scatter(mode)
    assert_same(program, target=SMALL_GPU)
    assert [loop.parallel for loop in rows_of_the_scatter(program, GPU)] == [True, True]
    assert not rows_of_the_scatter(program, replace(CPU, small=0))[0].parallel


def test_nor_on_the_host_of_a_program_for_a_gpu():
    program = scatter("add")
    program.buffers["elsewhere"] = replace(program.buffers["x"], name="elsewhere", device=torch.device("cuda"))
    assert not rows_of_the_scatter(program, GPU)[0].parallel


def test_but_not_what_is_read_meanwhile_or_overwritten():
    assert not rows_of_the_scatter(scatter("add", read=True), replace(CPU, atomic=True, small=0))[0].parallel
    assert not rows_of_the_scatter(scatter(None, read=True), replace(CPU, atomic=True, small=0))[0].parallel


def test_a_store_by_data_runs_side_by_side_where_no_order_is_promised():
    program = scatter(None)
    found = schedule(program, target=GPU)
    assert not check_schedule(program, found)
    assert [loop.parallel for loop in loops_of(found.kernels[-1])[-2:]] == [True, True]
    assert not rows_of_the_scatter(program, replace(CPU, small=0))[0].parallel


def test_but_not_along_what_its_place_does_not_depend_on():
    """Of several values for one place the last is it."""
    b = Builder()
    x, ids = b.given("x", (12, 4)), b.given("ids", (12,), dtype=torch.int64)
    made = b.map("made", (5,), lambda i: number(1.0))
    b.write("scatter", made, (12, 4), lambda i: (Loaded(ids.at(i[:1]), 5, True).index(),), x.at)
    found = schedule(b.program(made), target=GPU)
    assert not any(loop.parallel for loop in loops_of(found.kernels[-1]) if loop.var.extent == 4)


def test_the_checker_knows_whether_additions_are_atomic():
    program = scatter("add")
    found = schedule(program, target=GPU)
    assert not check_schedule(program, found)
    assert check_schedule(program, replace(found, target=CPU))


def decisions(program, target):
    return dict(inline(program.items, program.buffers, program.outputs, target)[1])


def test_a_gpu_computes_again_rather_than_keep():
    b = Builder()
    program = b.program(softmax(b, b.given("x", (8, 16))))
    assert decisions(program, CPU)["softmax_exp"] == "recomputed"
    assert decisions(program, GPU)["softmax_exp"] == ""
    assert_same(program, target=GPU)


def test_unless_it_takes_longer_than_memory():
    b = Builder()
    x, y, z = (b.given(name, (8, 16)) for name in "xyz")

    def costly(i):
        value = op("exp", op("add", x.at(i), op("mul", y.at(i), z.at(i))))
        for _ in range(8):
            value = op("sin", value)
        return value

    t = b.map("t", (8, 16), costly)
    rows = b.sum("rows", (8,), (16,), lambda o, r: t.at((*o, *r)))
    columns = b.sum("columns", (16,), (8,), lambda o, r: t.at((*r, *o)))
    every = b.sum("every", (), (8, 16), lambda o, r: t.at(r))
    assert decisions(b.program(rows, columns, every), GPU)["t"] == "recomputed"


def masked(maps, rows=False):
    """A gradient where something was positive, for sums of columns, so many maps, one that waits for sums, and rows."""
    b = Builder()
    dy, y, z = (b.given(name, (512, 64), dtype=torch.bfloat16) for name in ("dy", "y", "z"))
    t = b.map("t", (512, 64), lambda i: op("where", op("lt", y.at(i), number(0.0)), number(0.0), dy.at(i)), y.dtype)
    sums = [b.sum(f"s{k}", (64,), (512,), lambda o, r, k=k: op("mul", t.at((*r, *o)), number(k))) for k in range(2)]
    made = [b.map(f"m{k}", (512, 64), lambda i, k=k: op("add", t.at(i), number(k))) for k in range(maps)]
    made.append(b.map("last", (512, 64), lambda i: op("sub", op("mul", t.at(i), z.at(i)), sums[0].at(i[1:]))))
    if rows:
        made += [b.sum(f"r{k}", (512,), (64,), lambda o, r: t.at((*o, *r))) for k in range(2)]
    return b.program(*sums, *made)


@one_row_in(2)
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("maps", [0, 1, 8])
def test_readers_that_become_one_kernel_are_one(maps, rows):
    """Sums of the same columns are one kernel, and so are maps side by side."""
    program = masked(maps, rows)
    assert decisions(program, GPU)["t"] == ("recomputed" if rows else "")
    assert decisions(program, CPU)["t"] == "recomputed"
    assert_same(program, target=GPU, compiled=True)


@pytest.mark.parametrize(("first", "reason"), [("rows", "recomputed"), ("columns", ""), ("window", "")])
def test_a_reader_that_goes_along_has_what_it_stores_for_nothing(first, reason):
    """The sum of a row can store what it sums up; of a column, or of a part of it, it had better be alone."""
    b = Builder()
    dy, y = (b.given(name, (512, 64), dtype=torch.bfloat16) for name in ("dy", "y"))
    t = b.map("t", (512, 64), lambda i: op("where", op("lt", y.at(i), number(0.0)), number(0.0), dy.at(i)), y.dtype)
    if first == "rows":
        s = b.sum("s", (512,), (64,), lambda o, r: t.at((*o, *r)))
        last = b.map("last", (512, 64), lambda i: op("sub", t.at(i), s.at(i[:1])))
    elif first == "columns":
        s = b.sum("s", (64,), (512,), lambda o, r: t.at((*r, *o)))
        last = b.map("last", (512, 64), lambda i: op("sub", t.at(i), s.at(i[1:])))
    else:
        s = b.map("s", (511, 64), lambda i: op("neg", t.at((i[0] + 1, i[1]))))
        last = b.map("last", (512, 64), lambda i: op("neg", t.at(i)))
    assert decisions(b.program(s, last), GPU)["t"] == reason


def test_what_waits_for_another_reader_is_no_part_of_its_kernel():
    b = Builder()
    dy, y = (b.given(name, (512, 64), dtype=torch.bfloat16) for name in ("dy", "y"))
    t = b.map("t", (512, 64), lambda i: op("where", op("lt", y.at(i), number(0.0)), number(0.0), dy.at(i)), y.dtype)
    first = b.sum("first", (64,), (512,), lambda o, r: t.at((*r, *o)))
    second = b.sum("second", (64,), (512,), lambda o, r: op("mul", t.at((*r, *o)), first.at(o)))
    third = b.sum("third", (64,), (512,), lambda o, r: op("mul", t.at((*r, *o)), second.at(o)))
    assert decisions(b.program(third), GPU)["t"] == "recomputed"


def test_rows_share_a_loop_where_one_program_holds_them():
    """Few short rows are one kernel; few long ones leave most of a GPU idle."""
    for columns, kernels in ((512, 1), (1 << 16, 3)):
        b = Builder()
        x = b.given("x", (8, columns))
        s = b.sum("s", (8,), (columns,), lambda o, r, x=x: x.at((*o, *r)))
        u = b.map("u", (8, columns), lambda i, x=x, s=s: op("sub", x.at(i), s.at(i[:1])))
        program = b.program(u)
        found = schedule(program, target=GPU)
        assert not check_schedule(program, found)
        assert len(found.kernels) == kernels, "\n".join(map(body_text, found.kernels))


@pytest.mark.parametrize(("count", "alone"), [(2, True), (16, False)])
def test_one_program_does_not_do_what_many_could(count, alone):
    """Gradients scaled by what is left of their norm: one program would go through all of them."""
    b = Builder()
    gradients = [b.given(f"g{k}", (1 << 13,)) for k in range(count)]
    norm = b.sum("norm", (), (1 << 13,), lambda i, r: gradients[0].at(r))
    scaled = [b.map(f"s{k}", g.sizes, lambda i, g=g: op("mul", g.at(i), norm.at(()))) for k, g in enumerate(gradients)]
    found = schedule(b.program(*scaled), target=GPU)
    assert not check_schedule(found.program, found)
    assert (len(found.kernels) == 1) == alone
    assert all("parallel" in body_text(kernel) for kernel in found.kernels[1:])


def test_loops_that_run_side_by_side_are_not_given_up_for_little():
    """Two rotations of heads share their angles alone."""
    b = Builder()
    angles = b.given("angles", (512, 64))
    made = []
    for name, heads in (("q", 16), ("k", 4)):
        x = b.given(name, (8, 512, heads, 64))
        made.append(
            b.map(f"{name}_r", x.sizes, lambda i, x=x: op("mul", x.at(i), angles.at((i[1], i[3])))),
        )
    found = schedule(b.program(*made), target=GPU)
    assert len(found.kernels) == 2 and all(loop.parallel for k in found.kernels for loop in loops_of(k))
    assert "serial" in str(found.log)
    assert not check_schedule(found.program, found)


def sums_of_columns(batch, costly=0):
    """Sums of columns beside what computes the columns."""
    b = Builder()
    x = b.given("x", (batch, 512, 64))

    def value(i):
        found = op("mul", x.at(i), x.at(i))
        for _ in range(costly):
            found = op("sin", found)
        return found

    y = b.map("y", x.sizes, value)
    s = b.sum("s", (batch, 64), (512,), lambda o, r, y=y: y.at((o[0], r[0], o[1])))
    return b.program(y, s)


def test_folds_do_not_walk_across_what_lies_side_by_side(monkeypatch):
    """Lanes would go along the rows, each in a line of its own."""
    monkeypatch.setattr(legality, "_SHORT", 0)
    found = schedule(sums_of_columns(4), target=GPU)
    assert "across" in str(found.log) and not check_schedule(found.program, found)
    assert len(found.kernels) == 2  # the sum is split in two stages, and the first takes what computes the columns


def test_nor_do_those_of_small_tensors():
    """A launch takes the time of a few steps: 4 programs would take 32 steps, each a sum over all lanes."""
    b = Builder()
    x = b.given("x", (4, 128, 32))
    y = b.map("y", (128, 4, 32), lambda i: x.at((i[1], i[0], i[2])))
    s = b.sum("s", (4, 32), (128,), lambda o, r: y.at((r[0], *o)))
    found = schedule(b.program(y, s), target=GPU)
    assert "across" in found.log.refusals and len(found.kernels) == 2


def test_small_tensors_are_not_touched_in_pieces():
    """Statistics of channels, and what they normalize, between layouts: one program for each channel touches pieces."""
    b = Builder()
    x = b.given("x", (4096, 32))
    s = b.sum("s", (32,), (4096,), lambda o, r: x.at((r[0], o[0])))
    y = b.map("y", (32, 4096), lambda i: op("mul", x.at((i[1], i[0])), s.at((i[0],))))
    found = schedule(b.program(s, y), target=GPU)
    assert "pieces" in found.log.refusals and len(found.kernels) == 3
    assert not check_schedule(found.program, found)


@pytest.mark.parametrize(("shared", "kernels"), [(True, 1), (False, 3)])
def test_pieces_of_one_result_share_loops_if_they_read_the_same(shared, kernels):
    """Hue, saturation and value of a color are pieces; of tensors that have nothing in common, each is a kernel."""
    x, y, z = (torch.randn(4, 64, 2048) for _ in range(3))

    def stacked(x, y, z):
        return torch.stack([x.exp(), (x if shared else y).cos(), (x if shared else z).neg()], 1)

    program = lower(trace(stacked, x, y, z), strict=True).program
    found = schedule(program, target=replace(GPU, shared=0))
    assert len(found.kernels) == kernels and not check_schedule(found.program, found)
    assert shared or "no-gain" in found.log.refusals


def test_nor_do_cumulative_sums():
    """Of keys, and of keys times values, over places: sharing keys would take the values one after the other."""
    b = Builder()
    k, v = b.given("k", (64, 512, 32)), b.given("v", (64, 512, 32))
    sums = b.scan("sums", (64, 32), 512, lambda i: k.at((i[0], i[2], i[1])))
    both = lambda i: op("mul", k.at((i[0], i[3], i[1])), v.at((i[0], i[3], i[2])))  # noqa: E731
    found = schedule(b.program(sums, b.scan("products", (64, 32, 32), 512, both)), target=GPU)
    assert "across" in found.log.refusals and len(found.kernels) == 2


def test_sums_of_columns_take_what_computes_the_columns():
    """Lanes of tiles go along the columns for both, if there are enough of them."""
    program = sums_of_columns(64)
    found = schedule(program, target=GPU)
    first, _ = found.kernels
    assert not check_schedule(found.program, found)
    _, parts, columns = loops_of(first)[:3]
    assert parts.parallel and columns.parallel and (parts.var.extent, columns.var.extent) == (4, 64)
    (fold,) = (s for s in columns.body if isinstance(s, Fold))
    (rows,) = fold.body
    assert [type(s).__name__ for s in rows.body] == ["Assign", "Update"]  # y and the sums, in one loop
    assert_same(sums_of_columns(4), target=SMALL_GPU, compiled=True)


@pytest.mark.parametrize("sizes", [(8, 21, 64, 64), (8, 64, 56, 56)])
def test_softmax_over_channels_is_one_kernel(sizes):
    """What is folded is read once: the exponentials of a program's columns stay with it."""
    program = lower(trace(lambda x: x.softmax(1), torch.randn(sizes)), strict=True).program
    assert len(schedule(program, target=GPU).kernels) == 1


def test_but_not_what_takes_long_to_compute():
    found = schedule(sums_of_columns(64, costly=4), target=GPU)
    assert "compute" in str(found.log) and len(found.kernels) == 3


def test_cross_entropy_reads_the_logits_once_and_writes_their_gradient_once():
    """Of what a forward and a backward do with logits of 16 bits."""
    x, target = torch.randn(700, 20000).bfloat16(), torch.randint(0, 20000, (700,))

    def forward(x, target):
        peak, logs = torch.ops.regraft.log_softmax_rows(x, 1, torch.float32)
        y = x.float() - peak - logs
        return *torch.ops.aten.nll_loss_forward(y, target, None, 1, -100), peak, logs

    def backward(x, target, peak, logs, weight):
        y = x.float() - peak - logs
        grad = torch.ops.aten.nll_loss_backward(torch.ones(()), y, target, None, 1, -100, weight)
        return torch.ops.aten._log_softmax_backward_data(grad, y, 1, torch.float32).bfloat16()

    kept = torch.zeros(700, 1), torch.zeros(700, 1), torch.zeros(())
    for function, inputs in ((forward, (x, target)), (backward, (x, target, *kept))):
        plan = schedule(lower(trace(function, *inputs), strict=True).program, target=GPU)
        long = [p.buffer for k in plan.kernels for p in k.params if p.buffer.sizes == (700 * 20000,)]
        assert len(long) == (1 if function is forward else 2)
        assert {buffer.dtype for buffer in long} == {torch.bfloat16}
        folds = [
            r.reducer for k in plan.kernels for s in statements(k.body) if isinstance(s, Fold) for r in s.reductions
        ]
        assert folds == (["softmax", "sum", "sum", "sum"] if function is forward else [])


def test_a_gpu_does_not_walk_over_computed_places_of_what_a_row_has_just_stored():
    b = Builder()
    x, at = b.given("x", (64, 96)), b.given("at", (96,), dtype=torch.int64)
    total = b.sum("total", (64,), (96,), lambda o, r: x.at((*o, *r)))
    t = b.map("t", (64, 96), lambda i: op("exp", op("sub", x.at(i), total.at(i[:1]))))
    u = b.map("u", (64, 96), lambda i: t.at((i[0], Loaded(at.at(i[1:]), 96, True).index())))
    first = b.map("first", (64,), lambda i: t.at((i[0], Loaded(at.at(i), 96, True).index())))
    program = b.program(t, u, first)
    assert len(schedule(program, target=CPU).kernels) == 1
    kernels = schedule(program, target=GPU).kernels
    assert [sorted(p.buffer.name for p in k.params if p.buffer.name in "tu") for k in kernels] == [["t"], ["t", "u"]]
    assert not check_schedule(program, schedule(program, target=GPU))


def distances(rows, costly=1):
    """Sums over pairs of what is computed from one point each."""
    b = Builder()
    x, z = b.given("x", (rows, 4)), b.given("z", (64, 4))

    def value(i):
        found = op("mul", x.at((i[0], 0)), x.at((i[0], 1)))
        for _ in range(costly):
            found = op("exp", found)
        return found

    area = b.map("area", (rows,), value)
    y = b.map("y", (64, rows), lambda i: op("add", area.at(i[1:]), z.at((i[0], 2))))
    return b.program(y)


@pytest.mark.parametrize(("rows", "target", "kernels"), [(400, GPU, 1), (1 << 16, GPU, 2), (400, CPU, 2)])
def test_a_launch_takes_longer_than_computing_a_little_again(rows, target, kernels):
    program = distances(rows)
    found = schedule(program, target=target)
    assert len(found.kernels) == kernels and not check_schedule(found.program, found)


def test_what_another_kernel_has_computed_is_part_of_it():
    """The root of a norm needs no launch of its own."""
    b = Builder()
    x = b.given("x", (128, 64))
    norm = b.sum("norm", (128,), (64,), lambda o, r: op("mul", x.at((*o, *r)), x.at((*o, *r))))
    root = b.map("root", (128,), lambda i: op("sqrt", norm.at(i)))
    y = b.map("y", (128, 64, 3), lambda i: op("div", x.at(i[:2]), root.at(i[:1])))
    program = b.program(y)
    assert ("root", "recomputed") in inline(program.items, program.buffers, program.outputs, GPU)[1]


def test_short_folds_of_columns_take_what_follows_with_fewer_programs():
    """Norms of 64 channels of small images: one kernel, where 1600 positions fill an eighth of a GPU."""

    def kernels(positions):
        b = Builder()
        x = b.given("x", (8, 64, positions))
        norm = b.sum("norm", (8, positions), (64,), lambda o, r: op("mul", *[x.at((o[0], r[0], o[1]))] * 2))
        y = b.map("y", (8, 64, positions), lambda i: op("div", x.at(i), op("sqrt", norm.at((i[0], i[2])))))
        found = schedule(b.program(y), target=GPU)
        assert not check_schedule(found.program, found)
        return len(found.kernels)

    assert (kernels(784), kernels(200), kernels(30)) == (1, 1, 2)

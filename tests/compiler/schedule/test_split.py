"""Reductions in two stages: when, how, and that they compute the same."""

from __future__ import annotations

import pytest
import torch
from support.lowering import lowered
from support.schedules import SMALL_GPU, Builder, assert_same, body_text, inputs_of, number, op
from support.thorough import one_row_in

from regraft.compiler.ir.folds import component_dtypes
from regraft.compiler.ir.index.index import Index, Loaded, Size, add
from regraft.compiler.ir.interpreter import run_program
from regraft.compiler.ir.printer import program_text
from regraft.compiler.ir.program import Program
from regraft.compiler.ir.value import Number
from regraft.compiler.schedule import CPU, GPU, check_schedule, schedule, split_reductions
from regraft.compiler.schedule.affine import digits, variables_of
from regraft.compiler.schedule.flat_access import flatten

F32, F64, I64 = torch.float32, torch.float64, torch.int64
REDUCERS = [
    ("sum", F32), ("sum", I64), ("prod", F64), ("max", F32), ("min", I64), ("any", torch.bool), ("all", torch.bool),
    ("xor", torch.int32), ("argmax", F32), ("argmin", I64), ("welford", F64), ("softmax", F32), ("logaddexp", F64),
]  # fmt: skip
EACH = pytest.mark.parametrize(("reducer", "dtype"), REDUCERS, ids=[f"{r}-{d}" for r, d in REDUCERS])


def reduced(b, reducer, dtype, sizes, lengths, across):
    """A reduction of everything it comes to; memory is contiguous along the reduced loops, or `across`."""
    x = b.given("x", (*lengths, *sizes) if across else (*sizes, *lengths), dtype=dtype)

    def compute(o, r):
        value = x.at((*r, *o) if across else (*o, *r))
        position = 0
        for index, length in zip(r, lengths, strict=True):
            position = add(position * length, index)
        return (value, Number(position, I64)) if reducer.startswith("arg") else value

    kinds = component_dtypes(reducer, dtype)
    return b.node("y").low.reduce(reducer, compute, sizes, lengths, lambda _, c: c, kinds)


def split(program, target=SMALL_GPU):
    return split_reductions(program, target)


@one_row_in(3)
@EACH
@pytest.mark.parametrize("across", [False, True], ids=["along", "across"])
@pytest.mark.parametrize(("sizes", "lengths"), [((), (64,)), ((3,), (67,)), ((2,), (4, 31)), ((), (3, 2, 29))])
def test_two_stages_are_the_reduction(reducer, dtype, sizes, lengths, across):
    b = Builder()
    program = b.program(*reduced(b, reducer, dtype, sizes, lengths, across))
    assert len(split(program).items) > 1
    assert_same(program, target=SMALL_GPU)


@pytest.mark.parametrize(("length", "stages"), [(383, 1), (640, 2)])
def test_few_columns_are_no_second_kernel(length, stages):
    """A program that has few rows goes through them in less time than a launch takes."""
    b = Builder()
    program = b.program(*reduced(b, "sum", F32, (700,), (length,), across=True))
    assert len(split(program, GPU).items) == stages


@EACH
def test_symbolic_lengths(reducer, dtype):
    b = Builder()
    n = Size("n", 0, None).index()
    program = b.program(*reduced(b, reducer, dtype, (3,), (n,), False))
    assert len(split(program).items) > 1
    for length in (0, 1, 5, 16, 83):
        assert_same(program, sizes={"n": length}, target=SMALL_GPU)


def test_a_length_that_is_a_multiple_needs_no_guard():
    b = Builder()
    n = Size("n", 0, None).index()
    x = b.given("x", (n * 16,))
    program = split(b.program(b.sum("y", (), (n * 16,), lambda o, r: x.at(r))))
    assert " if " not in program_text(program)


@pytest.mark.parametrize("reducer", ["max", "argmax", "welford", "softmax", "logaddexp"])
@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")])
def test_special_values(reducer, special):
    b = Builder()
    program = b.program(*reduced(b, reducer, F64, (3,), (67,), False))
    inputs = inputs_of(program)
    inputs["x"][0, 5], inputs["x"][1] = special, special
    expected, actual = (run_program(p, dict(inputs)) for p in (program, split(program)))
    for name in program.outputs:
        finite = expected[name].isfinite()
        assert torch.equal(finite, actual[name].isfinite())
        torch.testing.assert_close(actual[name][finite], expected[name][finite])


def column_sums():
    b = Builder()
    x, y = b.given("x", (4096, 768)), b.given("y", (4096, 768))
    p = b.sum("p", (768,), (4096,), lambda o, r: x.at((*r, *o)))
    q = b.sum("q", (768,), (4096,), lambda o, r: op("mul", x.at((*r, *o)), y.at((*r, *o))))
    return b.program(p, q)


def test_column_sums_are_two_kernels():
    program = column_sums()
    found = schedule(program, target=GPU)
    assert not check_schedule(program, found)
    first, second = found.kernels
    assert (
        body_text(first)
        == """\
for i0 < 16 parallel:
    for i1 < 768 parallel:
        fold fold_part = sum, fold_1__part = sum:
            for i2 < 256:
                update fold_part with x[196608*i0 + i1 + 768*i2]
                update fold_1__part with (x[196608*i0 + i1 + 768*i2] * y[196608*i0 + i1 + 768*i2])
        p_part[768*i0 + i1] = fold_part
        q_part[768*i0 + i1] = fold_1__part"""
    )
    assert [p.buffer.name for p in second.params if p.access == "write"] == ["p", "q"]


@pytest.mark.parametrize(
    ("rows", "columns", "across"),
    [(4096, 768, False), (64, 768, False), (4096, 50257, True), (48, 768, True), (1, 4096, False), (2, 0, False)],
)
def test_what_has_enough_to_do_or_too_little_stays_whole(rows, columns, across):
    b = Builder()
    lengths = (columns,) if not across else (rows,)
    program = b.program(*reduced(b, "sum", F32, (rows,) if not across else (columns,), lengths, across))
    assert len(split(program, GPU).items) == 1


def test_cpus_keep_the_program():
    program = column_sums()
    assert split(program, CPU) is program


def test_what_is_stored_may_read_memory():
    b = Builder()
    x, w = b.given("x", (64, 3)), b.given("w", (3,))
    y = b.sum("y", (3,), (64,), lambda o, r: x.at((*r, *o)), lambda i, c: op("mul", c[0], w.at(i)))
    assert_same(b.program(y), target=SMALL_GPU)


def cross_entropy(rows, classes):
    """Log-sum-exp of rows, and the mean of what it leaves of the chosen elements."""
    b = Builder()
    x, t = b.given("x", (rows, classes)), b.given("t", (rows,), dtype=I64)
    lse = b.sum(
        "lse", (rows,), (classes,), lambda o, r: op("exp", x.at((*o, *r))), lambda i, c: op("log", c[0])
    )  # fmt: skip

    def loss(o, r):
        return op("sub", lse.at(r), x.at((*r, Loaded(t.at(r), classes, True).index())))

    return b.program(b.sum("loss", (), (rows,), loss, lambda i, c: op("mul", c[0], number(1 / rows))))


def test_folds_over_rows_are_computed_where_the_rows_are():
    program = cross_entropy(96, 40)
    first, second = assert_same(program, target=GPU, tolerance=1e-4).kernels
    assert first.body[0].parallel and first.body[0].var.extent == 96
    assert [p.buffer.sizes for p in second.params if p.access == "read"] == [(96,)]
    assert len(split(program, GPU).items) == 3


@pytest.mark.parametrize(("rows", "together"), [(4096, True), (528, True), (2, False)])
def test_folds_over_elements_of_rows_are_computed_where_the_rows_are(rows, together):
    """A loss of normalized rows: each program has one row, and stores one number of it."""

    def loss(x):
        return (x / x.norm(dim=-1, keepdim=True)).relu().sum()

    plan = schedule(lowered(loss, torch.empty(rows, 512)).program, target=GPU)
    first = body_text(plan.steps[0])
    assert ("linalg_vector_norm" in first and "_part[i0]" in first) is together


def test_many_rows_are_folded_in_stages():
    program = split(cross_entropy(1 << 20, 4), GPU)
    assert [item.name for item in program.items][-3:] == ["loss_part", "loss_part_1", "loss"]


def test_names_are_new():
    b = Builder()
    x = b.given("y_part", (64,))
    program = b.program(b.sum("y", (), (64,), lambda o, r: x.at(r)))
    made = split(program)
    assert isinstance(made, Program) and len({*made.buffers}) == 3
    assert_same(program, target=SMALL_GPU)


def test_the_program_given_stays():
    program = column_sums()
    before = program_text(program)
    assert split(program, GPU) is not program
    assert program_text(program) == before


def test_symbolic_rows_keep_a_whole_index():
    b = Builder()
    n = Size("n", 0, None).index()
    x = b.given("x", (n, 8))
    made = split(b.program(b.sum("y", (8,), (n,), lambda o, r: x.at((*r, *o)))))
    assert any(isinstance(v.extent, Index) for v in made.items[0].reduced)


def of_channels_last(loops, samples, places, channels):
    """The sum of images with channels last, as if they lay the other way."""
    b = Builder()
    x = b.given("x", (samples, places, channels))
    at = lambda i, r: x.at((*i, *r)[:1] + (*i, *r)[:0:-1])  # noqa: E731
    return b.program(b.sum("y", loops, (channels, places) if loops else (samples, channels, places), at))


@pytest.mark.parametrize("loops", [(), (4,)], ids=["one number", "a number a sample"])
def test_parts_are_long_pieces_of_memory(loops):
    """Parts are rows of all channels, not channels of all rows, as one loop."""
    program = split_reductions(of_channels_last(loops, 4, 4096, 48), GPU)
    (fold,) = flatten(program.items[0], program.buffers).reductions
    (part,) = program.items[0].reduced
    assert digits(fold.values[0].indices[0]).stride(part) == 1
    assert part.extent % 512 == 0
    assert_same(of_channels_last(loops, 4, 9, 5), target=SMALL_GPU)


def extents(program):
    """Of the loops of each item, and of those that it reduces."""
    return [([v.extent for v in i.loops], [v.extent for v in i.reduced]) for i in program.items]


@pytest.mark.parametrize(
    ("outer", "lengths", "loops", "rest"),
    [
        (64, (10, 4096), [4, 64], [10240]),  # dims side by side are one loop
        (64, (11, 4096), [4, 64], [11264]),
        (64, (40960 + 2048,), [4, 64], [10752]),
        (64, (40961,), [4, 64], [10241]),  # nothing divides it
    ],
)
def test_parts_are_even_where_a_loop_can_be_divided(outer, lengths, loops, rest):
    """Uneven parts test each element, and join moments as states, with divisions."""
    b = Builder()
    program = b.program(*reduced(b, "welford", F32, (outer,), lengths, False))
    assert extents(split(program, GPU))[0] == (loops, rest)


def test_sums_of_images_with_channels_last_have_even_parts():
    """Those of one row of 56 pixels each, 448 in all, would leave lanes idle."""
    b = Builder()
    program = b.program(*reduced(b, "sum", F32, (64,), (8, 56, 56), True))
    assert extents(split(program, GPU)) == [([196, 64], [128]), ([64], [196])]


@pytest.mark.parametrize("lengths", [(4, 1, 9, 7), (1, 33, 2), (31, 1, 4), (1, 64, 1), (8, 4, 1)], ids=str)
@pytest.mark.parametrize("across", [False, True], ids=["along", "across"])
def test_dims_of_one_entry_are_no_loops_of_what_is_joined(lengths, across):
    b = Builder()
    program = b.program(*reduced(b, "welford", F32, (3,), lengths, across))
    assert_same(program, target=SMALL_GPU)
    made = split(program)
    for item in made.items:
        bound = {*item.loops, *item.reduced}
        used = [n for r in item.reductions for v in r.values for n in getattr(v, "indices", ())]
        assert {v for n in used for v in variables_of(n)} <= bound


@pytest.mark.parametrize("lengths", [(4, 9, 7), (3, 5, 16)])
def test_joined_loops_are_those_over_one_piece_of_memory(lengths):
    """A row of a picture has more elements than are summed: its dims stay apart."""
    b = Builder()
    samples, rows, columns = lengths
    x = b.given("x", (samples, rows, columns + 1))
    program = b.program(b.sum("y", (), lengths, lambda o, r: x.at(r)))
    first = split(program).items[0]
    assert [v.extent for v in first.reduced if v.extent != 1][-1] == columns
    assert_same(program, target=SMALL_GPU)


def test_small_folds_have_many_parts():
    """A part of 4096 elements is worth a program, but with few of them most processors would be idle."""
    b = Builder()
    x = b.given("x", (1 << 17,))
    first, second = split(b.program(b.sum("s", (), (1 << 17,), lambda o, r: x.at(r))), GPU).items
    assert [v.extent for v in first.reduced] == [1024] and [v.extent for v in second.reduced] == [128]

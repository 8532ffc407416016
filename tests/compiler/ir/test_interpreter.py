"""The interpreter against eager: programs on whole grids, kernels statement by statement."""

import random

import pytest
import torch

from regraft.compiler.ir.index.index import Loaded, Size, Var
from regraft.compiler.ir.interpreter import allocate, run_kernel, run_program
from regraft.compiler.ir.kernel import Assign, Fold, Kernel, Loop, Param, Update
from regraft.compiler.ir.program import Buffer, Definition, Extern, Program, Reduction, Store
from regraft.compiler.ir.value import Const, Guarded, Load, Number, Op, Result

F32, I64, BOOL, BF16 = torch.float32, torch.int64, torch.bool, torch.bfloat16
CPU = torch.device("cpu")
S = Size("s", 0, None)


def buffer(name, *sizes, dtype=F32, strides=None, kind="made", scalar=False):
    if strides is None:
        strides, step = [], 1
        for size in reversed(sizes):
            strides.insert(0, step)
            step = size * step
    return Buffer(name, dtype, sizes, tuple(strides), CPU, kind, scalar)


def program(items, *buffers, outputs=("y",)):
    return Program({b.name: b for b in buffers}, list(items), outputs)


def op(name, *args, dtype=None):
    return Op(name, args, dtype or args[-1].dtype)


def at(name, *indices, dtype=F32):
    return Load(name, indices, dtype)


def loops(*extents, prefix="i"):
    made = tuple(Var(f"{prefix}{k}", extent) for k, extent in enumerate(extents))
    return made, tuple(var.index() for var in made)


def pointwise(compute, *sizes, name="y"):
    vars_, i = loops(*sizes)
    return Definition(name, vars_, (Store(name, i, compute(*i)),))


def reduction(reducer, values, sizes, reduced, finish=lambda *c: c[0], scan=False, components=1):
    (outer, i), (inner, r) = loops(*sizes), loops(*reduced, prefix="r")
    operands = values(*i, *r)
    operands = operands if isinstance(operands, tuple) else (operands,)
    fold = Reduction("fold", reducer, operands)
    dtypes = [operands[0].dtype, I64 if reducer.startswith("arg") else operands[0].dtype, operands[0].dtype]
    results = [Result("fold", k, dtypes[k]) for k in range(components)]
    stores = (Store("y", (*i, *r) if scan else i, finish(*results)),)
    return Definition("y", outer, stores, inner, (fold,), scan)


def test_strides_of_inputs_and_of_what_is_made_are_honoured():
    x, y = buffer("x", 3, 4, kind="input"), buffer("y", 3, 4, strides=(1, 3))
    made = program([pointwise(lambda i, j: op("exp", at("x", i, j)), 3, 4)], x, y)
    for given in (
        torch.randn(3, 4),
        torch.randn(4, 3).t(),
        torch.randn(3, 1).expand(3, 4),
        torch.randn(6, 8)[::2, ::2],
    ):
        result = run_program(made, {"x": given})["y"]
        torch.testing.assert_close(result, given.exp())
        assert result.stride() == (1, 3)


def test_views_are_index_maps():
    x, y = buffer("x", 6, 4, kind="input"), buffer("y", 4, 2, 3)
    made = program([pointwise(lambda a, b, c: at("x", b * 3 + c, a), 4, 2, 3)], x, y)
    given = torch.randn(6, 4)
    assert torch.equal(run_program(made, {"x": given})["y"], given.reshape(2, 3, 4).permute(2, 0, 1))


def test_rounding_happens_on_store():
    x, y = buffer("x", 5, dtype=BF16, kind="input"), buffer("y", 5, dtype=BF16)
    made = program([pointwise(lambda i: op("exp", op("mul", at("x", i), at("x", i))), 5)], x, y)
    given = torch.randn(5).to(BF16)
    assert torch.equal(run_program(made, {"x": given})["y"], (given.float() * given.float()).exp().to(BF16))


def test_zero_dims_need_no_loops():
    x, y = buffer("x", kind="input"), buffer("y")
    made = program([pointwise(lambda: op("neg", at("x")), name="y")], x, y)
    assert run_program(made, {"x": torch.tensor(2.0)})["y"] == -2


def test_numbers_are_given_as_numbers():
    x, n = buffer("x", 3, kind="input"), buffer("n", dtype=torch.float64, kind="input", scalar=True)

    def compute(i):
        return op("mul", at("x", i), op("cast", at("n", dtype=torch.float64), dtype=F32))

    result = run_program(program([pointwise(compute, 3)], x, n, buffer("y", 3)), {"x": torch.ones(3), "n": 2.5})
    assert result["y"].tolist() == [2.5] * 3


def test_what_a_guard_excludes_is_not_loaded():
    x, y = buffer("x", 4, kind="input"), buffer("y", 9)

    def padded(i):
        inside = op("logical_and", op("ge", Number(i, I64), Const(3, I64), dtype=BOOL),
                    op("lt", Number(i, I64), Const(7, I64), dtype=BOOL))  # fmt: skip
        return Guarded(inside, at("x", i - 3), Const(-1.0, F32), F32)

    made, given = program([pointwise(padded, 9)], x, y), torch.randn(4)
    assert torch.equal(run_program(made, {"x": given})["y"], torch.nn.functional.pad(given, (3, 2), value=-1))


def test_what_a_guard_excludes_may_be_an_empty_buffer_or_a_division_by_zero():
    x, n, y = buffer("x", 0, kind="input"), buffer("n", 3, dtype=I64, kind="input"), buffer("y", 3, dtype=I64)

    def guarded(i):
        n = at("n", i, dtype=I64)
        there = op("ne", n, Const(0, I64), dtype=BOOL)
        safe = Guarded(there, op("floordiv", Const(12, I64), n), Const(-1, I64), I64)
        never = op("lt", n, Const(-9, I64), dtype=BOOL)
        return Guarded(never, op("cast", at("x", i), dtype=I64), safe, I64)

    made = program([pointwise(guarded, 3)], x, n, y)
    result = run_program(made, {"x": torch.zeros(0), "n": torch.tensor([4, 0, -5])})
    assert result["y"].tolist() == [3, -1, -3]


def gather(wrap):
    x, n, y = buffer("x", 4, kind="input"), buffer("n", 3, dtype=I64, kind="input"), buffer("y", 3)
    return program([pointwise(lambda i: at("x", Loaded(at("n", i, dtype=I64), 4, wrap).index()), 3)], x, n, y)


def test_indices_from_memory_wrap_where_they_may():
    inputs = {"x": torch.arange(4.0), "n": torch.tensor([3, -1, -4])}
    assert run_program(gather(True), inputs)["y"].tolist() == [3, 3, 0]
    with pytest.raises(IndexError, match="index -1 is out of bounds for dimension with size 4"):
        run_program(gather(False), inputs)


@pytest.mark.parametrize("wrong", [4, -5])
def test_indices_out_of_range_raise_as_eager_does(wrong):
    with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for dimension with size 4"):
        run_program(gather(True), {"x": torch.arange(4.0), "n": torch.tensor([0, wrong, 1])})


REDUCTIONS = {
    "sum": lambda x: x.sum((1, 2)),
    "prod": lambda x: x.prod(2).prod(1),
    "max": lambda x: x.amax((1, 2)),
    "min": lambda x: x.amin((1, 2)),
    "logaddexp": lambda x: x.logsumexp((1, 2)),
}


@pytest.mark.parametrize("reducer", REDUCTIONS)
def test_reductions_over_several_loops(reducer):
    x, y = buffer("x", 3, 4, 5, kind="input"), buffer("y", 3)
    made = program([reduction(reducer, lambda i, r, q: at("x", i, r, q), (3,), (4, 5))], x, y)
    given = torch.randn(3, 4, 5)
    torch.testing.assert_close(run_program(made, {"x": given})["y"], REDUCTIONS[reducer](given))


def test_a_reduction_of_several_components():
    x, y = buffer("x", 3, 4, kind="input"), buffer("y", 3, dtype=I64)

    def values(i, r):
        return (at("x", i, r), Number(r, I64))

    made = program([reduction("argmax", values, (3,), (4,), lambda top, where: where, components=2)], x, y)
    given = torch.tensor([[1.0, 2, 2, 0], [0, float("nan"), float("nan"), 9], [-float("inf")] * 4])
    assert torch.equal(run_program(made, {"x": given})["y"], given.argmax(1))


def test_a_reduction_over_nothing_is_its_identity():
    x, y = buffer("x", 3, 0, kind="input"), buffer("y", 3)
    made = program([reduction("sum", lambda i, r: at("x", i, r), (3,), (0,))], x, y)
    assert run_program(made, {"x": torch.zeros(3, 0)})["y"].tolist() == [0, 0, 0]


def test_a_scan_stores_as_it_goes():
    x, y = buffer("x", 3, 4, kind="input"), buffer("y", 3, 4)

    def double(total):
        return op("add", total, total)

    made = program([reduction("sum", lambda i, r: at("x", i, r), (3,), (4,), double, scan=True)], x, y)
    given = torch.randn(3, 4)
    torch.testing.assert_close(run_program(made, {"x": given})["y"], given.cumsum(1) * 2)


@pytest.mark.parametrize(
    ("mode", "reduce"), [("add", "sum"), ("mul", "prod"), ("max", "amax"), ("min", "amin")]
)  # fmt: skip
@pytest.mark.parametrize("dtype", [F32, I64])
def test_stores_combine(mode, reduce, dtype):
    y, n, x = (
        buffer("y", 4, dtype=dtype),
        buffer("n", 6, dtype=I64, kind="input"),
        buffer("x", 6, dtype=dtype, kind="input"),
    )
    start = pointwise(lambda i: Const(2.0 if dtype == F32 else 2, dtype), 4)
    (var,), (i,) = loops(6)
    index = Loaded(at("n", i, dtype=I64), 4, True).index()
    scatter = Definition("scatter", (var,), (Store("y", (index,), at("x", i, dtype=dtype), mode),))
    given, where = torch.randint(1, 5, (6,)).to(dtype), torch.tensor([0, 3, 3, -1, 2, 0])
    result = run_program(program([start, scatter], x, n, y), {"x": given, "n": where})["y"]
    expected = torch.full((4,), 2, dtype=dtype).scatter_reduce(0, where % 4, given, reduce)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(("mode", "expected"), [("or", [7, 2]), ("and", [0, 2])])
def test_stores_combine_bits(mode, expected):
    y, x = buffer("y", 2, dtype=I64, kind="input"), buffer("x", 3, dtype=I64, kind="input")
    (var,), (i,) = loops(3)
    scatter = Definition("scatter", (var,), (Store("y", (0,), at("x", i, dtype=I64), mode),))
    start = torch.tensor([0 if mode == "or" else 3, 2])
    run_program(program([scatter], x, y), {"x": torch.tensor([1, 2, 4]), "y": start})
    assert start.tolist() == expected


@pytest.mark.parametrize(("mode", "expected"), [("add", True), ("max", True), ("and", False), ("mul", False)])
def test_stores_combine_truth(mode, expected):
    y, x = buffer("y", dtype=BOOL, kind="input"), buffer("x", 2, dtype=BOOL, kind="input")
    (var,), (i,) = loops(2)
    scatter = Definition("scatter", (var,), (Store("y", (), at("x", i, dtype=BOOL), mode),))
    start = torch.tensor(True)
    run_program(program([scatter], x, y), {"x": torch.tensor([False, True]), "y": start})
    assert start.item() is expected


def test_writes_to_inputs_are_seen_outside():
    x = buffer("x", 3, kind="input")
    given = torch.zeros(3, 2)[:, 0]
    (var,), (i,) = loops(3)
    double = Definition("double", (var,), (Store("x", (i,), op("add", at("x", i), Const(1.0, F32))),))
    run_program(program([double], x), {"x": given})
    assert given.tolist() == [1, 1, 1]


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_sizes_are_read_off_the_inputs(rows):
    s = S.index()
    x, y = buffer("x", s * 2, 3, kind="input"), buffer("y", s, 3)

    def compute(i, j):
        return op("mul", at("x", i * 2 + 1, j), Number(s, F32))

    given = torch.randn(2 * rows, 3)
    result = run_program(program([pointwise(compute, s, 3)], x, y), {"x": given})["y"]
    torch.testing.assert_close(result, given[1::2] * rows)


def test_extern_calls_are_the_callers_business():
    x, y, z = buffer("x", 3, kind="input"), buffer("y", 3), buffer("z", 3)
    call = Extern("z", None, ("x",), ("z",))
    made = program([call, pointwise(lambda i: op("neg", at("z", i)), 3)], x, y, z)
    result = run_program(made, {"x": torch.ones(3)}, extern=lambda item, buffers: {"z": buffers["x"].cumsum(0)})
    assert result["y"].tolist() == [-1, -2, -3]
    with pytest.raises(KeyError, match="extern call"):
        run_program(made, {"x": torch.ones(3)})
    with pytest.raises(KeyError, match="did not write"):
        run_program(made, {"x": torch.ones(3)}, extern=lambda item, buffers: None)


def test_fresh_memory_is_poisoned():
    assert allocate(buffer("y", 3), {}).isnan().all()
    assert (allocate(buffer("y", 3, dtype=I64), {}) == 0x5A).all()


def layer_norm(rows, columns):
    """As in the docstring of `kernel`: two folds and a store share a row of scratch."""
    x, out, t = buffer("x", rows, columns, kind="input"), buffer("out", rows, columns), buffer("t", columns)
    i, j = Var("i", rows), Var("j", columns)
    width, row = Const(float(columns), F32), at("t", j.index())
    mean = op("div", Result("sum", 0, F32), width)
    centred = op("sub", row, mean)
    total = Reduction("sum", "sum", (row,))
    squares = Reduction("squares", "sum", (op("mul", centred, centred),))
    scale = op("rsqrt", op("div", Result("squares", 0, F32), width))
    load = Assign(Store("t", (j.index(),), at("x", i.index(), j.index())))
    body = (
        Fold((total,), (Loop(j, (load, Update(total))),)),
        Fold((squares,), (Loop(j, (Update(squares),)),)),
        Loop(j, (Assign(Store("out", (i.index(), j.index()), op("mul", centred, scale))),)),
    )
    return Kernel("k0", (Param(x, "read"), Param(out, "write")), (), (t,), (Loop(i, body, parallel=True),))


def test_kernels_run_statement_by_statement():
    given = torch.randn(3, 7)
    result = run_kernel(layer_norm(3, 7), {"x": given}, shuffle=random.Random(0))
    torch.testing.assert_close(result["out"], torch.nn.functional.layer_norm(given, (7,), eps=0))


def test_parallel_iterations_that_depend_on_each_other_show():
    x, i = buffer("x", 8, kind="input"), Var("i", 7)
    step = Assign(Store("x", (i.index() + 1,), op("add", at("x", i.index()), Const(1.0, F32))))
    kernel = Kernel("k0", (Param(x, "update"),), (), (), (Loop(i, (step,), parallel=True),))
    assert run_kernel(kernel, {"x": torch.zeros(8)})["x"].tolist() == list(range(8))
    assert run_kernel(kernel, {"x": torch.zeros(8)}, shuffle=random.Random(0))["x"].tolist() != list(range(8))


def test_scratch_is_new_in_each_parallel_iteration():
    y, t, i = buffer("y", 2), buffer("t", 1), Var("i", 2)
    body = (
        Loop(Var("once", 1 - i.index()), (Assign(Store("t", (0,), Const(1.0, F32))),)),
        Assign(Store("y", (i.index(),), at("t", 0))),
    )
    kernel = Kernel("k0", (Param(y, "write"),), (), (t,), (Loop(i, body, parallel=True),))
    result = run_kernel(kernel, {})["y"]
    assert result[0] == 1 and result[1].isnan()


def test_a_scan_in_a_kernel_reads_its_result_so_far():
    x, y, i = buffer("x", 4, kind="input"), buffer("y", 4), Var("i", 4)
    total = Reduction("total", "sum", (at("x", i.index()),))
    body = (Update(total), Assign(Store("y", (i.index(),), Result("total", 0, F32))))
    kernel = Kernel("k0", (Param(x, "read"), Param(y, "write")), (), (), (Fold((total,), (Loop(i, body),)),))
    assert run_kernel(kernel, {"x": torch.ones(4)})["y"].tolist() == [1, 2, 3, 4]


def test_symbolic_kernels_take_sizes():
    s = S.index()
    x, y, i = buffer("x", s, kind="input"), buffer("y", s * 2), Var("i", s * 2)
    store = Assign(Store("y", (i.index(),), at("x", i.index() // 2)))
    kernel = Kernel("k0", (Param(x, "read"), Param(y, "write")), (S,), (), (Loop(i, (store,)),))
    assert run_kernel(kernel, {"x": torch.arange(3.0)})["y"].tolist() == [0, 0, 1, 1, 2, 2]
    assert run_kernel(kernel, {"x": torch.arange(3.0)}, {"s": 3})["y"].tolist() == [0, 0, 1, 1, 2, 2]


def test_a_kernel_may_see_memory_flat():
    x, y, i = buffer("x", 12, kind="input"), buffer("y", 12), Var("i", 12)
    store = Assign(Store("y", (i.index(),), op("neg", at("x", i.index()))))
    kernel = Kernel("k0", (Param(x, "read"), Param(y, "write")), (), (), (Loop(i, (store,)),))
    given = {"x": torch.randn(4, 3).t(), "y": torch.zeros(3, 4)}
    run_kernel(kernel, given)
    assert torch.equal(given["y"].flatten(), -given["x"].t().flatten())


def test_values_may_be_deep():
    x, y = buffer("x", 3, kind="input"), buffer("y", 3)

    def chain(i):
        value = at("x", i)
        for _ in range(3_000):
            value = op("neg", value)
        return value

    given = torch.randn(3)
    assert torch.equal(run_program(program([pointwise(chain, 3)], x, y), {"x": given})["y"], given)

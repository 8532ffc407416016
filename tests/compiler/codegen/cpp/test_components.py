"""Loops over the components of small vectors are unrolled into the loop over the vectors, and give what eager gives."""

from dataclasses import replace

import pytest
import torch
from support.kernels import avx512_text, compiled_agrees, one_unit
from support.thorough import one_row_in

from regraft.compiler.codegen.cpp.components import unroll_components
from regraft.compiler.codegen.cpp.target import host_target
from regraft.compiler.ir.index.index import Loaded, Var, remainder
from regraft.compiler.ir.kernel import Assign, Fold, Kernel, Loop, Param, Update
from regraft.compiler.ir.program import Buffer, Reduction, Store
from regraft.compiler.ir.value import Const, Load, Op, Result

F32 = torch.float32
avx512 = pytest.mark.skipif(host_target().name != "avx512", reason="how lanes are chosen depends on the instructions")


def twice_across(q, x):
    """Two cross products of which both are kept, as derivatives keep them."""
    v = q[:, None].expand_as(x)
    t = torch.linalg.cross(v, x) * 2
    return t, torch.linalg.cross(v, t)


def turned(x):
    """Components in another order, twice, beside a norm."""
    y = torch.stack([x[..., 1], x[..., 2], x[..., 0]], -1).contiguous() * 2
    return y, y.roll(1, -1) - x, x / (x.square().sum(-1, keepdim=True) + 1)


@one_row_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("rows", [1, 15, 16, 33])
@one_unit()
def test_programs_are_eagers(rows, dtype):
    near = {"rtol": 1e-5, "atol": 1e-5} if dtype != torch.bfloat16 else {"rtol": 0.1, "atol": 0.1}
    compiled_agrees(twice_across, torch.randn(5, 3).to(dtype), torch.randn(5, rows, 3).to(dtype), **near)
    if dtype.is_floating_point:
        compiled_agrees(turned, torch.randn(5, rows, 3).to(dtype), **near)


@avx512
def test_no_place_is_computed_for_each_component():
    made = avx512_text(twice_across, torch.randn(37, 3), torch.randn(37, 129, 3))
    assert made.count("weave(") == 2
    assert "wrapped" not in made and "% 3" not in made and "%3" not in made


LONG, C, D = Var("i", 64), Var("c", 3), Var("d", 3)


def load(name, at):
    return Load(name, (at,), F32)


def store(name, at, value):
    return Assign(Store(name, (at,), value))


def doubled(value):
    return Op("mul", (value, Const(2.0, F32)), F32)


def kernel(*body, extent=64, parallel=True, scratch=(), dtype=F32):
    long = Var("i", extent)
    buffers = [Buffer(name, dtype, (192,), (1,), torch.device("cpu")) for name in "xty"]
    kept = tuple(Param(b, "update") for b in buffers if b.name not in scratch)
    own = tuple(Buffer(b.name, dtype, (3,), (1,), b.device) for b in buffers if b.name in scratch)
    return Kernel("k", kept, (), own, (Loop(long, body, parallel),))


def shifted(first, name="t", own=False):
    """``t[3i + c] = 2 * x[3i + c]``, then ``y[3i + d] = t[3i + (d + 1) % 3]``; `own`: t is scratch."""

    def at(component):
        return component if own else first.index() * 3 + component

    return (
        Loop(C, (store(name, at(C.index()), doubled(load("x", first.index() * 3 + C.index()))),)),
        Loop(D, (store("y", first.index() * 3 + D.index(), load(name, at(remainder(D.index() + 1, 3)))),)),
    )


def stores_of(made):
    (loop,) = made.body
    return [(s.store.buffer, s.store.indices[0], s.store.value) for s in loop.body if isinstance(s, Assign)]


def test_what_was_stored_is_not_read_again():
    made = unroll_components(kernel(*shifted(LONG)))
    first = LONG.index() * 3
    assert stores_of(made) == [
        *[("t", first + c, doubled(load("x", first + c))) for c in range(3)],
        *[("y", first + c, doubled(load("x", first + (c + 1) % 3))) for c in range(3)],
    ]


def test_scratch_that_nobody_reads_is_gone():
    made = unroll_components(kernel(*shifted(LONG, own=True), scratch=("t",)))
    assert not made.scratch and {name for name, *_ in stores_of(made)} == {"y"}


def test_what_a_later_store_changes_is_read_again():
    """In place: ``y`` of the next component is computed from memory that has changed."""
    made = unroll_components(kernel(*shifted(LONG, name="x")))
    first = LONG.index() * 3
    assert stores_of(made)[3:] == [
        ("y", first, load("x", first + 1)), ("y", first + 1, load("x", first + 2)), ("y", first + 2, load("x", first))
    ]  # fmt: skip


def test_places_that_are_read_from_memory():
    """``y[3i + p[c]] = x[3i + c]``; then ``p`` changes, and so do the places of which something is known."""
    I64 = torch.int64
    first = LONG.index() * 3

    def place(c):
        return first + Loaded(Load("p", (c,), I64), 3, False).index()

    body = (
        Loop(C, (store("y", place(C.index()), load("x", first + C.index())),)),
        store("p", 0, Const(1, I64)),
        Loop(D, (store("t", first + D.index(), load("y", place(D.index()))),)),
    )
    made = kernel(*body, scratch=("y",))
    table = Buffer("p", I64, (3,), (1,), torch.device("cpu"))
    stores = stores_of(unroll_components(replace(made, scratch=(*made.scratch, table))))
    assert stores[:3] == [("y", place(c), load("x", first + c)) for c in range(3)]
    assert [value.buffer for _, _, value in stores[4:]] == ["y"] * 3


def test_derivatives_of_writes_to_columns_that_an_index_names():
    def program(x, i):
        x = x * 1
        x[:, i] = 0.0
        x[i, None, 1] = x[i, 0][:, None]
        return x

    torch.compiler.reset()
    compiled = torch.compile(program, backend="regraft", options={"strict": True})
    for rows in (4, 40):
        x, y = (torch.ones(rows, 3, requires_grad=True) for _ in range(2))
        for run, given in ((compiled, x), (program, y)):
            (run(given, torch.tensor([0, 2])) * torch.arange(3.0 * rows).view(rows, 3)).sum().backward()
        assert torch.equal(x.grad, y.grad)


def test_folds_of_components():
    reduction = Reduction("r", "sum", (load("x", LONG.index() * 3 + C.index()),))
    body = (
        Fold((reduction,), (Loop(C, (Update(reduction),)),)),
        Loop(D, (store("y", LONG.index() * 3 + D.index(), Result("r", 0, F32)),)),
    )
    (loop,) = unroll_components(kernel(*body)).body
    fold, *rest = loop.body
    assert [u.reduction.values[0] for u in fold.body] == [load("x", LONG.index() * 3 + c) for c in range(3)]
    assert len(rest) == 3


@pytest.mark.parametrize("how", ["short", "in order", "16 bits", "one loop", "rows"])
def test_loops_that_stay(how):
    body, extent = shifted(LONG), 8 if how == "short" else 64
    if how == "one loop":
        body = body[:1]
    if how == "rows":  # the loop over vectors is not the one along memory
        body = tuple(
            Loop(v, (store(n, v.index() * 64 + LONG.index(), load("x", v.index() * 64 + LONG.index())),))
            for v, n in ((C, "t"), (D, "y"))
        )
    made = kernel(*body, extent=extent, parallel=how != "in order", dtype=torch.bfloat16 if how == "16 bits" else F32)
    found = unroll_components(made)
    if how == "16 bits":  # rounded where it is stored
        assert all(isinstance(value, Load) for _, _, value in stores_of(found)[3:])
    else:
        assert found is made

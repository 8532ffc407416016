"""Loops that can be tiled become neighbours, and tiles of all sizes hold what eager gives."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernels import avx512_text, compiled_agrees, numbers, one_unit
from support.lowering import lowered
from support.thorough import examples, one_row_in

from regraft.compiler.codegen.cpp.kernel_text import prepared
from regraft.compiler.codegen.cpp.target import target
from regraft.compiler.ir.interpreter import run_kernel
from regraft.compiler.ir.kernel import Loop
from regraft.compiler.schedule import schedule

R = torch.randn
AVX512 = target("avx512")


def extents(function, *inputs):
    """Extents of the loops, the outermost first, of the only kernel."""
    (kernel,) = schedule(lowered(function, *inputs).program).kernels
    found, statement = [], prepared(kernel, AVX512).body[0]
    while isinstance(statement, Loop):
        found.append(statement.var.extent)
        statement = statement.body[0]
    return found


def test_what_is_contiguous_moves_inwards():
    around = lambda x: x.permute(0, 2, 4, 1, 3).contiguous()  # noqa: E731
    assert extents(around, R(4, 16, 8, 17, 32)) == [4, 8, 16, 32, 17]
    assert "load_tile" in avx512_text(around, R(4, 16, 8, 17, 32))
    front = lambda x: x.permute(3, 1, 0, 2).contiguous()  # noqa: E731
    assert extents(front, R(5, 40, 30, 70)) == [40, 5, 70, 30]


def test_what_stays():
    around = lambda x: x.permute(0, 2, 4, 1, 3).contiguous()  # noqa: E731
    assert extents(around, R(4, 16, 8, 15, 32)) == [4, 8, 32, 16, 15]  # would leave parts of vectors empty
    assert extents(around, R(4, 16, 8, 17, 15)) == [4, 8, 15, 16, 17]
    rows = lambda x: x.permute(1, 0, 2).contiguous()  # noqa: E731
    assert extents(rows, R(20, 30, 40)) == [30, 20, 40]
    padded = lambda x: F.pad(x.permute(0, 2, 4, 1, 3), (1, 1))  # noqa: E731
    assert extents(padded, R(4, 16, 8, 17, 32))[:4] == [4, 8, 32, 16]


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float64], ids=str)
@one_unit()
def test_tiles_of_all_sizes(dtype):
    """Rows and columns that fill a tile, parts of one, and several."""
    for rows, columns in itertools.product((3, 8, 16, 21), (5, 16, 35)):
        compiled_agrees(
            lambda x: x.transpose(1, 2).contiguous(), numbers(3, rows, columns, dtype=dtype), rtol=0, atol=0
        )
        compiled_agrees(lambda x, y: x.transpose(1, 2) * 2 + y, R(2, rows, columns), R(2, columns, rows))


@pytest.mark.parametrize("name", ["avx512", "avx2", "generic"])
@one_unit()
def test_of_every_target(name):
    host = target(name)
    x = R(3, 18, 5, 19, 21)
    compiled_agrees(lambda x: (x.permute(0, 2, 4, 1, 3) * 2).contiguous(), x, target=host)
    compiled_agrees(lambda x: x[:, :7, 0].transpose(1, 3).contiguous(), x, target=host)


@settings(max_examples=examples(8, 40), deadline=None)
@given(st.permutations(range(4)), st.tuples(*[st.integers(1, 18)] * 4))
def test_any_order(order, sizes):
    x = R(sizes)
    made = schedule(lowered(lambda x: x.permute(order).contiguous() + 1, x).program).kernels
    for kernel in made:
        source, result = (p.buffer.name for p in kernel.params)
        found = run_kernel(prepared(kernel, AVX512), {source: x.flatten(), result: torch.empty(x.numel())})
        assert torch.equal((found or {})[result], (x.permute(order) + 1).flatten())


def test_rows_are_counted_not_divided():
    """Loops around short rows count up beside the iterations that a thread is given."""
    text = avx512_text(lambda x: x.permute(2, 0, 3, 1, 4).contiguous(), R(16, 49, 3, 6, 32))
    inside = text[text.index("for (i64 q") :]
    assert "%" not in inside[: inside.index("extern")]


def test_loops_without_iterations():
    """As many rows as a mask keeps: none."""
    torch.compiler.reset()

    def program(x, m):
        return x[m].permute(1, 2, 0, 3).contiguous() * 2

    compiled = torch.compile(program, backend="regraft", dynamic=True)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for least in (0.0, -9.0, 9.0):
            x = R(6, 5, 4, 19)
            m = x[:, 0, 0, 0] > least
            assert torch.equal(compiled(x, m), program(x, m))


def test_threads_begin_anywhere():
    """Iterations are shared at places that are no multiple of any loop."""
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        compiled_agrees(lambda x: x.permute(2, 0, 3, 1, 4).contiguous() + 1, R(16, 49, 3, 7, 33))
        compiled_agrees(lambda x: x.transpose(0, 1).contiguous().exp(), R(7, 3, 40000))
        compiled_agrees(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), R(5, 7, 100, 101))
    finally:
        torch.set_num_threads(threads)

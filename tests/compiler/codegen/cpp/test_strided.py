"""Every second, third or fourth element of 64 bits: whole vectors are read and chosen from, nothing beyond a buffer."""

import pytest
import torch
from support.kernels import before_a_page, compiled_agrees, one_unit
from support.lowering import trace
from support.thorough import one_row_in, takes_turns

from regraft.compiler.codegen import cpp
from regraft.compiler.codegen.cpp.kernel_text import kernel_text
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import CPU, schedule

HOST = cpp.host_target()
TARGETS = [HOST.name, *(["avx2", "generic"] if HOST.vector_bytes >= 32 else []), "scalar"]
WIDE = [torch.int64, torch.float64]


def columns(x: torch.Tensor) -> torch.Tensor:
    """The sum of columns of a table, each read with the width of the table as its step."""
    total = x[:, 0] * 3
    for column in range(1, x.shape[1]):
        total = total + x[:, column] * (column + 1)
    return total


@one_row_in(2)
@takes_turns("target")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("step", [2, 3, 4, 5, 8])
@one_unit()
def test_columns_of_narrow_tables(step: int, dtype: torch.dtype, target: str) -> None:
    for rows in (8, 19, 64):
        compiled_agrees(columns, (torch.randn(rows, step) * 99).to(dtype), target=cpp.target(target))


@pytest.mark.skipif(HOST.name != "avx512", reason="eight elements of 64 bits are a vector with AVX-512 only")
def test_whole_vectors_are_chosen_from() -> None:
    program = lower(trace(columns, torch.ones(64, 3, dtype=torch.int64))).program
    text = "".join(kernel_text(kernel, HOST) for kernel in schedule(program, target=CPU).kernels)
    assert "strided<8>" in text


@pytest.mark.parametrize("step", [2, 3, 4])
def test_nothing_is_read_past_the_end(step: int) -> None:
    """The buffer ends where a page that nobody may read begins."""
    with before_a_page(torch.int64, 24 * step) as given:
        for function in (columns, lambda x: x[:, -1] * 2):
            torch.compiler.reset()
            x = given.view(24, step)
            assert torch.equal(torch.compile(function, backend="regraft")(x), function(x))

"""Every second to eighth element: whole vectors are read and chosen from, nothing beyond a buffer."""

import pytest
import torch
from support.kernels import before_a_page, compiled_agrees, instructions, one_unit
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


@one_row_in(2)
@takes_turns("target")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str)
@one_unit()
def test_columns_that_are_read_together(dtype: torch.dtype, target: str) -> None:
    """All of a table's, some of them, one of them twice, and those of the next row."""
    some = {
        "ends": lambda x: (x[:, 0] == x[:, -1], x[:, 0] > x[:, 1]),
        "but the first": lambda x: torch.where(x[:, 1] == x[:, -1], x[:, 1], x[:, 0]),
        "the next row's": lambda x: x.flatten()[1 : -x.shape[1] : x.shape[1]] == x.flatten()[x.shape[1] :: x.shape[1]],
        "one": lambda x: x[:, -1] == 1,
        "guarded": lambda x: torch.nn.functional.pad(x[:, 1], (2, 1)) == torch.nn.functional.pad(x[:, 0], (1, 2)),
    }
    for step in range(2, 10):
        for rows in (16, 35):
            x = (torch.randn(rows, step) * 9).to(dtype)
            for function in some.values():
                compiled_agrees(function, x, target=cpp.target(target), rtol=0, atol=0)


@pytest.mark.skipif(HOST.name != "avx512", reason="eight elements of 64 bits are a vector with AVX-512 only")
def test_whole_vectors_are_chosen_from() -> None:
    program = lower(trace(columns, torch.ones(64, 3, dtype=torch.int64))).program
    text = "".join(kernel_text(kernel, HOST) for kernel in schedule(program, target=CPU).kernels)
    assert all(f"column<8, 3, {place}, 3>" in text for place in range(3)) and "strided<" not in text


@pytest.mark.skipif(HOST.name != "avx512", reason="other processors have other instructions")
def test_bytes_are_chosen_from_vectors() -> None:
    """Colors of pixels, one by one, would take as long as all else."""
    made = instructions(lambda x: (x[:, 0].float() * 3 + x[:, 2], x.float().sum(-1)), torch.zeros(640, 3).byte())
    assert "pinsrb" not in made


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("step", range(2, 9))
def test_nothing_is_read_past_the_end(step: int, dtype: torch.dtype) -> None:
    """The buffer ends where a page that nobody may read begins."""
    with before_a_page(dtype, 24 * step) as given:

        def some(x: torch.Tensor) -> list[torch.Tensor]:
            return [columns(x), x[:, -1] * 2, x[:, 0] + x[:, 1], x[:, -1] - x[:, 1], *(x.float()[:, :2] * 2).unbind(1)]

        x = given.view(24, step)
        compiled = torch.compile(some, backend="regraft")
        for table in (x, x.flatten()[step - 2 :][: 22 * step + 2].as_strided((23, 2), (step, 1))):
            for ours, theirs in zip(compiled(table), some(table), strict=True):
                assert torch.equal(ours, theirs)

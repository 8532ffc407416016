"""Indices of rows are checked once for each row, before the loop that goes through it: all are checked still."""

import pytest
import torch
from support.kernels import avx512_text, compiled_agrees, one_unit

from regraft.compiler.codegen.cpp.target import host_target


def rows(width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(50, width), *(torch.randint(-50, 50, (70,)) for _ in range(2))


PROGRAMS = {
    "distances": lambda x, i, j: (x[i] - x[j]).square().sum(-1),
    "products": lambda x, i, j: (x[i] * x[j]).sum(-1).sigmoid(),
    "sums of rows": lambda x, i, j: x[i] + x[j] * 2,
    "added at places": lambda x, i, j: torch.zeros_like(x).index_add(0, i % 50, x[j]),
    "guarded": lambda x, i, j: torch.nn.functional.pad(x[i], (0, 0, 1, 2)).sum(-1),
}


@one_unit()
def test_rows_of_all_widths() -> None:
    for program in PROGRAMS.values():
        for width in (1, 2, 3, 5, 8, 17, 33):
            compiled_agrees(program, *rows(width))


@pytest.mark.skipif(host_target().name != "avx512", reason="the text is that of its lanes")
@pytest.mark.parametrize(("width", "around"), [(3, 2), (40, 1)])
def test_checks_stand_before_the_loop_over_a_row(width: int, around: int) -> None:
    """`around`: the blocks of the loop over rows."""
    checks = [s for s in avx512_text(PROGRAMS["distances"], *rows(width)).splitlines() if "FAIL" in s]
    assert checks and all(len(s) - len(s.lstrip()) == 2 + 2 * around for s in checks)


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n != "added at places"])
@pytest.mark.parametrize("width", [3, 40])
def test_an_index_out_of_range_is_an_error(name: str, width: int) -> None:
    x, i, j = rows(width)
    compiled = torch.compile(PROGRAMS[name], backend="regraft", options={"strict": True})
    torch.testing.assert_close(compiled(x, i, j), PROGRAMS[name](x, i, j), rtol=1e-4, atol=1e-4)
    for at in (0, 37, 69):
        wrong = i.clone()
        wrong[at] = 50
        with pytest.raises(IndexError):
            compiled(x, wrong, j)

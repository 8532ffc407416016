"""Loop shapes as Triton kernels: interpreted against eager, and compiled for GPUs."""

import math

import pytest

pytest.importorskip("triton")

import torch
import torch.nn.functional as F
from support.thorough import one_row_in
from support.triton_kernels import compiles, interpreted_agrees

from ..cpp.test_kernels import PROGRAMS


@one_row_in(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_eagers(name):
    function, *inputs = PROGRAMS[name]
    for source in interpreted_agrees(function, *inputs):
        assert compiles(source)


ONE_ROW = {
    "RMS norm": lambda x, y, g: (x + y, g * (x + y) * torch.rsqrt((x + y).square().mean(-1, keepdim=True) + 1e-6)),
    "layer norm": lambda x, y, g: (x + y, torch.layer_norm(x + y, x.shape[-1:], g, g)),
    "softmax": lambda x, y, g: torch.softmax(x * y, -1) * g,
    "log-softmax": lambda x, y, g: torch.log_softmax(x * y, -1) + g,
    "a row for many": lambda x, y, g: x / (y * g).abs().sum(),
}


@pytest.mark.parametrize("length", [2048, 5000])
@pytest.mark.parametrize("name", ONE_ROW)
def test_one_row_is_one_launch(name: str, length: int) -> None:
    sizes = (1, 1, length), (1, 1, length), (length,)
    sources = interpreted_agrees(ONE_ROW[name], *(torch.randn(size) for size in sizes))
    assert sum(len(source.launches) for source in sources) == 1


def test_several_rows_keep_programs_of_their_own() -> None:
    (source,) = interpreted_agrees(ONE_ROW["RMS norm"], *(torch.randn(rows, 300) for rows in (8, 8, 1)))
    (launch,) = source.launches
    assert launch.programs == 8
    sources = interpreted_agrees(lambda x: x / x.abs().sum(), torch.randn(1 << 15))
    assert sum(len(source.launches) for source in sources) > 1


@pytest.mark.parametrize("sizes", [(2, 3, 7, 7), (1, 2, 9, 6)])
def test_quotients_of_less_than_nothing_in_indices(sizes: tuple[int, ...]) -> None:
    """Windows that overlap, put back where they were read: places before the first are divided, too."""
    sources = interpreted_agrees(
        lambda x: F.fold(F.unfold(x, 3, padding=1, stride=2), x.shape[-2:], 3, padding=1, stride=2),
        torch.randn(sizes),
    )
    assert any("floor_div(" in source.text for source in sources)
    assert all(compiles(source) for source in sources)


ADDED = {
    "one": (lambda x: torch.zeros(1).index_add(0, torch.zeros(8, dtype=torch.int64), x).neg(), (8,)),
    "to itself": (lambda x: x.index_put((torch.zeros(1, dtype=torch.int64),), x, accumulate=True) * 2, (1,)),
    "largest": (
        lambda x: (
            torch.zeros(1, dtype=torch.int32).scatter_reduce(0, torch.zeros(8, dtype=torch.int64), x.int(), "amax") * 3
        ),
        (8,),
    ),
    "rows": (lambda x: (torch.zeros(4, 1).scatter_add(1, torch.zeros(4, 8, dtype=torch.int64), x) + x).sum(1), (4, 8)),
}


@pytest.mark.parametrize("how", ADDED)
def test_what_is_added_into_a_value_of_the_kernels_own(how):
    """Several lanes add to one place, and what they have added is read in the same kernel."""
    function, sizes = ADDED[how]
    sources = interpreted_agrees(function, torch.linspace(-1, 2, math.prod(sizes)).reshape(sizes))
    assert all(compiles(source) for source in sources)

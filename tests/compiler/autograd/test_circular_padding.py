"""Circular padding is one kernel, whose values and gradients are eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in

import regraft

from .test_whole_resampling import hold

PADDINGS = {1: [(2, 1), (0, 3), (3, 0), (7, 7)], 2: [(2, 2, 2, 2), (1, 0, 0, 2)], 3: [(1, 2, 2, 1, 0, 1)]}
CASES = [(dims, padding) for dims, paddings in PADDINGS.items() for padding in paddings]


def image(dims):
    return torch.randn(2, 3, *[8, 9, 7][-dims:], generator=torch.Generator().manual_seed(0)).requires_grad_()


@one_row_in(2)
@pytest.mark.parametrize(("dims", "padding"), CASES, ids=str)
def test_values_and_gradients(dims, padding):
    hold([lambda x: F.pad(x.sin(), padding, mode="circular") * 2], image(dims))


def test_symbolic_sizes():
    compiled = torch.compile(lambda x: F.pad(x, (2, 1, 1, 2), mode="circular"), backend="regraft", dynamic=True)
    for height, width in ((5, 6), (9, 4), (2, 2)):
        x = torch.randn(2, 3, height, width)
        torch.testing.assert_close(compiled(x), F.pad(x, (2, 1, 1, 2), mode="circular"), rtol=0, atol=0)


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.bfloat16], ids=str)
def test_other_dtypes_and_layouts(dtype):
    x = torch.randn(2, 3, 6, 6).to(dtype).to(memory_format=torch.channels_last)
    function = lambda x: F.pad(x, (1, 2, 2, 1), mode="circular")  # noqa: E731
    got, want = torch.compile(function, backend="regraft")(x), function(x)
    assert torch.equal(got, want) and got.stride() == want.stride()


def test_it_is_one_kernel():
    with regraft.coverage() as report:
        torch.compile(lambda x: F.pad(x, (2, 2, 2, 2), mode="circular"), backend="regraft")(torch.randn(2, 3, 8, 8))
    (code,) = [code for graph in report.graphs for code in graph.code]
    assert not code.kept
    assert code.kernels == 1


def test_crops_stay_torchs():
    """A negative number takes something away: that is no repetition."""
    function = lambda x: F.pad(x, (-1, 2), mode="circular")  # noqa: E731
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(torch.compile(function, backend="regraft")(x), function(x), rtol=0, atol=0)


def test_too_much_padding_is_refused_as_by_eager():
    function = lambda x: F.pad(x, (9, 0), mode="circular")  # noqa: E731
    with pytest.raises(Exception, match="wrapping around more than once"):
        torch.compile(function, backend="regraft")(torch.randn(2, 3, 8))

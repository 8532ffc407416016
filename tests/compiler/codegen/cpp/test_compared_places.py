"""Places compared with numbers of 64 bits: in 32 bits, and still eager's result for numbers that do not fit."""

import operator

import pytest
import torch
from support.kernels import avx512_text, compiled_agrees, one_unit

LIMITS = torch.iinfo(torch.int64)
NUMBERS = [LIMITS.min, LIMITS.max, -(2**31), 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**32 + 3, -1, 0, 1, 5]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


def places(length: int, begin: int = 0) -> torch.Tensor:
    return torch.arange(begin, begin + length)


@pytest.mark.parametrize("length", [3, 16, 37])
@one_unit()
def test_comparisons_of_places_with_any_number(length: int) -> None:
    n = torch.tensor([*NUMBERS, length - 1, length, length + 1])
    for compare in COMPARISONS:
        compiled_agrees(lambda n, c=compare: c(places(length), n[:, None]), n)
        compiled_agrees(lambda n, c=compare: c(n[:, None], places(length, -7) * 3), n)


def kept(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return places(x.shape[1]) < n[:, None]


@one_unit()
def test_masks_made_from_lengths() -> None:
    for rows, length in ((5, 70), (70, 5), (33, 18)):
        x, n = torch.randn(rows, length), torch.randint(0, length + 1, (rows,))
        n[:2] = torch.tensor([LIMITS.max, LIMITS.min])
        compiled_agrees(lambda x, n: x * kept(x, n), x, n)
        compiled_agrees(lambda x, n: x.masked_fill(~kept(x, n), -1e9).softmax(-1), x, n)
        compiled_agrees(lambda x, n: (x * kept(x, n)).sum(-1) / n.clamp(1, x.shape[1]), x, n)
        compiled_agrees(lambda x, n: torch.where(places(x.shape[1]) == n[:, None] - 1, x, 0).sum(-1), x, n)
        compiled_agrees(lambda x, n: (x * kept(x, n)).sum(0), x, n)
        compiled_agrees(lambda x, n: x.t() * kept(x, n).t(), x, n)


@one_unit()
def test_places_that_do_not_fit_stay_as_they_are() -> None:
    n = torch.tensor([*NUMBERS, 3 * 2**31])
    compiled_agrees(lambda n: places(40) * 2**28 < n[:, None], n)
    compiled_agrees(lambda n: places(9, 2**31 - 9) <= n[:, None], n)


def test_masks_have_the_lanes_of_what_they_mask() -> None:
    x, n = torch.randn(8, 64), torch.randint(0, 64, (8,))
    for function in (
        lambda x, n: x * (places(64) < n[:, None]),
        lambda x, n: x.masked_fill(places(64) >= n[:, None], -1e9).softmax(-1),
    ):
        text = avx512_text(function, x, n)
        assert "V<i64" not in text and "V<f32, 16>" in text

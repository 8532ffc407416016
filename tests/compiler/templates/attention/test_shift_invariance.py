"""The largest score of a row is left out, but not if that would change what is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.thorough import one_row_in

from ..fusing import fuse
from .test_cpp import qkv, random


def lowered(x: torch.Tensor) -> torch.Tensor:
    return x - x.amax(-1, keepdim=True)


def attend(f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return torch.softmax(f(q @ k.transpose(-1, -2), *more), -1) @ v

    return attention


def given(*more: torch.Tensor) -> list[torch.Tensor]:
    return [*qkv(2, 3, 16, 24, 8, 8), *more]


def computes_the_same(f: Callable[..., torch.Tensor], inputs: list[Any]) -> int:
    fused = fuse(attend(f), inputs)
    torch.testing.assert_close(fused.graph_module(*inputs), attend(f)(*inputs))
    return fused.count


@one_row_in(2)
@pytest.mark.parametrize(
    "f",
    [
        lowered,
        lambda s: lowered(s * 0.5),
        lambda s: lowered(s) + torch.arange(24),
        lambda s: torch.where(torch.arange(24) < 20, lowered(s), -torch.inf),
        lambda s: torch.where(torch.arange(16)[:, None] < 3, lowered(s), s),
    ],
)
def test_softmaxes_do_not_see_it(f: Callable[..., torch.Tensor]) -> None:
    assert computes_the_same(f, given()) == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda s: torch.tanh(lowered(s)),
        lambda s: lowered(s) + torch.tanh(lowered(s)),
        lambda s: torch.where(torch.arange(24) < 20, lowered(s), -1.0),
        lambda s: lowered(s).view(2, 3, 24, 16).transpose(-1, -2),
        lambda s: lowered(s) * torch.arange(24),
    ],
)
def test_others_do(f: Callable[..., torch.Tensor]) -> None:
    assert computes_the_same(f, given()) == 0


def test_of_biases_too() -> None:
    bias = random(16, 24) * 3
    assert computes_the_same(lambda s, b: s + lowered(b), given(bias)) == 1
    assert computes_the_same(lambda s, b: s + torch.tanh(lowered(b)), given(bias)) == 1  # read as it is

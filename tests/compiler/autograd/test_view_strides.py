"""Views' dims of size 1 have eager's strides, and so has what is computed from them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.thorough import one_row_in
from torch import Tensor

from regraft.compiler.autograd.view_strides import viewed
from regraft.compiler.backend import backend


@st.composite
def views(draw: st.DrawFn) -> tuple[Tensor, list[int]]:
    """A tensor in any order of memory, perhaps a part of a larger one, and other sizes of as many elements."""
    sizes = draw(st.lists(st.sampled_from([1, 1, 2, 3, 4]), max_size=5))
    order = draw(st.permutations(range(len(sizes))))
    x = torch.empty([sizes[d] for d in order], device="meta").permute([order.index(d) for d in range(len(sizes))])
    if sizes and draw(st.booleans()):
        x = x.narrow(draw(st.integers(0, len(sizes) - 1)), 0, 1)
    rest, into = x.numel(), []
    while rest > 1:
        into.append(draw(st.sampled_from([n for n in range(2, rest + 1) if rest % n == 0])))
        rest //= into[-1]
    for at in draw(st.lists(st.integers(0, 4), max_size=3)):
        into.insert(at, 1)
    return x, into


@given(views())
def test_strides_are_eagers(case: tuple[Tensor, list[int]]) -> None:
    x, into = case
    assert math.prod(into) == x.numel()
    try:
        expected = tuple(x.view(into).stride())
    except RuntimeError:
        expected = None
    assert viewed(tuple(x.shape), x.stride(), into) == expected


CONVOLUTION = torch.nn.Conv2d(16, 4, 1)
IMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x,
    "sum": lambda x: x + 1,
    "resampled": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2.0),
    "convolution": CONVOLUTION,
    "pooled": lambda x: F.max_pool2d(x, 2),
    "padded": lambda x: F.pad(x, (1, 1, 1, 1), "reflect"),
    "normalized": lambda x: F.group_norm(x, 4),
}


@one_row_in(2)
@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("batch", [1, 2])
def test_images_of_tokens_lie_as_in_eager(name: str, batch: int) -> None:
    def function(x: Tensor) -> Tensor:
        return IMAGES[name](x.transpose(1, 2).reshape(batch, -1, 8, 8))

    x = torch.randn(batch, 64, 16)
    torch._dynamo.reset()
    run = torch.compile(function, backend=lambda module, inputs: backend(module, inputs, options={"strict": True}))
    for trained in (False, True):
        x.requires_grad_(trained)
        found, expected = run(x), function(x)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)

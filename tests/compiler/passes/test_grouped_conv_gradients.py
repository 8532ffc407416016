"""Gradients of grouped convolutions as convolutions and products: which are replaced, and that they are the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from support.pipeline import replace_pass
from support.rewriting import compiled
from support.thorough import takes_turns
from torch import nn

from regraft.compiler.passes import grouped_conv_gradients
from regraft.compiler.passes.grouped_conv_gradients import compute_grouped_conv_gradients

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
# A layer, sizes of its input, and how many gradients are computed in another way.
LAYERS: dict[str, tuple[nn.Module, tuple[int, ...], int]] = {
    "padded": (nn.Conv2d(8, 4, 3, padding=1, groups=2), (2, 8, 7, 6), 1),
    "dilated": (nn.Conv2d(8, 8, (3, 1), padding=(2, 0), dilation=(2, 1), groups=4), (2, 8, 9, 5), 1),
    "unpadded": (nn.Conv2d(4, 8, (2, 4), groups=2, bias=False), (3, 4, 6, 7), 1),
    "one pixel": (nn.Conv2d(8, 4, 1, groups=2), (2, 8, 5, 3), 2),
    "one pixel, padded": (nn.Conv2d(8, 4, 1, padding=1, groups=2), (2, 8, 5, 3), 0),
    "volumes": (nn.Conv3d(4, 4, 3, padding=1, groups=2), (1, 4, 4, 5, 3), 1),
    "single channels": (nn.Conv2d(6, 6, 3, padding=1, groups=6), (2, 6, 7, 5), 1),
    "single channels, dilated": (nn.Conv2d(6, 6, (2, 3), dilation=2, groups=6, bias=False), (2, 6, 9, 8), 1),
    "single channels of one pixel": (nn.Conv2d(6, 6, 1, groups=6), (2, 6, 7, 5), 1),
    "single channels, strided": (nn.Conv2d(6, 6, 3, stride=2, groups=6), (2, 6, 7, 6), 1),
    "several of one": (nn.Conv2d(6, 12, 3, groups=6), (2, 6, 7, 6), 0),
    "one group": (nn.Conv2d(8, 4, 3), (2, 8, 7, 6), 0),
    "strided": (nn.Conv2d(8, 4, 3, stride=2, groups=2), (2, 8, 7, 6), 0),
    "transposed": (nn.ConvTranspose2d(8, 4, 3, groups=2), (2, 8, 4, 5), 0),
}


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_pass(monkeypatch, "grouped_conv_gradients", partial(compute_grouped_conv_gradients, devices=("cpu",)))
    monkeypatch.setattr(grouped_conv_gradients, "FEWEST", 2)
    monkeypatch.setattr(grouped_conv_gradients, "_HALVES", (torch.float32, torch.bfloat16))


def gradients(function: Any, x: torch.Tensor, layer: nn.Module) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    layer.zero_grad()
    torch.tanh(function(x)).square().sum().backward()
    return [t.grad for t in (x, *layer.parameters()) if t.grad is not None]


def steps(value: torch.Tensor) -> list[int]:
    """The strides of dims of several entries: of others, torch's metadata and its kernels differ."""
    return [stride for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1]


@takes_turns("last")
@pytest.mark.parametrize("last", [False, True], ids=["channels apart", "channels last"])
@pytest.mark.parametrize("kind", LAYERS)
def test_gradients(kind: str, last: bool) -> None:
    layer, sizes, replaced = LAYERS[kind]
    x = torch.randn(sizes)
    x = x.contiguous(memory_format=LAST[x.dim()]) if last else x
    expected = gradients(layer, x, layer)
    run, cov = compiled(layer)
    with cov:
        found = gradients(run, x, layer)
    for ours, eagers in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-4)
        assert steps(ours) == steps(eagers)
    assert cov.graphs[0].changes("grouped_conv_gradients").get("changes", 0) == (replaced if last else 0)


def test_what_is_not_asked_for_is_not_computed() -> None:
    """Of a first layer, no gradient of the input; of a frozen one, none of the weight."""
    layer = nn.Conv2d(8, 4, 3, groups=2)
    x = torch.randn(2, 8, 7, 6).contiguous(memory_format=LAST[4])
    run, cov = compiled(layer)
    with cov:
        torch.tanh(run(x)).sum().backward()
    assert cov.graphs[0].changes("grouped_conv_gradients").get("changes", 0) == 0
    layer.requires_grad_(False)
    run, cov = compiled(layer)
    with cov:
        found = gradients(run, x, layer)
    torch.testing.assert_close(found, gradients(layer, x, layer), rtol=1e-4, atol=1e-4)
    assert cov.graphs[0].changes("grouped_conv_gradients") == {"changes": 1}


def test_long_sums_of_float16_stay_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product may add up parts of them in 16 bits."""
    monkeypatch.setattr(grouped_conv_gradients, "_HALVES", (torch.float16,))
    layer = nn.Conv2d(8, 4, 1, groups=2).half()
    run, cov = compiled(layer)
    with cov:
        gradients(run, torch.randn(2, 8, 5, 3).half().contiguous(memory_format=LAST[4]), layer)
    assert cov.graphs[0].changes("grouped_conv_gradients") == {"changes": 1}


def test_few_channels_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_conv_gradients, "FEWEST", 16)
    layer, sizes, _ = LAYERS["padded"]
    run, cov = compiled(layer)
    with cov:
        gradients(run, torch.randn(sizes).contiguous(memory_format=LAST[4]), layer)
    assert cov.graphs[0].changes("grouped_conv_gradients").get("changes", 0) == 0

"""Channels of zeros for images of few: which convolutions get them, and that they change nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.pipeline import replace_pass
from support.rewriting import compiled
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from regraft.compiler.codegen.generate import generate_kernels
from regraft.compiler.passes.pad_conv_channels import pad_conv_channels

aten = torch.ops.aten
CPU, LAST, BF16 = ("cpu",), torch.channels_last, torch.bfloat16


def images(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(sizes).to(dtype)


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> fx.GraphModule:
    module = make_fx(function, tracing_mode="fake")(*inputs)
    module.graph.eliminate_dead_code()
    return module


def stem(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x.clone(memory_format=LAST), w.clone(memory_format=LAST), stride=2, padding=3)


@pytest.mark.parametrize("channels", [3, 5, 6, 7, 9])
def test_channels_of_zeros_change_nothing(channels: int) -> None:
    inputs = images(2, channels, 16, 16), images(8, channels, 7, 7)
    module = traced(stem, *inputs)
    assert pad_conv_channels(module, CPU) == 1
    (call,) = module.graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert [n.meta["val"].shape[1] % 4 for n in call.args[:2]] == [0, 0]
    assert all(n.meta["val"].is_contiguous(memory_format=LAST) for n in (*call.args[:2], call))
    expected = stem(*inputs)
    found = module(*inputs)
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.02)
    assert found.stride() == expected.stride()


def test_the_copies_that_lay_out_images_are_not_made_before() -> None:
    module = traced(stem, images(2, 3, 16, 16), images(8, 3, 7, 7))
    pad_conv_channels(module, CPU)
    clones = module.graph.find_nodes(op="call_function", target=aten.clone.default)
    assert [clone.args[0].target for clone in clones] == [aten.constant_pad_nd.default] * 2
    made = generate_kernels(module, "inference", verify=True)
    assert [kept.operator for kept in made.code.kept] == ["aten.convolution.default"]


def test_images_that_are_laid_out_already() -> None:
    def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, padding=1)

    inputs = [t.to(memory_format=LAST) for t in (images(2, 3, 16, 16), images(8, 3, 3, 3))]
    module = traced(plain, *inputs)
    assert pad_conv_channels(module, CPU) == 1
    torch.testing.assert_close(module(*inputs), plain(*inputs), atol=0.05, rtol=0.02)


def test_training(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_pass(monkeypatch, "pad_conv_channels", partial(pad_conv_channels, devices=CPU))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.Conv2d(8, 4, 3)).to(BF16, memory_format=LAST)
    twin, x = copy.deepcopy(model), images(2, 3, 9, 9).to(memory_format=LAST)
    run, cov = compiled(model)
    with cov:
        run(x).float().square().mean().backward()
    twin(x).float().square().mean().backward()
    assert cov.graphs[0].changes("pad_conv_channels") == {"changes": 1}
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0.05, atol=0.02)
        assert a.grad.stride() == b.grad.stride()


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        (images(2, 4, 16, 16), images(8, 4, 3, 3), {}),
        (images(2, 1, 16, 16), images(8, 1, 3, 3), {}),
        (images(2, 17, 16, 16), images(8, 17, 3, 3), {}),
        (images(2, 3, 16, 16), images(8, 3, 3, 1), {}),
        (images(2, 3, 16, 16), images(8, 3, 3, 3), {"dilation": 2}),
        (images(2, 6, 16, 16), images(8, 3, 3, 3), {"groups": 2}),
        (images(2, 3, 16, 16, dtype=torch.float32), images(8, 3, 3, 3, dtype=torch.float32), {}),
    ],
)
def test_others_stay(x: torch.Tensor, w: torch.Tensor, options: dict[str, Any]) -> None:
    module = traced(lambda x, w: F.conv2d(x, w, **options), x.to(memory_format=LAST), w.to(memory_format=LAST))
    before = str(module.graph)
    assert pad_conv_channels(module, CPU) == 0
    assert str(module.graph) == before


def test_other_layouts_and_devices_stay() -> None:
    module = traced(stem, images(2, 3, 16, 16), images(8, 3, 7, 7))
    assert pad_conv_channels(module) == 0

"""The kernel for gradients of weights of single channels: interpreted against eager and float64, compiled for GPUs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.tensors import not_finite
from support.thorough import takes_turns, thorough
from support.triton_convolution import on_gpu
from support.triton_gemm import interpret_launches, near
from support.triton_kernels import compiled
from torch import fx

from regraft.compiler.codegen.triton import KernelSource
from regraft.compiler.ir.interpreter import allocate
from regraft.compiler.templates.convolution.triton_depthwise_weight import (
    WeightTile,
    weight_tiles,
    weight_triton,
    workspace,
)
from regraft.compiler.templates.convolution.weight_gradients import FoundGradient, match_weight_gradient
from regraft.rewrites.reason import Reason

BF16, F16 = torch.bfloat16, torch.float16
SMALL = WeightTile(8, 16, 1, 4, 3)


def random(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    made = torch.randn(sizes, generator=generator).to(dtype)
    return made.to(memory_format=torch.channels_last) if len(sizes) == 4 else made


def gradient(
    kernel: tuple[int, int], stride: Any = 1, padding: Any = 0, dilation: Any = 1, mask: Any = (False, True, False)
) -> Any:
    """The gradient of a weight as a function of the gradient above and the image."""

    def pair(n: Any) -> list[int]:
        return [n, n] if isinstance(n, int) else list(n)

    def function(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        geometry = pair(stride), pair(padding), pair(dilation), False, [0, 0], x.shape[1]
        made = torch.ops.aten.convolution_backward(g, x, w, None, *geometry, list(mask))
        return made[1] if mask[0] is False else made

    return function


def inputs_of(image: tuple[int, ...], kernel: tuple[int, int], dtype: torch.dtype = BF16, **how: Any) -> list[Any]:
    x, w = random(*image, dtype=dtype), random(image[1], 1, *kernel, dtype=dtype)
    out = torch.nn.functional.conv2d(x.float(), w.float(), groups=image[1], **how)
    return [random(*out.shape, dtype=dtype), x, w]


def matched(module: fx.GraphModule) -> FoundGradient | Reason | None:
    every = [match_weight_gradient(node) for node in module.graph.nodes]
    return next((one for one in every if one is not None), None)


def run(function: Any, inputs: list[Any], tile: WeightTile) -> tuple[torch.Tensor, KernelSource]:
    found = matched(on_gpu(function, *inputs))
    assert isinstance(found, FoundGradient), found
    source = weight_triton(found.gradient, tile)
    results = [allocate(found.gradient.weight, {})]
    interpret_launches(source, inputs[:2], results, [workspace(found.gradient, tile)])
    return results[0], source


def agrees(function: Any, inputs: list[Any], tile: WeightTile) -> str:
    result, source = run(function, inputs, tile)
    near(result, function, inputs, 1.5, source)
    return source.text


GEOMETRIES: list[tuple[tuple[int, int], dict[str, Any]]] = [
    ((3, 3), {"padding": 1}), ((5, 5), {}), ((3, 3), {"stride": 2, "padding": 1}), ((1, 1), {}),
    ((2, 2), {"stride": 2}), ((3, 5), {"dilation": (2, 1), "padding": (2, 0)}),
    ((3, 3), {"dilation": 2, "padding": 2, "stride": (1, 2)}),
]  # fmt: skip


@takes_turns("parts")
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("kernel", "options"), GEOMETRIES, ids=str)
def test_windows(kernel: tuple[int, int], options: dict[str, Any], parts: int) -> None:
    inputs = inputs_of((2, 24, 6, 8), kernel, **options)
    out = inputs[0].shape[-1]
    together = next(n for n in (4, 3, 2, 1) if out % n == 0)
    agrees(gradient(kernel, **options), inputs, WeightTile(8, 16, together, 4, parts))


@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [BF16, F16, torch.float32])
@pytest.mark.parametrize("image", [(1, 24, 2, 1), (1, 16, 8, 8), (3, 40, 5, 2), (2, 17, 1, 9), (1, 64, 17, 3)])
def test_sizes(image: tuple[int, ...], dtype: torch.dtype) -> None:
    agrees(gradient((3, 3), padding=1), inputs_of(image, (3, 3), dtype, padding=1), SMALL)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 1])
def test_nan_and_infinities_spread_as_in_eager(place: int, number: float) -> None:
    """An infinite gradient at the border and the zeros around an image give NaN, as in float64."""
    function, inputs = gradient((3, 3), padding=1), inputs_of((2, 17, 5, 6), (3, 3), padding=1)
    inputs[place][1, 3, 0, 5] = number
    result, _ = run(function, inputs, WeightTile(8, 16, 3, 4, 2))
    exact = function(*(x.double() for x in inputs))
    torch.testing.assert_close(not_finite(result), not_finite(exact), equal_nan=True)


def test_an_image_and_its_gradient_are_loaded_once_for_all_places() -> None:
    text = agrees(gradient((3, 3), padding=1), inputs_of((1, 16, 4, 8), (3, 3), padding=1), WeightTile(8, 16, 4, 4, 2))
    assert text.count("x = tl.load") == 3 * 6
    assert text.count("tl.fma") == 9 * 4


@pytest.mark.parametrize(
    ("kernel", "layout", "mask", "code"),
    [
        ((3, 3), torch.contiguous_format, (False, True, False), "layout"),
        ((3, 3), torch.channels_last, (True, True, False), "shared"),
        ((9, 9), torch.channels_last, (False, True, False), "window"),
    ],
)
def test_refusals(kernel: tuple[int, int], layout: torch.memory_format, mask: tuple[bool, ...], code: str) -> None:
    g, x, w = inputs_of((2, 16, 9, 9), kernel)
    inputs = g.contiguous(memory_format=layout), x.contiguous(memory_format=layout), w
    found = matched(on_gpu(gradient(kernel, mask=mask), *inputs))
    assert isinstance(found, Reason) and found.code == code


@takes_turns("capability")
@pytest.mark.parametrize("capability", [90, 80])
@pytest.mark.parametrize(("channels", "side", "kernel"), [thorough(96, 56, 7), (144, 28, 3), (17, 9, 5)])
def test_compiled(capability: int, channels: int, side: int, kernel: int) -> None:
    how = {"padding": kernel // 2}
    found = matched(
        on_gpu(gradient((kernel, kernel), **how), *inputs_of((2, channels, side, side), (kernel,) * 2, **how))
    )
    assert isinstance(found, FoundGradient)
    (tile, *_) = weight_tiles(found.gradient, 132, 2)
    assert found.gradient.sides[1].window.out % tile.together == 0
    first, _ = compiled(weight_triton(found.gradient, tile), capability)
    assert "local" not in first.asm["ptx"]

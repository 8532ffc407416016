"""The kernel for convolutions of single channels: interpreted against eager and float64, and compiled for GPUs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.tensors import not_finite
from support.thorough import one_row_in, takes_turns
from support.triton_convolution import agrees, found_in, on_gpu, run
from support.triton_gemm import near
from support.triton_kernels import compiled
from torch.nn import functional as F

from regraft.compiler.templates.convolution.triton_depthwise import (
    Depthwise,
    DepthwiseTile,
    depthwise_tiles,
    depthwise_triton,
    most_lines,
)
from regraft.compiler.templates.gemm.match import FoundProduct

BF16, F16 = torch.bfloat16, torch.float16
SMALL = DepthwiseTile(16, 16, 4, 4, 2)


def random(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    made = torch.randn(sizes, generator=generator).to(dtype)
    return made.to(memory_format=torch.channels_last) if len(sizes) == 4 else made


GEOMETRIES: list[tuple[tuple[int, int], dict[str, Any]]] = [
    ((3, 3), {"padding": 1}), ((7, 7), {"padding": 3}), ((3, 3), {"stride": 2, "padding": 1}), ((5, 5), {}),
    ((3, 5), {"dilation": (2, 1), "padding": (2, 0)}), ((3, 3), {"dilation": 2, "padding": 2, "stride": (1, 2)}),
    ((1, 1), {}), ((1, 3), {"padding": (0, 1)}), ((3, 1), {"padding": (1, 0)}), ((2, 2), {"stride": 2}),
]  # fmt: skip


@takes_turns("together", "lines")
@pytest.mark.parametrize(("together", "lines"), [(1, 1), (2, 1), (4, 1), (2, 2), (4, 3)])
@pytest.mark.parametrize(("kernel", "options"), GEOMETRIES, ids=str)
def test_windows(kernel: tuple[int, int], options: dict[str, Any], together: int, lines: int) -> None:
    inputs = random(2, 24, 6, 7), random(24, 1, *kernel)
    found = found_in(on_gpu(lambda x, w: F.conv2d(x, w, groups=24, **options), *inputs))
    lines = min(lines, most_lines(found.product))
    tile = DepthwiseTile(16, 16, together, 4, 2, lines=lines)
    found, _ = agrees(lambda x, w: F.conv2d(x, w, groups=24, **options), *inputs, tile=tile)
    assert isinstance(found.product, Depthwise)


@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [BF16, F16, torch.float32])
@pytest.mark.parametrize("image", [(1, 24, 2, 1), (1, 16, 8, 8), (3, 40, 5, 2), (2, 17, 1, 9), (1, 64, 17, 3)])
def test_sizes(image: tuple[int, ...], dtype: torch.dtype) -> None:
    inputs = random(*image, dtype=dtype), random(image[1], 1, 3, 3, dtype=dtype)
    agrees(lambda x, w: F.conv2d(x, w, padding=1, groups=image[1]), *inputs, tile=SMALL)


# Groups, channels of the image in a group, channels of the result.
GROUPS = [(12, 1, 2), (12, 1, 5), (6, 2, 1), (6, 4, 4), (5, 3, 2), (2, 2, 15)]


@one_row_in(2)
@takes_turns("kernel", "options")
@pytest.mark.parametrize(("kernel", "options"), GEOMETRIES[1:5], ids=str)
@pytest.mark.parametrize("groups", GROUPS, ids=str)
def test_groups_of_few_channels(groups: tuple[int, int, int], kernel: tuple[int, int], options: dict[str, Any]) -> None:
    count, few, outputs = groups
    inputs = random(2, count * few, 9, 8), random(count * outputs, few, *kernel)
    found, _ = agrees(lambda x, w: F.conv2d(x, w, groups=count, **options).relu(), *inputs, tile=SMALL)
    assert isinstance(found.product, Depthwise) and found.product.multiplier == outputs


def test_epilogues() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return F.silu(F.conv2d(x, w, padding=1, groups=24) + b.view(-1, 1, 1)) + r

    inputs = random(2, 24, 9, 11), random(24, 1, 3, 3), random(24), random(2, 24, 9, 11)
    found, source = agrees(function, *inputs, tile=SMALL)
    assert found.output is not found.call
    assert source.text.count("tl.store") == SMALL.depth


def test_convolution_that_is_read_elsewhere_is_written_too() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.conv2d(x, w, padding=1, groups=24)
        return F.silu(y), y

    inputs = [random(2, 24, 9, 11), random(24, 1, 3, 3)]
    results, found, source = run(function, inputs, SMALL)
    assert found.kept is found.call
    for place in range(2):
        near(results[place], lambda *x, place=place: function(*x)[place], inputs, 1.5, source)


@pytest.mark.parametrize("lines", [1, 2])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 1])
def test_nan_and_infinities_spread_as_in_eager(place: int, number: float, lines: int) -> None:
    """An infinite weight and the zeros around an image give NaN, as in float64 and by libraries for GPUs."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, padding=1, groups=24).relu()

    inputs = [random(2, 24, 9, 11), random(24, 1, 3, 3)]
    inputs[place][(0, 3, 4, 4) if place == 0 else (3, 0, 0, 0)] = number
    (result,), _, _ = run(function, inputs, DepthwiseTile(16, 16, 4, 4, 2, lines=lines))
    exact = function(*(x.double() for x in inputs))
    torch.testing.assert_close(not_finite(result), not_finite(exact), equal_nan=True)


def _found(channels: int, kernel: int) -> FoundProduct:
    inputs = random(2, channels, 56, 56), random(channels, 1, kernel, kernel)
    return found_in(on_gpu(lambda x, w: F.conv2d(x, w, padding=kernel // 2, groups=channels), *inputs))


def test_neighbours_share_what_they_load() -> None:
    found = found_in(
        on_gpu(lambda x, w: F.conv2d(x, w, padding=3, groups=96), random(2, 96, 56, 56), random(96, 1, 7, 7))
    )
    text = depthwise_triton(found.product, DepthwiseTile(32, 32, 4, 4, 2)).text
    assert text.count("x = tl.load") == 10
    assert text.count("tl.fma") == 28
    text = depthwise_triton(found.product, DepthwiseTile(32, 32, 4, 4, 2, lines=2)).text
    assert text.count("x = tl.load") == 3 * 10  # the first line, those that both lines of neighbours see, the last
    assert text.count("tl.fma") == 28 + 56 + 28
    assert text.count("w = tl.load") == 7 + 7  # for the second line of neighbours, they are kept


@takes_turns("capability")
@pytest.mark.parametrize("capability", [90, 80])
@pytest.mark.parametrize("multiplier", [1, 2])
def test_compiled(capability: int, multiplier: int) -> None:
    weight = random(96 * multiplier, 1, 7, 7)
    found = found_in(on_gpu(lambda x, w: F.conv2d(x, w, padding=3, groups=96), random(2, 96, 56, 56), weight))
    for tile in depthwise_tiles(found.product, 2):
        (made,) = compiled(depthwise_triton(found.product, tile), capability)
        assert "ld.global.v2" in made.asm["ptx"] or multiplier > 1
        assert "st.global.v2" in made.asm["ptx"]


def test_tiles_fit_the_channels() -> None:
    for channels, columns in ((96, 32), (384, 64), (144, 16), (8, 8), (3, 8)):
        found = _found(channels, 3)
        assert {tile.columns for tile in depthwise_tiles(found.product, 6)} == {columns}

"""The convolution kernel in Triton: interpreted against eager and float64, and compiled for GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.thorough import one_row_in, takes_turns
from support.triton_convolution import SMALL, agrees, found_in, interpreted, on_gpu, run
from support.triton_gemm import near
from support.triton_kernels import compiled
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from regraft.compiler.gpu import AMPERE, HOPPER
from regraft.compiler.templates.convolution import match as convolution_match
from regraft.compiler.templates.convolution.match import match_convolution
from regraft.compiler.templates.convolution.triton_implicit_gemm import convolution_triton, takes_boxes
from regraft.compiler.templates.convolution.triton_tiles import convolution_fits, convolution_tiles
from regraft.compiler.templates.gemm.match import FoundProduct
from regraft.compiler.templates.gemm.triton_tiles import GemmTile

aten = torch.ops.aten
BF16, F16 = torch.bfloat16, torch.float16
BOXES = GemmTile(32, 32, 16, 4, 2, descriptors=True)
BOTH = pytest.mark.parametrize("tile", [SMALL, BOXES], ids=["pointers", "boxes"])


def random(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    made = torch.randn(sizes, generator=generator).to(dtype)
    return made.to(memory_format=torch.channels_last) if len(sizes) == 4 else made


# -- windows ----------------------------------------------------------------------------------------------------------

GEOMETRIES: dict[str, dict[str, Any]] = {
    "plain": {}, "padding": {"padding": 1}, "wide_padding": {"padding": 3}, "stride": {"stride": 2, "padding": 1},
    "uneven": {"stride": (2, 1), "padding": (0, 1)}, "dilation": {"dilation": 2, "padding": 2},
    "all": {"stride": 2, "padding": (2, 1), "dilation": (1, 2)}, "groups": {"groups": 2, "padding": 1},
    "strided_groups": {"groups": 2, "stride": 2},
}  # fmt: skip


@pytest.mark.parametrize("name", GEOMETRIES)
def test_windows(name: str) -> None:
    options = GEOMETRIES[name]
    weight = random(40, 32 // options.get("groups", 1), 3, 3)
    agrees(lambda x, w: F.conv2d(x, w, **options), random(2, 32, 9, 7), weight)


@pytest.mark.parametrize("name", [name for name in GEOMETRIES if "stride" not in GEOMETRIES[name]])
def test_boxes(name: str) -> None:
    options = GEOMETRIES[name]
    weight = random(40, 32 // options.get("groups", 1), 3, 3)
    found, source = agrees(lambda x, w: F.conv2d(x, w, **options), random(2, 32, 9, 7), weight, tile=BOXES)
    assert takes_boxes(found.product, BOXES.depth, HOPPER)
    assert "make_tensor_descriptor" in source.text
    assert "mask" not in source.text.partition("make_tensor_descriptor")[2].partition("tl.dot")[0]


@one_row_in(2)
@takes_turns("dtype")
@BOTH
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(
    ("image", "weight"),
    [
        ((1, 16, 1, 1), (16, 16, 1, 1)),
        ((1, 16, 1, 1), (40, 16, 3, 3)),
        ((3, 16, 4, 4), (32, 16, 2, 2)),
        ((1, 48, 17, 5), (33, 48, 5, 3)),
        ((5, 32, 3, 3), (64, 32, 3, 3)),
        ((2, 16, 1, 40), (16, 16, 1, 7)),
    ],
)
def test_sizes(image: tuple[int, ...], weight: tuple[int, ...], dtype: torch.dtype, tile: GemmTile) -> None:
    pads = [k // 2 for k in weight[2:]]
    agrees(
        lambda x, w: F.conv2d(x, w, padding=pads), random(*image, dtype=dtype), random(*weight, dtype=dtype), tile=tile
    )


@pytest.mark.parametrize("channels", [17, 20, 40, 72])
def test_channels_that_fill_no_step(channels: int) -> None:
    found, source = agrees(
        lambda x, w: F.conv2d(x, w, padding=1, stride=2), random(2, channels, 6, 6), random(24, channels, 3, 3)
    )
    assert not takes_boxes(found.product, BOXES.depth, HOPPER)
    assert "inside[None, :]" in source.text


@takes_turns("options")
@pytest.mark.parametrize("channels", [1, 3, 4, 8])
@pytest.mark.parametrize("options", [{"stride": 2, "padding": 3}, {"padding": (1, 0)}, {"dilation": (2, 1)}], ids=str)
def test_few_channels_join_the_line_of_the_window(channels: int, options: dict[str, Any]) -> None:
    found, _ = agrees(lambda x, w: F.conv2d(x, w, **options), random(2, channels, 16, 11), random(24, channels, 7, 7))
    assert found.product.merged
    assert found.product.run == 7 * channels


def test_few_channels_of_a_dilated_line_stay_apart() -> None:
    found, _ = agrees(lambda x, w: F.conv2d(x, w, dilation=2), random(2, 3, 9, 9), random(24, 3, 3, 3))
    assert not found.product.merged


def test_weights_may_lie_in_any_way() -> None:
    weight = random(40, 32, 3, 3).contiguous()
    agrees(lambda x, w: F.conv2d(x, w, padding=1), random(2, 32, 6, 6), weight)
    agrees(lambda x, w: F.conv2d(x, w, padding=1), random(2, 3, 6, 6), random(40, 3, 3, 3).contiguous())


@pytest.mark.parametrize(("space", "kernel"), [((40,), (5,)), ((3, 6, 5), (1, 3, 3))])
@BOTH
def test_lines_and_volumes(space: tuple[int, ...], kernel: tuple[int, ...], tile: GemmTile) -> None:
    function = {1: F.conv1d, 3: F.conv3d}[len(space)]
    pads = [k // 2 for k in kernel]
    x, w = _laid_out(2, 32, *space), _laid_out(24, 32, *kernel)
    graph = torch.fx.Graph()
    given = [graph.placeholder(name) for name in "xw"]
    ones, zeros = [1] * len(space), [0] * len(space)
    call = graph.call_function(aten.convolution.default, (*given, None, ones, pads, ones, False, zeros, 1))
    expected = _laid_out(2, 24, *space)
    with FakeTensorMode():
        for node, value in ((given[0], x), (given[1], w), (call, expected)):
            node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
    found = match_convolution(call)
    assert isinstance(found, FoundProduct)
    (result,), source = interpreted(found, [x, w], tile, 3)
    exact = function(x.double(), w.double(), padding=pads)
    assert float((result.double() - exact).abs().max()) < 2**-8 * float(exact.abs().max()), source.text


def _laid_out(*sizes: int) -> torch.Tensor:
    made, channels = random(sizes[0], *sizes[2:], sizes[1]).contiguous(), len(sizes) - 1
    return made.permute(0, channels, *range(1, channels))


def test_conditions_vanish_where_windows_stay_inside() -> None:
    _, source = agrees(lambda x, w: F.conv2d(x, w, stride=2), random(2, 32, 9, 9), random(32, 32, 3, 3))
    assert "mask" not in source.text
    _, source = agrees(lambda x, w: F.conv2d(x, w, stride=2, padding=1), random(4, 32, 8, 8), random(32, 32, 3, 3))
    assert source.text.count("< 8") == 0  # the last window ends with the image
    assert ">= 0" in source.text


# -- epilogues --------------------------------------------------------------------------------------------------------

normed = torch.ops.aten._native_batch_norm_legit_no_training.default
EPILOGUES: dict[str, Callable[..., Any]] = {
    "bias_relu": lambda y, b, _: torch.relu(y + b.view(-1, 1, 1)), "silu": lambda y, *_: F.silu(y),
    "gelu": lambda y, b, _: F.gelu(y + b.view(1, -1, 1, 1)),
    "residual": lambda y, b, r: torch.relu(y + b.view(-1, 1, 1) + r),
    "scaled": lambda y, b, r: y * 0.125 + r * b.view(-1, 1, 1), "cast": lambda y, *_: y.float() * 2,
    "images": lambda y, _, r: y * r.narrow(0, 0, 1),
    "norm": lambda y, b, _: normed(y, b + 1, b, b, b.square() + 1, 0.1, 1e-5)[0].relu(),
    "line": lambda y, _, r: y + r.narrow(3, 0, 1), "relu6": lambda y, *_: torch.clamp(y, 0, 6),
}  # fmt: skip


@one_row_in(2)
@BOTH
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name: str, tile: GemmTile) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return EPILOGUES[name](F.conv2d(x, w, padding=1), b, r)

    inputs = [random(2, 32, 6, 7), random(40, 32, 3, 3), random(40), random(2, 40, 6, 7)]
    found, _ = agrees(function, *inputs, tile=tile)
    assert found.output is not found.call


def test_bias_of_the_call_itself() -> None:
    agrees(lambda x, w, b: F.conv2d(x, w, b).relu(), random(2, 32, 6, 6), random(40, 32, 3, 3), random(40))


def test_residuals_are_read_where_they_are() -> None:
    inputs = [random(2, 32, 6, 6), random(40, 32, 3, 3), random(2, 40, 6, 6).contiguous()]
    _, source = agrees(lambda x, w, r: F.conv2d(x, w, padding=1).sigmoid() + r, *inputs)
    assert "36 * j" in source.text


@takes_turns("number")
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@BOTH
def test_nan_and_infinities_spread_as_in_eager(number: float, tile: GemmTile) -> None:
    for place in (0, 2):
        inputs = [random(2, 32, 6, 6), random(40, 32, 3, 3), random(40)]
        inputs[place][(0, 3, 2, 2) if place == 0 else 5] = number
        agrees(lambda x, w, b: torch.relu(F.conv2d(x, w, padding=1) + b.view(-1, 1, 1)), *inputs, tile=tile)


@BOTH
def test_convolution_that_is_read_elsewhere_is_written_too(tile: GemmTile) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.conv2d(x, w, padding=1)
        return F.silu(y), y

    inputs = [random(2, 32, 6, 6), random(40, 32, 3, 3)]
    results, found, source = run(function, inputs, tile)
    assert found.kept is found.call
    for place in range(2):
        near(results[place], lambda *x, place=place: function(*x)[place], inputs, 1.5, source)


# -- machine code -----------------------------------------------------------------------------------------------------


def relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.conv2d(x, w, padding=1) + b.view(-1, 1, 1))


@pytest.mark.parametrize(
    ("tile", "gpu"),
    [
        (GemmTile(128, 64, 64, 4, 4), HOPPER),
        (GemmTile(128, 64, 64, 4, 4, True), HOPPER),
        (GemmTile(128, 64, 32, 4, 4), AMPERE),
    ],
    ids=str,
)
def test_compiled(tile: GemmTile, gpu: Any) -> None:
    found = found_in(on_gpu(relu, random(2, 64, 56, 56), random(64, 64, 3, 3), random(64)))
    assert convolution_fits(found.product, tile, gpu)
    (made,) = compiled(convolution_triton(found.product, tile, 132), gpu.capability)
    assert ("wgmma" if gpu.capability == 90 else "mma.sync") in made.asm["ptx"]
    assert made.metadata.shared <= gpu.shared_bytes
    assert ("cp.async.bulk.tensor" in made.asm["ptx"]) == tile.descriptors
    assert ("cp.async.cg.shared" in made.asm["ptx"]) != tile.descriptors
    assert "st.global.v4" in made.asm["ptx"]


def test_tiles() -> None:
    found = found_in(on_gpu(relu, random(2, 64, 56, 56), random(64, 64, 3, 3), random(64)))
    for gpu in (HOPPER, AMPERE):
        tiles = convolution_tiles(found.product, gpu, 4)
        assert len(tiles) == 4
        assert all(convolution_fits(found.product, tile, gpu) for tile in tiles)
        assert any(tile.descriptors for tile in tiles) == (gpu is HOPPER)


def test_float32_where_convolutions_may_be_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_match, "convolutions_allow_tf32", lambda: True)
    inputs = [random(2, 32, 6, 6).float(), random(40, 32, 3, 3).float()]  # of few digits: nothing is cut short
    _, source = agrees(lambda x, w: F.conv2d(x, w, padding=1), *inputs)
    assert 'input_precision="tf32"' in source.text

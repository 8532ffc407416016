"""The direct kernel of convolutions on CPUs: against float64, in every geometry, on vectors of every width."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import torch
from support.tensors import not_finite
from support.thorough import one_row_in
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.codegen.cpp import target
from regraft.compiler.templates.convolution.cpp_direct import direct_cpp
from regraft.compiler.templates.convolution.direct import direct_kernel, gradient_kernel

aten = torch.ops.aten

# sizes of images, weight, then stride, padding, dilation, transposed, output padding, groups
CASES: dict[str, tuple[Any, ...]] = {
    "plain": ((2, 5, 11, 13), (9, 5, 3, 3), [1], [1], [1], False, [0], 1),
    "pixel": ((1, 40, 9, 20), (17, 40, 1, 1), [1], [0], [1], False, [0], 1),
    "fewer pixels than lanes": ((3, 4, 2, 3), (5, 4, 1, 1), [1], [0], [1], False, [0], 1),
    "one pixel": ((2, 8, 1, 1), (6, 8, 1, 1), [1], [0], [1], False, [0], 1),
    "no padding": ((1, 3, 9, 33), (8, 3, 2, 4), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "stride": ((1, 3, 37, 50), (8, 3, 7, 7), [2, 2], [3, 3], [1, 1], False, [0, 0], 1),
    "patches": ((2, 3, 16, 40), (7, 3, 4, 4), [4, 4], [0, 0], [1, 1], False, [0, 0], 1),
    "stride beyond the window": ((1, 4, 20, 21), (6, 4, 1, 2), [3, 3], [0, 1], [1, 1], False, [0, 0], 1),
    "dilation": ((1, 4, 21, 22), (6, 4, 3, 3), [2, 1], [4, 3], [3, 2], False, [0, 0], 1),
    "groups": ((2, 12, 9, 10), (18, 4, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 3),
    "depthwise": ((2, 6, 19, 20), (12, 1, 5, 5), [1, 1], [2, 2], [1, 1], False, [0, 0], 6),
    "many products": ((1, 300, 7, 7), (20, 300, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "many pixels": ((1, 40, 60, 70), (10, 40, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "signals": ((2, 7, 65), (9, 7, 3), [1], [4], [4], False, [0], 1),
    "volumes": ((1, 3, 6, 7, 9), (4, 3, 3, 2, 3), [2, 1, 1], [1, 0, 1], [1, 2, 1], False, [0, 0, 0], 1),
    "transposed": ((2, 6, 7, 9), (6, 5, 4, 4), [2, 2], [1, 1], [1, 1], True, [0, 0], 1),
    "transposed, more": ((1, 6, 5, 7), (6, 3, 3, 2), [3, 2], [1, 0], [2, 1], True, [2, 1], 2),
    "transposed, stride beyond the window": ((1, 4, 5, 6), (4, 3, 2, 1), [3, 2], [0, 0], [1, 1], True, [0, 1], 1),
    "transposed volumes": ((1, 4, 3, 4, 5), (4, 2, 2, 3, 3), [2, 2, 1], [0, 1, 1], [1, 1, 1], True, [0, 0, 0], 1),
}  # fmt: skip


def call_of(name: str, dtype: torch.dtype, has_bias: bool) -> tuple[list[torch.Tensor], fx.Node]:
    """Image, weight and perhaps a bias, and the node that convolves them."""
    image, weight, *geometry = CASES[name]
    torch.manual_seed(len(name))
    channels = weight[1] * geometry[-1] if geometry[3] else weight[0]
    given = [torch.randn(image), torch.randn(weight), *([torch.randn(channels)] if has_bias else [])]
    given = [x.to(dtype) for x in given]
    without = (
        (lambda x, w: aten.convolution(x, w, None, *geometry)),
        (lambda x, w, b: aten.convolution(x, w, b, *geometry)),
    )
    traced = make_fx(without[has_bias], tracing_mode="fake")(*given)
    (node,) = traced.graph.find_nodes(op="call_function", target=aten.convolution.default)
    return given, node


def assert_right(name: str, dtype: torch.dtype, has_bias: bool) -> None:
    """The result has eager's layout and is as near to float64 as one rounding of sums in float32 is."""
    given, node = call_of(name, dtype, has_bias)
    kernel = direct_kernel(node)
    assert kernel is not None
    ours = kernel(*given)
    geometry = CASES[name][2:]
    exact = aten.convolution(*(x.double() for x in given), *([] if has_bias else [None]), *geometry)
    assert ours.shape == exact.shape and ours.stride() == exact.stride() and ours.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 5e-3
    torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance * float(exact.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_geometries(name: str) -> None:
    assert_right(name, torch.float32, True)
    assert_right(name, torch.bfloat16, False)


@one_row_in(2)
@pytest.mark.parametrize("name", ["avx2", "generic", "scalar"])
def test_narrower_vectors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.compiler.templates.common.cpp_call.host_target", lambda: target(name))
    direct_kernel.__globals__["_kernel"].cache_clear()
    for case in ("plain", "stride", "depthwise", "transposed, more", "many products", "fewer pixels than lanes"):
        assert_right(case, torch.float32, True)
    direct_kernel.__globals__["_kernel"].cache_clear()


def test_threads() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for name in ("many pixels", "groups", "many products"):
            assert_right(name, torch.float32, True)
    finally:
        torch.set_num_threads(threads)


def test_neighbouring_memory_is_neither_read_nor_written() -> None:
    """NaN behind image and weight reach no sum, and what lies around the result stays."""
    for name in ("pixel", "no padding", "plain", "fewer pixels than lanes", "patches"):
        given, node = call_of(name, torch.float32, True)
        kernel = direct_kernel(node)
        assert kernel is not None
        within = [torch.full((x.numel() + 400,), float("nan")) for x in given]
        for x, memory in zip(given, within, strict=True):
            memory[200:-200] = x.flatten()
        placed = [memory[200:-200].view(x.shape) for x, memory in zip(given, within, strict=True)]
        around = torch.full((node.meta["val"].numel() + 400,), 7.0)
        kernel.build()(*placed, around[200:-200], *kernel.numbers)
        torch.testing.assert_close(around[200:-200].view(node.meta["val"].shape), kernel(*given), rtol=0, atol=0)
        assert (around[:200] == 7).all() and (around[-200:] == 7).all()


def test_pairs_of_channels() -> None:
    """Bfloat16 by twos: odd numbers of channels, weights that lie side by side, strides, groups, single channels."""
    for name in ("pixel", "plain", "stride", "groups", "depthwise", "transposed", "transposed, more", "volumes"):
        assert_right(name, torch.bfloat16, True)


def test_two_sources_serve_all_sizes() -> None:
    """One has the tiles of all heights, one the highest alone: of channels that these fill."""
    kernels = [direct_kernel(call_of(name, torch.float32, True)[1]) for name in CASES]
    assert len({kernel.unit() for kernel in kernels if kernel is not None}) == 2
    assert all(kernel is not None for kernel in kernels)
    few, many = (len(re.findall(r"tile<\d+, \d+, false>", direct_cpp(torch.float32, 16, n))) for n in (64, 65))
    assert 4 * few < many


def test_not_a_finite_number_stays() -> None:
    given, node = call_of("plain", torch.float32, True)
    given[0][0, 1, 4, 5], given[0][1, 2, 3, 3] = float("nan"), float("inf")
    kernel = direct_kernel(node)
    assert kernel is not None
    expected = aten.convolution(*given, *CASES["plain"][2:])
    assert torch.equal(kernel(*given).isnan(), expected.isnan())


@pytest.mark.parametrize("name", CASES)
def test_infinite_weights_meet_the_zeros_that_they_meet_in_eager(name: str) -> None:
    """Those around the image in a convolution, none in a transposed one and in gradients for images."""
    for dtype in (torch.float32, torch.bfloat16):
        given, node = call_of(name, dtype, True)
        given[1].view(-1)[0], given[1].view(-1)[-1] = float("inf"), -float("inf")
        kernel, geometry = direct_kernel(node), CASES[name][2:]
        assert kernel is not None
        exact = aten.convolution(*(x.double() for x in given), *geometry)
        torch.testing.assert_close(not_finite(kernel(*given)), not_finite(exact), equal_nan=True)
        x, w, _ = given
        above = torch.randn_like(exact).to(dtype)
        node = _gradients(above, x, w, *geometry)
        kernel = gradient_kernel(node)
        assert kernel is not None
        exact = aten.convolution_backward(above.double(), x.double(), w.double(), None, *geometry, MASK)[0]
        torch.testing.assert_close(not_finite(kernel(above, w)), not_finite(exact), equal_nan=True)


MASK = [True, True, False]


def _gradients(above: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *geometry: Any) -> fx.Node:
    """The node that computes the gradients for images and weights."""

    def function(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        return aten.convolution_backward(g, x, w, None, *geometry, MASK)[:2]

    traced = make_fx(function, tracing_mode="fake")(above, x, w)
    (node,) = traced.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    return node


@pytest.mark.parametrize("name", ["plain", "stride", "dilation", "groups", "signals", "transposed, more", "volumes"])
def test_gradients_for_images(name: str) -> None:
    image, weight, *geometry = CASES[name]
    torch.manual_seed(0)
    x, w = torch.randn(image), torch.randn(weight)
    above = torch.randn_like(aten.convolution(x, w, None, *geometry))
    node = _gradients(above, x, w, *geometry)
    kernel = gradient_kernel(node)
    assert kernel is not None
    exact = aten.convolution_backward(above.double(), x.double(), w.double(), None, *geometry, MASK)[0]
    torch.testing.assert_close(kernel(above, w).double(), exact, rtol=1e-5, atol=1e-5 * float(exact.abs().max()))


def test_random_geometries() -> None:
    draw = random.Random(5)
    made = 0
    while made < 60:
        dims, transposed = draw.choice([1, 2, 2, 3]), draw.random() < 0.4
        groups = draw.choice([1, 1, 2, 3])
        channels, columns = groups * draw.randint(1, 6), groups * draw.randint(1, 11)
        window, stride, dilation = ([draw.randint(1, 3) for _ in range(dims)] for _ in range(3))
        padding = [draw.randint(0, 3) for _ in range(dims)]
        more = [draw.randint(0, max(s, d) - 1) if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
        image = (draw.randint(1, 3), channels, *(draw.randint(1, 24) for _ in range(dims)))
        weight = (channels, columns // groups) if transposed else (columns, channels // groups)
        name = f"drawn {made}"
        CASES[name] = (image, (*weight, *window), stride, padding, dilation, transposed, more, groups)
        try:
            _, node = call_of(name, torch.float32, True)
        except RuntimeError:
            continue
        made += 1
        if all(node.meta["val"].shape):
            assert_right(name, torch.float32, True)
    for n in range(made + 1):
        CASES.pop(f"drawn {n}", None)

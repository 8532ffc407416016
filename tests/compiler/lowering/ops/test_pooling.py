"""Pooling against eager: padding, ceil mode, dilation, divisors, NaN, infinities, both memory formats, gradients."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lowering import agree
from support.tensors import NAN
from support.thorough import examples

from regraft.compiler.lowering.ops import pooling

aten = torch.ops.aten
functional = torch.nn.functional
EXAMPLES = settings(max_examples=examples(6, 15), deadline=None)
FORMATS = st.sampled_from([torch.contiguous_format, torch.channels_last])
HALF = {"rtol": 2e-2, "atol": 2e-2}


@st.composite
def geometries(draw, *, dilated):
    """kernel, stride, padding, dilation, ceil_mode of two dims."""
    pair = lambda low, high: [draw(st.integers(low, high)), draw(st.integers(low, high))]  # noqa: E731
    kernel = pair(1, 4)
    padding = [draw(st.integers(0, k // 2)) for k in kernel]
    return kernel, pair(1, 4), padding, pair(1, 2) if dilated else [1, 1], draw(st.booleans())


def image(seed, dtype=torch.float32, memory_format=torch.contiguous_format):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, 9, 8, generator=generator).to(dtype).to(memory_format=memory_format)


SEEDS = st.integers(0, 2**16)


@EXAMPLES
@given(
    geometries(dilated=True),
    SEEDS,
    FORMATS,
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
    st.booleans(),
)
def test_max_pool(geometry, seed, memory_format, dtype, dynamic):
    x = (4 * image(seed, memory_format=memory_format)).to(dtype)  # with ties, where integers
    agree(lambda x: aten.max_pool2d_with_indices(x, *geometry), x, exact=True, dynamic=dynamic)


@EXAMPLES
@given(geometries(dilated=True), SEEDS, st.sampled_from([NAN, float("inf"), -float("inf")]), st.floats(0.05, 1))
def test_max_pool_of_special_values(geometry, seed, special, share):
    x = image(seed)
    x[torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < share] = special
    agree(lambda x: aten.max_pool2d_with_indices(x, *geometry), x, exact=True)


@pytest.mark.parametrize("geometry", [([3, 3], [2, 2], [1, 1]), ([2, 3], [1, 2], [1, 0], [2, 1], True)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_max_pool_as_on_gpus(geometry, dtype, monkeypatch):
    """One expression, NaN and infinities as in a reduction."""
    monkeypatch.setattr(pooling, "_is_unrolled", lambda low, count: True)
    monkeypatch.setattr(pooling, "are_separable", lambda low, windows: False)
    x = (4 * image(0, memory_format=torch.channels_last)).to(dtype)
    if dtype.is_floating_point:
        x[:, :, 2, 3], x[:, 0, 5:], x[:, 1, 6] = NAN, -float("inf"), float("inf")
        x[:, :, 2, 4] = NAN
    made = agree(lambda x: aten.max_pool2d_with_indices(x, *geometry), x, exact=True)
    assert not any(item.reductions for item in made.program.items if item.name == "max_pool2d_with_indices")


@EXAMPLES
@given(geometries(dilated=True), SEEDS, st.sampled_from([NAN, float("inf"), -float("inf")]), st.floats(0.05, 1))
def test_max_pool_of_special_values_as_on_gpus(geometry, seed, special, share):
    x = image(seed)
    x[torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < share] = special
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooling, "_is_unrolled", lambda low, count: count <= 9)
        patch.setattr(pooling, "are_separable", lambda low, windows: False)
        agree(lambda x: aten.max_pool2d_with_indices(x, *geometry), x, exact=True)


@EXAMPLES
@given(geometries(dilated=True), SEEDS, FORMATS, st.booleans())
def test_gradient_of_max_pool(geometry, seed, memory_format, dynamic):
    x = image(seed, torch.float64, memory_format)
    out, indices = aten.max_pool2d_with_indices(x, *geometry)
    back = aten.max_pool2d_with_indices_backward
    agree(lambda g, x, i: back(g, x, *geometry, i), torch.randn_like(out), x, indices, dynamic=dynamic)


@pytest.mark.parametrize(
    "geometry, apart",
    [
        (([3, 3], [1, 1]), True),
        (([3, 3], [2, 2], [1, 1]), True),
        (([5, 4], [1, 2], [2, 1], [1, 2]), True),
        (([2, 2], [2, 2]), False),
        (([2, 5], [3, 1]), False),
    ],
    ids=str,
)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_windows_are_folded_dim_by_dim_where_that_reads_less(geometry, apart, memory_format):
    x = image(0, memory_format=memory_format)
    made = agree(lambda x: aten.max_pool2d_with_indices(x, *geometry)[0], x, exact=True)
    folds = [item for item in made.program.items if item.reductions and item.reductions[0].reducer == "max"]
    assert [len(item.reduced) for item in folds] == ([1, 1] if apart else [2])
    if apart:
        strides = made.program.buffers[folds[0].stores[0].buffer].strides
        assert strides[1 if memory_format == torch.channels_last else 3] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_means_of_wide_windows_are_folded_dim_by_dim(dtype):
    near = HALF if dtype == torch.bfloat16 else {}
    geometry = [4, 5], [2, 1], [1, 0], True, False
    made = agree(lambda x: aten.avg_pool2d(x, *geometry), image(0, dtype), **near)
    assert [len(item.reduced) for item in made.program.items] == [1, 1]
    between = made.program.buffers[made.program.items[0].stores[0].buffer]
    assert between.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)


def test_means_in_3_dims_are_folded_dim_by_dim():
    x = torch.randn(2, 3, 9, 8, 7)
    for geometry in (([3, 3, 3], [1, 2, 1], [1, 1, 0], False, False), ([4, 3, 3], [2, 1, 1], [0, 0, 0], True)):
        made = agree(lambda x, g=geometry: aten.avg_pool3d(x, *g), x)
        assert [len(item.reduced) for item in made.program.items] == [1, 1, 1]


def test_max_pool_in_1_and_3_dims():
    x = image(0)
    agree(lambda x: functional.max_pool1d(x, 3, 2, 1, return_indices=True), x[0], exact=True)
    agree(lambda x: functional.max_pool3d(x, 2, 2, 1, return_indices=True), x, exact=True)
    out, indices = aten.max_pool3d_with_indices(x, [2, 2, 2], [2, 2, 2], [1, 1, 1])
    back = aten.max_pool3d_with_indices_backward
    geometry = ([2, 2, 2], [2, 2, 2], [1, 1, 1], [1, 1, 1], False)
    agree(lambda g, x, i: back(g, x, *geometry, i), torch.randn_like(out), x, indices)


@EXAMPLES
@given(geometries(dilated=False), SEEDS, FORMATS, st.booleans(), st.sampled_from([None, 3]), st.booleans())
def test_avg_pool(geometry, seed, memory_format, with_padding, divisor, dynamic):
    kernel, stride, padding, _, ceil_mode = geometry
    x = image(seed, torch.float64, memory_format)
    rest = (kernel, stride, padding, ceil_mode, with_padding, divisor)
    agree(lambda x: aten.avg_pool2d(x, *rest), x, dynamic=dynamic)
    grad = torch.randn_like(aten.avg_pool2d(x, *rest))
    agree(lambda g, x: aten.avg_pool2d_backward(g, x, *rest), grad, x, dynamic=dynamic)


@pytest.mark.parametrize(
    "kernel, stride, padding, dilation",
    [(9, 200, 0, 1), (12, 200, 3, 1), (200, 200, 4, 1), (200, 3, 95, 1), (12, 2, 3, 1), (11, 3, 4, 1), (6, 2, 3, 2)],
)
def test_windows_wider_than_an_image_see_no_more_than_there_is(kernel, stride, padding, dilation):
    x = image(0, torch.float64)
    most = (9 + padding) * (8 + padding)  # elements of the image and one side of its padding
    rest = ([kernel, kernel], [stride, stride], [padding, padding])
    wide = agree(lambda x: aten.max_pool2d_with_indices(x, *rest, [dilation, dilation], True), x, exact=True)
    made = [wide]
    if dilation == 1:
        for with_padding in (False, True):
            grad = torch.randn_like(aten.avg_pool2d(x, *rest, True, with_padding))
            made.append(agree(lambda x, w=with_padding: aten.avg_pool2d(x, *rest, True, w), x))
            back = lambda g, x, w=with_padding: aten.avg_pool2d_backward(g, x, *rest, True, w, None)  # noqa: E731
            made.append(agree(back, grad, x))
    folds = [item.reduced for one in made for item in one.program.items if item.reductions]
    assert all(math.prod(loop.extent for loop in loops) <= most for loops in folds)


def test_avg_pool_in_1_and_3_dims():
    x = image(0)
    agree(lambda x: functional.avg_pool1d(x, 3, 2, 1), x[0])
    agree(lambda x: functional.avg_pool3d(x, 2, 2, 1), x)
    rest = ([2, 2, 2], [2, 2, 2], [1, 1, 1], False, True, None)
    grad = torch.randn_like(aten.avg_pool3d(x, *rest))
    agree(lambda g, x: aten.avg_pool3d_backward(g, x, *rest), grad, x)


def test_avg_pool_of_16_bit_floats():
    x = image(0, torch.bfloat16)
    agree(lambda x: functional.avg_pool2d(x, 5, 2, 1), x, **HALF)
    agree(lambda x: functional.adaptive_avg_pool2d(x, (2, 3)), x, **HALF)


def test_a_mean_of_integers_stays_a_call():
    name = "aten.avg_pool2d.default"
    agree(lambda x: aten.avg_pool2d(x, [2, 2]), torch.arange(16).reshape(1, 4, 4), extern={name})


OUTS = st.tuples(st.integers(1, 12), st.integers(1, 12))


@EXAMPLES
@given(OUTS, SEEDS, FORMATS, st.booleans())
def test_adaptive_avg_pool(outs, seed, memory_format, dynamic):
    x = image(seed, torch.float64, memory_format)
    agree(lambda x: aten._adaptive_avg_pool2d(x, outs), x, dynamic=dynamic)
    grad = torch.randn_like(aten._adaptive_avg_pool2d(x, outs))
    agree(lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), grad, x, dynamic=dynamic)


@EXAMPLES
@given(OUTS, SEEDS, FORMATS, st.booleans(), st.floats(0, 1))
def test_adaptive_max_pool(outs, seed, memory_format, dynamic, share):
    x = image(seed, torch.float64, memory_format)
    out, indices = aten.adaptive_max_pool2d(x, outs)
    back = aten.adaptive_max_pool2d_backward
    agree(lambda g, x, i: back(g, x, i), torch.randn_like(out), x, indices, dynamic=dynamic)
    x[torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < share] = NAN
    agree(lambda x: aten.adaptive_max_pool2d(x, outs), x, exact=True, dynamic=dynamic)


def test_adaptive_pools_in_3_dims():
    x = image(0, torch.float64)
    agree(lambda x: functional.adaptive_avg_pool3d(x, (2, 4, 3)), x)
    agree(lambda x: functional.adaptive_max_pool3d(x, (2, 4, 3), return_indices=True), x, exact=True)


@EXAMPLES
@given(geometries(dilated=True), SEEDS, st.booleans())
def test_columns(geometry, seed, batched):
    kernel, stride, padding, dilation, _ = geometry
    rest = (kernel, dilation, padding, stride)
    x = image(seed, torch.float64) if batched else image(seed, torch.float64)[0]
    columns = aten.im2col(x, *rest)
    agree(lambda x: aten.im2col(x, *rest), x, exact=True)
    agree(lambda c: aten.col2im(c, [9, 8], *rest), columns)


@pytest.mark.parametrize("kernel, count", [([2, 2], 1), ([3, 3], 9), ([4, 4], 16)])
def test_few_windows_are_summed_without_a_reduction(kernel, count):
    x = image(0)
    stride = kernel if count == 1 else [1, 1]
    rest = (kernel, stride, [0, 0], False, True, None)
    grad = torch.randn_like(aten.avg_pool2d(x, *rest))
    made = agree(lambda g, x: aten.avg_pool2d_backward(g, x, *rest), grad, x)
    assert [len(item.reductions) for item in made.program.items] == [int(count > 9)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_unpooling(dtype):
    x = image(0, dtype)
    small, places = functional.max_pool2d(x.float(), 2, return_indices=True)
    agree(lambda x, i: functional.max_unpool2d(x, i, 2), small.to(dtype), places)
    agree(lambda x, i: functional.max_unpool2d(x, i, 2, output_size=[9, 8]), small.to(dtype), places)
    agree(lambda x, i: functional.max_unpool2d(x, torch.zeros_like(i), 2)[..., 1:], small.to(dtype), places)


def test_unpooling_in_1_and_3_dims():
    x = torch.randn(2, 3, 8)
    agree(lambda x, i: functional.max_unpool1d(x, i, 2), *functional.max_pool1d(x, 2, return_indices=True))
    x = torch.randn(2, 3, 4, 6, 8)
    agree(lambda x, i: functional.max_unpool3d(x, i, 2), *functional.max_pool3d(x, 2, return_indices=True))

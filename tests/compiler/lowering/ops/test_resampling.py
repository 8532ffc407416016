"""Resampling against eager: the same elements are taken, at any sizes, scales and dtypes; gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.lowering import agree
from support.thorough import examples

aten = torch.ops.aten
functional = torch.nn.functional
EXAMPLES = settings(max_examples=examples(5, 12), deadline=None)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
SIZES = st.tuples(st.integers(1, 24), st.integers(1, 24))
EDGES = {(14, 23)}  # where float32 and float64 choose other elements, and eager's kernels for float64 use either
FORMATS = st.sampled_from([torch.contiguous_format, torch.channels_last])


def image(sizes, dtype=torch.float64, memory_format=torch.contiguous_format):
    x = torch.randn(2, 3, *sizes, generator=torch.Generator().manual_seed(0))
    return x.to(dtype).to(memory_format=memory_format)


def tolerance(dtype):
    return {torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}, torch.float32: {"rtol": 1e-4, "atol": 1e-5}}.get(dtype, {})


@pytest.mark.parametrize("name", ["upsample_nearest2d", "_upsample_nearest_exact2d"])
@EXAMPLES
@given(sizes=SIZES, outs=SIZES, dtype=DTYPES, memory_format=FORMATS, dynamic=st.booleans())
def test_nearest(name, sizes, outs, dtype, memory_format, dynamic):
    assume(dtype != torch.float64 or not EDGES & {*zip(sizes, outs, strict=True)})
    x = image(sizes, dtype, memory_format)
    kept = {f"aten.{name}.default"} if dynamic and dtype == torch.float64 and max(sizes) > 1 else set()
    agree(lambda x: getattr(aten, name)(x, outs), x, exact=True, dynamic=dynamic, extern=kept)


@pytest.mark.parametrize("name", ["upsample_nearest2d_backward", "_upsample_nearest_exact2d_backward"])
@EXAMPLES
@given(sizes=SIZES, outs=SIZES, whole=st.booleans(), dynamic=st.booleans())
def test_gradient_of_nearest(name, sizes, outs, whole, dynamic):
    outs = [2 * sizes[0], 3 * sizes[1]] if whole else list(outs)
    x, grad = image(sizes, torch.float32), image(outs, torch.float32)
    agree(lambda g, x: getattr(aten, name)(g, outs, list(x.shape)), grad, x, dynamic=dynamic)


@pytest.mark.parametrize("name", ["upsample_bilinear2d", "upsample_bicubic2d"])
@EXAMPLES
@given(sizes=SIZES, outs=SIZES, corners=st.booleans(), dtype=DTYPES, memory_format=FORMATS, dynamic=st.booleans())
def test_smooth(name, sizes, outs, corners, dtype, memory_format, dynamic):
    x = image(sizes, dtype, memory_format)
    agree(lambda x: getattr(aten, name)(x, outs, corners), x, dynamic=dynamic, **tolerance(dtype))


@pytest.mark.parametrize("name", ["upsample_bilinear2d_backward", "upsample_bicubic2d_backward"])
@settings(max_examples=8, deadline=None)
@given(sizes=SIZES, outs=SIZES, corners=st.booleans())
def test_gradient_of_smooth(name, sizes, outs, corners):
    x, grad = image(sizes), image(outs)
    agree(lambda g, x: getattr(aten, name)(g, list(outs), list(x.shape), corners), grad, x)


@pytest.mark.parametrize("mode", ["nearest-exact", "bilinear", "bicubic"])
@EXAMPLES
@given(sizes=SIZES, scale=st.sampled_from([0.4, 0.75, 1.0, 1.3, 2.0, 2.7, 3.0]))
def test_scales_are_taken_as_given(mode, sizes, scale):
    sizes = [max(size, 3) for size in sizes]
    agree(
        lambda x: functional.interpolate(x, scale_factor=scale, mode=mode),
        image(sizes, torch.float32),
        rtol=1e-3,
        atol=1e-4,
    )


@pytest.mark.parametrize("scale", [0.6, 1.7, 2.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nearest_at_a_scale(scale, dtype):
    x = image((11, 10), dtype)
    agree(lambda x: functional.interpolate(x, scale_factor=scale), x, exact=True)


@pytest.mark.parametrize("name", ["bilinear2d", "bicubic2d"])
@pytest.mark.parametrize("factor", [1.3, 2.1])
def test_gradient_at_a_scale(name, factor):
    backward, x = getattr(aten, f"upsample_{name}_backward"), image((5, 7))
    outs = [int(5 * factor), int(7 * factor)]
    agree(lambda g: backward(g, outs, list(x.shape), False, factor, factor), image(outs))


def test_a_cubic_gradient_of_the_same_size_stays_a_call():
    backward = aten.upsample_bicubic2d_backward
    name = "aten.upsample_bicubic2d_backward.default"
    agree(lambda g: backward(g, [3, 3], [2, 3, 3, 3], False, 1.3, 1.3), image((3, 3)), extern={name})
    agree(lambda g: backward(g, [3, 3], [2, 3, 3, 3], False), image((3, 3)))


def test_scales_that_eagers_kernels_disagree_on_stay_calls():
    name = "aten.upsample_nearest2d.default"
    agree(lambda x: functional.interpolate(x, scale_factor=2.1), image((5, 5)), extern={name})


def test_what_eagers_kernels_for_float64_disagree_on_stays_a_call():
    function, name = aten._upsample_nearest_exact2d, "aten._upsample_nearest_exact2d.default"
    agree(lambda x: function(x, [23, 5]), image((14, 3)), extern={name})
    agree(lambda x: function(x, [23, 5]), image((14, 3), torch.float32), exact=True)


def test_1_and_3_dims():
    x = image((5, 7))
    agree(lambda x: functional.interpolate(x[0], 13, mode="linear"), x)
    agree(lambda x: functional.interpolate(x, 13), x[0], exact=True)
    agree(lambda x: functional.interpolate(x, (4, 9, 6), mode="trilinear"), x[None])
    agree(lambda x: functional.interpolate(x, (4, 9, 6), mode="nearest-exact"), x[None], exact=True)
    agree(
        lambda g: aten.upsample_trilinear3d_backward(g, [4, 9, 6], [1, 2, 3, 5, 7], False), torch.randn(1, 2, 4, 9, 6)
    )


def test_bytes():
    x = (10 * image((5, 7)).abs()).to(torch.uint8)
    agree(lambda x: functional.interpolate(x, (4, 9)), x, exact=True)
    agree(lambda x: aten.upsample_bilinear2d(x, [4, 9], False), x, extern={"aten.upsample_bilinear2d.default"})


def test_a_whole_multiple_needs_no_check_and_no_scatter():
    made = agree(lambda g: aten.upsample_nearest2d_backward(g, [10, 14], [2, 3, 5, 7]), image((10, 14)))
    assert len(made.program.items) == 1
    made = agree(lambda x: aten.upsample_nearest2d(x, [10, 14]), image((5, 7)), exact=True)
    assert "Loaded" not in repr(made.program.items)


@pytest.mark.parametrize("outs", [(3, 5), (3, 10), (6, 5), (2, 3)])
@pytest.mark.parametrize("align_corners", [False, True])
def test_linear_of_infinite_elements(outs, align_corners):
    """0 times infinity is NaN: in an output of the same size for the element itself, else for its neighbours."""
    x = image((3, 5), torch.float32)
    x[0, 0, 1, 1], x[1, 2, 0, 4], x[1, 1, 2, 0] = torch.inf, -torch.inf, torch.nan
    agree(lambda x: aten.upsample_bilinear2d(x, outs, align_corners), x, **tolerance(torch.float32))
    agree(lambda x: aten.upsample_linear1d(x, [outs[1]], align_corners), x[0], **tolerance(torch.float32))

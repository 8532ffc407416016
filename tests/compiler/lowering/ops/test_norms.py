"""Normalization against eager, forward and backward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lowering import agree, agree_on_call, run, trace
from support.thorough import examples, one_row_in
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.ir.program import Definition
from regraft.compiler.ir.value import Load, Op, walk
from regraft.compiler.lowering import lower

aten = torch.ops.aten
EXAMPLES = settings(max_examples=examples(5, 10), deadline=None)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
MASKS = [(True, True, True), (True, False, False), (False, True, True)]
LOOSE = {torch.bfloat16: {"rtol": 4e-2, "atol": 4e-2}, torch.float32: {"rtol": 1e-4, "atol": 1e-5}}


def numbers(seed, *shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def close(dtype):
    return LOOSE.get(dtype, {})


def wanted(results, mask):
    return [result for result, keep in zip(results, mask, strict=True) if keep]


def statistics(x, dims, keepdim=True):
    wide = x.double()
    rstd = (wide.var(dims, correction=0, keepdim=keepdim) + 1e-5).rsqrt()
    return wide.mean(dims, keepdim=keepdim).to(x.dtype), rstd.to(x.dtype)


# -- layer norm --------------------------------------------------------------------------------------------------------


@EXAMPLES
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    axis=st.integers(0, 3),
    affine=st.booleans(),
    dtype=DTYPES,
)
def test_layer_norm(sizes, axis, affine, dtype):
    shape = sizes[min(axis, len(sizes) - 1) :]
    x, *parameters = numbers(0, sizes, *([shape, shape] if affine else []), dtype=dtype)
    agree(lambda x, *p: aten.native_layer_norm(x, shape, *(p or (None, None)), 1e-5), x, *parameters, **close(dtype))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", [[4], [3, 4], [2, 3, 4]])
def test_layer_norm_backward(mask, shape):
    dy, x, weight, bias = numbers(1, (2, 3, 4), (2, 3, 4), shape, shape)
    mean, rstd = statistics(x, list(range(3 - len(shape), 3)))

    def function(dy, x, mean, rstd, weight, bias):
        return wanted(aten.native_layer_norm_backward(dy, x, shape, mean, rstd, weight, bias, mask), mask)

    agree(function, dy, x, mean, rstd, weight, bias, **close(x.dtype))


def test_layer_norm_backward_without_weight():
    dy, x = numbers(2, (5, 8), (5, 8))

    def function(dy, x, mean, rstd):
        return aten.native_layer_norm_backward(dy, x, [8], mean, rstd, None, None, [True, False, False])[0]

    agree(function, dy, x, *statistics(x, [1]), **close(x.dtype))


def test_layer_norm_of_halves_with_weights_of_floats():
    x, weight, bias = numbers(3, (6, 8), (8,), (8,))
    agree(lambda x, w, b: aten.native_layer_norm(x, [8], w, b, 1e-5)[0], x.bfloat16(), weight, bias)


def test_layer_norm_of_long_rows_is_one_pass():
    (x,) = numbers(4, (2, 20000))
    made = agree(lambda x: aten.native_layer_norm(x, [20000], None, None, 1e-5), x + 100, rtol=1e-3, atol=1e-3)
    assert [r.reducer for item in made.program.items for r in item.reductions] == ["welford"]


def test_layer_norm_keeps_its_accuracy_far_from_zero():
    (x,) = numbers(5, (8, 512))
    x = x + 1000
    function = lambda x: aten.native_layer_norm(x, [512], None, None, 1e-5)[0]  # noqa: E731
    module, exact = trace(function, x), function(x.double())
    error, eagers = ((y.double() - exact).abs().max() for y in (run(module, lower(module), [x]), function(x)))
    assert error <= 1.2 * eagers


def test_layer_norm_of_symbolic_sizes():
    x, weight, bias = numbers(6, (3, 5, 8), (8,), (8,))
    agree(lambda x, w, b: aten.native_layer_norm(x, [x.shape[-1]], w, b, 1e-5), x, weight, bias, dynamic=True)


def test_nothing_to_normalize():
    agree(lambda x: aten.native_layer_norm(x, [4], None, None, 1e-5), torch.empty(0, 4))


# -- RMS norm ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("eps", [None, 1e-3])
def test_rms_norm(dtype, eps):
    x, weight = numbers(7, (3, 8), (8,), dtype=dtype)
    rstd = (x.float().square().mean(1, keepdim=True) + (torch.finfo(torch.float32).eps if eps is None else eps)).rsqrt()
    expected = (x.float() * rstd * weight.float()).to(dtype)
    agree_on_call(aten._fused_rms_norm.default, [x, [8], weight, eps], (expected, rstd))


@pytest.mark.parametrize("with_weight", [True, False])
def test_rms_norm_backward(with_weight):
    dy, x, weight = (t.requires_grad_() for t in numbers(8, (3, 8), (3, 8), (8,)))
    rstd = (x.square().mean(1, keepdim=True) + 1e-5).rsqrt()
    leaves = [x, weight] if with_weight else [x]
    gradients = torch.autograd.grad(x * rstd * (weight if with_weight else 1), leaves, dy)
    args = [dy.detach(), x.detach(), [8], rstd.detach(), weight.detach() if with_weight else None, [True, with_weight]]
    expected = gradients[0], (gradients[1] if with_weight else None)
    agree_on_call(aten._fused_rms_norm_backward.default, args, expected)


# -- batch norm --------------------------------------------------------------------------------------------------------

SHAPE = (4, 6, 3, 2)


def batch(seed=9, shape=SHAPE):
    x, weight, bias, mean, var = numbers(seed, shape, *[shape[1:2]] * 4)
    return x, weight, bias, mean, var.abs() + 0.5


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 5), SHAPE, (1, 3, 2, 2)])
def test_batch_norm(training, shape):
    agree(lambda *a: aten._native_batch_norm_legit_functional(*a, training, 0.1, 1e-5), *batch(shape=shape))


@pytest.mark.parametrize("shape", [(2, 32, 8, 8), (4, 16, 28, 28), (64, 8)], ids=str)
def test_statistics_of_batches_are_as_exact_as_eagers(shape):
    """Eager sums in float64 on CPUs; a mean far from 0 shows what rounding makes of it."""
    torch.manual_seed(0)
    x, function = (
        3 * torch.randn(shape) + 50,
        lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5),
    )
    exact = function(x.double())
    for ours, eager, wanted in zip(torch.compile(function, backend="regraft")(x), function(x), exact, strict=True):
        error, least = ((y.double() - wanted).norm() / wanted.norm() for y in (ours, eager))
        assert error <= 1.5 * least + 1e-7


def test_a_batch_that_is_not_finite_has_eagers_statistics():
    x = torch.randn(4, 6, 5)
    x[0, 0, 0], x[1, 1, 1], x[2, 2, 2], x[2, 2, 3] = torch.inf, torch.nan, torch.inf, -torch.inf
    x[:, 4] = 0
    agree(lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5), x)


def test_batch_norm_in_channels_last():
    x, *parameters = batch()
    x = x.to(memory_format=torch.channels_last)
    agree(lambda *a: aten._native_batch_norm_legit_functional(*a, True, 0.1, 1e-5), x, *parameters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norm_by_running_statistics(dtype):
    parameters = [t.to(dtype) for t in batch()]
    agree(lambda *a: aten._native_batch_norm_legit_no_training(*a, 0.1, 1e-5), *parameters, **close(dtype))
    agree(lambda *a: aten.native_batch_norm(*a, False, 0.1, 1e-5), *parameters, **close(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norm_by_running_statistics_on_cuda(dtype):
    """There the statistics that tracing promises are not empty; a network of such norms is lowered whole."""
    with FakeTensorMode():
        x, parameter = torch.empty(2, 3, 4, 4, dtype=dtype, device="cuda"), torch.empty(3, dtype=dtype, device="cuda")
        function = lambda x, *p: aten._native_batch_norm_legit_no_training(x, *p, 0.1, 1e-5)  # noqa: E731
        module = make_fx(function)(x, *[parameter] * 4)
    assert not lower(module, strict=True).kept


@pytest.mark.parametrize(
    ("device", "layout", "dims", "reducers"),
    [
        ("cuda", torch.channels_last, [0, 2, 3], ["welford"]),
        ("cuda", torch.contiguous_format, [0, 2, 3], ["welford"]),
        ("cuda", torch.contiguous_format, [1, 2, 3], ["sum", "sum"]),
        ("cuda", torch.channels_last, [1, 2, 3], ["sum", "sum"]),
        ("cpu", torch.channels_last, [0, 2, 3], ["sum", "sum"]),
    ],
)
def test_rows_that_lie_scattered_are_read_once_on_gpus(device, layout, dims, reducers):
    with FakeTensorMode():
        x = torch.empty(8, 32, 14, 14, device=device).to(memory_format=layout)
        module = make_fx(lambda x: torch.var_mean(x, dims))(x)
    program = lower(module, strict=True).program
    assert [r.reducer for item in program.items for r in item.reductions] == reducers


def test_gradients_of_batches_are_not_divided_by_element():
    x, weight, _, mean, var = batch()
    (dy,) = numbers(10, SHAPE)
    module = trace(
        lambda *a: aten.native_batch_norm_backward(*a, True, 1e-5, MASKS[0]), dy, x, weight, mean, var, mean, var
    )
    *_, dx = [item for item in lower(module, strict=True).program.items if not item.reductions]
    assert not [v for v in walk([dx.stores[0].value]) if isinstance(v, Op) and v.name == "div"]


def test_batch_norm_without_statistics():
    x, weight, bias, *_ = batch()
    agree(lambda *a: aten._native_batch_norm_legit.no_stats(*a, True, 0.1, 1e-5), x, weight, bias)
    agree(lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5), x)


def test_batch_norm_of_symbolic_sizes():
    agree(lambda *a: aten._native_batch_norm_legit_functional(*a, True, 0.1, 1e-5), *batch(), dynamic=True)


@pytest.mark.parametrize("mask", MASKS)
def test_batch_norm_backward(mask):
    x, weight, _, mean, var = batch()
    (dy,) = numbers(10, SHAPE)
    saved = statistics(x, [0, 2, 3], keepdim=False)
    given_ = (dy, x, weight, mean, var)
    train = lambda *a: wanted(aten.native_batch_norm_backward(*a, True, 1e-5, mask), mask)  # noqa: E731
    evaluate = lambda *a: wanted(aten.native_batch_norm_backward(*a, None, None, False, 1e-5, mask), mask)  # noqa: E731
    agree(train, *given_, *saved, **close(x.dtype))
    agree(evaluate, *given_)


def test_batch_norm_backward_of_halves_does_not_go_by_rounded_statistics():
    x, dy = (t.bfloat16() for t in (batch()[0] + 20, *numbers(10, SHAPE)))
    weight = batch()[1]
    mean, rstd = statistics(x.float(), [0, 2, 3], keepdim=False)

    def gradient(dy, x, weight, mean, rstd):
        return aten.native_batch_norm_backward(dy, x, weight, None, None, mean, rstd, True, 1e-5, [True, False, False])[
            0
        ]

    halves = [dy, x, weight, mean.bfloat16(), rstd.bfloat16()]
    module = trace(gradient, *halves)
    expected = gradient(dy.double(), x.double(), weight.double(), mean.double(), rstd.double())
    torch.testing.assert_close(run(module, lower(module), halves).double(), expected, rtol=1e-2, atol=1e-2)


# -- group norm --------------------------------------------------------------------------------------------------------


@one_row_in(3)
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 5), SHAPE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_group_norm(groups, shape, dtype):
    x, weight, bias = numbers(11, shape, shape[1:2], shape[1:2], dtype=dtype)
    sizes = (shape[0], shape[1], x[0, 0].numel())
    agree(lambda *a: aten.native_group_norm(*a, *sizes, groups, 1e-5), x, weight, bias, **close(dtype))
    agree(lambda x: aten.native_group_norm(x, None, None, *sizes, groups, 1e-5)[0], x, **close(dtype))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("groups", [1, 3])
def test_group_norm_backward(mask, groups):
    dy, x, weight = numbers(12, SHAPE, SHAPE, (6,))
    mean, rstd = statistics(x.reshape(4, groups, -1), [2], keepdim=False)

    def function(*args):
        return wanted(aten.native_group_norm_backward(*args, 4, 6, 6, groups, mask), mask)

    agree(function, dy, x, mean, rstd, weight, **close(x.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("channels", "groups"), [(12, 4), (12, 1), (6, 6), (80, 4), (130, 2)])
def test_group_norm_of_channels_last(channels, groups, dtype):
    x, weight, bias = numbers(3, (2, channels, 9, 10), (channels,), (channels,), dtype=dtype)
    x = (x + 2).to(memory_format=torch.channels_last)
    args = (2, channels, 90, groups, 1e-5)
    made = agree(lambda *a: aten.native_group_norm(*a, *args), x, weight, bias, **close(dtype))
    folds = [item for item in made.program.items if isinstance(item, Definition) and item.reductions]
    along = any(tuple(v.extent for v in item.loops) == (2, channels) for item in folds)
    assert along == (groups > 1 and channels // groups <= 64)
    agree(lambda x: aten.native_group_norm(x, None, None, *args)[0], x, **close(dtype))


@one_row_in(3)
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("channels", "groups"), [(12, 4), (12, 1), (6, 6)])
def test_gradients_of_group_norm_are_made_of_two_sums_a_channel(channels, groups, weighted, last):
    dy, x, weight = numbers(5, *[(2, channels, 5, 6)] * 2, (channels,))
    if last:
        dy, x = (t.to(memory_format=torch.channels_last) for t in (dy, x))
    mean, rstd = statistics(x.reshape(2, groups, -1), [2], keepdim=False)

    def function(dy, x, mean, rstd, *weight):
        given, mask = (weight[0], MASKS[0]) if weight else (None, MASKS[1])
        return wanted(aten.native_group_norm_backward(dy, x, mean, rstd, given, 2, channels, 30, groups, mask), mask)

    made = agree(function, dy, x, mean, rstd, *[weight] * weighted, **close(x.dtype))
    folds = [item for item in made.program.items if isinstance(item, Definition) and item.reductions]
    sizes = made.program.buffers
    whole = [item for item in folds if any(len(sizes[load.buffer].sizes) == 4 for load in loads_of(item))]
    assert {tuple(v.extent for v in item.loops) for item in whole} == {(2, channels)}


def loads_of(item):
    return [v for v in walk([v for r in item.reductions for v in r.values]) if isinstance(v, Load)]


def test_groups_of_channels_last_are_read_along_all_channels_on_gpus():
    """A group's channels at one position are a few bytes of a sector that the GPU reads whole."""

    def forward(x, mean, rstd):
        return aten.native_group_norm(x, None, None, 2, 12, 64, 3, 1e-5)

    def backward(x, mean, rstd):
        return aten.native_group_norm_backward(x, x, mean, rstd, None, 2, 12, 64, 3, MASKS[1])[0]

    for function in (forward, backward):
        with FakeTensorMode():
            x = torch.empty(2, 12, 8, 8, device="cuda").to(memory_format=torch.channels_last)
            module = make_fx(function)(x, torch.empty(2, 3, device="cuda"), torch.empty(2, 3, device="cuda"))
        items = lower(module, strict=True).program.items
        folds = [i for i in items if isinstance(i, Definition) and any(v.extent == 8 for v in i.reduced)]
        assert folds, "sums over positions"
        assert {tuple(v.extent for v in item.loops) for item in folds} == {(2, 12)}


def test_group_norm_of_symbolic_sizes():
    x, weight, bias = numbers(13, SHAPE, (6,), (6,))
    agree(lambda *a: torch.nn.functional.group_norm(a[0], 3, a[1], a[2]), x, weight, bias, dynamic=True)

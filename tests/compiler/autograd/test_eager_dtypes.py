"""What operators give on fake tensors has the dtype of what they give in eager, operands of several dtypes too."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in, takes_turns

import regraft  # noqa: F401 (registers the backend)
from regraft.compiler.autograd.eager_strides import corrected
from regraft.rewrites.compat import new_fake_mode

aten = torch.ops.aten
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# How many tensors, what follows them.
CALLS = {
    aten.huber_loss.default: (2, 0), aten.mish_backward.default: (2,),
    aten.mse_loss_backward.default: (3, 1), aten.smooth_l1_loss_backward.default: (3, 1, 1.0),
    aten.soft_margin_loss.default: (2, 1), aten.soft_margin_loss_backward.default: (3, 1),
    aten.threshold_backward.default: (2, 0), aten.normal.Tensor_Tensor: (2,), aten.mse_loss.default: (2, 1),
    aten.smooth_l1_loss.default: (2, 1), aten.leaky_relu_backward.default: (2, 0.1, False),
    aten.gelu_backward.default: (2,), aten.silu_backward.default: (2,), aten.hardtanh_backward.default: (2, -1, 1),
    aten.hardswish_backward.default: (2,), aten.xlogy.Tensor: (2,), aten.tanh_backward.default: (2,),
    aten.sigmoid_backward.default: (2,), aten.softplus_backward.default: (2, 1, 20),
    aten.logit_backward.default: (2,), aten.copysign.Tensor: (2,), aten.where.self: (3,), aten.addcmul.default: (3,),
    aten.binary_cross_entropy_with_logits.default: (2,),
}  # fmt: skip


@pytest.mark.parametrize("target", CALLS, ids=str)
def test_metadata_has_eagers_dtype(target):
    count, *more = CALLS[target]
    ran = 0
    for dtypes in product(FLOATS, repeat=count):
        given = [torch.rand(2, 3).to(dtype) for dtype in dtypes]
        if target == aten.where.self:
            given[0] = given[0] > 0
        try:
            expected = target(*given, *more)
        except RuntimeError:
            continue
        mode = new_fake_mode(None)
        fakes = tuple(mode.from_tensor(x) for x in given)
        with mode:
            made = corrected(target, (*fakes, *more), {}, target(*fakes, *more))
        assert (made.dtype, made.shape) == (expected.dtype, expected.shape), dtypes
        ran += 1
    assert ran >= len(FLOATS)


def _norms(x, w, running):
    """Calls of norms on an image, of parameters and running statistics of two dtypes, or without."""
    w, running, sizes = (w, w), (running, running), (2, 4, 9)
    yield aten.native_group_norm.default, (x, *w, *sizes, 2, 1e-5)
    yield (
        aten.native_layer_norm.default,
        (x, [4, 3, 3], *(None if y is None else y[:, None, None].repeat(1, 3, 3) for y in w), 1e-5),
    )
    for training in (True, False) if running[0] is not None else (True,):  # torch crashes else
        yield aten.native_batch_norm.default, (x, *w, *running, training, 0.1, 1e-5)
    yield aten._native_batch_norm_legit.no_stats, (x, *w, True, 0.1, 1e-5)
    if running[0] is not None:
        yield aten._native_batch_norm_legit_functional.default, (x, *w, *running, True, 0.1, 1e-5)
        yield aten._native_batch_norm_legit_no_training.default, (x, *w, *running, 0.1, 1e-5)


def _derivative(target, args, made):
    """The call that differentiates a norm, of what it made."""
    x, w, given = args[0], args[1], torch.ones_like(made[0])
    if target is aten.native_group_norm.default:
        return aten.native_group_norm_backward.default, (given, x, *made[1:], w, *args[3:7], [True] * 3)
    if target is aten.native_batch_norm.default:
        more = (w, *args[3:5], *made[1:], args[5], 1e-5, [True] * 3)
        return aten.native_batch_norm_backward.default, (given, x, *more)
    return aten.native_layer_norm_backward.default, (given, x, args[1], *made[1:], *args[2:4], [True] * 3)


def _dtypes(results):
    return [x if x is None else x.dtype for x in results]


@pytest.mark.parametrize("dtype", FLOATS)
def test_metadata_of_norms_has_the_dtypes_that_they_give(dtype):
    """Statistics of 16 bits beside parameters of 32 are as wide as these."""
    ran, (wide, *given) = set(), (dtype, None, dtype, torch.float32)
    for parameters, running in product(given, repeat=2):
        w, kept = (None if of is None else torch.ones(4, dtype=of) for of in (parameters, running))
        for target, args in _norms(torch.rand(2, 4, 3, 3).to(wide), w, kept):
            call = target, args
            for _ in range(2):
                try:
                    made = call[0](*call[1])
                except RuntimeError:
                    break
                mode = new_fake_mode(None)
                fakes = [mode.from_tensor(y) if isinstance(y, torch.Tensor) else y for y in call[1]]
                with mode:
                    told = corrected(call[0], fakes, {}, call[0](*fakes))
                assert _dtypes(told) == _dtypes(made), (call[0], parameters, running)
                ran.add(call[0])
                if "legit" in str(target):
                    break
                call = _derivative(target, args, made)
    assert len(ran) == 9


@one_row_in(2)
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.l1_loss, F.soft_margin_loss])
def test_losses_of_two_dtypes_have_eagers_gradients(loss):
    def trained(function, dtypes):
        given = [torch.linspace(-1, k + 1, 12).to(dtype).requires_grad_() for k, dtype in enumerate(dtypes)]
        result = function(*given)
        result.backward()
        return result.detach(), given[0].grad, given[1].grad

    for dtypes in ((torch.float32, torch.float64), (torch.bfloat16, torch.float32)):
        try:
            expected = trained(loss, dtypes)
        except RuntimeError:
            continue
        torch._dynamo.reset()
        torch.testing.assert_close(trained(torch.compile(loss, backend="regraft"), dtypes), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_metadata_of_the_attention_kernel_has_the_dtypes_that_it_gives(dtype):
    target = aten._scaled_dot_product_flash_attention_for_cpu.default
    heads = [torch.rand(2, 3, 5, 8).to(dtype) for _ in range(3)]
    expected = target(*heads)
    mode = new_fake_mode(None)
    with mode:
        fakes = [mode.from_tensor(x) for x in heads]
        told = target(*fakes)
        narrow = told[0], told[1].to(torch.float32)  # as torch 2.11 tells
        for results in (told, narrow):
            found = corrected(target, fakes, {}, results)
            assert [(x.dtype, x.stride()) for x in found] == [(x.dtype, x.stride()) for x in expected]


IN_GRAPH = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
UNIQUE = [
    lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    lambda x: torch.unique(x, return_inverse=True),
    lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True),
    lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
    lambda x: torch.unique_consecutive(x, dim=0, return_inverse=True, return_counts=True),
]


@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.bool, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("unique", UNIQUE)
def test_indices_and_counts_of_unique_are_int64(unique, dtype):
    """torch 2.11 tells the dtype of the elements, of which kernels would read too little."""

    def program(x):
        return [y * 2 for y in unique(x)[1:]]

    x = torch.tensor([[2, 0, 1], [2, 0, 1], [0, 0, 1]]).to(dtype)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(**IN_GRAPH):
        compiled = torch.compile(program, backend="regraft", options={"strict": True})
        torch.testing.assert_close(compiled(x), program(x))


def test_metadata_of_unique_is_corrected():
    """As torch 2.11 tells it."""
    mode = new_fake_mode(None)
    with mode:
        told = tuple(torch.empty(3, dtype=torch.int16) for _ in range(3))
        found = corrected(aten._unique2.default, (told[0], True, True, True), {}, told)
    assert [x.dtype for x in found] == [torch.int16, torch.int64, torch.int64]


@pytest.mark.parametrize("weights", [None, torch.int64, *FLOATS])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_metadata_of_counts_is_corrected(dtype, weights):
    """torch 2.11 tells the dtype of what is counted."""
    x = torch.tensor([1, 4, 1]).to(dtype)
    given = [x] if weights is None else [x, torch.tensor([1, 2, 3]).to(weights)]
    mode = new_fake_mode(None)
    with mode:
        fakes = [mode.from_tensor(y) for y in given]
        found = corrected(aten.bincount.default, fakes, {}, torch.empty(5, dtype=dtype))
    assert found.dtype == aten.bincount.default(*given).dtype

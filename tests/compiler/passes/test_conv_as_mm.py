"""Convolutions as products of matrices, on a CPU with the devices let in: results, strides, and what joins the rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from support.freezing import Residual, disturbed
from support.pipeline import replace_pass
from support.rewriting import compiled
from support.thorough import one_in
from torch import nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from regraft.compiler.passes.conv_as_mm import convolutions_as_matmuls, images_as_rows
from regraft.compiler.passes.split_conv_bias import split_conv_biases

CPU = {"devices": ("cpu",)}
ALL = {**CPU, "aligned": 1, "dtypes": (torch.float32, torch.bfloat16, torch.float64)}


def images(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype).contiguous(memory_format=torch.channels_last)


def graph_of(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False) -> torch.fx.GraphModule:
    """The functional graph of a function without gradients, norms as in graphs of `torch.compile`."""

    def plain(*values: Any) -> Any:
        with torch.no_grad():
            return function(*values)

    decompositions = {torch.ops.aten.native_batch_norm.default: _at_rest}
    module = make_fx(plain, decomposition_table=decompositions, tracing_mode="symbolic" if dynamic else "fake")(*inputs)
    module.graph.eliminate_dead_code()
    return module


def _at_rest(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Any:
    assert not training
    return torch.ops.aten._native_batch_norm_legit_no_training(x, weight, bias, mean, var, momentum, eps)


def of_model(model: nn.Module, x: torch.Tensor) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names = [name for name in state if state[name].dim()]
    inputs = [x, *(state[name].detach() for name in names)]
    return graph_of(
        lambda x, *values: functional_call(model, dict(zip(names, values, strict=True)), (x,)), *inputs
    ), inputs


def ops(module: torch.fx.GraphModule) -> list[str]:
    return [str(n.target).removeprefix("aten.").split(".")[0] for n in module.graph.nodes if n.op == "call_function"]


def assert_same(
    module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], expected: Sequence[Any], **how: Any
) -> None:
    module.graph.lint()
    found = module(*inputs)
    for a, b in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
        torch.testing.assert_close(a, b, **how)
        assert a.stride() == b.stride()


@pytest.mark.parametrize("bias", [True, False])
def test_product_and_what_follows(bias: bool) -> None:
    def function(x, w, b, other, scale):
        y = torch.conv2d(x, w, b if bias else None)
        return torch.sigmoid(F.relu6(y * scale + other) - 0.5)

    inputs = images(2, 4, 5, 6), torch.randn(8, 4, 1, 1), torch.randn(8), images(2, 8, 5, 6), torch.randn(8, 1, 1)
    module = graph_of(function, *inputs)
    assert convolutions_as_matmuls(module, **ALL) == 1
    names = ops(module)
    assert "convolution" not in names and names[-2:] == ["view", "permute"] and names.count("permute") == 4
    assert_same(module, inputs, (function(*inputs),))


def test_norms_and_residual_blocks() -> None:
    torch.manual_seed(0)
    bottleneck = nn.Sequential(
        nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4),
        nn.ReLU(), nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), Residual(8, 8), nn.Conv2d(8, 8, 1), nn.SiLU(),
    )  # fmt: skip
    model, x = disturbed(bottleneck), images(2, 8, 6, 6)
    module, inputs = of_model(model, x)
    assert convolutions_as_matmuls(module, **ALL) == 3 and split_conv_biases(module, **CPU) == 1
    with torch.no_grad():
        assert_same(module, inputs, (model(x),), rtol=1e-4, atol=1e-5)


def test_rows_that_were_images_are_used_as_they_are() -> None:
    def function(x, w, v):
        return torch.conv2d(torch.relu(torch.conv2d(x, w)), v)

    inputs = images(2, 4, 5, 5), torch.randn(8, 4, 1, 1), torch.randn(4, 8, 1, 1)
    module = graph_of(function, *inputs)
    assert convolutions_as_matmuls(module, **ALL) == 2
    assert ops(module).count("view") == 2  # at the ends
    assert_same(module, inputs, (function(*inputs),), rtol=1e-4, atol=1e-5)


def test_what_follows_rows_that_become_images() -> None:
    """As in networks whose blocks mix pixels as images, and channels as rows."""

    def function(x, w, scale):
        y = (x.permute(0, 2, 3, 1) @ w * scale).permute(0, 3, 1, 2)
        return torch.relu(x + y) + x.flip(0)

    inputs = images(2, 4, 5, 6), torch.randn(4, 4), torch.randn(4)
    module = graph_of(function, *inputs)
    assert images_as_rows(module, **CPU) == 1 and images_as_rows(module, **CPU) == 0
    assert ops(module)[-1] == "permute"
    assert_same(module, inputs, (function(*inputs),))


def test_chain_ends_where_a_value_is_used_twice() -> None:
    def function(x, w):
        y = torch.relu(torch.conv2d(x, w))
        return y, y + 1, y.sum(1)

    inputs = images(2, 4, 5, 5), torch.randn(8, 4, 1, 1)
    module = graph_of(function, *inputs)
    assert convolutions_as_matmuls(module, **ALL) == 1
    assert_same(module, inputs, function(*inputs))


@pytest.mark.parametrize("shape", [(5, 1), (6,), (2, 8, 1, 1), (1, 1, 5, 6), (2, 1, 1, 1)], ids=str)
def test_operands_that_differ_between_pixels_end_the_chain(shape: tuple[int, ...]) -> None:
    inputs = images(2, 4, 5, 6), torch.randn(8, 4, 1, 1), torch.randn(shape)
    function = lambda x, w, other: torch.conv2d(x, w) * other  # noqa: E731
    module = graph_of(function, *inputs)
    assert convolutions_as_matmuls(module, **ALL) == 1
    assert ops(module)[-2:] == ["permute", "mul"]
    assert_same(module, inputs, (function(*inputs),))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (8, 1, 1), (1, 8, 1, 1)], ids=str)
def test_operands_by_channel_join_it(shape: tuple[int, ...]) -> None:
    inputs = images(2, 4, 5, 6, dtype=torch.bfloat16), torch.randn(8, 4, 1, 1).bfloat16(), torch.randn(shape)
    function = lambda x, w, other: torch.conv2d(x, w) * other  # noqa: E731
    module = graph_of(function, *inputs)
    assert convolutions_as_matmuls(module, **ALL) == 1 and ops(module)[-1] == "permute"
    assert_same(module, inputs, (function(*inputs),))


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_patches(bias: bool, memory_format: torch.memory_format) -> None:
    """Of few channels: they begin many networks. The image is read as it is given."""

    def function(x, w, b):
        laid_out = x.clone(memory_format=torch.channels_last)
        return torch.relu(torch.conv2d(laid_out, w, b if bias else None, stride=(4, 2))).flatten(2).transpose(1, 2)

    x, w = torch.randn(2, 3, 8, 6).to(memory_format=memory_format), torch.randn(16, 3, 4, 2)
    inputs = x, w.contiguous(memory_format=memory_format), torch.randn(16)
    module = graph_of(function, *inputs)
    assert convolutions_as_matmuls(module, **ALL) == 1 and "convolution" not in ops(module)
    assert_same(module, inputs, (function(*inputs),), rtol=1e-4, atol=1e-5)


KEPT = {
    "kernel": (images(2, 4, 5, 5), torch.randn(8, 4, 3, 3), {}),
    "stride": (images(2, 4, 5, 5), torch.randn(8, 4, 1, 1), {"stride": 2}),
    "padding": (images(2, 4, 5, 5), torch.randn(8, 4, 1, 1), {"padding": 1}),
    "patches that overlap": (images(2, 3, 8, 8), torch.randn(8, 3, 4, 4), {"stride": 2}),
    "patches apart": (images(2, 3, 9, 9), torch.randn(8, 3, 4, 4), {"stride": 4}),
    "patches of holes": (images(2, 3, 16, 16), torch.randn(8, 3, 4, 4), {"stride": 4, "dilation": 2}),
    "patches of many channels": (images(2, 8, 8, 8), torch.randn(8, 8, 4, 4), {"stride": 4}),
    "groups": (images(2, 4, 5, 5), torch.randn(8, 2, 1, 1), {"groups": 2}),
    "channels apart": (torch.randn(2, 4, 5, 5), torch.randn(8, 4, 1, 1), {}),
    "pixels apart": (images(2, 4, 5, 10)[..., ::2], torch.randn(8, 4, 1, 1), {}),
}


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name: str) -> None:
    x, w, geometry = KEPT[name]
    function = lambda x, w: torch.conv2d(x, w, **geometry)  # noqa: E731
    module = graph_of(function, x, w)
    assert convolutions_as_matmuls(module, **ALL) == 0
    assert convolutions_as_matmuls(graph_of(function, x, w)) == 0  # on a CPU


@pytest.mark.parametrize(("dtype", "channels"), [(torch.float16, 8), (torch.float32, 8), (torch.bfloat16, 12)], ids=str)
def test_left_to_the_library(dtype: torch.dtype, channels: int) -> None:
    """Sums in other precision than a convolution's, or rows that are not aligned."""
    x, w = images(2, 8, 5, 5, dtype=dtype), torch.randn(channels, 8, 1, 1).to(dtype)
    assert convolutions_as_matmuls(graph_of(torch.conv2d, x, w), **CPU) == 0


@pytest.mark.parametrize("space", [(1, 1), (1, 7), (4, 1)], ids=str)
def test_strides_of_single_pixels_are_those_promised(space: tuple[int, int]) -> None:
    function = lambda x, w: torch.relu(torch.conv2d(x, w))  # noqa: E731
    for channels in (1, 8):
        inputs = images(2, 4, *space), torch.randn(channels, 4, 1, 1)
        module = graph_of(function, *inputs)
        promised = module.graph.output_node().args[0].meta["val"].stride()
        convolutions_as_matmuls(module, **ALL)
        torch.testing.assert_close(module(*inputs), function(*inputs))
        assert module.graph.output_node().args[0].meta["val"].stride() == promised


def test_symbolic_sizes() -> None:
    function = lambda x, w, b: torch.relu(torch.conv2d(x, w, b))  # noqa: E731
    inputs = images(2, 4, 5, 6), torch.randn(8, 4, 1, 1), torch.randn(8)
    module = graph_of(function, *inputs, dynamic=True)
    assert convolutions_as_matmuls(module, **ALL) == 1
    assert_same(module, inputs, (function(*inputs),))


@pytest.mark.parametrize("seed", one_in(3, range(3)))
def test_error_is_no_worse_than_eagers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In half precision, compiled: what joins the rows is rounded less often than in eager."""
    replace_pass(monkeypatch, "conv_as_mm", partial(convolutions_as_matmuls, **ALL))
    replace_pass(monkeypatch, "split_conv_bias", partial(split_conv_biases, **CPU))
    replace_pass(monkeypatch, "images_as_rows", partial(images_as_rows, **CPU))
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3)]
    for _ in range(3):
        layers += [nn.Conv2d(16, 32, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 1, bias=False)]
        layers += [nn.BatchNorm2d(16), Residual(16, 16)]
    model, x = disturbed(nn.Sequential(*layers)).bfloat16(), torch.randn(2, 3, 12, 12).bfloat16()
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        run, cov = compiled(model, rules=())  # on CPUs, norms are folded by a rule
        with cov:
            ours, eagers = (((f(x).double() - exact).norm() / exact.norm()).item() for f in (run, model))
    assert cov.graphs[0].changes("conv_as_mm") == {"changes": 6}
    assert ours <= 1.05 * eagers


@pytest.mark.parametrize("transposed", [True, False])
def test_biases_of_their_own(transposed: bool) -> None:
    convolve = F.conv_transpose2d if transposed else F.conv2d
    function = lambda x, w, b: torch.relu(convolve(x, w, b))  # noqa: E731
    inputs = images(2, 4, 5, 6), torch.randn(4, 4, 3, 3), torch.randn(4)
    module = graph_of(function, *inputs)
    assert split_conv_biases(module, **CPU) == 1 and split_conv_biases(module, **CPU) == 0
    assert ops(module) == ["convolution", "view", "add", "relu"]
    assert_same(module, inputs, (function(*inputs),))
    assert split_conv_biases(graph_of(function, *inputs)) == 0  # on a CPU

"""The convolution rule: sum and activation as epilogue, and where it must not match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.attentions import normal
from support.rewriting import assert_agrees, rewritten
from support.thorough import takes_turns
from torch import fx

from regraft.compiler.tools.check import refusals
from regraft.patterns.convolution import convolution as rule
from regraft.patterns.convolution import one_dtype

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")

ACTIVATIONS = {
    "none": lambda y: y,
    "relu": torch.relu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
    "hardswish": F.hardswish,
}
X, W, BIAS, OTHER = normal(2, 4, 6, 6), normal(8, 4, 3, 3), normal(8), normal(2, 8, 4, 4)


def convolution(x: Any, weight: Any, bias: Any = None, *, stride: int = 1, padding: int = 0, groups: int = 1) -> Any:
    return torch.convolution(x, weight, bias, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups)


def found(function: Callable[..., Any], *inputs: Any, **settings: Any) -> Any:
    return rewritten(function, inputs, stage="lowered", **settings)


@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_is_the_epilogue(name: str, bias: bool, dtype: torch.dtype) -> None:
    def function(x, w, b):
        return ACTIVATIONS[name](convolution(x, w, b if bias else None))

    inputs = [t.to(dtype) for t in (X, W, BIAS)]
    result = found(function, *inputs, nan="safe")
    assert result.count("convolution") == 1 and f"activation:{name}" in result.tags
    assert not result.ops & {"convolution", name, "gelu"}
    assert_agrees(function, result.run, inputs)


@pytest.mark.parametrize("swapped", [False, True])
def test_sum_is_the_epilogue(swapped: bool) -> None:
    def function(x, w, b, other):
        y = convolution(x, w, b)
        return torch.relu(other + y if swapped else y + other)

    result = found(function, X, W, BIAS, OTHER, nan="safe")
    assert {"sum", "activation:relu"} <= result.tags and not result.ops & {"add", "relu"}
    assert_agrees(function, result.run, (X, W, BIAS, OTHER))


def test_relu_that_keeps_nan_stands_alone() -> None:
    x = X.clone()
    x[0, 0, 0, 0] = torch.nan

    def function(x, w, other):
        return torch.relu(convolution(x, w) + other)

    result = found(function, x, W, OTHER)
    assert "relu" in result.ops and "add" not in result.ops
    assert_agrees(function, result.run, (x, W, OTHER))


@pytest.mark.parametrize("geometry", [{"stride": 2}, {"padding": 1}, {"stride": 3, "padding": 2}], ids=str)
def test_geometry_is_kept(geometry: dict[str, int]) -> None:
    def function(x, w):
        return torch.tanh(convolution(x, w, **geometry))

    result = found(function, X, W)
    assert result.count("convolution") == 1
    assert_agrees(function, result.run, (X, W))


def test_groups() -> None:
    weight = normal(8, 2, 3, 3)
    result = found(lambda x, w: F.silu(convolution(x, w, groups=2)), X, weight)
    assert result.count("convolution") == 1
    assert_agrees(lambda x, w: F.silu(convolution(x, w, groups=2)), result.run, (X, weight))


def test_sum_after_another_activation_is_two_calls() -> None:
    def function(x, w, other):
        return F.silu(convolution(x, w) + other)

    result = found(function, X, W, OTHER)
    assert "silu" in result.ops and "sum" in result.tags
    assert_agrees(function, result.run, (X, W, OTHER))


@pytest.mark.parametrize("other", [normal(8, 1, 1), normal(1, 8, 4, 4), normal(1)], ids=["channel", "batch", "one"])
def test_sum_that_broadcasts_is_not_taken(other: torch.Tensor) -> None:
    def function(x, w, other):
        return convolution(x, w) + other

    result = found(function, X, W, other)
    assert "add" in result.ops and "sum" not in result.tags
    assert_agrees(function, result.run, (X, W, other))


def test_scaled_sum_is_not_taken() -> None:
    result = found(lambda x, w, o: torch.add(convolution(x, w), o, alpha=2), X, W, OTHER)
    assert "sum" not in result.tags
    assert_agrees(lambda x, w, o: torch.add(convolution(x, w), o, alpha=2), result.run, (X, W, OTHER))


def test_value_used_elsewhere() -> None:
    def function(x, w):
        y = convolution(x, w)
        return torch.tanh(y), y

    result = found(function, X, W)
    assert result.tags & {"activation:none"} and "tanh" in result.ops
    assert_agrees(function, result.run, (X, W))


def test_layout_of_a_copy_is_kept() -> None:
    """The result and a contiguous copy of it are one value in normal form, but two in memory."""

    def function(x, w):
        y = convolution(x.contiguous(memory_format=torch.channels_last), w)
        return y, y.contiguous().view(2, -1)

    result = found(function, X, W)
    assert result.count("convolution") == 1
    for ours, eager in zip(result.run(X, W), function(X, W), strict=True):
        torch.testing.assert_close(ours, eager)
        assert ours.stride() == eager.stride()


REFUSED = {
    "transposed": lambda x, w: torch.convolution(x, w, None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1),
    "1d": lambda x, w: torch.convolution(x[..., 0], w[..., 0], None, [1], [0], [1], False, [0], 1),
    "fp64": lambda x, w: convolution(x.double(), w.double()),
    "empty": lambda x, w: convolution(x[:0], w),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    weight = W.transpose(0, 1).contiguous() if name == "transposed" else W
    x = normal(2, 4, 6, 6)
    result = found(REFUSED[name], x, weight)
    assert result.count("convolution") == 0
    assert_agrees(REFUSED[name], result.run, (x, weight))


def test_operands_of_other_dtypes_are_refused() -> None:
    """Capture refuses such a program already, so the guard is asked itself."""

    def node(name: str, dtype: torch.dtype) -> Any:
        made = fx.Graph().placeholder(name)
        made.meta["val"] = torch.empty(2, dtype=dtype)
        return made

    x, weight, half = node("x", torch.float32), node("weight", torch.float32), node("bias", torch.bfloat16)
    assert one_dtype(x, weight, None) is None
    assert one_dtype(x, half).code == one_dtype(x, weight, half).code == "kernel-unavailable"


def test_odd_strides_of_operands() -> None:
    def function(x, w, b, other):
        return convolution(x, w, b) + other

    odd = (X.transpose(2, 3), W.expand(8, 4, 3, 3).flip(0), BIAS[:1].expand(8), OTHER[:1].expand(2, 8, 4, 4))
    result = found(function, *odd)
    assert result.count("convolution") == 1
    assert_agrees(function, result.run, odd)


def test_near_miss_transposed() -> None:
    result = found(REFUSED["transposed"], normal(2, 4, 6, 6), W.transpose(0, 1).contiguous(), near_miss_depth=0)
    assert "convolution-transposed" in result.codes


def test_weight_that_may_change_is_not_packed() -> None:
    result = found(convolution, X, W)
    assert [m.candidate for m in result.record.applied] == ["onednn"]


@pytest.mark.parametrize("sample", [s for s in rule.samples if s.refused], ids=lambda s: s.refused)
def test_near_misses(sample: Any) -> None:
    assert sample.refused in refusals(rule, sample)

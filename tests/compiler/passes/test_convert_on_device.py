"""Copies to a GPU that convert: the conversion is the GPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.passes.convert_on_device import convert_on_device

aten = torch.ops.aten
CUDA = torch.device("cuda")


def moved(x: torch.Tensor, dtype: torch.dtype | None = None, **more: Any) -> torch.Tensor:
    return aten._to_copy.default(x, device=CUDA, dtype=dtype, **more)


def traced(function: Callable[..., Any], *sizes: int, dtype: torch.dtype = torch.float32) -> fx.GraphModule:
    with FakeTensorMode():
        module = make_fx(function)(torch.empty(sizes, dtype=dtype))
    module.graph.eliminate_dead_code()
    return module


def copies(module: fx.GraphModule) -> list[tuple[str, torch.dtype]]:
    """Device and dtype of what each copy gives."""
    found = module.graph.find_nodes(op="call_function", target=aten._to_copy.default)
    return [(node.meta["val"].device.type, node.meta["val"].dtype) for node in found]


@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels last"])
def test_floats_are_moved_as_they_are(last: bool) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        x = x.to(memory_format=torch.channels_last) if last else x
        return moved(x, torch.bfloat16) * 2

    module = traced(forward, 2, 3, 4, 5)
    (before,) = module.graph.find_nodes(op="call_function", target=aten._to_copy.default)[-1:]
    strides = before.meta["val"].stride()
    assert convert_on_device(module) == 1
    assert copies(module)[-2:] == [("cuda", torch.float32), ("cuda", torch.bfloat16)]
    (after,) = module.graph.find_nodes(op="call_function", target=aten._to_copy.default)[-1:]
    assert after.meta["val"].stride() == strides
    module.graph.lint()


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda x: moved(x) * 2, torch.float32),
        (lambda x: x.bfloat16() * 2, torch.float32),
        (lambda x: moved(x, torch.float32) * 2, torch.int64),
        (lambda x: moved(x, torch.int32) * 2, torch.float32),
        (lambda x: moved(x, torch.bfloat16) * 2, torch.float64),
    ],
    ids=["no conversion", "no copy", "of integers", "to integers", "of four times the bytes"],
)
def test_what_stays(function: Callable[..., Any], dtype: torch.dtype) -> None:
    module = traced(function, 2, 3, dtype=dtype)
    before = copies(module)
    assert convert_on_device(module) == 0 and copies(module) == before


def test_numbers_stay() -> None:
    assert convert_on_device(traced(lambda x: moved(x, torch.bfloat16) * 2)) == 0

"""Attention calls of other than four dims on a GPU: results, gradients and strides as before, nothing copied."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.pipeline import replace_pass
from support.rewriting import compiled
from support.thorough import one_row_in, takes_turns
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.passes.sdpa_four_dims import sdpa_in_four_dims
from regraft.rewrites.graph import op_name, rank, val

aten = torch.ops.aten
CPU = ("cpu",)
Heads = list[torch.Tensor]


def windows(batch: int, heads: int, blocks: int, rows: int, size: int) -> Heads:
    """Heads within windows, as a projection gives them: [batch, heads, blocks, rows, size]."""
    projected = torch.randn(batch, blocks, rows, 3, heads, size)
    return list(projected.permute(3, 0, 4, 1, 2, 5).unbind(0))


def along_an_axis(batch: int, heads: int, height: int, width: int, size: int) -> Heads:
    """Rows of an image: [batch, height, heads, width, size]."""
    return list(torch.randn(batch, height, width, 3, heads, size).permute(3, 0, 1, 4, 2, 5).unbind(0))


GIVEN: dict[str, Callable[[], Heads]] = {
    "windows": lambda: windows(2, 3, 4, 5, 8),
    "one window": lambda: windows(2, 3, 1, 5, 8),
    "along an axis": lambda: along_an_axis(2, 3, 4, 5, 8),
    "heads in the batch": lambda: [torch.randn(6, 5, 8) for _ in range(3)],
    "six dims": lambda: [torch.randn(2, 1, 3, 2, 5, 8) for _ in range(3)],
    "more keys": lambda: [torch.randn(2, 3, 2, n, 8) for n in (5, 7, 7)],
}
MASKS: dict[str, Any] = {
    "none": lambda q, k: None,
    "rows": lambda q, k: torch.randn(q.shape[-2], k.shape[-2]),
    "keys": lambda q, k: torch.randn(k.shape[-2]),
    "one number": lambda q, k: torch.randn(()),
    "keep": lambda q, k: torch.rand(q.shape[-2], k.shape[-2]) < 0.8,
    "each": lambda q, k: torch.randn(*q.shape[:-1], k.shape[-2]),
    "of one dim": lambda q, k: torch.randn(q.shape[-3], q.shape[-2], k.shape[-2]),
}


def traced(function: Any, *inputs: Any) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake", pre_dispatch=True)(*inputs)


def calls(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if op_name(n) == "aten.scaled_dot_product_attention"]


@one_row_in(3)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", GIVEN)
def test_results(kind: str, mask: str) -> None:
    """The same numbers, by a call of four dims."""
    q, k, v = (x.bfloat16() for x in GIVEN[kind]())
    given = MASKS[mask](q, k)
    given = given.bfloat16() if given is not None and given.dtype != torch.bool else given
    function = partial(aten.scaled_dot_product_attention, scale=0.3)
    module = traced(function, q, k, v, given)
    assert sdpa_in_four_dims(module, CPU) == 1
    (call,) = calls(module)
    assert all(rank(x) == 4 for x in call.args[:3])
    assert given is None or rank(call.args[3]) in (2, 4)  # what kernels of GPUs ask for
    torch.testing.assert_close(module(q, k, v, given), function(q, k, v, given), rtol=2e-2, atol=2e-2)
    assert sdpa_in_four_dims(module, CPU) == 0


@pytest.mark.parametrize("kind", ["windows", "along an axis", "heads in the batch", "six dims"])
def test_nothing_is_copied(kind: str) -> None:
    """The dims that lie side by side in memory are those that are merged."""
    q, k, v = (x.bfloat16() for x in GIVEN[kind]())
    module = traced(aten.scaled_dot_product_attention, q, k, v)
    sdpa_in_four_dims(module, CPU)
    (call,) = calls(module)
    inputs = module.graph.find_nodes(op="placeholder")
    for before, after in zip(inputs, call.args[:3], strict=True):
        assert val(before).untyped_storage()._cdata == val(after).untyped_storage()._cdata


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out, torch.tanh(out.transpose(-2, -1))


@takes_turns("dynamic")
@pytest.mark.parametrize("kind", ["windows", "heads in the batch"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_with_gradients(kind: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results have eager's strides; gradients are eager's."""
    replace_pass(monkeypatch, "sdpa_four_dims", partial(sdpa_in_four_dims, devices=CPU), when=())
    given = [x.bfloat16().requires_grad_() for x in GIVEN[kind]()]
    run, cov = compiled(causal, dynamic=dynamic)
    results = []
    for function in (causal, run):
        with cov:
            out = function(*given)
        out[1].float().square().sum().backward()
        results.append((*out, *(x.grad for x in given)))
        for x in given:
            x.grad = None
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
        assert found.stride() == expected.stride()
    assert cov.graphs[0].changes("sdpa_four_dims") == {"changes": 1}


def test_calls_that_stay() -> None:
    """Four dims, other devices, single precision, heads that are shared, and random numbers that must be eager's."""

    def changes(*inputs: torch.Tensor, **how: Any) -> int:
        keep_stream = how.pop("keep_stream", False)
        module = traced(partial(aten.scaled_dot_product_attention, **how), *inputs)
        return sdpa_in_four_dims(module, how.pop("devices", CPU), keep_stream)

    five = [torch.randn(2, 3, 4, 5, 8, dtype=torch.bfloat16) for _ in range(3)]
    assert changes(*five) == 1 and changes(*(x.float() for x in five)) == 0
    assert changes(*(x[0] for x in five)) == 0 and changes(*(x[0, 0, 0] for x in five)) == 0
    assert changes(*five, dropout_p=0.5) == 1 and changes(*five, dropout_p=0.5, keep_stream=True) == 0
    assert changes(five[0], *(x[:1] for x in five[1:])) == 0
    module = traced(aten.scaled_dot_product_attention, *five)
    assert sdpa_in_four_dims(module) == 0

"""Biases with keys far apart: copied once, for all that read them."""

from __future__ import annotations

import torch

from regraft.compiler.templates import TemplateKernel

from ..fusing import assert_as_good_as_eager, fuse
from .test_cpp import masked, qkv, random


def clones(function: object, inputs: list[torch.Tensor]) -> int:
    return sum("clone" in name for name in fuse(function, inputs).operators)  # type: ignore[arg-type]


def test_a_bias_with_heads_innermost_is_copied_once_for_all_layers() -> None:
    def layers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        bias = (table * 2).permute(2, 0, 1)
        return masked(masked(q, k, v, bias), k, v, bias)

    inputs = [*qkv(2, 3, 20, 20, 16, 16), random(20, 20, 3)]
    fused = fuse(layers, inputs)
    calls = [n for n in fused.graph_module.graph.nodes if isinstance(n.target, TemplateKernel)]
    assert len(calls) == 2
    assert calls[0].args[3] is calls[1].args[3]
    assert sum("clone" in name for name in fused.operators) == 1
    for call in calls:
        assert [tuple(n.meta["val"].stride()) for n in call.args] == [x.strides for x in call.target.inputs]
    torch.testing.assert_close(fused.graph_module(*inputs), layers(*inputs))


def test_an_input_is_copied_after_all_inputs() -> None:
    inputs = [*qkv(2, 3, 20, 30, 16, 16), random(20, 30, 3).permute(2, 0, 1)]
    assert clones(masked, inputs) == 1
    assert_as_good_as_eager(masked, inputs)
    turned = [random(1, 30, 20).transpose(1, 2), *inputs[:3]]
    assert clones(lambda mask, q, k, v: masked(q, k, v, mask), turned) == 1


def test_dims_of_size_one_do_not_hide_the_layout() -> None:
    bias = random(20, 1, 30, 3, 1).permute(4, 3, 0, 2, 1)[..., 0]
    inputs = [*qkv(1, 3, 20, 30, 16, 16), bias]
    fused = fuse(masked, inputs)
    (call,) = (n for n in fused.graph_module.graph.nodes if isinstance(n.target, TemplateKernel))
    assert [tuple(n.meta["val"].stride()) for n in call.args] == [x.strides for x in call.target.inputs]
    torch.testing.assert_close(fused.graph_module(*inputs), masked(*inputs))


def test_biases_with_adjacent_or_repeated_keys_stay() -> None:
    assert clones(masked, [*qkv(2, 3, 20, 30, 16, 16), random(3, 20, 30)]) == 0
    assert clones(masked, [*qkv(2, 3, 20, 30, 16, 16), random(3, 20, 1)]) == 0
    assert clones(masked, [*qkv(2, 3, 20, 30, 16, 16), random(3, 30, 1).transpose(1, 2).expand(3, 20, 30)]) == 0


def test_a_few_elements_of_much_stay_where_they_are() -> None:
    def corner(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return masked(q, k, v, table[:20, :30, 0])

    inputs = [*qkv(1, 1, 20, 30, 16, 16), random(100, 100, 8)]
    assert clones(corner, inputs) == 0
    assert_as_good_as_eager(corner, inputs)

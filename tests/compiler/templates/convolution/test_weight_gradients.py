"""Gradients of weights of single channels on GPUs through the pass: what is asked, what the graph becomes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.template_oracle import Fastest, with_fake_hopper
from support.triton_convolution import on_gpu

from regraft.compiler.templates import TritonTemplateKernel
from regraft.compiler.templates.common.task import task_of
from regraft.compiler.templates.common.template_pass import TemplatePass
from regraft.compiler.templates.convolution.weight_gradients import RULE, WeightGradientTemplate
from regraft.rewrites.profit import Always, Never
from regraft.rewrites.record import GraphRecord

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    monkeypatch.setattr(TritonTemplateKernel, "build", lambda self: None)
    return with_fake_hopper(monkeypatch, tmp_path_factory.getbasetemp() / "gradients")


def images(count: int, channels: int, side: int) -> torch.Tensor:
    return torch.empty(count, channels, side, side, dtype=BF16, memory_format=torch.channels_last)


def gradient(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Of a weight that is stored in float32, as under autocast."""
    geometry = [1, 1], [3, 3], [1, 1], False, [0, 0], x.shape[1]
    made = torch.ops.aten.convolution_backward(g, x, w.to(BF16), None, *geometry, [False, True, False])
    return made[1].float() * 2


def fuse(count: int, oracle: Any, channels: int = 96) -> tuple[torch.fx.GraphModule, GraphRecord]:
    x = images(count, channels, 56)
    module, record = on_gpu(gradient, x, x, torch.empty(channels, 1, 7, 7)), GraphRecord("test")
    task = task_of(module.graph, oracle, record, training=True)
    assert task is not None
    one = TemplatePass(WeightGradientTemplate(task))
    one.begin()
    one.run_all()
    module.graph.lint()
    return module, record


@pytest.mark.parametrize("oracle", [Always(), Fastest(original=2.0)])
def test_a_kernel_reads_the_gradient_and_the_image(oracle: Any) -> None:
    module, record = fuse(256, oracle)
    (call,) = [node for node in module.graph.nodes if isinstance(node.target, TritonTemplateKernel)]
    inputs = list(module.graph.find_nodes(op="placeholder"))
    assert list(call.args) == inputs[:2] and not inputs[2].users
    assert [match.rule for match in record.applied] == [RULE]
    assert not module.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default)


def test_the_library_stays_where_it_is_faster_or_there_is_little_to_compute() -> None:
    for module, record in (fuse(256, Never()), fuse(1, Fastest(original=0.5)), fuse(64, Fastest(original=0.5))):
        assert module.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default)
        assert not record.applied

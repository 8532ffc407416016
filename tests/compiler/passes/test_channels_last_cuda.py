"""Convolutions on a GPU: channels-last by rule, questions only where needed, and what is left of a network after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("triton")

import torch
from support.fake_cuda import with_fake_driver
from support.fake_cudnn import cudnn, inference_graph
from support.freezing import Residual, disturbed
from torch import fx, nn

from regraft.compiler.codegen.generate import generate_kernels
from regraft.compiler.passes.channels_last import spread_channels_last
from regraft.compiler.passes.conv_as_mm import convolutions_as_matmuls
from regraft.compiler.passes.conv_layout_cost import MOST_ASKED
from regraft.compiler.passes.split_conv_bias import split_conv_biases
from regraft.compiler.templates.gemm.match import FoundProduct, match_gemm
from regraft.rewrites.profit import Decision, Never, Question
from regraft.rewrites.record import Evidence, GraphRecord


@pytest.fixture(autouse=True)
def gpu(monkeypatch, tmp_path_factory) -> Iterator[None]:
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cudnn"))
    with_fake_driver(monkeypatch)
    with cudnn():
        yield


class Asked:
    """An oracle that notes what it is asked, and measures channels-last to be so many times as fast."""

    def __init__(self, speedup: float = 1.0) -> None:
        self.questions: list[Question] = []
        self.speedup = speedup

    def decide(self, question: Question) -> Decision:
        self.questions.append(question)
        times = {"original": 1e-3, "channels_last": 1e-3 / self.speedup}
        return Decision(None, Evidence(times, "measured"))


def network(dtype: torch.dtype = torch.bfloat16, groups: int = 1) -> tuple[nn.Module, torch.Tensor]:
    """Stem, a bottleneck and two residual blocks."""
    torch.manual_seed(0)
    bottleneck = [nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), Residual(16, 16), Residual(16, 32, 2)]
    layers = [
        nn.Conv2d(3, 8, 7, 2, 3),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=groups),
        nn.MaxPool2d(3, 2, 1),
        *bottleneck,
    ]
    model = disturbed(nn.Sequential(*layers, nn.ConvTranspose2d(32, 8, 2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    return model.to(dtype), torch.randn(2, 3, 32, 32, dtype=dtype)


def convolutions(graph: fx.GraphModule) -> list[fx.Node]:
    return graph.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)


def is_laid_out(node: fx.Node) -> bool:
    return node.meta["val"].is_contiguous(memory_format=torch.channels_last)


def spread(graph: fx.GraphModule, oracle) -> tuple:
    record = GraphRecord("test")
    return spread_channels_last(graph, oracle, record), record


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_laid_out_without_a_question(dtype: torch.dtype) -> None:
    graph, oracle = inference_graph(*network(dtype)), Asked()
    made, record = spread(graph, oracle)
    assert made.chosen and not oracle.questions and made.seconds == (0.0, 0.0)
    assert made.convolutions == 9 and [m.rule for m in record.applied] == ["channels_last"]
    assert all(is_laid_out(n) and is_laid_out(n.args[0]) and is_laid_out(n.args[1]) for n in convolutions(graph))
    clones = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    of_images = [n for n in clones if n.args[0].meta["val"].shape[0] == 2]
    assert len(of_images) == 1  # the input: what follows keeps the layout


def test_never() -> None:
    graph = inference_graph(*network())
    made, record = spread(graph, Never())
    assert not made.chosen and [m.rule for m in record.declined] == ["channels_last"]


@pytest.mark.parametrize(("speedup", "chosen"), [(2.0, True), (0.5, False)])
def test_single_precision_is_measured_on_the_largest_kinds(speedup: float, chosen: bool) -> None:
    graph, oracle = inference_graph(*network(torch.float32)), Asked(speedup)
    made, _ = spread(graph, oracle)
    assert made.chosen == chosen and len(oracle.questions) == MOST_ASKED


@pytest.mark.parametrize(("speedup", "chosen"), [(1.1, True), (0.5, False)])
def test_groups_are_measured(speedup: float, chosen: bool) -> None:
    """Slower groups may cost more than the rest of the network gains."""
    graph, oracle = inference_graph(*network(groups=8)), Asked(speedup)
    made, _ = spread(graph, oracle)
    assert made.chosen == chosen and len(oracle.questions) == 1


def test_groups_of_many_channels_are_laid_out_without_a_question() -> None:
    """Their template reads channels last."""
    model = disturbed(nn.Sequential(nn.Conv2d(64, 32, 3, groups=2), nn.ReLU(), nn.Conv2d(32, 32, 3, groups=2)))
    oracle = Asked(0.5)
    made, _ = spread(inference_graph(model.bfloat16(), torch.randn(2, 64, 16, 16).bfloat16()), oracle)
    assert made.chosen and not oracle.questions
    few = disturbed(nn.Sequential(nn.Conv2d(64, 16, 3, groups=2), nn.ReLU()))
    spread(inference_graph(few.bfloat16(), torch.randn(2, 64, 16, 16).bfloat16()), oracle)
    assert len(oracle.questions) == 1


def test_double_precision_is_left_alone() -> None:
    made, _ = spread(inference_graph(*network(torch.float64)), Asked())
    assert made.convolutions == 0


def test_only_convolutions_and_products_stay_calls() -> None:
    """Norms, biases, activations, sums, pooling and copies of weights are kernels."""
    graph = inference_graph(*network())
    spread(graph, Asked())
    assert convolutions_as_matmuls(graph) == 1 and split_conv_biases(graph) == 4
    graph.graph.lint()
    made = generate_kernels(graph, "inference", verify=True)
    kept = {call.operator: (call.code, call.count) for call in made.code.kept}
    assert kept == {"aten.convolution.default": ("library", 8)}  # the product is small


def test_the_kernel_of_a_product_can_compute_the_block_around_it() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
            self.last = nn.Conv2d(8, 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            return self.last(torch.relu(self.norm(self.conv(x)) + x))

    graph = inference_graph(disturbed(Block()).bfloat16(), torch.randn(2, 3, 8, 8).bfloat16())
    spread(graph, Asked())
    assert convolutions_as_matmuls(graph) == 1
    (product,) = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.addmm.default)
    found = match_gemm(product)
    assert isinstance(found, FoundProduct) and found.output.target is torch.ops.aten.relu.default
    assert len(found.inputs) == 8  # rows, weight, bias, four of the norm, what is added

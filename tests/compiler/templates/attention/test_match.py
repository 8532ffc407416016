"""What is found to be attention, and the reasons for what is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.templates import TemplateKernel, fuse_attention, match_attention
from regraft.rewrites.profit import Always, Decision, Never, Question
from regraft.rewrites.record import Evidence, GraphRecord

from ..fusing import fuse
from .test_cpp import attention, qkv, random


def reason(function: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
    fused = fuse(function, inputs)
    assert fused.count == 0
    return fused.codes


def test_softmax_over_queries_is_not_attention() -> None:
    def other(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2), -2) @ v

    assert reason(other, *qkv(1, 2, 16, 16, 8, 8)) == ["softmax-dim"]


def test_probabilities_that_are_returned_stay() -> None:
    def other(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        p = torch.softmax(q @ k.transpose(-1, -2), -1)
        return p, p @ v

    assert reason(other, *qkv(1, 2, 16, 16, 8, 8)) == ["probabilities-escape"]


def test_scores_that_are_returned_stay() -> None:
    def other(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        scores = q @ k.transpose(-1, -2) * 2
        return scores, torch.softmax(scores, -1) @ v

    assert reason(other, *qkv(1, 2, 16, 16, 8, 8)) == ["scores-escape"]


def test_probabilities_that_are_changed_stay() -> None:
    def other(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.softmax(q @ k.transpose(-1, -2), -1)) @ v

    assert reason(other, *qkv(1, 2, 16, 16, 8, 8)) == ["no-second-product"]


def test_weights_that_are_not_scores_have_no_first_product() -> None:
    def other(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1) @ v

    assert reason(other, random(2, 8, 16), random(2, 16, 4)) == ["no-product"]


def test_the_softmax_of_a_classifier_is_no_near_miss() -> None:
    def classifier(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.relu(attention(q, k, v).flatten(1)) @ w, -1)

    fused = fuse(classifier, [*qkv(2, 2, 4, 4, 8, 8), random(64, 10)])
    assert fused.count == 1
    assert fused.codes == []


def test_transposed_scores_stay() -> None:
    def other(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q @ k.transpose(-1, -2)).transpose(-1, -2), -1) @ v

    assert reason(other, *qkv(1, 2, 16, 16, 8, 8)) == ["scores-moved"]


def test_exchanged_heads_stay() -> None:
    def other(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2), -1).flip(1) @ v

    assert reason(other, *qkv(1, 2, 16, 16, 8, 8)) == ["no-second-product"]


def test_scores_that_are_reduced_stay() -> None:
    def other(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2)
        return torch.softmax(scores - scores.mean(-1, keepdim=True), -1) @ v

    assert reason(other, *qkv(1, 2, 16, 16, 8, 8)) == ["score-arguments"]


def test_double_precision_stays() -> None:
    assert reason(attention, *qkv(1, 2, 16, 16, 8, 8, torch.float64)) == ["dtype"]


def test_symbolic_sizes_stay() -> None:
    inputs = qkv(2, 2, 16, 16, 8, 8)
    graph_module = make_fx(attention, tracing_mode="symbolic")(*inputs)
    record = GraphRecord("test")
    assert fuse_attention(graph_module, Always(), record) == 0
    assert [miss.code for miss in record.near_misses] == ["symbolic"]


def test_training_keeps_torchs_operator() -> None:
    def both(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)

    assert reason(both, *qkv(1, 2, 16, 16, 8, 8)) == ["logsumexp-used"]


def test_the_score_is_the_nearest_product_that_fits() -> None:
    def disentangled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, p: torch.Tensor, at: torch.Tensor) -> Any:
        scores = q @ k.transpose(-1, -2) + (q @ p).gather(-1, at.expand(2, 16, 16))
        return torch.softmax(scores, -1) @ v

    at = torch.arange(16).flip(0).repeat(16, 1)
    inputs = [random(2, 16, 8), random(2, 16, 8), random(2, 16, 8), random(2, 8, 20), at]
    fused = fuse(disentangled, inputs)
    assert fused.count == 1
    torch.testing.assert_close(fused.graph_module(*inputs), disentangled(*inputs))


def test_never_counts_only() -> None:
    fused = fuse(attention, qkv(1, 2, 16, 16, 8, 8), Never())
    assert fused.count == 0
    assert [match.rule for match in fused.record.declined] == ["attention-template"]


def test_the_question_measures_what_would_be_replaced() -> None:
    asked: list[Question] = []

    class Ask:
        def decide(self, question: Question) -> Decision:
            asked.append(question)
            return Decision("generated", Evidence(note="asked"))

    inputs = qkv(1, 2, 16, 24, 8, 8)
    fused = fuse(attention, inputs, Ask())
    assert [tuple(x.shape) for x in asked[0].inputs] == [tuple(x.shape) for x in inputs]
    expected, found = asked[0].original(*inputs), asked[0].candidates["generated"](*inputs)
    torch.testing.assert_close(found, expected)
    assert fused.record.applied[0].evidence == Evidence(note="asked")


def test_equal_attentions_share_a_kernel() -> None:
    def twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(attention(q, k, v), k, v)

    fused = fuse(twice, qkv(1, 2, 16, 16, 8, 8))
    kernels = [n.target for n in fused.graph_module.graph.nodes if isinstance(n.target, TemplateKernel)]
    assert fused.count == 2
    assert len({kernel.name for kernel in kernels}) == 1


def test_metadata_is_that_of_the_node_replaced() -> None:
    fused = fuse(attention, qkv(1, 2, 16, 16, 8, 8))
    call = next(n for n in fused.graph_module.graph.nodes if isinstance(n.target, TemplateKernel))
    assert call.meta["val"].shape == (2, 16, 8)
    assert call.target(*(n.meta["val"] for n in call.args)).shape == (2, 16, 8)


def test_match_of_something_else() -> None:
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    found = match_attention(node)
    assert getattr(found, "code", "") == "no-softmax"


@pytest.mark.parametrize("width", [3, 16])
def test_masks_of_infinities_are_read_by_broadcast(width: int) -> None:
    def padded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        outside = torch.arange(width)[None, :] >= lengths[:, None]
        scores = (q @ k.transpose(-1, -2)).masked_fill(outside[:, None, None, :], -math.inf)
        return torch.softmax(scores, -1) @ v

    inputs = [*qkv(2, 2, 5, width, 8, 8), torch.tensor([3, 2])]
    fused = fuse(padded, inputs)
    assert fused.count == 1
    torch.testing.assert_close(fused.graph_module(*inputs), padded(*inputs))

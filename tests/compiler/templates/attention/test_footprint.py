"""Attentions whose scores take much memory are not measured without a kernel, nor run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.templates.attention import footprint
from regraft.compiler.templates.attention.footprint import excluded, peak_bytes
from regraft.compiler.templates.attention.replacement import matched
from regraft.rewrites.profit import Decision, Question
from regraft.rewrites.record import Evidence

from ..fusing import fuse

B, S, D = 3, 32, 8
SCORES = B * S * S * 4


def attend(q: Any, k: Any, v: Any) -> torch.Tensor:
    return torch.softmax(torch.bmm(q, k.transpose(1, 2)).tanh() * 3, -1) @ v


class Keeps:
    """An oracle that keeps every original."""

    def __init__(self) -> None:
        self.questions: list[Question] = []

    def decide(self, question: Question) -> Decision:
        self.questions.append(question)
        return Decision(None, Evidence())


def asked() -> Question:
    oracle = Keeps()
    fuse(attend, torch.randn(3, B, S, D).unbind(), oracle)
    (question,) = oracle.questions
    return question


def test_scores_that_take_much_are_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not asked().excluded
    monkeypatch.setattr(footprint, "LARGEST_SCORES", 2 * SCORES)
    assert not asked().excluded
    monkeypatch.setattr(footprint, "LARGEST_SCORES", 2 * SCORES - 1)
    assert "not measured: its scores take" in asked().excluded


@pytest.mark.parametrize(("free", "kept"), [(8 * SCORES, True), (8 * SCORES - 4, False), (None, True)])
def test_memory_that_is_free_is_shared(monkeypatch: pytest.MonkeyPatch, free: int | None, kept: bool) -> None:
    monkeypatch.setattr(footprint, "free_memory", lambda device: free)
    assert (not asked().excluded) is kept


def test_views_hold_what_they_view_and_take_nothing() -> None:
    def program(x: Any) -> torch.Tensor:
        return (x + 1).view(-1).unsqueeze(0).expand(9, -1).sum(0).relu()

    module = make_fx(program, tracing_mode="fake")(torch.randn(16, 16))
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    assert peak_bytes(nodes) == 2 * 16 * 16 * 4


def test_calls_of_libraries_hold_no_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "LARGEST_SCORES", 0)
    call = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    inputs = [*torch.randn(3, 1, B, S, D), torch.randn(S, S)]
    module = make_fx(lambda q, k, v, m: call(q, k, v, attn_mask=m)[0], tracing_mode="fake")(*inputs)
    (found,) = filter(None, map(matched, module.graph.nodes))
    assert excluded(found, found.nodes) == ""  # type: ignore[union-attr]

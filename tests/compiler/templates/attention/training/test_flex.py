"""`flex_attention` in training on GPUs: kernels forward and backward, of the very functions that the program gives."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

import torch
import torch.nn.attention.flex_attention as flex_module
from support.capturing import CaptureBackend
from support.template_oracle import Fastest, with_fake_hopper
from support.thorough import one_row_in
from support.training_attention import TrainingBackend, eager, fused, joint_of, kernels, run
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from regraft.compiler.templates import TritonTemplateKernel
from regraft.compiler.templates.attention import footprint

S, D = 40, 16
DOCUMENT = torch.arange(S) // 15


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    fake = with_fake_hopper(monkeypatch, tmp_path_factory.getbasetemp() / "flex")
    monkeypatch.setattr(TritonTemplateKernel, "build", lambda self: None)
    return fake


def made(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(dtype)


def soft(s, b, h, i, j):
    return torch.tanh(s / 5) * 5 + (h + 1) * 0.1 * (j - i)


def documents(b, h, i, j):
    return (DOCUMENT[i] == DOCUMENT[j]) & (i >= j)


def half_empty(b, h, i, j):
    return (i >= j) & (i > 10)


@one_row_in(2)
@pytest.mark.parametrize(
    ("score", "mask", "heads", "dtype"),
    [
        (None, half_empty, 2, torch.float32),
        (soft, documents, 1, torch.float32),
        (soft, half_empty, 2, torch.bfloat16),
    ],
)
def test_kernels_forward_and_backward(score, mask, heads, dtype):
    blocks = create_block_mask(mask, 1, 1, S, S, device="cpu")
    backend = CaptureBackend()
    program = torch.compile(lambda q, k, v: flex_attention(q, k, v, score, blocks, enable_gqa=True), backend=backend)
    with torch.no_grad():
        program(*(made(1, h, S, D, dtype=dtype) for h in (2, heads, heads)))
    captured, inputs = backend.graph, list(backend.captured[0].example_inputs)
    module, record = fused(joint_of(captured, *inputs))
    assert len(record.applied) == 1, record.near_misses
    assert len(kernels(module)) == 3
    assert {x.dtype for kernel in kernels(module) for x in kernel.inputs[1:3]} == {dtype}
    above = [made(1, 2, S, D, dtype=dtype)]
    ours, theirs = run(module, inputs, above), eager(captured, inputs, above)
    for one, other in zip(ours, theirs, strict=True):
        if one is not None:
            assert one.isfinite().all()
            torch.testing.assert_close(
                one.double(), other.double(), rtol=0, atol=1e-4 if dtype == torch.float32 else 0.05
            )


@pytest.mark.parametrize(("profit", "count"), [("always", 3), ("never", 0)])
def test_nothing_of_the_size_of_the_scores_is_kept(profit, count, monkeypatch):
    monkeypatch.setattr(flex_module, "_validate_device", lambda *_: None)  # torch refuses gradients on CPUs only
    blocks, backend = create_block_mask(documents, 1, 1, S, S, device="cpu"), TrainingBackend(profit=profit)
    program = torch.compile(lambda q, k, v: flex_attention(q, k, v, soft, blocks), backend=backend)
    inputs = [made(1, 2, S, D).requires_grad_() for _ in range(3)]
    program(*inputs).square().sum().backward()
    graphs = [backend.graphs["forward"], backend.graphs["backward"]]
    assert sum(len(kernels(graph)) for graph in graphs) == count
    results = [node.meta["val"] for node in graphs[0].graph.output_node().all_input_nodes]
    assert not [x for x in results if x.shape[-2:] == (S, S)]
    for x in inputs:
        assert x.grad.isfinite().all()


def test_long_sequences_are_never_measured_without_a_kernel(monkeypatch):
    monkeypatch.setattr(footprint, "LARGEST_SCORES", 2 * S * S * 4)
    oracle = Fastest(original=0.1)

    def attend(q, k, v):
        return torch.softmax((q @ k.mT).tanh(), -1) @ v

    fused(joint_of(attend, *(made(1, 2, S, D) for _ in range(3))), oracle)
    fused(joint_of(attend, *(made(1, 1, S // 4, D) for _ in range(3))), oracle)
    long, short = oracle.questions
    assert "not measured: its scores take" in long.excluded
    assert not short.excluded
    begun = []
    monkeypatch.setattr(long.original, "build", lambda: begun.append("original"))
    long.prepare()
    assert not begun

"""The measuring oracle on a GPU: events, generators, kernels that refuse."""

from __future__ import annotations

import time

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from regraft.compiler.autotune.autotuner import Measured
from regraft.compiler.autotune.benchmark import CudaClock
from regraft.rewrites.profit import Question

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))


def fake(*shape, **kwargs) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(shape, device="cuda", **kwargs)


def decide(inputs, original, training=False, **candidates):
    return Measured(program_seconds=0.0).decide(Question("rule", "k", inputs, original, candidates, training))


def attention(kernel):
    def run(q, k, v, mask):
        with sdpa_kernel([kernel]):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)

    return run


def unfused(q, k, v, mask):
    scores = (q @ k.mT) * 0.125
    scores = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ v


KERNELS = {
    "flash": attention(SDPBackend.FLASH_ATTENTION),
    "efficient": attention(SDPBackend.EFFICIENT_ATTENTION),
    "cudnn": attention(SDPBackend.CUDNN_ATTENTION),
}


def heads(training=False):
    return [fake(8, 12, 512, 64, dtype=torch.bfloat16, requires_grad=training) for _ in range(3)]


@pytest.mark.parametrize("training", [False, True])
def test_attention_kernels(training):
    decision = decide([*heads(training), None], unfused, training, **KERNELS)
    assert decision.chosen is not None, decision.evidence.note
    assert set(decision.evidence.times) == {"original", "flash", "efficient", "cudnn"}


def test_kernel_that_refuses_is_dropped():
    decision = decide([*heads(), fake(8, 1, 1, 512, dtype=torch.bool)], unfused, **KERNELS)
    assert "flash raised RuntimeError" in decision.evidence.note
    assert decision.chosen in ("efficient", "cudnn")


def test_generators_and_device_are_restored():
    torch.cuda.manual_seed(3)
    before = torch.cuda.get_rng_state()
    dropout = torch.nn.functional.dropout
    decision = decide([fake(64)], lambda x: dropout(x), same=lambda x: dropout(x))
    assert "random" in decision.evidence.note
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_event_times_exclude_launching():
    def launch_bound(x):
        time.sleep(0.002)
        return x * 2

    decision = decide([fake(64)], launch_bound, fast=lambda x: x * 2)
    assert decision.evidence.times["original"] < 0.002


def test_capture_is_refused():
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(4, device="cuda")
    inputs = [fake(4)]
    with torch.cuda.graph(graph):
        y = x * 2
        decision = decide(inputs, torch.neg, fast=torch.neg)
    assert "captured" in decision.evidence.note
    graph.replay()
    assert y.sum() == 8


def test_inputs_that_come_from_memory_take_longer_than_those_in_caches():
    x = torch.ones(16 << 20, dtype=torch.uint8, device="cuda")  # a fraction of what caches hold

    def step():
        return [x.view(torch.int32).max()]

    times = {cold: min(clock(step) for _ in range(5)) for cold in (False, True) for clock in [CudaClock(cold)]}
    assert times[True] > 1.15 * times[False]

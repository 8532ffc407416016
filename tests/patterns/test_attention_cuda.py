"""Attention on a GPU: every kernel that applies agrees with eager, forward and backward, and the others say why not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.attentions import additive, keeps, normal
from support.rewriting import compiled, outcome, rewritten, trained

from regraft.patterns.attention import sdpa

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

B, H, S, D = 2, 4, 96, 64
INF = float("inf")
KERNELS = {c.name: c for c in sdpa.candidates if c.name in ("cudnn", "efficient", "math")}
FLASH = next(c for c in sdpa.candidates if c.name == "flash" and "attention_cuda" in c.function.__module__)
TOLERANCE = {torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}


def qkv(dtype: torch.dtype = torch.bfloat16, rows: int = S) -> list[torch.Tensor]:
    return [normal(B, H, n, D, dtype=dtype, seed=i).cuda() for i, n in enumerate((rows, S, S))]


def plain(q, k, v):
    return torch.softmax(q @ k.mT * 0.125, -1) @ v


def added(q, k, v, m):
    return torch.softmax(q @ k.mT * 0.125 + m, -1) @ v


def filled(q, k, v, m):
    return torch.softmax((q @ k.mT * 0.125).masked_fill(~m, -INF), -1) @ v


def causal(q, k, v):
    drop = torch.ones(S, S, dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax((q @ k.mT * 0.125).masked_fill(drop, -INF), -1) @ v


def only(candidate: Any) -> list[Any]:
    return [replace(sdpa, candidates=(candidate,))]


def assert_close(function: Any, run: Any, given: list[Any]) -> None:
    for ours, eager in zip(outcome(run, given), outcome(function, given), strict=True):
        assert torch.equal(ours.isnan(), eager.isnan())
        a, b = ours.double().nan_to_num(), eager.double().nan_to_num()
        assert float((a - b).norm()) <= TOLERANCE[eager.dtype] * float(b.norm()) + 1e-6


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("kernel", [*KERNELS, "flash"])
@pytest.mark.parametrize("mask", ["none", "added", "filled", "causal"])
def test_kernels(kernel: str, mask: str, dtype: torch.dtype, training: bool) -> None:
    function = {"none": plain, "added": added, "filled": filled, "causal": causal}[mask]
    masks = {"added": [additive(keeps(B, 1, S, S), dtype=dtype).cuda()], "filled": [keeps(S, S).cuda()]}
    inputs = [*qkv(dtype), *masks.get(mask, [])]
    given = trained(inputs) if training else inputs
    candidate = FLASH if kernel == "flash" else KERNELS[kernel]
    found = rewritten(function, given, rules=only(candidate), nan="safe" if dtype == torch.float32 else "eager")
    half_only = kernel in ("flash", "cudnn") and dtype == torch.float32
    # What the mask hides is not known: rows that it hides entirely would lose their gradients.
    unknown = mask == "added" and training and kernel != "math"
    if half_only or unknown or (kernel == "flash" and mask in ("added", "filled")):
        assert found.count() == 0 and found.codes == {"kernel-unavailable"}
        return
    assert found.kernels == [kernel]
    assert_close(function, found.run, given)


def test_infinite_keys_stay_finite_in_single_precision() -> None:
    """The memory-efficient kernel's products of float32 give NaN for them."""
    q, k, v = qkv(torch.float32)
    q[..., 0], k[..., 5, 0] = 1.0, -INF
    found = rewritten(plain, [q, k, v], rules=only(KERNELS["efficient"]))
    assert found.count() == 0 and found.codes == {"kernel-unavailable"}
    assert_close(plain, compiled(plain)[0], [q, k, v])


@pytest.mark.parametrize("kernel", list(KERNELS))
def test_dead_row_is_nan(kernel: str) -> None:
    keep = keeps(S, S)
    keep[3] = False
    inputs = [*qkv(), additive(keep, dtype=torch.bfloat16).cuda()]
    found = rewritten(added, inputs, rules=only(KERNELS[kernel]))
    assert found.kernels == [kernel]
    assert found.run(*inputs)[:, :, 3].isnan().all()
    assert_close(added, found.run, inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("kernel", list(KERNELS))
@pytest.mark.parametrize("spelling", ["selected", "added"])
def test_low_row_is_uniform(spelling: str, kernel: str, dtype: torch.dtype) -> None:
    """A row of nothing but the lowest number."""
    low, keep = torch.finfo(dtype).min, keeps(B, 1, S, S)
    keep[1, :, 3] = False
    select = lambda q, k, v, m: torch.softmax((q @ k.mT * 0.125).masked_fill(~m, low), -1) @ v  # noqa: E731
    function, mask = (select, keep) if spelling == "selected" else (added, additive(keep, low, dtype))
    inputs = [*qkv(dtype), mask.cuda()]
    found = rewritten(function, inputs, rules=only(KERNELS[kernel]))
    assert found.kernels == [kernel]
    assert_close(function, found.run, inputs)


@pytest.mark.parametrize("length", [1, 17, 33])
def test_odd_lengths(length: int) -> None:
    """Masks whose rows are not aligned."""
    inputs = [normal(B, H, length, D, dtype=torch.bfloat16, seed=i).cuda() for i in range(3)]
    mask = torch.randn(B, 1, length, length, device="cuda", dtype=torch.bfloat16)
    found = rewritten(added, [*inputs, mask])
    assert found.count() == 1
    assert_close(added, found.run, [*inputs, mask])


@pytest.mark.parametrize("rng", ["statistical", "eager"])
def test_dropout(rng: str) -> None:
    """Fused kernels draw from their own stream, so rng='eager' leaves the kernel that draws as eager code does."""

    def function(q, k, v):
        return F.dropout(torch.softmax(q @ k.mT * 0.125, -1), 0.25, True) @ v

    given = trained(qkv())
    found = rewritten(function, given, rng=rng)
    assert found.count() == 1
    if rng == "eager":
        assert found.kernels == ["math"]
        assert_close(function, found.run, given)
    else:
        assert not torch.equal(found.run(*given), found.run(*given))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiled(dynamic: bool) -> None:
    run, coverage = compiled(causal, dynamic=dynamic)
    with coverage:
        assert_close(causal, run, trained(qkv()))
    assert coverage.count("attention") == 1

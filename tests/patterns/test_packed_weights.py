"""Torch's operators for weights of few bits become a dequantized weight and a product, where that is faster."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.rewriting import compiled
from support.thorough import one_row_in

from regraft.compiler.tools.check import refusals
from regraft.patterns.packed_weights import ENOUGH_ROWS, int4_weight, int8_weight, is_packed_in_blocks

MANY, FEW, N, K = ENOUGH_ROWS + 3, 2, 128, 96


def by_bytes(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._weight_int8pack_mm(x, w, s)


def by_nibbles(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._weight_int4pack_mm_for_cpu(x, w, 32, s)


def run(function: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, Any]:
    made, found = compiled(function)
    with torch.no_grad(), found:
        return made(*inputs), found


def far(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x.double() - y.double()).norm() / y.double().norm())


@one_row_in(2)
@pytest.mark.parametrize(("rows", "dtype", "applied"), [
    (MANY, torch.bfloat16, 1), (FEW, torch.bfloat16, 0), (MANY, torch.float32, 1), (FEW, torch.float32, 1),
])  # fmt: skip
def test_bytes(rows: int, dtype: torch.dtype, applied: int) -> None:
    x, w, s = torch.randn(rows, K).to(dtype), torch.randint(-128, 128, (N, K)).to(torch.int8), torch.rand(N).to(dtype)
    ours, found = run(by_bytes, x, w, s)
    assert found.count("int8_weight") == applied
    exact = (x.double() @ w.double().t()) * s.double()
    assert ours.dtype == dtype
    assert far(ours, exact) <= max(4 * far(by_bytes(x, w, s), exact), 1e-6)


@pytest.mark.skipif(not is_packed_in_blocks(), reason="torch packs nibbles in another way on this CPU")
@pytest.mark.parametrize(("rows", "dtype", "applied"), [
    (MANY, torch.bfloat16, 1), (FEW, torch.bfloat16, 0), (MANY, torch.float32, 1),
])  # fmt: skip
def test_nibbles(rows: int, dtype: torch.dtype, applied: int) -> None:
    q, s = torch.randint(0, 16, (N, K)).int(), torch.randn(K // 32, N, 2).to(dtype)
    x, w = torch.randn(rows, K).to(dtype), torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, 1)
    ours, found = run(by_nibbles, x, w, s)
    assert found.count("int4_weight") == applied
    scale, zero = s.double().transpose(0, 1).repeat_interleave(32, 1).unbind(-1)
    exact = x.double() @ ((q.double() - 8) * scale + zero).t()
    assert far(ours, exact) <= max(4 * far(by_nibbles(x, w, s), exact), 1e-6)


@pytest.mark.skipif(not is_packed_in_blocks(), reason="torch packs nibbles otherwise on this CPU")
def test_scales_in_another_layout_stay_as_torch_reads_them() -> None:
    """Torch's operator reads their memory in order, whatever their strides are."""
    x, scales = torch.rand(MANY, 32), torch.rand(1, N, 2) + 0.1
    w = torch.randint(0, 256, (N, 16), dtype=torch.uint8)
    turned = scales.transpose(0, -1).contiguous().transpose(0, -1)
    for given, applied in ((scales, 1), (turned, 0)):
        ours, found = run(by_nibbles, x, w, given)
        assert found.matches["int4_weight"] == applied and far(ours, by_nibbles(x, w, given)) < 1e-5


@pytest.mark.parametrize("rule", [int8_weight, int4_weight], ids=lambda rule: rule.name)
def test_near_misses(rule: Any) -> None:
    for sample in rule.samples:
        assert not sample.refused or sample.refused in refusals(rule, sample)


def test_checks_give_torch_contiguous_operands() -> None:
    """Torch's operator reads others as if they were contiguous, beyond their memory: a check of the rule crashed."""
    w, s = torch.randint(-128, 128, (N, K)).to(torch.int8), torch.rand(1).bfloat16().expand(N)
    x = torch.randn(MANY + K).bfloat16().as_strided((MANY, K), (1, 1))
    expected = by_bytes(x.contiguous(), w, s.contiguous())
    assert torch.equal(int8_weight.pattern(x, w, s), expected)

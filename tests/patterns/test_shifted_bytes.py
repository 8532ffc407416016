"""Products of unsigned bytes that stand for signed ones, as torchao writes them, are products of signed bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.rewriting import compiled, rewritten
from support.versions import OLD_TORCH

from regraft.compiler.tools.check import refusals
from regraft.patterns.shifted_bytes import shifted_bytes

pytestmark = pytest.mark.skipif(OLD_TORCH, reason="torch 2.11 multiplies signed bytes only")
X = torch.randint(-128, 128, (5, 16), generator=torch.Generator().manual_seed(0)).to(torch.int8)
W = torch.randint(-128, 128, (9, 16), generator=torch.Generator().manual_seed(1)).to(torch.int8)


def scaled(x: Any, w: Any, s: Any, offset: int = 128, taken: int = 128) -> Any:
    """As torchao scales a product: sums are corrected in place."""
    a = (x.to(torch.int32) + offset).to(torch.uint8)
    c = torch._int_mm(a, w.t())
    c.sub_(w.t().sum(dim=0, keepdim=True, dtype=torch.int32) * taken)
    return c.to(s.dtype) * s


def test_what_torchao_writes_is_found() -> None:
    made, found = compiled(scaled)
    inputs = (X, W, torch.rand(5, 1))
    with torch.no_grad(), found:
        ours = made(*inputs)
    assert found.count("shifted_bytes") == 1
    assert torch.equal(ours, scaled(*inputs))


def test_bytes_that_several_products_read() -> None:
    """Queries and keys of one quantized input."""

    def both(x: Any, w: Any) -> Any:
        a = (x.to(torch.int32) + 128).to(torch.uint8)
        made = (torch._int_mm(a, b) - b.sum(0, keepdim=True, dtype=torch.int32) * 128 for b in (w.t(), w.flip(0).t()))
        return tuple(made)

    found = rewritten(both, (X, W), stage="lowered")
    assert found.count("shifted_bytes") == 2
    assert all(torch.equal(*pair) for pair in zip(found.run(X, W), both(X, W), strict=True))


@pytest.mark.parametrize("numbers", [(127, 127), (128, 127), (127, 128)])
def test_other_numbers_are_left(numbers: tuple[int, int]) -> None:
    inputs = (X, W, torch.rand(5, 1))
    found = rewritten(lambda x, w, s: scaled(x, w, s, *numbers), inputs, stage="lowered")
    assert not found.count("shifted_bytes")


def test_a_depth_of_one_is_refused() -> None:
    """Torch's operator is wrong there."""
    inputs = (X[:, :1], W[:, :1], torch.rand(5, 1))
    assert not rewritten(scaled, inputs, stage="lowered").count("shifted_bytes")


@pytest.mark.parametrize("sample", [s for s in shifted_bytes.samples if s.refused], ids=lambda s: s.refused)
def test_near_misses(sample: Any) -> None:
    assert sample.refused in refusals(shifted_bytes, sample)

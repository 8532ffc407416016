"""Numbers of 8 bits, and others that torch promotes to nothing: kernels convert them, and no graph is given up."""

from __future__ import annotations

import pytest
import torch

import regraft

KINDS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_there_and_back(kind: torch.dtype) -> None:
    def f(x: torch.Tensor, stored: torch.Tensor) -> tuple[torch.Tensor, ...]:
        narrow = (x / x.amax() * 100).to(kind)
        return narrow.float() + 1, torch.cat([narrow, stored.t()]), stored.float() @ x, stored.to(torch.bfloat16) * 2

    torch.manual_seed(0)
    x, stored = torch.rand(8, 8) + 0.1, (torch.rand(8, 8) + 0.1).to(kind)
    with regraft.coverage() as found:
        ours = torch.compile(f, backend="regraft", fullgraph=True)(x, stored)
    assert not found.fallbacks
    for a, b in zip(ours, f(x, stored), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a.float(), b.float())

"""Large pages for large results: the same tensors, whatever the system makes of the advice."""

from __future__ import annotations

import torch

from regraft.compiler.codegen.wrapper import huge_pages
from regraft.compiler.codegen.wrapper.huge_pages import LARGE_BYTES, empty_large, is_large

CPU = torch.device("cpu")


def test_what_is_large():
    assert is_large((LARGE_BYTES // 4,), torch.float32) and not is_large((LARGE_BYTES // 4 - 1,), torch.float32)
    assert not is_large((torch.SymInt,), torch.float32)


def test_memory_is_as_asked_and_can_be_written():
    made = empty_large(CPU)((3000, 1000), (1, 3000), torch.float32)
    assert made.shape == (3000, 1000) and made.stride() == (1, 3000) and made.dtype == torch.float32
    assert torch.equal(made.fill_(2), torch.full((3000, 1000), 2.0))


def test_without_advice_it_is_plain_memory(monkeypatch):
    monkeypatch.setattr(huge_pages, "_advice", lambda: None)
    assert empty_large.__wrapped__(CPU)((4,), (1,), torch.int64).shape == (4,)


def test_large_results_take_it():
    import regraft

    torch.compiler.reset()
    x = torch.randn(2048, 1024)
    with regraft.coverage() as cov, torch.no_grad():
        out = torch.compile(lambda x: x * 2, backend="regraft", options={"debug": True})(x)
    assert torch.equal(out, x * 2)
    assert "empty_large_cpu" in cov.graphs[0].details["source:inference"]

"""How graphs are given to AOTAutograd."""

import pytest
import torch


def test_aot_autograd_is_called_without_what_imports_inductor(monkeypatch):
    from torch._dynamo.backends import common
    from torch._dynamo.utils import counters

    monkeypatch.setattr(common.AotAutograd, "__call__", lambda *_: pytest.fail("it imports Inductor, for a log"))
    torch._dynamo.reset()
    counters.clear()
    x = torch.randn(3, requires_grad=True)
    torch.compile(lambda x: (x.sin() * 2).sum(), backend="regraft", options={"strict": True})(x).backward()
    torch.testing.assert_close(x.grad, x.detach().cos() * 2)
    assert counters["aot_autograd"] == {"total": 1, "ok": 1}

"""Graphs that are put back as they were."""

import torch
from torch import fx

from regraft.rewrites.backup import Backup


def test_what_was_put_back_may_be_changed_and_put_back_again():
    module = fx.symbolic_trace(lambda x: x.sin() + 1)
    x, before = torch.randn(3), module.code
    backup = Backup(module)
    backup.take()
    for _ in range(3):
        (sine,) = module.graph.find_nodes(op="call_method", target="sin")
        sine.target = "cos"
        module.recompile()
        assert torch.equal(module(x), x.cos() + 1)
        backup.restore()
        assert module.code == before and torch.equal(module(x), x.sin() + 1)

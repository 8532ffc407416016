"""Views look at what their operands have become, so that writes to them are seen."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from regraft.compiler import pipeline
from regraft.rewrites.compat import capture_function
from regraft.rewrites.editor import Editor
from regraft.rewrites.purity import storages
from regraft.rewrites.views import renew_views, renew_written_views

aten = torch.ops.aten


def written(bag):
    bag[:, 0].zero_()
    return bag


def written_in_turn(bag):
    flat = bag.view(-1)
    first, second = flat[:12], flat[12:]
    first.add_(1).mul_(3)
    return bag, second


def written_through_views(bag):
    row = bag.t().unsqueeze(0)[0, 1:3]
    row.diagonal().fill_(2).add_(1)
    return bag * 2, row * 1


WRITES = [written, written_in_turn, written_through_views]


def module_of(write):
    module, _ = capture_function(lambda x: write(aten.sin.default(x)), [torch.randn(4, 6)], dynamic=False)
    return module


@pytest.mark.parametrize("write", WRITES)
def test_views_follow_a_replacement(write):
    module = module_of(write)
    graph = module.graph
    assert renew_views(graph) == 0
    (sine,) = graph.find_nodes(op="call_function", target=aten.sin.default)
    shared = [n for n in graph.nodes if n is not sine and storages(n) & storages(sine)]
    editor = Editor(graph)
    with editor.at(sine):
        new = editor.call(aten.cos.default, sine.args[0])
    editor.replace(sine, new)
    graph.erase_node(sine)
    assert not any(storages(n) & storages(new) for n in shared)
    assert renew_views(graph) >= len([n for n in shared if n.op == "call_function"])
    assert all(storages(n) == storages(new) for n in shared if n.op == "call_function")
    assert renew_views(graph) == 0


def test_graphs_without_writes_keep_their_metadata():
    module = module_of(lambda y: y.t().reshape(-1)[2:])
    before = [n.meta.get("val") for n in module.graph.nodes]
    assert renew_written_views(module.graph) == 0 and before == [n.meta.get("val") for n in module.graph.nodes]


def test_memory_that_is_taken_stays():
    """`set_` gives its operand other memory: that is no view."""

    def taken(x):
        y, z = x.sin(), x.cos()
        y.set_(z)
        return y + 1, z.add_(1)

    module, _ = capture_function(taken, [torch.randn(4, 6)], dynamic=False)
    before = [n.meta.get("val") for n in module.graph.nodes]
    assert renew_views(module.graph) == 0 and before == [n.meta.get("val") for n in module.graph.nodes]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_writes_to_bags_are_kept(write, trains, monkeypatch):
    """Bags of embeddings are written out before autograd, on GPUs; so here."""
    (bags,) = (p for p in pipeline.CAPTURED if p.name == "bags_as_sums")
    monkeypatch.setitem(bags.__dict__, "when", ())
    table, indices = torch.randn(7, 6, requires_grad=trains), torch.tensor([[3, 0], [1, 1], [6, 2], [4, 5]])

    def program(table, indices):
        return write(F.embedding_bag(indices, table, mode="mean"))

    torch.compiler.reset()
    found, wanted = torch.compile(program, backend="regraft")(table, indices), program(table, indices)
    torch.testing.assert_close(found, wanted)
    if trains:
        loss = [sum(y.sin().sum() for y in (out if isinstance(out, tuple) else (out,))) for out in (found, wanted)]
        mine, theirs = (torch.autograd.grad(x, table)[0] for x in loss)
        torch.testing.assert_close(mine, theirs)

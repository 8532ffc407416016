import torch
from support.engine import X, calls, capture
from torch.nn import functional as F

from regraft.rewrites.effects import Effects, mark_gradients, wants_gradient
from regraft.rewrites.purity import is_random


def effects(function, *inputs):
    module = capture(function, *(inputs or (X,)))
    return Effects(module.graph), calls(module)


def test_writes_through_views_are_found_by_position():
    found, nodes = effects(lambda a: (a.view(-1).add_(1), torch.exp(a)))
    view, add, exp = nodes
    a = view.args[0]
    assert found.writer_between(a, -1, 99) is add
    assert found.writer_between(a, found.position[add], 99) is None
    assert found.writer_between(exp, -1, 99) is None
    assert found.unstable(a) is add and found.unstable(exp) is None


def test_draws():
    found, nodes = effects(
        lambda a: F.dropout(a, 0.5) + torch.rand_like(a) + F.dropout(a, 0.5, False) + F.dropout(a, 0.0)
    )
    drop, rand = (found.position[n] for n in nodes if is_random(n))
    assert found.draws_between(drop, 99, {drop})
    assert not found.draws_between(-1, 99, {drop, rand}) and not found.draws_between(rand, 99, set())


def test_regions():
    def function(a):
        x = torch.exp(a)
        with torch.no_grad():
            y = torch.exp(a)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                z = torch.exp(a)
            w = torch.exp(a)
        return x, y, z, w, torch.exp(a)

    _, nodes = effects(function)
    x, y, z, w, after = (n.meta["region"] for n in nodes if n.target is torch.ops.aten.exp.default)
    assert x == after and y == w and len({x, y, z}) == 3


def test_gradients_flow():
    def function(a, b):
        with torch.no_grad():
            frozen = torch.exp(a)
        return frozen, torch.exp(a), torch.exp(b), torch.exp(a).detach(), (torch.exp(a) > 0), torch.exp(a) * b

    module = capture(function, X, X)
    mark_gradients(module.graph, [True, False])
    (outputs,) = module.graph.output_node().args
    assert [wants_gradient(n) for n in outputs] == [False, True, False, False, False, True]


def test_gradients_flow_by_writes_to_what_is_written_and_its_views():
    def function(a, b):
        z, y = torch.zeros(3, 4), torch.zeros(3, 4)
        top, apart, bottom = z[0], z.detach(), z.view(-1)[4:]
        top.copy_(a[0])
        y[0] = b[0]
        return z, top, bottom, torch.exp(z[1]), apart, y, torch.exp(y), torch.exp(b.add_(a))

    module = capture(function, X, X)
    mark_gradients(module.graph, [True, False])
    (outputs,) = module.graph.output_node().args
    assert [wants_gradient(n) for n in outputs] == [True, True, True, True, False, False, False, True]


def test_a_switch_of_streams_separates_regions():
    module = capture(lambda a: torch.relu(torch.exp(a)), X)
    exp, relu = calls(module)
    with module.graph.inserting_before(relu):
        module.graph.call_function(_stream_operator(), (0, 1))
    Effects(module.graph)
    assert exp.meta["region"] != relu.meta["region"]


def _stream_operator():
    """What Dynamo records where a program enters another stream."""
    import torch._dynamo.variables.streams

    return torch.ops.streams.fork.default

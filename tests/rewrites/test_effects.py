import torch
from support.engine import X, calls, capture
from torch.nn import functional as F

from regraft.rewrites.effects import Effects, mark_gradients, storages, wants_gradient, written
from regraft.rewrites.graph import PureCall, is_pure, is_random, op_name


def effects(function, *inputs):
    module = capture(function, *(inputs or (X,)))
    return Effects(module.graph), calls(module)


def test_views_share_storage():
    _, (view, exp) = effects(lambda a: torch.exp(a.view(4, 3)))
    assert storages(view) == storages(view.args[0]) and not storages(view) & storages(exp)


def test_what_a_call_writes():
    _, (add, copy, exp) = effects(lambda a: torch.exp(a.add_(1).copy_(a)))
    assert [written(n) for n in (add, copy, exp)] == [[add.args[0]], [add], []]


def test_calls_of_other_functions_may_write_and_kernels_of_ours_do_not():
    class Kernel(PureCall):
        __name__ = "kernel"

        def __call__(self, x):
            return x + 1

    for target, writes in ((torch.exp, True), (Kernel(), False)):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        call = graph.call_function(target, (x,))
        call.meta["val"] = torch.empty(2)
        assert (written(call) == [x], is_pure(call)) == (writes, not writes)


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


def test_dead_code_is_erased_only_where_pure():
    _, nodes = effects(lambda a: (torch.exp(a), F.dropout(a, 0.5), a.add_(1), F.dropout(a, 0.5, False)))
    assert [is_pure(n) for n in nodes] == [True, False, False, True]


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


def test_running_statistics_are_written_though_no_schema_says_so():
    def function(a, mean, var):
        return F.batch_norm(a, mean, var, training=True), F.batch_norm(a, mean, var)

    _, nodes = effects(function, torch.randn(4, 3), torch.zeros(3), torch.ones(3))
    training, evaluation = (n for n in nodes if op_name(n) == "aten.batch_norm")
    assert [n.name for n in written(training)] == ["mean_1", "var_1"] and not is_pure(training)
    assert written(evaluation) == [] and is_pure(evaluation)


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

"""Graphs with tensors on the CPU, too: what runs there is set apart, and the rest is captured."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from regraft.compiler.passes.host_scalars import copy_host_scalars
from regraft.compiler.runtime.cudagraphs.host import split_host
from regraft.compiler.runtime.cudagraphs.rules import skip_reason

from ....support.lowering import symbolic_number
from ....support.recorded_graphs import FakeDevice, graphs

aten = torch.ops.aten
CPU = torch.device("cpu")


def graph_of(function, *given):
    """Traced on fakes: an input for each device, a number where that is the CPU."""
    with FakeTensorMode():
        shapes = {"cuda": (4, 6), "cpu": ()}
        return make_fx(function)(*(torch.empty(shapes[d], device=d) for d in given))


def on_cpu(module: fx.GraphModule):
    """A boxed call that runs a graph with every device the CPU."""
    for node in module.graph.nodes:
        if "device" in node.kwargs:
            node.update_kwarg("device", CPU)
    module.recompile()

    def call(args):
        given = list(args)
        args.clear()
        with torch.no_grad():
            return module(*given)

    return call


def stepped(x, step, moment):
    """Part of an optimizer's step: a counter on the CPU, which is written to."""
    count = aten.add.Tensor(step, 1)
    factor = aten.rsub.Scalar(aten.pow.Scalar(0.9, count), 1)
    mean = aten.add.Tensor(aten.mul.Tensor(moment, 0.9), x)
    aten.copy_.default(step, count)
    return aten.div.Tensor(mean, factor), aten.sqrt.default(factor)


def test_both_parts_together_are_the_graph():
    module = graph_of(stepped, "cuda", "cpu", "cuda")
    copy_host_scalars(module)
    parts = split_host(module)
    assert parts.host_inputs == (1,) and parts.device_inputs == (0, 2) and parts.from_host == (False, True)
    assert skip_reason(parts.device.graph, frozenset({1}), "statistical") is None
    assert parts.static(frozenset({2})) == {1} and parts.returned(2) == 1 and parts.returned(None) is None
    device = FakeDevice()
    owner = graphs(device)
    device_call = on_cpu(parts.device)
    run = parts.joined(on_cpu(parts.host), owner.inference(device_call, parts.static(frozenset({2}))))
    mine, theirs = (([torch.tensor(3.0), torch.ones(4, 6)]) for _ in range(2))
    for k in range(5):
        x = torch.randn(4, 6)
        found, wanted = run([x, *mine]), stepped(x, *theirs)
        for a, b in zip([*found, *mine], [*wanted, *theirs], strict=True):
            torch.testing.assert_close(a, b)
        assert (len(device.captures), device.replays) == (min(k, 1), k)


def test_calls_that_give_more_than_tensors_stay_on_the_gpu():
    """Attentions give lengths beside their result, gradients of norms nothing in place of some results."""

    def forward(q, table):
        x = q + aten._to_copy.default(table, device=torch.device("cuda"))
        y = x.expand(2, 3, 4, 6)
        made = aten._scaled_dot_product_flash_attention.default(y, y, y)
        normed = aten.native_layer_norm.default(x, [6], None, None, 1e-5)
        wanted = [True, False, False]
        return made[0], *aten.native_layer_norm_backward.default(x, x, [6], *normed[1:], None, None, wanted)

    module = graph_of(forward, "cuda", "cpu")
    several = [n.meta["val"] for n in module.graph.nodes if isinstance(n.meta.get("val"), tuple)]
    assert all(any(not isinstance(x, torch.Tensor) for x in values) for values in several[::2])
    parts = split_host(module)
    assert parts is not None and parts.given == 1 and parts.host_inputs == (1,)


def test_a_batch_that_the_program_moves_to_the_gpu():
    def forward(w, n):
        return (aten.mul.Tensor(w, aten._to_copy.default(aten.sin.default(n), device=torch.device("cuda"))),)

    module = graph_of(forward, "cuda", "cpu")
    parts = split_host(module)
    assert parts.given == 1 and skip_reason(parts.device.graph, frozenset(), "statistical") is None
    run = parts.joined(on_cpu(parts.host), on_cpu(parts.device))
    w, n = torch.randn(4, 6), torch.tensor(2.0)
    torch.testing.assert_close(run([w, n]), on_cpu(module)([w, n]))


def seen_again(x, n):
    return aten.mul.Tensor(aten._to_copy.default(aten.sum.default(x), device=CPU), n), x


def written_from_the_gpu(x, n):
    aten.copy_.default(n, aten.sum.default(x))
    return (x,)


@pytest.mark.parametrize("function", [seen_again, written_from_the_gpu, lambda x, n: (aten.mul.Tensor(x, n),)])
def test_what_depends_both_ways_or_reads_the_cpu_stays_whole(function):
    assert split_host(graph_of(function, "cuda", "cpu")) is None


def test_graphs_of_one_device_stay_whole():
    assert split_host(graph_of(lambda n, m: (aten.mul.Tensor(n, m),), "cpu", "cpu")) is None
    assert split_host(graph_of(lambda x, y: (aten.mul.Tensor(x, y),), "cuda", "cuda")) is None


def with_sizes(n, x, scale, table):
    """Dynamo gives numbers of the program so where it compiles for all sizes."""
    length = n + 1
    row = aten._to_copy.default(aten.slice.Tensor(table, 0, 0, length), device=torch.device("cuda"))
    y = aten.mul.Tensor(aten.mul.Tensor(x, scale), aten.sum.default(row))
    return aten.view.default(y, [4 * n]), n, length, aten.mul.Tensor(scale, n)


def test_symbolic_sizes_belong_to_both_parts():
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        n = symbolic_number(mode.shape_env, 5, "n")
        scale = torch.empty((), dtype=torch.float64)
        module = make_fx(with_sizes)(n, torch.empty(4, n, device="cuda"), scale, torch.empty(9))
    assert copy_host_scalars(module) == 1
    parts = split_host(module)
    assert parts.host_inputs == (0, 2, 3) and parts.device_inputs == (0, 1)
    assert parts.from_host == (False, True, True, True) and parts.given == 2
    assert skip_reason(parts.device.graph, frozenset(), "statistical") is None
    run, whole = parts.joined(on_cpu(parts.host), on_cpu(parts.device)), on_cpu(module)
    for n in (3, 7):
        inputs = (n, torch.randn(4, n), torch.tensor(0.125, dtype=torch.float64), torch.randn(9))
        found, wanted = run(list(inputs)), whole(list(inputs))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)

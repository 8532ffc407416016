"""Numbers held as tensors on the CPU, read beside tensors on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.backend import Compilation
from regraft.compiler.options import Options
from regraft.compiler.passes.host_scalars import copy_host_scalars
from regraft.compiler.passes.scalars_to_device import move_scalars_to_device
from regraft.compiler.runtime.cudagraphs.host import split_host
from regraft.compiler.runtime.cudagraphs.rules import skip_reason
from regraft.rewrites.graph import op_name, val

aten = torch.ops.aten


def graph_of(function, *devices, shape=(4, 6)):
    with FakeTensorMode(allow_non_fake_inputs=True):
        return make_fx(torch.func.functionalize(function))(*(torch.empty(shape, device=d) for d in devices))


def number(value):
    return aten.full.default([], value, dtype=torch.float32, device=torch.device("cpu"))


def devices_read_by(module, name):
    return [x.meta["val"].device.type for n in module.graph.nodes if op_name(n) == name for x in n.all_input_nodes]


def test_a_known_number_moves_to_the_tensor():
    module = graph_of(lambda x: aten.div.Tensor(x, aten.sqrt(number(64.0))), "cuda")
    before = val(module.graph.output_node().args[0])
    assert move_scalars_to_device(module) == 1
    module.graph.lint()
    assert devices_read_by(module, "aten.div") == ["cuda", "cuda"]
    assert val(module.graph.output_node().args[0]).dtype == before.dtype
    (made,) = (n for n in module.graph.nodes if op_name(n) == "aten.full")  # what it was made from is gone
    assert made.args[1] == 8.0 and move_scalars_to_device(module) == 0


# Calls on a GPU that eager lets compute with a number of the CPU.
TAKE_NUMBERS = {
    "add": lambda x, n: aten.add.Tensor(x, n),
    "clamp": lambda x, n: aten.clamp.Tensor(x, n),
    "fill": lambda x, n: aten.fill.Tensor(x, n),
    "index_fill": lambda x, n: aten.index_fill.int_Tensor(x, 0, aten.arange.default(2, device=x.device), n),
    "index_put": lambda x, n: aten.index_put.default(x, [aten.gt.Scalar(x, 0)], n),
    "lerp": lambda x, n: aten.lerp.Tensor(x, aten.neg(x), n),
    "masked_fill": lambda x, n: aten.masked_fill.Tensor(x, aten.gt.Scalar(x, 0), n),
    "where": lambda x, n: aten.where.self(aten.gt.Scalar(x, 0), x, n),
}


@pytest.mark.parametrize("name", TAKE_NUMBERS)
def test_no_call_on_a_gpu_reads_the_cpu(name):
    known = graph_of(lambda x: TAKE_NUMBERS[name](x, number(2.0)), "cuda")
    assert move_scalars_to_device(known) == 1
    assert all(val(node).device.type == "cuda" for node in known.graph.nodes if node.op == "call_function")
    given = graph_of(lambda x, n: [TAKE_NUMBERS[name](x, aten.sum(n))], "cuda", "cpu")
    assert move_scalars_to_device(given) == 0 and copy_host_scalars(given) == 1
    parts = split_host(given)
    assert parts is not None and skip_reason(parts.device.graph, frozenset(), "statistical") is None


def test_inputs_are_not_known():
    assert move_scalars_to_device(graph_of(lambda x, n: aten.div.Tensor(x, aten.sum(n)), "cuda", "cpu")) == 0


def test_on_cpus_nothing_moves():
    assert move_scalars_to_device(graph_of(lambda x: aten.div.Tensor(x, number(2.0)), "cpu")) == 0


def test_a_number_is_not_kept_for_the_backward():
    made = []

    def backend(module, inputs):
        made.append(Compilation(module, inputs, Options(profit="never", debug=True)))
        return made[0].run()

    @torch.compile(backend=backend)
    def scaled(x):
        return torch.softmax(x / torch.sqrt(torch.tensor(64.0)), -1)

    x = torch.randn(4, 6, requires_grad=True)
    (found,) = torch.autograd.grad(scaled(x)[0, 0], x)
    (wanted,) = torch.autograd.grad(torch.softmax(x / 8, -1)[0, 0], x)
    torch.testing.assert_close(found, wanted)
    details = made[0].record.details
    assert "full" not in details["graph:forward"].splitlines()[-1]
    assert "aten.full.default](args = ([], 8.0)" in details["graph:backward"]

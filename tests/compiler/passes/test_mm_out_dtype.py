"""Products in half precision that are read in single precision only."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.passes.mm_out_dtype import use_mm_out_dtype
from regraft.rewrites.graph import op_name, val

aten = torch.ops.aten


def graph_of(function, *shapes, dtype=torch.bfloat16, device="cuda"):
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
        return make_fx(torch.func.functionalize(function))(*inputs)


def single(x):
    return aten._to_copy.default(x, dtype=torch.float32)


WIDENED = {
    "cast": lambda a, b: single(aten.mm(a, b)),
    "slice": lambda a, b: single(aten.slice(aten.mm(a, b), 0, 0, 5)),
    "read by kernels too": lambda a, b: (y := single(aten.mm(a, b)), y.exp())[0],
    "transposed operand": lambda a, b: single(aten.mm(b.t(), a.t())),
}


@pytest.mark.parametrize("name", WIDENED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casts_of_products(name, dtype):
    module = graph_of(WIDENED[name], (8, 16), (16, 4), dtype=dtype)
    before = val(module.graph.output_node().args[0])
    assert use_mm_out_dtype(module) == 1
    module.graph.lint()
    after = val(module.graph.output_node().args[0])
    assert (after.shape, after.dtype, after.stride()) == (before.shape, torch.float32, before.stride())
    targets = [node.target for node in module.graph.nodes if op_name(node) == "aten.mm"]
    assert targets == [aten.mm.dtype] and not any(op_name(n) == "aten._to_copy" for n in module.graph.nodes)


def test_casts_that_a_library_reads():
    module = graph_of(lambda a, b: aten.mm(single(aten.mm(a, b)).t(), single(a)).exp(), (8, 16), (16, 4))
    assert use_mm_out_dtype(module) == 1


OTHERS = {
    "read in half precision too": (lambda a, b: (y := aten.mm(a, b), single(y)), {}),
    "on a CPU": (lambda a, b: single(aten.mm(a, b)), {"device": "cpu"}),
    "to half precision": (lambda a, b: aten._to_copy.default(aten.mm(a, b), dtype=torch.float16), {}),
    "a view is read too": (lambda a, b: (y := aten.slice(aten.mm(a, b), 0, 0, 5), single(y)), {}),
    "read by kernels": (lambda a, b: single(aten.mm(a, b)).exp(), {}),
    "a view is read by kernels": (lambda a, b: single(aten.mm(a, b)).t().exp(), {}),
    "no product": (lambda a, b: single(aten.relu(a)), {}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name):
    function, settings = OTHERS[name]
    assert use_mm_out_dtype(graph_of(function, (8, 16), (16, 4), **settings)) == 0

"""What keeps a graph from being captured: each reason by name, on fake tensors."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from regraft.compiler.runtime.cudagraphs.rules import skip_reason

aten = torch.ops.aten


def graph_of(function, *devices, count=1):
    with FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True):
        inputs = [torch.empty(8, 8, device=device) for device in devices or ("cuda",) * count]
        return make_fx(function)(*inputs).graph


def code(graph, static=(), rng="statistical"):
    reason = skip_reason(graph, frozenset(static), rng)
    return None if reason is None else reason.code


def test_pointwise_products_and_sizes_are_captured():
    assert code(graph_of(lambda x, w: (x @ w).relu().sum(x.shape[0] - 7), count=2)) is None


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda x: aten.add_.Tensor(x, 1), "input-mutated"),
        (lambda x: aten.nonzero.default(x), "waits-for-data"),
        (lambda x: aten.masked_select.default(x, x > 0), "waits-for-data"),
        (lambda x: aten.rand_like.default(x), None),
        (lambda x: aten._to_copy.default(x, device=torch.device("cpu")), "not-on-cuda"),
    ],
)
def test_reasons(function, wanted):
    assert code(graph_of(function)) == wanted


def test_indices_are_captured_but_masks_are_not():
    def indexed(x):
        return aten.index.Tensor(x, [aten.arange.default(3, device=x.device)])

    graph = graph_of(indexed)
    assert code(graph) is None
    (index,) = graph.find_nodes(op="call_function", target=aten.index.Tensor)
    mask = index.args[1][0]
    mask.meta["val"] = mask.meta["val"].to(torch.bool)
    assert code(graph) == "waits-for-data"


def test_writes_to_parameters_are_captured():
    graph = graph_of(lambda x, w: aten.copy_.default(w, x), count=2)
    assert code(graph, static={1}) is None and code(graph, static={0}) == "input-mutated"
    reason = skip_reason(graph, frozenset({0}), "statistical")
    assert reason.nodes and "written to" in reason.message


def test_eagers_own_random_numbers_are_not_captured():
    assert code(graph_of(lambda x: aten.rand_like.default(x)), rng="eager") == "eager-random"


def test_cpu_tensors_and_several_gpus():
    assert code(graph_of(lambda x, s: (x + 1, s + 1), "cuda", "cpu")) == "not-on-cuda"
    assert code(torch.fx.Graph()) == "no-tensors"
    if torch.cuda.device_count() != 1:  # fakes of a second GPU can be made where there are several, or none
        assert code(graph_of(lambda x, y: (x + 1, y + 1), "cuda:0", "cuda:1")) == "several-devices"


def test_operators_of_others_are_not_captured():
    with torch.library._scoped_library("somebody", "FRAGMENT") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
        graph = graph_of(lambda x: torch.ops.somebody.double(x))
        assert code(graph) == "custom-operator"


def test_python_functions_are_not_captured():
    graph = graph_of(lambda x: x + 1)
    (node,) = graph.find_nodes(op="call_function", target=aten.add.Tensor)
    node.target = test_python_functions_are_not_captured
    assert code(graph) == "opaque-call"

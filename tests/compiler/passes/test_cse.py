"""Equal calls of a graph are made once."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.passes.cse import eliminate_common_subexpressions
from regraft.rewrites.graph import op_name

aten = torch.ops.aten


def graph_of(function, *inputs):
    return make_fx(function, tracing_mode="fake")(*inputs)


def names(module):
    return [op_name(node).removeprefix("aten.") for node in module.graph.nodes if node.op == "call_function"]


def shared(function, *inputs):
    module = graph_of(function, *inputs)
    expected = module(*inputs)
    gone = eliminate_common_subexpressions(module)
    module.graph.lint()
    torch.testing.assert_close(module(*inputs), expected)
    return module, gone


X = torch.randn(4, 6)


def test_chains_of_equal_calls_go():
    def function(x):
        a = aten.clone(aten.permute(x, [1, 0])).relu()
        b = aten.clone(aten.permute(x, [1, 0])).relu()
        return aten.mul(a, 2.0), aten.mul(b, 3.0)

    module, gone = shared(function, X)
    assert gone == 3 and sorted(names(module)) == ["clone", "mul", "mul", "permute", "relu"]


def test_arguments_count_with_their_types():
    def function(x):
        return [
            y.sum() for y in (aten.add(x, 1), aten.add(x, 1.0), aten.sum(x, [0]), aten.sum(x, [0], dtype=torch.float64))
        ]

    _, gone = shared(function, X)
    assert gone == 0


def test_dims_count_from_either_end():
    def function(x):
        rows = [aten._log_softmax(x, 1, False), aten._log_softmax(x, -1, False)]
        sums = [aten.sum(x, [-1]), aten.sum(x, [1]), aten.sum(x, [1], False), aten.sum(x, [0]), aten.sum(x, [1], True)]
        turned = [aten.permute(x, [-1, 0]), aten.permute(x, [1, 0])]
        return [aten.mul(y, float(i)) for i, y in enumerate((*rows, *sums, *turned))]

    _, gone = shared(function, X)
    assert gone == 4


def test_dims_of_other_tensors_stay_apart():
    def function(x):
        wider = [aten.unsqueeze(x, -1), aten.unsqueeze(x, 1)]
        gradients = [aten.select_backward(x, [4, 1, 6], 1, 0), aten.select_backward(x, [4, 6, 1], -1, 0)]
        windows = aten.unfold(x, 1, 2, 2)
        back = [aten.unfold_backward(windows, [4, 6], -1, 2, 2), aten.unfold_backward(windows, [4, 6], 1, 2, 2)]
        return [aten.mul(y, float(i)) for i, y in enumerate((*wider, *gradients, *back))]

    _, gone = shared(function, X)
    assert gone == 0


def test_two_results_stay_two_tensors():
    module, gone = shared(lambda x: (x.relu(), x.relu()), X)
    a, b = module(X)
    assert gone == 0 and a.data_ptr() != b.data_ptr()


def test_random_numbers_are_drawn_each_time():
    module = graph_of(lambda x: (aten.rand_like(x).sum(), aten.rand_like(x).sum()), X)
    assert eliminate_common_subexpressions(module) == 0


def test_what_is_written_to_stays():
    def function(x):
        a, b = aten.clone(x), aten.clone(x)
        aten.add_(a, 1.0)
        return a.sum(), b.sum()

    assert eliminate_common_subexpressions(graph_of(function, X)) == 0

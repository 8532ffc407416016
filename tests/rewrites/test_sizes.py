import pytest
import torch
from support.engine import X, calls, capture, ops

from regraft.rewrites.editor import Editor
from regraft.rewrites.sizes import SizeTable


def reshaped(sizes):
    """`a` reshaped to sizes that are computed from its own, and the operators that this took."""
    module = capture(lambda a: torch.exp(a), X, dynamic=True)
    (exp,) = calls(module)
    editor = Editor(module.graph, SizeTable(module.graph))
    with editor.at(exp):
        new = editor.call(torch.ops.aten.reshape.default, exp.args[0], sizes(*exp.meta["val"].shape))
    module.graph.output_node().replace_input_with(exp, new)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    return module


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        (lambda m, n: [n, m], (5, 2)),
        (lambda m, n: [m * n], (10,)),
        (lambda m, n: [1, m * n, 1], (1, 10, 1)),
        (lambda m, n: [m, (n + 1) - 1], (2, 5)),
        (lambda m, n: [m * n // 1, 1], (10, 1)),
        (lambda m, n: [torch.sym_max(m, n), torch.sym_min(m, n)], (5, 2)),
    ],
)
def test_symbolic_sizes_become_nodes(sizes, shape):
    assert reshaped(sizes)(torch.randn(2, 5)).shape == shape


def test_a_size_is_read_once_right_after_the_inputs():
    module = reshaped(lambda m, n: [m, 1, n, 1])
    assert ops(module) == ["sym_size", "sym_size", "reshape"]


def test_plain_sizes_stay_plain():
    module = capture(lambda a: torch.exp(a), X)
    assert SizeTable(module.graph).resolve([1, (2, "s"), {"k": 3.5}, None]) == [1, (2, "s"), {"k": 3.5}, None]


def test_expressions_without_an_operator_are_named():
    import sympy

    from regraft.rewrites.sizes import _operator_of

    with pytest.raises(NotImplementedError, match="no graph operation for the symbolic expression"):
        _operator_of(sympy.sin(sympy.Symbol("s")))

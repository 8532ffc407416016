"""Sizes that only a run can tell are looked at before a kernel relies on them."""

import pytest
import torch
from torch import fx

from regraft.compiler.codegen.wrapper.size_checks import check_sizes, doubtful_results
from regraft.rewrites.coverage import coverage

_library = torch.library.Library("regraft_test_claims", "FRAGMENT")
_library.define("ones(Tensor x, int n) -> Tensor")
_library.impl("ones", lambda x, n: torch.ones(n), "CPU")
torch.library.register_fake("regraft_test_claims::ones", lambda x, n: torch.empty(8), lib=_library)


@pytest.mark.parametrize("rows", [8, 5, 9])
def test_an_operator_that_says_wrong_sizes_is_refused(rows):
    x = torch.ones(3)
    compiled = torch.compile(lambda x: torch.ops.regraft_test_claims.ones(x, rows) * 2 + 1, backend="regraft")
    if rows == 8:
        torch.testing.assert_close(compiled(x), torch.full((8,), 3.0))
        return
    with pytest.raises(RuntimeError, match=f"dimension 0 has size {rows}, not 8"):
        compiled(x)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_that_nothing_else_tells_are_not_looked_at():
    x = torch.tensor([1.0, 0, 2])

    def program(x):
        return x[x > 0] * 2

    with coverage() as cov:
        torch.testing.assert_close(torch.compile(program, backend="regraft")(x), program(x))
    assert "check_sizes" not in cov.graphs[0].details["source:inference"]


def test_pairs_of_dims_and_sizes():
    check_sizes(torch.ones(2, 3), ((0, 2), (1, 3)))
    with pytest.raises(RuntimeError, match="dimension 1 has size 3, not 4"):
        check_sizes(torch.ones(2, 3), ((0, 2), (1, 4)))


def test_operators_of_torch_say_what_is_true():
    graph = fx.Graph()
    x = graph.placeholder("x")
    for target, doubtful in ((torch.ops.aten.relu.default, False), (torch.ops.aten.nonzero.default, True)):
        node = graph.call_function(target, (x,))
        node.meta["val"] = torch.empty(2, 1)
        assert bool(doubtful_results(node)) == doubtful

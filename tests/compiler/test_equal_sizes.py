"""Programs of sizes that guards hold equal, compiled for any sizes: kernels alone, and eager's values."""

from __future__ import annotations

import pytest
import torch
from support.equal_sizes import PROGRAMS, modulated
from support.thorough import one_row_in

import regraft


@one_row_in(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_equal_sizes_become_kernels(name: str) -> None:
    function, sizes, inputs = PROGRAMS[name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    with regraft.coverage() as cov:
        compiled = torch.compile(function, backend="regraft", dynamic=True)
        for each in sizes:
            given = inputs(*each)
            torch.testing.assert_close(compiled(*given), function(*given), atol=1e-5, rtol=1e-5)
    assert not [f.message for graph in cov.graphs for f in graph.fallbacks]


def test_a_gradient_has_its_own_inputs() -> None:
    """A backward may lack symbols that the forward has."""
    torch._dynamo.reset()
    compiled = torch.compile(modulated, backend="regraft", dynamic=True)
    for n, k in ((6, 3), (8, 5)):
        given = [torch.randn(n, k, 7, requires_grad=True), torch.randn(n, 2 * k, requires_grad=True)]
        ours = torch.autograd.grad(compiled(*given).square().sum(), given)
        theirs = torch.autograd.grad(modulated(*given).square().sum(), given)
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)

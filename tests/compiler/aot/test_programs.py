"""Kinds of programs ahead of time: containers of results, factorizations that may fail, a tensor given twice."""

from typing import NamedTuple

import pytest
import torch

import regraft
from regraft.compiler.codegen.cpp import can_build

pytestmark = pytest.mark.skipif(not can_build(), reason="no C++ compiler")


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Several(torch.nn.Module):
    """Named tuples, what torch's functions return, and factorizations."""

    def forward(self, x, y):
        square = x.mT @ x + torch.eye(4)
        torch.linalg.cholesky(square - y.mT @ y)
        return {"pair": Pair(x + y, x * y), "sorted": x.sort(1), "most": [y.max(0)]}, torch.linalg.inv(square)


def test_containers_and_factorizations_and_a_tensor_given_twice(tmp_path):
    x, y = torch.randn(6, 4), torch.randn(6, 4) * 1e-2
    compiled = regraft.load(regraft.aot_compile(Several(), (x, x), tmp_path / "several.rgx"))
    found, expected = compiled(x, y), Several()(x, y)
    torch.testing.assert_close(found, expected)
    assert [type(found[0][key]).__name__ for key in found[0]] == ["Pair", "sort", "list"]
    assert isinstance(found[0]["sorted"], torch.return_types.sort) and isinstance(
        found[0]["most"][0], torch.return_types.max
    )
    assert torch.equal(found[0]["pair"].second, expected[0]["pair"].second)
    with pytest.raises(RuntimeError, match="cholesky"):
        compiled(y, x * 100)

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


class Writing(torch.nn.Module):
    """Returns an input that it writes to, beside one that it reads afterwards."""

    def forward(self, x, y):
        return y, x.add_(1), y * 2


def test_inputs_that_are_written(tmp_path):
    compiled = regraft.load(regraft.aot_compile(Writing(), (torch.ones(3), torch.ones(3)), tmp_path / "writing.rgx"))
    memory = torch.arange(9.0)
    for places in ((0, 3), (3, 0)):
        own, eager = ([memory.clone()[k : k + 3] for k in places] for _ in range(2))
        torch.testing.assert_close(compiled(*own), Writing()(*eager))
        torch.testing.assert_close(own, eager)
    shared = memory.clone()
    for places in ((0, 0), (0, 2), (4, 2)):
        with pytest.raises(ValueError, match="input 'x' is written by the program, and must not share memory with"):
            compiled(*(shared[k : k + 3] for k in places))
    assert shared.equal(memory)


def test_inputs_that_are_written_between_others(tmp_path):
    compiled = regraft.load(regraft.aot_compile(Writing(), torch.zeros(2, 2, 3, 4).unbind(1), tmp_path / "between.rgx"))
    own, eager = torch.arange(48.0).view(2, 2, 3, 4), torch.arange(48.0).view(2, 2, 3, 4)
    torch.testing.assert_close(compiled(own[:, 0], own[:, 1]), Writing()(eager[:, 0], eager[:, 1]))
    torch.testing.assert_close(own, eager)
    memory = torch.zeros(60)
    places = [memory.as_strided((2, 3, 4), (24, 4, 1), offset) for offset in (0, 1, 9, 12)]
    for place in places[1:-1]:
        with pytest.raises(ValueError, match="must not share memory"):
            compiled(places[0], place)
    compiled(places[0], places[-1])

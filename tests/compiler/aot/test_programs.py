"""Kinds of programs ahead of time: containers of results, factorizations that may fail, tensors given twice, dtypes."""

from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from torch.utils._pytree import tree_leaves

import regraft
from regraft.compiler.codegen.cpp import can_build

pytestmark = pytest.mark.skipif(not can_build(), reason="no C++ compiler")


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


DTYPES = (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


class Several(torch.nn.Module):
    """Containers, factorizations, dtypes that kernels do not compute with, complex numbers, data-dependent sizes."""

    def forward(self, a, b, z, *others):
        square = a.mT @ a + torch.eye(4)
        torch.linalg.cholesky(square - b.mT @ b)
        kept = OrderedDict(sorted=a.sort(1), most=[b.max(0)], sizes=a.shape)
        counted = a.nonzero(), (b > 0).nonzero() + 1
        turned = z * 2j, a * (1 - 0.5j), torch.full((2,), -1j), torch.where(a > 0, z, float("inf") + 2j), 2j - a
        told = (
            turned,
            counted,
            torch.fft.rfft(b),
            z.abs() + a,
            z * 2,
            [other.to(torch.float64) for other in others],
            others[0],
        )
        return {"pair": Pair(a + b, a * b), "kept": kept}, torch.linalg.inv(square), told


class Writing(torch.nn.Module):
    """Twice: returns an input that it writes to, beside one that it reads afterwards."""

    def forward(self, x, y, u, v):
        return y, x.add_(1), y * 2, v, u.add_(1), v * 2


class Both(torch.nn.Module):
    """Both in one artifact."""

    def forward(self, x, y, u, v, a, b, z, *others):
        return Several()(a, b, z, *others), Writing()(x, y, u, v)


def boxes():
    """Two, between whose lines others lie."""
    return torch.zeros(2, 2, 3, 4).unbind(1)


def operands():
    x, y, z = torch.randn(6, 4), torch.randn(6, 4) * 1e-2, torch.randn(6, 4, dtype=torch.complex64)
    return x, y, z, *((torch.rand(2, 3) * 9).to(dtype) for dtype in DTYPES)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    x, _, *others = operands()
    given = (torch.ones(3), torch.ones(3), *boxes(), x, x, *others)
    return regraft.load(regraft.aot_compile(Both(), given, tmp_path_factory.mktemp("aot") / "both.rgx"))


@pytest.fixture
def writing(both):
    """Of two vectors and two boxes."""
    others = operands()
    return lambda *given: both(*given, *others)[1]


def test_containers_and_factorizations_and_a_tensor_given_twice(both):
    x, y, z, *others = operands()

    def compiled(*given):
        return both(torch.ones(3), torch.ones(3), *boxes(), *given)[0]

    for view in (z.conj(), torch._neg_view(z), z):
        found, expected = compiled(x, y, view, *others), Several()(x, y, view, *others)
        assert found[2][-1].dtype is torch.uint16 and found[2][-1].tolist() == others[0].tolist()
        torch.testing.assert_close([*found[:2], *found[2][:-1]], [*expected[:2], *expected[2][:-1]])
    kept = found[0]["kept"]
    assert type(kept) is OrderedDict and type(found[0]["pair"]).__name__ == "Pair"
    assert [type(value).__name__ for value in kept.values()] == ["sort", "list", "Size"] and kept["sizes"] == (6, 4)
    assert isinstance(kept["sorted"], torch.return_types.sort) and isinstance(kept["most"][0], torch.return_types.max)
    assert torch.equal(found[0]["pair"].second, expected[0]["pair"].second)
    with pytest.raises(RuntimeError, match="cholesky"):
        compiled(y, x * 100, z, *others)
    found = compiled(x.clone().requires_grad_(), y, z, *others)
    assert not any(value.requires_grad for value in tree_leaves(found) if isinstance(value, torch.Tensor))


def test_inputs_that_are_written(writing):
    memory, others = torch.arange(9.0), boxes()
    for places in ((0, 3), (3, 0)):
        own, eager = ([memory.clone()[k : k + 3] for k in places] for _ in range(2))
        torch.testing.assert_close(writing(*own, *others)[:3], Writing()(*eager, *others)[:3])
        torch.testing.assert_close(own, eager)
    shared = memory.clone()
    for places in ((0, 0), (0, 2), (4, 2)):
        with pytest.raises(ValueError, match="input 'x' is written by the program, and must not share memory with"):
            writing(*(shared[k : k + 3] for k in places), *others)
    assert shared.equal(memory)
    negated = torch.complex(torch.zeros(3), torch.ones(3)).conj().imag
    with pytest.raises(ValueError, match="'x' is written by the program, and must not be a view of negated"):
        writing(negated, torch.ones(3), *others)


def test_inputs_that_are_written_between_others(writing):
    others = [torch.ones(3), torch.ones(3)]
    own, eager = torch.arange(48.0).view(2, 2, 3, 4), torch.arange(48.0).view(2, 2, 3, 4)
    found, expected = writing(*others, own[:, 0], own[:, 1]), Writing()(*others, eager[:, 0], eager[:, 1])
    torch.testing.assert_close(found[3:], expected[3:])
    torch.testing.assert_close(own, eager)
    memory = torch.zeros(60)
    places = [memory.as_strided((2, 3, 4), (24, 4, 1), offset) for offset in (0, 1, 9, 12)]
    for place in places[1:-1]:
        with pytest.raises(ValueError, match=r"input 'u' .* must not share memory"):
            writing(*others, places[0], place)
    writing(*others, places[0], places[-1])

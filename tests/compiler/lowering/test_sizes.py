"""Symbolic sizes of torch as indices and as values."""

from __future__ import annotations

import math

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from regraft.compiler.ir.index.index import Index, Late, atoms
from regraft.compiler.ir.value import Op
from regraft.compiler.lowering import sizes as lowered_sizes
from regraft.compiler.lowering.core import Unlowered, cast, const, contiguous, number
from regraft.compiler.lowering.equal_sizes import EqualSizes, equating
from regraft.compiler.lowering.sizes import real
from regraft.rewrites.compat import new_fake_mode


@pytest.fixture
def sizes():
    mode = new_fake_mode(ShapeEnv(duck_shape=False))
    return mode.from_tensor(torch.empty(6, 10), static_shapes=False).shape


def test_polynomials(sizes):
    s, t = sizes
    assert number(5) == 5
    assert number(s * t + 3 * s) == number(t * s) + number(s) * 3
    assert number((s + t) ** 2) == (number(s) + number(t)) * (number(s) + number(t))
    assert isinstance(number(s // 2), Index)
    assert number(s * 4 // 4) == number(s)
    assert isinstance(number(torch.sym_max(s, t)), Index)


def test_pieces_of_what_was_padded(sizes):
    """Sizes of `pad(x, (0, (4 - n % 4) % 4)).reshape(-1, pieces, 4)`, which torch writes as a quotient of quotients."""
    n = sizes[0]
    for pad in ((4 - n % 4) % 4, -n % 4):
        whole = n + pad
        pieces = whole // 4
        assert number(whole // pieces) == 4
        assert number(pieces * 4) == number(whole) and number(whole % 4) == 0
        assert isinstance(number((whole + 1) // pieces), Index) and isinstance(number(n // (n // 4)), Index)


def test_ranges_come_from_the_shape_environment(sizes):
    ((monomial, _),) = number(sizes[0]).terms
    assert monomial[0].low == 2


def test_a_program_asks_about_each_expression_once(sizes, monkeypatch):
    """Layers repeat sizes, and long sizes have parts in common: time must not grow with either."""
    asked = []
    monkeypatch.setattr(lowered_sizes, "_is_within", lambda expr, _: asked.append(expr) or True)
    part = (sizes[0] + 1) // 2
    with equating(EqualSizes()):
        once = [number(part * 3), number(part + sizes[1])]
        first = list(asked)
        assert [number(part * 3), number(part + sizes[1])] == once
    assert asked == first and len(set(first)) == len(first) > 2
    number(part)
    assert len(asked) > len(first)  # another program may know other things


def test_floats(sizes):
    s, t = sizes
    value = real(s / t, {})
    assert (value.name, value.dtype) == ("div", torch.float64)
    assert isinstance(real(torch.sym_sqrt(s) * 0.5, {}), Op)
    with pytest.raises(Unlowered, match="of sizes"):
        real(torch.sym_max(s / t, 0.5), {})


def test_sizes_known_when_run_say_what_makes_them_known(sizes):
    unbacked = sizes[0].node.shape_env.create_unbacked_symint()
    (late,) = [atom for atom in atoms(number(unbacked + sizes[0])) if isinstance(atom, Late)]
    assert late.tokens == (f"known {unbacked}",) and late.low is None
    (computed,) = atoms(number(math.ceil(unbacked / 2)))
    assert isinstance(computed, Late) and computed.tokens == late.tokens and computed.name != late.name


def test_constants_are_spelled_in_their_dtype():
    assert const(0.1, torch.float32).number == torch.tensor(0.1).item() != 0.1
    assert const(0.1, torch.float64).number == 0.1
    assert const(300, torch.uint8).number == 44
    assert const(200, torch.int8).number == -56
    assert const(2, torch.bool).number is True
    assert const(1e300, torch.float32).number == float("inf")


def test_casts_of_constants_are_folded_unless_undefined():
    assert cast(const(2.7, torch.float32), torch.int64) is const(2, torch.int64)
    assert isinstance(cast(const(float("nan"), torch.float32), torch.int64), Op)
    x = const(1, torch.int64)
    assert cast(x, torch.int64) is x


def test_row_major_strides():
    assert contiguous((2, 3, 4)) == (12, 4, 1)
    assert contiguous(()) == ()

"""Rotary embeddings in all their spellings, in both directions; what turns other pairs is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.attentions import normal
from support.rewriting import assert_agrees, compiled, rewritten, trained
from support.thorough import one_row_in, takes_turns

X, COS, SIN = normal(2, 3, 5, 8), normal(5, 8), normal(5, 8, seed=1)
TURNS = torch.polar(torch.ones(5, 4), normal(5, 4))


def halves(x: Any) -> Any:
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def chunks(x: Any) -> Any:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def pieces(x: Any) -> Any:
    a, b = x.split(4, dim=-1)
    return torch.cat((-b, a), dim=-1)


def neighbours(x: Any) -> Any:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def unbound(x: Any) -> Any:
    a, b = x.reshape(*x.shape[:-1], 2, 4).unbind(-2)
    return torch.cat((-b, a), dim=-1)


def narrowed(x: Any) -> Any:
    return torch.cat((-x.narrow(-1, 4, 4), x.narrow(-1, 0, 4)), dim=-1)


def pairs_unbound(x: Any) -> Any:
    """What `rearrange(x, "... (d r) -> ... d r", r=2)` is."""
    a, b = x.unflatten(-1, (4, 2)).unbind(-1)
    return torch.stack((-b, a), dim=-1).flatten(-2)


def stacked(x: Any) -> Any:
    y = x.unflatten(-1, (2, 4))
    return torch.stack((-y[..., 1, :], y[..., 0, :]), dim=-2).flatten(-2)


def back(x: Any) -> Any:
    """Turned by the negative angle."""
    return torch.cat((x[..., 4:], -x[..., :4]), dim=-1)


_OF_HALVES = (halves, chunks, pieces, unbound, narrowed, stacked, back)
ROTATIONS = {f.__name__: f for f in (*_OF_HALVES, neighbours, pairs_unbound)}
SIDE_BY_SIDE = ("neighbours", "pairs_unbound")


def turned(rotate: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda x, cos, sin: (x * cos) + (rotate(x) * sin)


def as_complex(x, turns):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


NOT = {
    "thirds": lambda x: torch.cat((-x[..., 3:], x[..., :3]), dim=-1),
    "both negated": lambda x: torch.cat((-x[..., 4:], -x[..., :4]), dim=-1),
    "not negated": lambda x: torch.cat((x[..., 4:], x[..., :4]), dim=-1),
    "doubled": lambda x: torch.cat((-2 * x[..., 4:], x[..., :4]), dim=-1),
    "another dim": lambda x: torch.cat((-x[:, :, 3:], x[:, :, :3]), dim=2),
    "overlapping": lambda x: torch.cat((-x[..., 4:], x[..., 1:5]), dim=-1),
    "two values": lambda x: torch.cat((-x[..., 4:], x.flip(0)[..., :4]), dim=-1),
    "even with even": lambda x: torch.stack((-x[..., ::2], x[..., ::2]), dim=-1).flatten(-2),
    "side by side": lambda x: torch.stack((-x[..., 1::2], x[..., ::2]), dim=-2).flatten(-2),
}


@takes_turns("training")
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", ROTATIONS)
def test_rotary(name: str, training: bool) -> None:
    given = [*trained([X]), COS, SIN] if training else [X, COS, SIN]
    found = rewritten(turned(ROTATIONS[name]), given)
    refused = name in SIDE_BY_SIDE and training
    assert found.count("rotary") == (not refused), found.record.near_misses
    assert ("gradient-costs-more" in found.codes) == ("neg" in found.ops) == refused
    assert_agrees(turned(ROTATIONS[name]), found.run, given)


def joined(a: Any, b: Any, cos: Any, sin: Any, *rest: Any) -> Any:
    return torch.cat((a * cos - b * sin, b * cos + a * sin, *rest), -1)


def paired(a: Any, b: Any, cos: Any, sin: Any) -> Any:
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def by_a_table_of_pairs(x: Any, cos: Any, sin: Any) -> Any:
    y, t = x.unflatten(-1, (-1, 2)), torch.stack([cos, sin], -1)[None]
    first, second = y[..., 0] * t[..., 0] - y[..., 1] * t[..., 1], y[..., 1] * t[..., 0] + y[..., 0] * t[..., 1]
    return torch.stack([first, second], -1).flatten(-2)


BY_PRODUCTS: dict[str, Callable[..., Any]] = {
    "halves": lambda x, c, s: joined(*x.chunk(2, -1), c, s),
    "halves, back": lambda x, c, s: joined(*x.chunk(2, -1), c, -s),
    "halves, back by signs": lambda x, c, s: torch.cat(
        (x[..., :4] * c + x[..., 4:] * s, x[..., 4:] * c - x[..., :4] * s), -1
    ),
    "halves, in float32": lambda x, c, s: joined(*x.float().split(4, -1), c, s).type_as(x),
    "fused products": lambda x, c, s: torch.cat(
        [torch.addcmul(x[..., :4] * c, x[..., 4:], s, value=-1), torch.addcmul(x[..., 4:] * c, x[..., :4], s)], -1
    ),
    "neighbours": lambda x, c, s: paired(x[..., ::2], x[..., 1::2], c, s),
    "pairs": lambda x, c, s: paired(*x.unflatten(-1, (-1, 2)).unbind(-1), c, s),
    "a part of each row": lambda x, c, s: joined(x[..., :2], x[..., 2:4], c[:, :2], s[:, :2], x[..., 4:]),
    "signs in the table": lambda x, c, s: (
        x * torch.cat([c, c], -1) + torch.cat([x[..., 4:], x[..., :4]], -1) * torch.cat([-s, s], -1)
    ),
    "complex halves": lambda x, c, s: torch.cat(
        [(z := torch.complex(x[..., :4], x[..., 4:]) * torch.complex(c, s)).real, z.imag], -1
    ),
    "rolled": lambda x, c, s: x * torch.cat([c, c], -1) + torch.roll(x, 4, -1) * torch.cat([-s, s], -1),
    "rolled, by a table with more dims": lambda x, c, s: (
        x * torch.cat([c, c], -1)[None, None] + x.roll(4, -1) * torch.cat([-s, s], -1)[None, None]
    ),
    "a table of pairs": by_a_table_of_pairs,
    "flipped": lambda x, c, s: (
        x * torch.cat([c, c], -1)
        + torch.cat([-(y := x.unflatten(-1, (2, 4)).flip(-2))[..., 0, :], y[..., 1, :]], -1) * torch.cat([s, s], -1)
    ),
}


@takes_turns("training")
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", BY_PRODUCTS)
def test_by_products(name: str, training: bool) -> None:
    given = [*trained([X]), COS[:, :4], SIN[:, :4]] if training else [X, COS[:, :4], SIN[:, :4]]
    found = rewritten(BY_PRODUCTS[name], given)
    assert found.count("rotary") == 1, found.record.near_misses
    assert_agrees(BY_PRODUCTS[name], found.run, given)


NO_TURNS: dict[str, Callable[..., Any]] = {
    "both added": lambda x, c, s: torch.cat((x[..., :4] * c + x[..., 4:] * s, x[..., 4:] * c + x[..., :4] * s), -1),
    "both subtracted": lambda x, c, s: torch.cat(
        (x[..., :4] * c - x[..., 4:] * s, x[..., 4:] * c - x[..., :4] * s), -1
    ),
    "tables exchanged": lambda x, c, s: torch.cat(
        (x[..., :4] * c - x[..., 4:] * s, x[..., 4:] * s + x[..., :4] * c), -1
    ),
    "rolled by a quarter": lambda x, c, s: x * torch.cat([c, c], -1) + torch.roll(x, 2, -1) * torch.cat([-s, s], -1),
}


def written(first: Any, second: Any, value: Callable[..., Any]) -> Callable[..., Any]:
    """A function that writes the two values of `value` to these parts of rows."""

    def function(x, c, s):
        out = torch.empty_like(x)
        out[..., first], out[..., second] = value(x, c, s)
        return out

    return function


def turn(x, c, s):
    return x[..., :4] * c - x[..., 4:] * s, x[..., 4:] * c + x[..., :4] * s


def turn_of_neighbours(x, c, s):
    return x[..., ::2] * c - x[..., 1::2] * s, s * x[..., ::2] + x[..., 1::2] * c


def turned_in_place(x, c, s):
    rotated = written(slice(0, None, 2), slice(1, None, 2), lambda x, *_: (-x[..., 1::2], x[..., ::2]))(x, c, s)
    return x * c.repeat_interleave(2, -1) + rotated * s.repeat_interleave(2, -1)


def matrices(c, s):
    return torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)


FIRST, SECOND = slice(0, 4), slice(4, None)
OVERLOOKED: dict[str, tuple[Callable[..., Any], str]] = {
    "halves written in place": (written(FIRST, SECOND, turn), "written-in-parts"),
    "neighbours written in place": (
        written(slice(0, None, 2), slice(1, None, 2), turn_of_neighbours),
        "written-in-parts",
    ),
    "turned in place": (turned_in_place, "written-in-parts"),
    "matrices": (
        lambda x, c, s: (matrices(c, s) @ x.unflatten(-1, (4, 2)).unsqueeze(-1)).flatten(-3),
        "turned-by-matrices",
    ),
    "matrices by einsum": (
        lambda x, c, s: torch.einsum("sdij,bhsdj->bhsdi", matrices(c, s), x.unflatten(-1, (4, 2))).flatten(-2),
        "turned-by-matrices",
    ),
    "other values written in place": (
        written(FIRST, SECOND, lambda x, c, s: (x[..., :4] * c - x[..., 4:] * s, x[..., 4:] * c + x[..., 4:] * s)),
        "",
    ),
    "halves copied": (written(FIRST, SECOND, lambda x, c, s: (x[..., :4] * c, x[..., 4:])), ""),
    "matrices of other entries": (
        lambda x, c, s: torch.stack([c, -s, c, s], -1).unflatten(-1, (2, 2)) @ x.unflatten(-1, (4, 2)).unsqueeze(-1),
        "",
    ),
}


@takes_turns("training")
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", OVERLOOKED)
def test_overlooked(name: str, training: bool) -> None:
    """Why a rotation is not replaced is told, of other values nothing."""
    function, code = OVERLOOKED[name]
    given = [*trained([X]), COS[:, :4], SIN[:, :4]] if training else [X, COS[:, :4], SIN[:, :4]]
    found = rewritten(function, given)
    assert found.count("rotary") == 0 and found.codes == ({code} if code else set())
    assert_agrees(function, found.run, given)


@pytest.mark.parametrize("name", NO_TURNS)
def test_other_products(name: str) -> None:
    given = [X, COS[:, :4], SIN[:, :4]]
    found = rewritten(NO_TURNS[name], given)
    assert found.count("rotary") == 0
    assert_agrees(NO_TURNS[name], found.run, given)


@one_row_in(3)
@pytest.mark.parametrize("name", ROTATIONS)
def test_symbolic_rows(name: str) -> None:
    """The number of tokens is a symbol, the size of a head is none."""

    def function(x):
        return turned(ROTATIONS[name])(x, COS[: x.shape[2]], SIN[: x.shape[2]])

    run, coverage = compiled(function)
    x = X[:, :, :4].clone()
    torch._dynamo.mark_dynamic(x, 2)
    with coverage:
        torch.testing.assert_close(run(x), function(x))
    assert coverage.count("rotary") == 1


@pytest.mark.parametrize("name", ROTATIONS)
def test_heads_of_one_projection(name: str) -> None:
    """Heads are split and put before rows, then pairs are split: a view of a permutation."""

    def function(rows, cos, sin):
        heads = rows.unflatten(-1, (X.shape[1], X.shape[3])).transpose(1, 2)
        return turned(ROTATIONS[name])(heads, cos, sin)

    given = [X.transpose(1, 2).flatten(2), COS, SIN]
    found = rewritten(function, given)
    assert found.count("rotary") == 1, found.record.near_misses
    assert_agrees(function, found.run, given)


@pytest.mark.parametrize("name", ROTATIONS)
def test_turned_back_by_a_difference(name: str) -> None:
    def function(x, cos, sin):
        return x * cos - ROTATIONS[name](x) * sin

    found = rewritten(function, [X, COS, SIN])
    assert found.count("rotary") == (name not in SIDE_BY_SIDE), found.record.near_misses
    assert_agrees(function, found.run, [X, COS, SIN])


@one_row_in(3)
@pytest.mark.parametrize("name", ROTATIONS)
def test_symbolic_head(name: str) -> None:
    found = rewritten(turned(ROTATIONS[name]), [X, COS, SIN], dynamic=True)
    assert found.count("rotary") == 0 and found.codes & {"kernel-unavailable", "pattern-differs"}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_complex(training: bool) -> None:
    """No complex number is left to be computed with."""
    given = [*trained([X]), TURNS] if training else [X, TURNS]
    found = rewritten(as_complex, given)
    assert found.count("rotary") == 1 and "view_as_complex" not in found.ops
    torch.testing.assert_close(found.run(*given), as_complex(*given))
    run, coverage = compiled(as_complex)
    with coverage:
        torch.testing.assert_close(run(*given), as_complex(*given))
    kept = {call.operator for graph in coverage.graphs for code in graph.code for call in code.kept}
    assert coverage.count("rotary") == 1 and kept <= {"aten.view_as_real.default"}


def test_conjugate() -> None:
    def function(x, turns):
        return as_complex(x, turns.conj())

    found = rewritten(function, [X, TURNS])
    assert found.count("rotary") == 1
    torch.testing.assert_close(found.run(X, TURNS), function(X, TURNS))


@pytest.mark.parametrize("name", NOT)
def test_other_turns(name: str) -> None:
    module = turned(NOT[name])
    found = rewritten(module, [X, COS, SIN])
    assert found.count("rotary") == 0
    assert_agrees(module, found.run, [X, COS, SIN])


def test_regrouped_pairs() -> None:
    """Pairs that are merged to another shape than x has."""

    def function(x, cos, sin):
        return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).reshape(4, 8) * sin

    given = [normal(4, 1, 8), normal(4, 1, 8), normal(4, 8)]
    found = rewritten(function, given)
    assert found.count("rotary") == 0 and "pairs-regrouped" in found.codes
    assert_agrees(function, found.run, given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("tables", [None, torch.float32], ids=["same tables", "float32 tables"])
def test_other_types(dtype: torch.dtype, tables: torch.dtype | None) -> None:
    given = [X.to(dtype), COS.to(tables or dtype), SIN.to(tables or dtype)]
    for name in ("halves", "neighbours"):
        found = rewritten(turned(ROTATIONS[name]), given)
        assert found.count("rotary") == 1
        assert_agrees(turned(ROTATIONS[name]), found.run, given)


def test_rotated_used_elsewhere() -> None:
    def function(x, cos, sin):
        rotated = halves(x)
        return x * cos + rotated * sin, rotated

    found = rewritten(function, [X, COS, SIN])
    assert found.count("rotary") == 0 and "inner-value-escapes" in found.codes
    assert_agrees(function, found.run, [X, COS, SIN])


STILL = {
    "a gate added to what it gates": lambda x, cos, sin: x + cos * x.tanh(),
    "two scaled values": lambda x, cos, sin: x * cos + x.tanh() * sin,
    "a scaled branch": lambda x, cos, sin: x + (x.softmax(-1) @ sin.mT @ cos) * sin,
    "a mean of two": lambda x, cos, sin: x * 0.25 + cos * 0.75,
    "parts of two values": lambda x, cos, sin: x[..., :4] * cos[:, 4:] + x[..., 4:] * sin[:, :4],
}


@pytest.mark.parametrize("name", STILL)
def test_sums_of_products_are_no_near_miss(name: str) -> None:
    """Nobody meant a rotation, not even a near one, if nothing is put beside something that was negated."""
    found = rewritten(STILL[name], [X, COS, SIN])
    assert not [miss for miss in found.record.near_misses if miss.rule == "rotary"]


@pytest.mark.parametrize("name", NOT)
def test_other_turns_are_near_misses(name: str) -> None:
    found = rewritten(turned(NOT[name]), [X, COS, SIN])
    assert [miss for miss in found.record.near_misses if miss.rule == "rotary"]


@pytest.mark.parametrize("form", ["real and imag", "select", "einsum"])
def test_products_in_other_spellings(form: str) -> None:
    """Complex numbers made of their parts, and tables multiplied by `einsum`."""

    def function(x, cos, sin):
        if form == "einsum":
            product = torch.einsum("bhsd,sd->bhsd", x, cos)
            return product + torch.einsum("bhsd,sd->bhsd", halves(x), sin)
        z = torch.complex(x[..., ::2], x[..., 1::2]) * torch.complex(cos[:, :4], sin[:, :4])
        parts = (z.real, z.imag) if form == "select" else (torch.real(z), torch.imag(z))
        return torch.stack(parts, -1).flatten(-2)

    found = rewritten(function, [X, COS, SIN])
    assert found.count("rotary") == 1, found.record.near_misses
    assert_agrees(function, found.run, [X, COS, SIN])

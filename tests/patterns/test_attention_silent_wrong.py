"""Programs that other compilers silently get wrong: what is no attention is refused with a reason, and stays right."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.attentions import SCALE, B, D, H, S, T, additive, attend, keeps, normal, qkv
from support.rewriting import assert_agrees, compiled, rewritten, trained
from support.thorough import one_row_in, takes_turns

INF = float("inf")


def over(dim: int) -> Any:
    def attention(q, k, v):
        return torch.softmax(q @ k.mT * SCALE, dim) @ v

    return attention


def mixed_up(q, k, v):
    """q and k as (B, H, S, D): an attention over heads where S == H gives the right shapes for the wrong reason."""
    return torch.softmax(q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1) / math.sqrt(D), -1) @ v.permute(0, 2, 1, 3)


def heads_inside(q, k, v):
    """q, k and v as (B, S, H, D), with the product over positions: a right attention."""
    return torch.softmax(q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1) / math.sqrt(D), -1) @ v.permute(0, 2, 1, 3)


def swapped(q, k, v):
    """The key's heads and positions are swapped: fits only where S == H, and is no attention of one head."""
    return torch.softmax(q.permute(0, 2, 1, 3) @ k.permute(0, 1, 3, 2) / math.sqrt(D), -1) @ v


def seen(scores: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    p = torch.softmax(scores, -1)
    return p @ v, p


SQUARE = qkv(S, S)
SAME = tuple(normal(B, S, S, D, seed=i) for i in range(3))  # as many heads as positions

# name -> function, inputs, how many attentions, code of the near miss
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...], int, str]] = {
    "softmax over rows": (over(-2), SQUARE, 0, ""),
    "softmax over heads": (over(1), SQUARE, 0, ""),
    "softmax over the batch": (over(0), SQUARE, 0, ""),
    "softmax over rows, S == T == D": (over(-2), qkv(D, D), 0, ""),
    "permuted, S == H": (mixed_up, SAME, 1, ""),
    "permuted, S != H": (heads_inside, tuple(normal(B, S, H, D, seed=i) for i in range(3)), 1, ""),
    "permuted differently, S == H": (swapped, SAME, 1, ""),
    "weights returned": (lambda q, k, v: seen(q @ k.mT, v), qkv(), 1, ""),
    "scores returned": (lambda q, k, v: (attend(s := q @ k.mT, v), s), qkv(), 0, "inner-value-escapes"),
    "weights used twice": (
        lambda q, k, v: (p := torch.softmax(q @ k.mT, -1)) @ v + p.sum(-1, keepdim=True), qkv(), 1, ""
    ),
    "scale along the keys": (
        lambda q, k, v, s: attend(q @ k.mT * s, v), (*qkv(), normal(T)), 0, "scale-varies-along-keys"
    ),
    "fill that masks nothing": (
        lambda q, k, v, m: attend((q @ k.mT).masked_fill(~m, -1.0), v), (*qkv(), keeps(S, T)), 0, "fill-not-a-mask"
    ),
    "fill with 0": (
        lambda q, k, v, m: attend((q @ k.mT).masked_fill(~m, 0.0), v), (*qkv(), keeps(S, T)), 0, "fill-not-a-mask"
    ),
    "mask enlarges the rows": (
        lambda q, k, v, m: attend(q @ k.mT + m, v), (*qkv(rows=1), normal(S, T)), 0, "mask-shape"
    ),
    "mask enlarges the columns": (
        lambda q, k, v, m: attend(q @ k.mT + m, v), (*qkv(columns=1)[:2], qkv()[2], normal(S, T)), 0, ""
    ),
    "softcap": (lambda q, k, v: attend(torch.tanh(q @ k.mT / 5) * 5, v), qkv(), 1, ""),
    "sine for softcap": (lambda q, k, v: attend(torch.sin(q @ k.mT / 5) * 5, v), qkv(), 0, ""),
    "cast to integers": (
        lambda q, k, v: torch.softmax(q @ k.mT, -1).to(torch.int32).to(v.dtype) @ v, qkv(), 0, "cast-not-floating"
    ),
    "rounded weights": (
        lambda q, k, v: torch.softmax(q @ k.mT, -1).to(torch.bfloat16).to(v.dtype) @ v, qkv(), 0, "cast-rounds"
    ),
    "rounded scores": (
        lambda q, k, v: torch.softmax((q @ k.mT).to(torch.bfloat16).to(q.dtype), -1) @ v, qkv(), 0, "cast-rounds"
    ),
    "relu on scores": (lambda q, k, v: attend(torch.relu(q @ k.mT), v), qkv(), 0, ""),
    "sigmoid for softmax": (lambda q, k, v: torch.sigmoid(q @ k.mT) @ v, qkv(), 0, ""),
    "half a softmax": (lambda q, k, v: torch.exp(s := q @ k.mT) / s.sum(-1, keepdim=True) @ v, qkv(), 0, ""),
    "sum over another dim": (
        lambda q, k, v: ((e := torch.exp(q @ k.mT * 0.1)) / e.sum(-2, keepdim=True)) @ v, SQUARE, 0, ""
    ),
    "integers": (
        lambda q, k, v: (q.long() @ k.long().mT).to(v.dtype).softmax(-1) @ v, qkv(), 0, ""
    ),
    "a 0-d scale of another type": (
        lambda q, k, v, s: attend(q @ k.mT * s, v), (*qkv(), torch.tensor(2)), 1, ""
    ),
    "weights scaled after softmax": (lambda q, k, v: (torch.softmax(q @ k.mT, -1) * 3.0) @ v, qkv(), None, ""),
}  # fmt: skip


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_right_or_refused(name: str, training: bool) -> None:
    function, inputs, count, code = PROGRAMS[name]
    given = trained(inputs) if training else list(inputs)
    found = rewritten(function, given)
    assert count is None or found.count() == count, (found.record.applied, found.record.near_misses)
    assert not code or code in found.codes
    assert_agrees(function, found.run, given)


TABLE = ("softmax over rows", "softmax over heads", "softmax over the batch", "permuted, S == H", "permuted, S != H",
         "permuted differently, S == H")  # fmt: skip


@one_row_in(2)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", TABLE)
def test_compiled(name: str, dynamic: bool) -> None:
    """The same through torch.compile, in inference and in training."""
    function, inputs, count, _ = PROGRAMS[name]
    run, coverage = compiled(function, dynamic=dynamic)
    with coverage:
        assert_agrees(function, run, list(inputs))
        assert_agrees(function, run, trained(inputs))
    assert coverage.count("attention") == count * len(coverage.graphs)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_dead_row_compiled(training: bool) -> None:
    """One fully masked row under an additive -inf mask: NaN in eager code, and so here."""
    keep = keeps(S, T)
    keep[2] = False
    inputs = (*qkv(), additive(keep))

    def attention(q, k, v, m):
        return attend(q @ k.mT * SCALE + m, v)

    given = trained(inputs) if training else list(inputs)
    run, coverage = compiled(attention)
    with coverage:
        out = run(*given)
    assert coverage.count("attention") == 1
    assert out[:, :, 2].isnan().all() and not out[:, :, :2].isnan().any()
    assert_agrees(attention, run, given)


def test_query_changed_between() -> None:
    """The product reads query before a write to it; nothing may read it later."""

    def attention(q, k, v):
        scores = q @ k.mT
        q.mul_(2.0)
        return attend(scores, v), q + 1

    q, k, v = qkv()
    found = rewritten(attention, [q.clone(), k, v])
    eager, ours = q.clone(), q.clone()
    want, got = attention(eager, k, v), found.run(ours, k, v)
    assert torch.equal(eager, ours)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_query_changed_between_compiled() -> None:
    def attention(q, k, v):
        scores = q @ k.mT
        q.mul_(2.0)
        return attend(scores, v)

    q, k, v = qkv()
    run, coverage = compiled(attention)
    eager, ours = q.clone(), q.clone()
    with coverage:
        torch.testing.assert_close(run(ours, k, v), attention(eager, k, v))
    assert torch.equal(eager, ours)
    if coverage.count("attention") == 0:
        assert coverage.near_misses


def test_value_changed_before_use() -> None:
    """A write to value before it is read belongs to the result."""

    def attention(q, k, v):
        p = torch.softmax(q @ k.mT, -1)
        v[:, :, 0] = 3.0
        return p @ v

    q, k, v = qkv()
    found = rewritten(attention, [q, k, v.clone()])
    eager, ours = v.clone(), v.clone()
    torch.testing.assert_close(found.run(q, k, ours), attention(q, k, eager))
    assert torch.equal(eager, ours)


def test_near_miss_tells_where() -> None:
    """A reason has a code, what was expected and found, and the line of this file."""

    def attention(q, k, v):
        scores = q @ k.transpose(-2, -1)
        return torch.softmax(scores, -1) @ v, scores + 1  # the culprit

    run, coverage = compiled(attention)
    with coverage:
        run(*qkv())
    (miss,) = [m for m in coverage.near_misses if m.code == "inner-value-escapes"]
    assert miss.rule == "sdpa" and miss.family == "attention"
    assert miss.site is not None and miss.site.file == __file__
    assert "scores" in miss.site.code
    assert miss.expected and miss.found
    assert 0 < miss.depth <= miss.size


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("scale along the keys", "last dim 1"),
        ("fill that masks nothing", "<= -10000"),
        ("mask enlarges the rows", "1 x 10"),
    ],
)
def test_near_miss_tells_what(name: str, expected: str) -> None:
    function, inputs, _, code = PROGRAMS[name]
    run, coverage = compiled(function)
    with coverage:
        assert_agrees(function, run, list(inputs))
    (miss,) = [m for m in coverage.near_misses if m.code == code]
    assert miss.expected == expected
    assert miss.found and miss.found != miss.expected
    assert miss.site is not None and miss.site.file == __file__
    assert miss.root is not None and miss.root.file.endswith((".py",))


@pytest.mark.parametrize("dim", [-2, 1, 0])
def test_another_softmax_is_explained(dim: int) -> None:
    """Asked for every near miss, the driver says what it found in the place of the softmax."""
    found = rewritten(over(dim), SQUARE, near_miss_depth=0)
    misses = [m for m in found.record.near_misses if m.rule == "sdpa"]
    assert any(m.code == "pattern-differs" and m.depth == 1 and m.found for m in misses), misses


WEIGHTS_BY_HAND = {
    "softmax": lambda s: s.softmax(-1),
    "logarithm of a sum": lambda s: (s - s.logsumexp(-1, keepdim=True)).exp(),
    "sum": lambda s: (e := s.exp()) / e.sum(-1, keepdim=True),
    "sum less a maximum": lambda s: (e := (s - s.amax(-1, keepdim=True)).exp()) / e.sum(-1, keepdim=True),
}


@pytest.mark.parametrize("nan", ["eager", "safe"])
@pytest.mark.parametrize("name", WEIGHTS_BY_HAND)
def test_kept_weights_of_infinite_scores(name: str, nan: str) -> None:
    """Beside an infinite score, exponents divided by their sum are 0, where those of a softmax are NaN."""

    def program(q: Any, k: Any, v: Any, bias: Any) -> Any:
        weights = WEIGHTS_BY_HAND[name](q @ k.mT + bias)
        return weights @ v, weights

    bias = torch.zeros(S, T)
    bias[0, 1], bias[1, :2], bias[2] = math.inf, -math.inf, -math.inf
    inputs = (*qkv(), bias)
    found = rewritten(program, inputs, nan=nan)
    assert found.count() == (nan == "safe" or name in ("softmax", "sum less a maximum"))
    if nan == "eager":
        for ours, eager in zip(found.run(*inputs), program(*inputs), strict=True):
            torch.testing.assert_close(ours, eager, equal_nan=True)


@pytest.mark.parametrize("masked", [lambda s, m: s + torch.where(m, 0.0, -1e9), lambda s, m: s.masked_fill(~m, -1e9)])
@pytest.mark.parametrize("nan", ["eager", "safe"])
@pytest.mark.parametrize("divided", ["weights", "result"])
def test_sums_of_exponents_of_hidden_rows(divided: str, nan: str, masked: Any) -> None:
    """All exponents of a row that a low number hides are 0; of a softmax the row is uniform."""

    def program(q: Any, k: Any, v: Any, keep: Any) -> Any:
        exponents = masked(q @ k.mT * 0.5, keep).exp()
        total = exponents.sum(-1, keepdim=True)
        return exponents / total @ v if divided == "weights" else exponents @ v / total

    keep = torch.ones(S, T, dtype=torch.bool)
    keep[0], keep[1, :2] = False, False
    inputs = (*qkv(), keep)
    found = rewritten(program, inputs, nan=nan)
    assert found.count() == (nan == "safe")
    if nan == "eager":
        torch.testing.assert_close(found.run(*inputs), program(*inputs), equal_nan=True)

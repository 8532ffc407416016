"""Masks: additive, boolean and causal ones, rows that are masked out altogether, and what is known while compiling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.attentions import INF, LOWEST, SCALE, B, D, H, S, T, additive, attend, keeps, normal, qkv
from support.rewriting import assert_agrees, compiled, outcome, rewritten, trained
from support.thorough import one_row_in, takes_turns

BOTH = pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])


def tril(q, k, v):
    s, t = q.shape[-2], k.shape[-2]
    return attend((q @ k.mT * SCALE).masked_fill(torch.ones(s, t).tril() == 0, -INF), v)


def tril_bool(q, k, v):
    keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(diagonal=0)
    return attend(torch.where(keep, q @ k.mT * SCALE, -INF), v)


def triu(q, k, v):
    drop = torch.triu(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool), diagonal=1)
    return attend((q @ k.mT * SCALE).masked_fill(drop, -INF), v)


def triu_added(q, k, v):
    return attend(q @ k.mT * SCALE + torch.full((q.shape[-2], k.shape[-2]), -INF).triu(1), v)


def arange(q, k, v):
    rows, columns = torch.arange(q.shape[-2]), torch.arange(k.shape[-2])
    return attend((q @ k.mT * SCALE).masked_fill(columns[None, :] > rows[:, None], -INF), v)


def arange_where(q, k, v):
    keep = torch.arange(k.shape[-2]) <= torch.arange(q.shape[-2]).view(-1, 1)
    return attend(torch.where(keep[None, None], q @ k.mT * SCALE, torch.finfo(q.dtype).min), v)


def lowest_added(q, k, v):
    mask = torch.full((q.shape[-2], k.shape[-2]), LOWEST).triu(1)
    return attend(q @ k.mT * SCALE + mask[None, None, :, :], v)


def expanded(q, k, v):
    keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()[None, None].expand(q.shape[0], 1, -1, -1)
    return attend((q @ k.mT * SCALE).masked_fill(~keep, -1e9), v)


def written(q, k, v):
    scores = q @ k.mT * SCALE
    scores[:, :, torch.ones(q.shape[-2], k.shape[-2]).triu(1).bool()] = -torch.inf
    return attend(scores, v)


CAUSAL = (tril, tril_bool, triu, triu_added, arange, arange_where, lowest_added, expanded)


def flash_calls(graph: torch.fx.Graph) -> list[Any]:
    return [n for n in graph.nodes if "scaled_dot_product" in str(n.target)]


@takes_turns("training")
@BOTH
@pytest.mark.parametrize("function", CAUSAL, ids=lambda f: f.__name__)
def test_known_causal(function: Any, training: bool) -> None:
    """A causal mask built in the graph is told to the kernel, and no operator of the mask is left."""
    given = trained(qkv(S, S)) if training else list(qkv(S, S))
    found = rewritten(function, given)
    (call,) = flash_calls(found.graph)
    assert True in call.args and call.kwargs.get("attn_mask") is None
    assert not found.ops & {"tril", "triu", "ones", "full", "arange", "where", "masked_fill", "le", "gt", "eq"}
    assert_agrees(function, found.run, given)


@one_row_in(2)
@takes_turns("training")
@BOTH
@pytest.mark.parametrize("function", [written, *CAUSAL], ids=lambda f: f.__name__)
def test_causal_dynamic(function: Any, training: bool) -> None:
    given = trained(qkv(S, S)) if training else list(qkv(S, S))
    found = rewritten(function, given, dynamic=True)
    assert found.count() == 1, found.record.near_misses
    assert_agrees(function, found.run, given)


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", [tril, triu, arange], ids=lambda f: f.__name__)
def test_causal_compiled(function: Any, dynamic: bool) -> None:
    run, coverage = compiled(function, dynamic=dynamic)
    with coverage:
        assert_agrees(function, run, trained(qkv(S, S)))
    assert coverage.count("attention") == 1


def test_causal_of_other_lengths() -> None:
    """Not square: the mask stays a mask."""
    found = rewritten(tril, qkv(S, T))
    assert found.count() == 1
    assert_agrees(tril, found.run, qkv(S, T))


NEARLY_CAUSAL = {
    "one more": lambda s, t: torch.ones(s, t, dtype=torch.bool).tril(1),
    "upper": lambda s, t: torch.ones(s, t, dtype=torch.bool).triu(),
    "all": lambda s, t: torch.ones(s, t, dtype=torch.bool),
    "window": lambda s, t: torch.ones(s, t, dtype=torch.bool).tril().triu(-2),
}


@BOTH
@pytest.mark.parametrize("name", NEARLY_CAUSAL)
def test_nearly_causal(name: str, training: bool) -> None:
    """Masks that look causal and are not."""

    def function(q, k, v):
        keep = NEARLY_CAUSAL[name](q.shape[-2], k.shape[-2])
        return attend((q @ k.mT * SCALE).masked_fill(~keep, -INF), v)

    given = trained(qkv(S, S)) if training else list(qkv(S, S))
    found = rewritten(function, given)
    assert found.count() == 1
    assert all(True not in call.args for call in flash_calls(found.graph))
    assert_agrees(function, found.run, given)


def test_causal_and_padding() -> None:
    def function(q, k, v, pad):
        drop = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
        scores = (q @ k.mT * SCALE).masked_fill(drop, LOWEST)
        return attend(scores.masked_fill(~pad[:, None, None, :], LOWEST), v)

    inputs = (*qkv(S, S), keeps(B, S))
    found = rewritten(function, inputs)
    assert found.count() == 1, found.record.near_misses
    assert_agrees(function, found.run, inputs)


def test_causal_with_a_bias() -> None:
    """Masked positions that also carry a bias where nothing is masked: not causal for a kernel."""

    def function(q, k, v):
        s, t = q.shape[-2], k.shape[-2]
        near = -0.1 * (torch.arange(s)[:, None] - torch.arange(t)[None]).abs()
        return attend(q @ k.mT * SCALE + near.masked_fill(torch.ones(s, t).triu(1) == 1, -INF), v)

    inputs = qkv(S, S)
    found = rewritten(function, inputs)
    assert found.count() == 1
    assert_agrees(function, found.run, inputs)


# -- rows that are masked out altogether

KEEP = keeps(B, 1, S, T)
KEEP[0, 0, 2] = False
KEEP[1, 0, 0] = False

DEAD_ROWS = {
    "added": (lambda q, k, v, m: attend(q @ k.mT * SCALE + m, v), additive(KEEP)),
    "added per batch": (lambda q, k, v, m: attend(q @ k.mT * SCALE + m, v), additive(KEEP[:, :, :1])),
    "masked_fill": (lambda q, k, v, m: attend((q @ k.mT * SCALE).masked_fill(~m, -INF), v), KEEP),
    "masked_fill (S, T)": (lambda q, k, v, m: attend((q @ k.mT * SCALE).masked_fill(~m, -INF), v), KEEP[0, 0]),
    "where": (lambda q, k, v, m: attend(torch.where(m, q @ k.mT * SCALE, -INF), v), KEEP),
    "where added": (lambda q, k, v, m: attend(q @ k.mT * SCALE + torch.where(m, 0.0, -INF), v), KEEP),
    "from flags": (
        lambda q, k, v, m: attend(q @ k.mT * SCALE + (~m).float().masked_fill(~m, -INF), v), KEEP
    ),
    "two masks": (
        lambda q, k, v, m: attend((q @ k.mT * SCALE + additive(m[:, :, :1])).masked_fill(~m, -INF), v), KEEP
    ),
    "strictly causal": (
        lambda q, k, v, m: attend((q @ k.mT * SCALE).masked_fill(torch.arange(T) >= torch.arange(S)[:, None], -INF), v),
        KEEP,
    ),
}  # fmt: skip
LOW_ROWS = {
    "lowest by where": (lambda q, k, v, m: attend(torch.where(m, q @ k.mT * SCALE, LOWEST), v), KEEP),
    "lowest by masked_fill": (lambda q, k, v, m: attend((q @ k.mT * SCALE).masked_fill(~m, LOWEST), v), KEEP),
    "lowest added": (lambda q, k, v, m: attend(q @ k.mT * SCALE + m, v), additive(KEEP, LOWEST)),
    "lowest from flags": (lambda q, k, v, m: attend(q @ k.mT * SCALE + (1.0 - m.to(q.dtype)) * LOWEST, v), KEEP),
    "-1e4 by masked_fill": (lambda q, k, v, m: attend((q @ k.mT * SCALE).masked_fill(~m, -1e4), v), KEEP),
    "-1e9 by where": (lambda q, k, v, m: attend(torch.where(m, q @ k.mT * SCALE, -1e9), v), KEEP),
    "-10000 from flags": (lambda q, k, v, m: attend(q @ k.mT * SCALE + (1.0 - m.to(q.dtype)) * -10000.0, v), KEEP),
}


@one_row_in(2)
@BOTH
@pytest.mark.parametrize("name", DEAD_ROWS)
def test_dead_rows_stay_nan(name: str, training: bool) -> None:
    function, mask = DEAD_ROWS[name]
    inputs = (*qkv(), mask)
    given = trained(inputs) if training else list(inputs)
    found = rewritten(function, given)
    assert found.count() == 1, found.record.near_misses
    assert found.run(*given).isnan().any()
    assert_agrees(function, found.run, list(inputs))
    if training:
        # value's gradient is NaN in eager code; query's and key's may be, where eager code masks them to 0 on the way
        for ours, eager in zip(outcome(found.run, given), outcome(function, given), strict=True):
            assert not (eager.isnan() & ~ours.isnan()).any()


@pytest.mark.parametrize("name", DEAD_ROWS)
def test_dead_rows_are_finite_where_asked(name: str) -> None:
    function, mask = DEAD_ROWS[name]
    inputs = (*qkv(), mask)
    found = rewritten(function, inputs, nan="safe")
    assert found.count() == 1
    ours, eager = found.run(*inputs), function(*inputs)
    assert ours.isfinite().all()
    sound = eager.isfinite()
    torch.testing.assert_close(ours[sound], eager[sound])


@one_row_in(2)
@BOTH
@pytest.mark.parametrize("name", LOW_ROWS)
def test_low_rows_stay_uniform(name: str, training: bool) -> None:
    """A row of masked scores alone, low but finite, is eager's: finite, and uniform where absorbed."""
    function, mask = LOW_ROWS[name]
    inputs = (*qkv(), mask)
    given = trained(inputs) if training else list(inputs)
    found = rewritten(function, given)
    assert found.count() == 1, found.record.near_misses
    assert found.run(*given).isfinite().all()
    assert_agrees(function, found.run, given)


def test_bias_added_to_a_low_fill() -> None:
    """In a row with nothing to keep, only the bias is left: not what a kernel computes."""

    def function(q, k, v, m, bias):
        return attend(torch.where(m, q @ k.mT * SCALE, -1e4) + bias, v)

    inputs = (*qkv(), KEEP, normal(S, T))
    found = rewritten(function, inputs)
    assert found.count() == 0 and "fill-not-a-mask" in found.codes
    assert_agrees(function, found.run, inputs)


@BOTH
@pytest.mark.parametrize("fill", [-1e4, -1e10, LOWEST, -INF])
def test_a_wider_mask_added_in_place(fill, training):
    """The sum is rounded to the type of scores, where the lowest number of the wider type is -inf."""

    def function(q, k, v, keep):
        scores = q @ k.mT
        scores += torch.where(keep, 0.0, fill)
        return torch.softmax(scores.float(), -1).type_as(scores) @ v

    keep = KEEP.clone()
    keep[0, :, 1] = False
    inputs = (*(x.bfloat16() for x in qkv()), keep)
    inputs = trained(inputs) if training else inputs
    found = rewritten(function, inputs)
    assert found.count() == 1, found.record.near_misses
    assert_agrees(function, found.run, inputs)


@takes_turns("training")
@BOTH
@pytest.mark.parametrize("fill", [-1e9, -5.0, 0.5, -INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fill_that_is_a_tensor_is_selected_as_it_is(fill, dtype, training):
    """As a buffer of a model: its value is not known while compiling."""

    def function(q, k, v, keep, fill, bias):
        return attend(torch.where(keep, q @ k.mT * SCALE + bias, fill), v)

    inputs = (*qkv(), KEEP, torch.tensor(fill, dtype=dtype), normal(S, T))
    inputs = trained(inputs) if training else inputs
    found = rewritten(function, inputs)
    assert found.count() == 1, found.record.near_misses
    assert_agrees(function, found.run, inputs)


def test_a_bias_added_to_a_fill_that_is_a_tensor():
    def function(q, k, v, keep, fill, bias):
        return attend(torch.where(keep, q @ k.mT * SCALE, fill) + bias, v)

    inputs = (*qkv(), KEEP, torch.tensor(-1.0), normal(S, T))
    found = rewritten(function, inputs)
    assert found.count() == 0 and "fill-not-a-mask" in found.codes
    assert_agrees(function, found.run, inputs)


def test_a_fill_that_is_a_tensor_in_half_precision():
    """Scores that were cast up have room for a fill that is infinite in their first type."""

    def function(q, k, v, keep, fill):
        scores = torch.where(keep, (q @ k.mT).float(), fill)
        return torch.softmax(scores, -1).to(q.dtype) @ v

    keep = KEEP.clone()
    keep[0, :, 1] = False
    inputs = (*(x.bfloat16() for x in qkv()), keep, torch.tensor(LOWEST))
    found = rewritten(function, inputs)
    assert found.count() == 1, found.record.near_misses
    assert_agrees(function, found.run, inputs)


def test_no_row_guard_where_no_row_can_die() -> None:
    """The factor per row that keeps NaN costs nothing where the mask is known to leave something."""

    def function(q, k, v):
        return attend(q @ k.mT * SCALE + torch.full((S, S), -INF).triu(1).expand(1, 1, S, S), v)

    assert not rewritten(function, qkv(S, S)).ops & {"amax"}
    assert "amax" in rewritten(DEAD_ROWS["added"][0], (*qkv(), additive(KEEP))).ops
    assert "amax" not in rewritten(DEAD_ROWS["added"][0], (*qkv(), additive(KEEP)), nan="safe").ops
    assert "amax" not in rewritten(LOW_ROWS["lowest from flags"][0], (*qkv(), KEEP)).ops


@one_row_in(3)
@takes_turns("training")
@BOTH
@pytest.mark.parametrize("which", [0, 1, 2], ids=["query", "key", "value"])
@pytest.mark.parametrize("value", [float("nan"), INF, -INF], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_nan_and_inf_in_inputs(which: int, value: float, masked: bool, training: bool) -> None:
    inputs = [x.clone() for x in qkv()]
    inputs[which][1, 2, 3, 4] = value
    mask = additive(keeps(S, T))

    def function(q, k, v):
        return attend(q @ k.mT * SCALE + mask if masked else q @ k.mT * SCALE, v)

    def with_mask(q, k, v, m):
        return attend(q @ k.mT * SCALE + m, v)

    chosen = with_mask if masked else function
    given = [*(trained(inputs) if training else inputs), *([mask] if masked else [])]
    found = rewritten(chosen, given)
    assert found.count() == 1
    assert_nan_is_kept(chosen, found.run, given)


def assert_nan_is_kept(function: Any, run: Any, inputs: list[Any]) -> None:
    """NaN wherever eager has it (elsewhere a NaN may spread no further than its own head)."""
    for ours, eager in zip(outcome(run, inputs), outcome(function, inputs), strict=True):
        assert not (eager.isnan() & ~ours.isnan()).any(), "NaN vanished"
        other = torch.ones(B, H, dtype=torch.bool)
        other[1, 2] = False
        torch.testing.assert_close(ours[other], eager[other])


@one_row_in(3)
@pytest.mark.parametrize(
    "shape", [(T,), (S, T), (1, T), (B, 1, 1, T), (1, H, S, T), (B, H, S, T), (1, 1, S, 1), (B, 1, S, 1)]
)
@pytest.mark.parametrize("kind", ["bool", "float", "half"])
def test_mask_shapes(shape: tuple[int, ...], kind: str) -> None:
    def filled(q, k, v, m):
        return attend((q @ k.mT * SCALE).masked_fill(~m, LOWEST), v)

    def added(q, k, v, m):
        return attend(q @ k.mT * SCALE + m, v)

    mask = keeps(*shape) if kind == "bool" else normal(*shape, dtype=torch.float16 if kind == "half" else torch.float32)
    function = filled if kind == "bool" else added
    found = rewritten(function, (*qkv(), mask))
    assert found.count() == 1, found.record.near_misses
    assert_agrees(function, found.run, (*qkv(), mask))


def test_mask_of_size_d_is_not_confused() -> None:
    """All sizes equal: a mask over the wrong dims would fit as well."""
    inputs = (*(normal(D, D, D, D, seed=i) for i in range(3)), normal(D, 1, 1, D), normal(D, D, 1))

    def function(q, k, v, a, b):
        return attend(q @ k.mT * SCALE + a + b, v)

    found = rewritten(function, inputs)
    assert found.count() == 1
    assert_agrees(function, found.run, inputs)


PARTS = {
    "compared with 0": lambda s, m: s.masked_fill((m == 0)[:, None, None], -INF),
    "unsqueezed twice": lambda s, m: s.masked_fill(m.eq(0).unsqueeze(1).unsqueeze(2), LOWEST),
    "viewed and expanded": lambda s, m: s.masked_fill((m.long() == 0).view(-1, 1, 1, s.shape[-1]).expand_as(s), -1e9),
    "inverted": lambda s, m: s.masked_fill(~m[:, None, None], -INF),
    "complement": lambda s, m: s + (1 - m[:, None, None].float()) * -1e9,
}


@pytest.mark.parametrize("name", PARTS)
def test_part_of_a_longer_mask(name: str) -> None:
    """A mask whose strides do not follow from its symbolic sizes gets dims of size 1 without a guard."""

    def function(q, k, v, m):
        return attend(PARTS[name](q @ k.mT * SCALE, m), v)

    found = rewritten(function, given := [*qkv(), keeps(B, T + 3)[:, :T]], dynamic=True)
    assert found.count() == 1, found.record.near_misses
    assert_agrees(function, found.run, given)

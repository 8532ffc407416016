"""Rules planted into random programs: what is planted matches, what is almost planted stays right.

The command `python benchmarks/plant.py` runs as many of these as one likes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from support.planting import KINDS, draw, judge
from support.respelling import AROUND, SPELLINGS, Almost, Respelled
from support.thorough import examples

from regraft.patterns import default_rules
from regraft.rewrites.rule import Rule, register_pattern
from regraft.rewrites.sample import Sample, T

PROGRAMS, CHUNK = examples(10, 30), 5


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Programs that eager refuses are drawn too, and torch tells of them at length."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_planted_almost_and_refused(first: int) -> None:
    told = []
    for seed in range(first, first + CHUNK):
        planting = draw(seed)
        verdict = judge(planting)
        assert verdict.how in ("ok", "invalid"), f"{verdict.how}: {verdict.told}\n{planting}"
        told.append(verdict.told)
    assert not all(told), f"eager refused every one of them: {told}"


def test_every_kind_and_rule_is_drawn() -> None:
    drawn = [draw(seed) for seed in range(150)]
    assert {p.kind for p in drawn} == {*KINDS}
    assert {plant.rule.name for p in drawn for plant in p.plants} == {r.name for r in default_rules()}
    assert {p.dynamic for p in drawn} == {p.training for p in drawn} == {True, False}


def test_a_seed_is_one_program() -> None:
    assert str(draw(3)) == str(draw(3))


def _wrong(name: str, replacement: object, **declared: object) -> Rule:
    samples = [Sample(x=T("N M"), y=T("N M"))]

    def pattern(x, y):
        return torch.atan2(x, y)

    return register_pattern(name, replacement=replacement, samples=samples, **declared)(pattern)


def test_a_wrong_rule_is_found() -> None:
    """Off by a half, or with swapped operands."""
    off = _wrong("planted_off", lambda x, y: torch.atan2(x, y) * 1.5)
    swapped = _wrong("planted_swapped", lambda x, y: torch.atan2(y, x))
    for rule in (off, swapped):
        found = {judge(p).how for p in (draw(seed, [rule]) for seed in range(8)) if p.kind == "planted"}
        assert found == {"wrong"}


def test_a_rule_that_never_matches_in_company_is_found() -> None:
    """A guard that only wants bare inputs: alone it matches, with anything before it not."""
    from regraft.rewrites.reason import Reason

    def bare(x):
        return None if x.op == "placeholder" else Reason("not-bare", "x is computed")

    rule = _wrong("planted_bare", torch.atan2, guards=(bare,))
    verdicts = {judge(p).how for p in (draw(seed, [rule]) for seed in range(20)) if p.kind == "planted"}
    assert verdicts == {"ok", "missed"}


class _Always:
    """A source of randomness that says yes to everything, and takes one choice."""

    def __init__(self, around: str | None) -> None:
        self.around = around

    def random(self) -> float:
        return 0.0

    def choice(self, _: object) -> str | None:
        return self.around


@pytest.mark.parametrize("around", [None, *AROUND])
def test_respelled_means_the_same(around: str | None) -> None:
    q, k, v = torch.randn(3, 2, 5, 8, dtype=torch.float64)
    keep = torch.rand(5, 5) < 0.7
    keep[:, 0] = True
    plain = torch.softmax(torch.where(keep, q @ k.mT * 0.25, -1e9) + q.sum(), -1) @ v
    with Respelled(_Always(around)):  # type: ignore[arg-type]
        respelled = torch.softmax(torch.where(keep, q @ k.mT * 0.25, -1e9) + q.sum(), -1) @ v
    torch.testing.assert_close(respelled, plain)


def test_spellings_are_met_by_their_names() -> None:
    """The names under which torch tells of its calls."""
    met = set()

    class Names(Respelled):
        def call(self, name, func, args, kwargs):
            met.add(name)
            return func(*args, **kwargs)

    x = torch.randn(2, 3, 3)
    with Names(_Always(None)):  # type: ignore[arg-type]
        torch.where(x > 0, torch.softmax(x @ x * 2.0 + x, -1), 0.0)
    assert set(SPELLINGS) <= met


def test_one_step_is_changed() -> None:
    x = torch.ones(2, 3)
    seen: list[torch.Tensor] = []
    with Almost("other number", 1, [x], seen):
        assert torch.equal(x * 2.0 * 2.0 * 2.0, x * 12.0)
    with Almost("returned", 0, [x], seen):
        assert torch.equal(x + 1 + 1, x * 3)
    assert len(seen) == 1 and torch.equal(seen[0], x + 1)

"""What is right passes its check; what is wrong in one respect only is found there, and made small."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.thorough import examples, one_row_in

from regraft import EXACT, Candidate, Reason, Sample, T, optional, register_pattern
from regraft.compiler.tools.check import check
from regraft.compiler.tools.check.case import Case
from regraft.compiler.tools.check.compare import compare
from regraft.compiler.tools.check.drawn import DrawnExample
from regraft.compiler.tools.check.operands import Look, placed
from regraft.compiler.tools.check.search import CounterexampleSearch

SAMPLES = [Sample(x=T("B N"), y=T("B N"))]


def scaled_sum(x, y):
    return x + y * 2.0


def right(x, y):
    return torch.add(x, y, alpha=2.0)


def doubled_tanh(x):
    return torch.tanh(x) * 2.0


def declare(name: str, replacement: Any, pattern: Any = scaled_sum, samples: Any = SAMPLES, **given: Any) -> Any:
    return register_pattern(name, replacement=replacement, samples=samples, **given)(pattern)


def test_what_is_right_passes():
    result = check(declare("check_right", right), examples=7)
    assert result.ok and result.runs > 7 and not result.unused, str(result)
    assert result.scope.sizes >= {1, 2, 6} and result.scope.gradients == {"x", "y"}


def test_the_same_seed_draws_the_same():
    rule = declare("check_wrong_twice", lambda x, y: torch.add(x, y, alpha=2.02))
    first, second = (check(rule, examples=5, seed=3) for _ in range(2))
    assert str(first.failures[0]) == str(second.failures[0])


def test_a_wrong_value_is_found_and_made_small():
    (failure,) = check(declare("check_wrong", lambda x, y: torch.add(x, y, alpha=2.02)), examples=10).failures
    assert "result 0 is off" in failure.problem
    assert failure.drawn.sizes == (("B", 1), ("N", 1)) and not failure.drawn.dynamic
    assert all(str(look) == "plain" for look in failure.drawn.looks.values()), failure


@one_row_in(2)
@pytest.mark.parametrize(
    ("name", "condition"),
    [
        ("bfloat16", lambda x, y: x.dtype == torch.bfloat16),
        ("strided", lambda x, y: y.stride(-1) > 1),
        ("symbolic", lambda x, y: isinstance(x.shape[0], torch.SymInt)),
    ],
)
def test_wrong_in_one_place_is_found_there(name, condition):
    def replacement(x, y):
        return torch.add(x, y, alpha=1.5 if condition(x, y) else 2.0)

    (failure,) = check(declare(f"check_wrong_if_{name}", replacement), examples=60).failures
    assert "result 0 is off" in failure.problem


def test_another_shape_is_found():
    result = check(declare("check_shape", lambda x, y: right(x, y).to(torch.float32)), examples=40)
    assert "float32" in result.failures[0].problem


def test_a_wrong_gradient_is_found():
    (failure,) = check(declare("check_gradient", lambda x, y: x + (y * 2.0).detach()), examples=40).failures
    assert "gradient" in failure.problem
    assert failure.drawn.looks["y"].gradient


def test_no_gradients_are_asked_of_what_runs_after_autograd():
    rule = declare("check_lowered", lambda x, y: x + (y * 2.0).detach(), stage="lowered")
    assert check(rule, examples=12).ok


@pytest.mark.parametrize(
    ("name", "pattern", "replacement", "policy"),
    [
        ("nan", doubled_tanh, lambda x: torch.where(x == x, doubled_tanh(x), 0.0), {}),
        ("inf", lambda x: torch.relu(x) * 2.0, lambda x: (torch.relu(x) * 2.0).clamp(max=6e4), {}),
        ("the sign of zero", lambda x: torch.abs(x) * 0.0, lambda x: x * 0.0, {"numerics": EXACT}),
    ],
)
def test_hidden_specials_are_found(name, pattern, replacement, policy):
    rule = declare(f"check_hides_{name}", replacement, pattern, [Sample(x=T("N"))], **policy)
    (failure,) = check(rule, examples=80).failures
    assert ("bits" if policy else f"hides {name.replace('nan', 'NaN')}") in failure.problem


def test_hidden_nan_is_allowed_where_the_rule_says_so():
    def without_nan(x):
        return torch.nan_to_num(doubled_tanh(x))

    rule = declare("check_safe", without_nan, doubled_tanh, [Sample(x=T("N"))], nan="safe")
    assert check(rule, examples=8).ok


def test_a_rule_that_never_matches_fails():
    def never(x):
        return Reason("never", "it never does")

    result = check(declare("check_never", right, guards=(never,)), examples=5)
    assert not result.ok and "did not match: it never does" in result.failures[0].problem


def test_a_match_of_a_part_is_none():
    def pattern(x, y):
        return optional("relu", x + y * 2.0, torch.relu)

    def bare(match):
        return Reason("activated", "it has a relu") if ("relu", "yes") in match.tags else None

    samples = [Sample(x=T("B N"), y=T("B N"), tags={"relu": "yes"})]
    result = check(declare("check_part", right, pattern, samples, guards=(bare,)), examples=1)
    assert "did not match: it has a relu" in result.failures[0].problem


def test_candidates_fail_one_by_one():
    candidates = [
        Candidate("right", right),
        Candidate("wrong", lambda x, y: torch.add(x, y, alpha=2.1)),
        Candidate("unavailable", right, lambda match, policy: Reason("no-such-device", "not here")),
    ]
    result = check(declare("check_candidates", candidates), examples=10)
    assert [f.candidate for f in result.failures] == ["wrong"] and result.unused == ("unavailable",)


def test_a_write_to_an_operand_is_found():
    library = torch.library.Library("regraft_check_test", "DEF")
    library.define("sneaky(Tensor x, Tensor y) -> Tensor")
    library.impl("sneaky", lambda x, y: x.add_(y, alpha=2.0).clone(), "CPU")
    library.impl("sneaky", lambda x, y: torch.empty_like(x), "Meta")
    rule = declare("check_writes", lambda x, y: torch.ops.regraft_check_test.sneaky(x, y), stage="lowered")
    assert any("written to" in f.problem for f in check(rule, examples=5).failures)


class TestNearMisses:
    """Samples that must be refused."""

    @staticmethod
    def rule(name: str, *samples: Sample, guard: Any = None) -> Any:
        def floating(x):
            return None if x.meta["val"].is_floating_point() else Reason("not-floating", "it is not")

        return declare(name, right, samples=[*SAMPLES, *samples], guards=(guard or floating,))

    def test_a_near_miss_is_counted(self):
        integers = T("B N", dtype=torch.int64)
        rule = self.rule("check_miss", Sample(x=integers, y=integers, refused="not-floating"))
        assert check(rule, examples=2).refused == 1

    def test_a_near_miss_that_matches_fails(self):
        result = check(self.rule("check_no_miss", Sample(x=T("B N"), y=T("B N"), refused="not-floating")), examples=2)
        assert result.failures[0].problem == "should be refused with 'not-floating', but matches"

    def test_another_reason_fails(self):
        integers = T("B N", dtype=torch.int64)
        result = check(self.rule("check_other_miss", Sample(x=integers, y=integers, refused="too-large")), examples=2)
        assert "but the reasons are not-floating" in result.failures[0].problem

    def test_it_must_not_match_with_other_sizes_either(self):
        def few(x):
            return Reason("too-few", "they are") if x.meta["val"].shape[0] == 2 else None

        sample = Sample(x=T("B N"), y=T("B N"), refused="too-few")
        rule = declare("check_sizes", right, samples=[Sample(x=T("S N"), y=T("S N")), sample], guards=(few,))
        result = check(rule, examples=1)
        assert any(f.problem.endswith("but matches") and dict(f.drawn.sizes)["B"] == 4 for f in result.failures)


def test_without_hypothesis_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'regraft\[check\]'"):
        check(declare("check_without", right))


class TestKinks:
    """At zero the derivative of a kink is a convention, but it is a number."""

    @staticmethod
    def problems(name: str, replacement: Any) -> list[str]:
        case = Case.of(
            declare(name, replacement, lambda x: torch.maximum(x, x * 0.1), [Sample(x=T("N"))]),
            Sample(x=T("N")),
            DrawnExample((("N", 6),), looks={"x": Look(values="signed-zeros", gradient=True)}),
        )
        return [str(found) for found in [compare(case, replacement)] if found]

    def test_another_convention_is_no_error(self):
        assert not self.problems("kink", lambda x: torch.nn.functional.leaky_relu(x, 0.1))

    def test_nan_is(self):
        (problem,) = self.problems("kink_nan", lambda x: torch.where(x == 0, 0.0, x * torch.where(x > 0, x / x, 0.1)))
        assert "gradient has nan" in problem


def test_one_rounding_of_an_operand_is_nobodys_error():
    """exp of a large number makes much of it: an implementation that rounds its operand once more is as right."""
    sample = Sample(x=T("N", dtype=torch.float32))
    rounded = 1 + torch.finfo(torch.float32).eps / 2

    def problem(name: str, replacement: Any) -> Any:
        rule = declare(name, replacement, lambda x: torch.exp(x), [sample])
        case = Case.of(rule, sample, DrawnExample((("N", 6),), looks={"x": Look(values="plain")}))
        case.operands[0].mul_(80 / case.operands[0].abs().max())
        return compare(case, replacement)

    assert problem("exp_rounded", lambda x: torch.exp((x.double() * rounded).to(x.dtype))) is None
    assert "is off" in str(problem("exp_off", lambda x: torch.exp(x * 1.0001)))


def test_devices_that_are_not_there_are_refused():
    for device in ("cuda",) * (not torch.cuda.is_available()) + ("meta", "tpu"):
        with pytest.raises(ValueError, match=f"on '{device}'"):
            check(declare("check_right_elsewhere", right), device=device)


def test_an_operator_that_another_device_lacks_makes_no_program_there():
    with torch.library._scoped_library("check_search", "FRAGMENT") as library:
        library.define("nowhere(Tensor x) -> Tensor")
        library.impl("nowhere", torch.empty_like, "Meta")
        rule = declare(
            "check_nowhere", lambda x: x + 1, lambda x: torch.ops.check_search.nowhere(x), [Sample(x=T("N"))]
        )
        for device in ("cpu", "cuda"):
            search = CounterexampleSearch(rule, 3, 0)
            search.device = device
            assert bool(search.run().failures) == (device == "cpu")


def test_samples_move_but_those_of_unknown_devices():
    sample = Sample(x=T("B N"), y=T("B", device="meta"), scale=2.0, sizes={"B": 4}, refused="some-code")
    moved = placed(sample, "cuda")
    assert (moved.operands["x"].device, moved.operands["y"].device, moved.operands["scale"]) == ("cuda", "meta", 2.0)
    assert (moved.sizes, moved.refused) == (sample.sizes, "some-code")


def test_sizes_that_a_sample_gives_as_numbers_may_be_known_where_others_are_symbolic():
    """A program knows how many heads share a key; with symbolic numbers of heads, their ratio is no number."""

    @register_pattern(
        "shared_keys",
        replacement=lambda q, k: torch.einsum("bhgsd,bhtd->bhgst", q.unflatten(1, (2, 2)), k).flatten(1, 2),
        samples=[Sample(q=T("B 4 S D"), k=T("B 2 T D"))],
        dims={"q": "B 4 S D", "k": "B 2 T D"},
    )
    def shared_keys(q, k):
        return q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).transpose(-2, -1)

    sample = shared_keys.samples[0]
    drawn = replace(DrawnExample.plain(sample), dynamic=True)
    case = Case.of(shared_keys, sample, drawn)
    assert not case.rewritten().whole and case.with_sizes_of(sample).rewritten().whole
    result = check(shared_keys, examples=examples(4, 12))
    assert result.ok, str(result)

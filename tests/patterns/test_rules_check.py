"""Every default rule passes the property test that follows from its declaration, and a wrong rule fails it."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.attentions import D, plain, qkv
from support.rewriting import compiled
from support.thorough import examples
from support.versions import OLD_TORCH

from regraft import Sample, T, register_pattern
from regraft.compiler.tools.check import check, unguarded
from regraft.patterns import default_rules
from regraft.patterns.attention_cuda import CUDA_KERNELS
from regraft.patterns.unsampled import UNSAMPLED
from regraft.rewrites.rule import Numerics

RULES = [rule for rule in default_rules() if not (OLD_TORCH and rule.name == "shifted_bytes")]  # 2.11: signed ones only
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)


@every_rule
def test_default_rules_hold(rule: Any) -> None:
    """Each of its candidates that a CPU can run; the command `regraft check` draws as many programs as one likes.

    Of the near misses, which the tests of each family hold as they are, short runs have one in three: here they have
    other sizes too.
    """
    usable = tuple(c for c in rule.candidates if c not in CUDA_KERNELS)
    matching, misses = ([s for s in rule.samples if bool(s.refused) == refused] for refused in (False, True))
    tried = (*matching, *misses[:: examples(3, 1)])
    result = check(replace(rule, candidates=usable, samples=tried), examples=examples(1, 5))
    assert result.ok, str(result)


@every_rule
def test_no_condition_can_be_dropped_unnoticed(rule: Any) -> None:
    """Every guard, every entry of dims and every candidate's condition has a sample that only it refuses."""
    assert set(unguarded(rule)) == {condition for name, condition in UNSAMPLED if name == rule.name}


def test_what_is_tested_elsewhere_is_there() -> None:
    for test in UNSAMPLED.values():
        file, name = test.split("::")
        assert f"def {name}(" in (Path(__file__).parent / file).read_text(), test


def attention(q, k, v):
    return torch.softmax((q @ k.transpose(-2, -1)) * (1 / math.sqrt(D)), -1) @ v


def one_percent_off(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.01 / math.sqrt(D))


def right(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1 / math.sqrt(D))


def declare(name: str, replacement: Any) -> Any:
    samples = [Sample(q=T(f"B H S {D}"), k=T(f"B H T {D}"), v=T("B H T E"))]
    return register_pattern(
        name, family="attention", replacement=replacement, samples=samples, numerics=Numerics(slack=4.0)
    )(attention)


def test_a_wrong_rule_fails_its_check() -> None:
    result = check(declare("sdpa_one_percent_off", one_percent_off), examples=4)
    assert not result.ok
    assert any("result" in f.problem and "allowed" in f.problem for f in result.failures), str(result)


@pytest.mark.parametrize("wrong", [True, False])
def test_a_wrong_rule_is_seen_live(wrong: bool, caplog: pytest.LogCaptureFixture) -> None:
    rule = declare(f"sdpa_live_{wrong}", one_percent_off if wrong else right)
    run, coverage = compiled(plain, rules=(rule,), verify="live")
    with coverage, caplog.at_level(logging.WARNING, logger="regraft"):
        run(*qkv())
    assert coverage.count(rule.name) == 1
    (errors,) = [g.errors[rule.name] for g in coverage.graphs if g.errors]
    assert (max(errors) > 1e-4) == wrong
    assert any(rule.name in record.getMessage() for record in caplog.records) == wrong

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

from regraft import Sample, T, register_pattern
from regraft.compiler.check import check, unguarded
from regraft.patterns import default_rules
from regraft.patterns.attention_cuda import CUDA_KERNELS
from regraft.rewrites.rule import Numerics

every_rule = pytest.mark.parametrize("rule", list(default_rules()), ids=lambda r: r.name)

# Conditions that no operands of a sample can break, by rule: the test that breaks them.
TESTED_ELSEWHERE = {
    # The pattern's casts keep the numbers on tensors: on a graph they may be to anything.
    ("sdpa", "guard casts_stay_floating"): "test_attention_silent_wrong.py::test_right_or_refused",
    ("sdpa_with_weights", "guard casts_stay_floating"): "test_attention_silent_wrong.py::test_right_or_refused",
    ("rms_norm", "guard casts_keep_values"): "test_normalization.py::test_statistics_of_rounded_values",
    ("layer_norm", "guard casts_keep_values"): "test_normalization.py::test_cast_to_integers",
    # A weight or bias that is no row is left out of the match, which is one without it.
    ("rms_norm", "dims x"): "test_normalization.py::test_weight_that_is_no_row",
    ("rms_norm", "dims weight"): "test_normalization.py::test_weight_that_is_no_row",
    ("layer_norm", "dims x"): "test_normalization.py::test_weight_that_is_no_row",
    ("layer_norm", "dims weight"): "test_normalization.py::test_weight_that_is_no_row",
    ("layer_norm", "dims bias"): "test_normalization.py::test_weight_that_is_no_row",
    # On tensors a pattern merges pairs in one way only.
    ("rotary", "guard pairs_are_whole"): "test_rotary.py::test_regrouped_pairs",
    # A sample is all of a program: nobody else can be missing there.
    ("sdpa_with_weights", "guard weights_are_used"): "test_attention_refusals.py::test_nobody_wants_the_weights",
    # Arguments that the pattern leaves open have one value on tensors.
    ("batch_norm", "guard running_statistics"): "test_batch_norm.py::test_near_miss_batch_statistics",
    ("batch_norm", "guard forward_layer"): "test_batch_norm.py::test_near_miss_transposed",
    ("convolution", "guard forward_convolution"): "test_convolution.py::test_refused",
    ("identity", "guard fixed_sizes"): "test_algebra.py::test_symbolic_sizes",
    ("identity", "guard nothing_subtracted"): "test_algebra.py::test_what_only_looks_like_one",
    ("identity", "guard widened"): "test_algebra.py::test_integers_through_floats",
    # Eager refuses operands of different dtypes as well, so that there is no such program.
    ("batch_norm", "guard floating"): "test_batch_norm.py::test_near_miss_dtype",
    ("convolution", "guard one_dtype"): "test_convolution.py::test_operands_of_other_dtypes_are_refused",
    # What runs after autograd is not trained by its samples, and a pattern alone has nothing in between.
    ("merged_linear", "guard trained_apart"): "test_merging.py::test_trained_weights_stay_apart",
    ("merged_linear", "guard nearby"): "test_merging.py::test_products_far_apart",
}


@every_rule
def test_default_rules_hold(rule: Any) -> None:
    """Each of its candidates that a CPU can run; the command `regraft check` draws as many programs as one likes."""
    usable = tuple(c for c in rule.candidates if c not in CUDA_KERNELS)
    result = check(replace(rule, candidates=usable), examples=8)
    assert result.ok, str(result)


@every_rule
def test_no_condition_can_be_dropped_unnoticed(rule: Any) -> None:
    """Every guard, every entry of dims and every candidate's condition has a sample that only it refuses."""
    elsewhere = {condition for name, condition in TESTED_ELSEWHERE if name == rule.name}
    assert set(unguarded(rule)) == elsewhere


def test_what_is_tested_elsewhere_is_there() -> None:
    for test in TESTED_ELSEWHERE.values():
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

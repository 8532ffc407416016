"""Both sides of a rewrite, run on live inputs."""

import gc
import logging
import math

import pytest
import torch
from support.engine import X, applied, capture, ops, rule

from regraft.rewrites.live import compare_op, relative_error

nan, inf = math.nan, math.inf


@pytest.mark.parametrize(
    ("ours", "reference", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0), ([1.01], [1.0], 0.01), ([nan, 1.0], [nan, 1.0], 0),
        ([inf, 1.0], [inf, 1.0], 0),
        ([nan, 1.0], [0.0, 1.0], inf), ([0.0], [nan], inf), ([inf], [-inf], inf), ([inf], [1.0], inf),
        ([0.5], [0.0], 0.5),
        ([], [], 0),
    ],
)  # fmt: skip
def test_relative_error(ours, reference, error):
    assert relative_error(torch.tensor(ours), torch.tensor(reference)) == pytest.approx(error, rel=1e-4)


def scaled(factor):
    return rule(lambda x: torch.exp(x) * 0.5, lambda x: torch.exp(x) * factor, "scaled")


def run(factor, caplog, function=lambda a: torch.exp(a) * 0.5 + 1, x=X):
    module = capture(function, x)
    record = applied(module, scaled(factor), verify="live")
    assert len(record.applied) == 1
    with caplog.at_level(logging.WARNING, "regraft"):
        return module(x), record


def test_a_right_rule_is_seen_to_be_right(caplog):
    result, record = run(0.5, caplog)
    assert record.errors == {"scaled": [0.0]} and not caplog.records
    assert torch.equal(result, torch.exp(X) * 0.5 + 1)


def test_a_scale_off_by_one_percent_is_seen_and_logged(caplog):
    result, record = run(0.505, caplog)
    (error,) = record.errors["scaled"]
    assert error == pytest.approx(0.01, rel=1e-3)
    (entry,) = caplog.records
    assert "rule scaled changed a result by 0.01 (relative) at user.py:2 in model" in entry.getMessage()
    assert torch.equal(result, torch.exp(X) * 0.505 + 1), "what flows on is the replacement's"


def test_every_run_is_compared_at_every_place(caplog):
    module = capture(lambda a: torch.exp(torch.exp(a) * 0.5) * 0.5, X)
    record = applied(module, scaled(0.505), verify="live")
    for _ in range(2):
        module(X)
    assert len(record.errors["scaled"]) == 4


def test_several_outputs(caplog):
    pair = rule(
        lambda x: (torch.relu(torch.exp(x)), torch.tanh(torch.exp(x) * 2)),
        lambda x: (torch.exp(x).relu(), torch.exp(x).mul(2).tanh() * 1.1), "pair",
    )  # fmt: skip
    module = capture(lambda a: (torch.sin(torch.relu(torch.exp(a))), torch.tanh(torch.exp(a) * 2)), X)
    record = applied(module, pair, verify="live")
    assert len(record.applied) == 1
    module(X)
    assert sorted(record.errors["pair"]) == [0, pytest.approx(0.1, rel=1e-3)]


def test_gradients_are_the_replacements():
    x = X.clone().requires_grad_()
    record = applied(module := capture(lambda a: torch.exp(a) * 0.5, X), scaled(0.505), verify="live")
    module(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.exp(X) * 0.505)
    assert record.errors


def test_strides_are_told_as_they_are():
    expanded = torch.ones(1, 4).expand(3, 4)
    torch.library.opcheck(compare_op(), (expanded, X, "0|rule|here"), test_utils="test_faketensor")


@pytest.mark.usefixtures("few_objects")
def test_a_record_that_is_gone_is_not_missed(caplog):
    module = capture(lambda a: torch.exp(a) * 0.5, X)
    applied(module, scaled(0.505), verify="live")
    gc.collect()
    with caplog.at_level(logging.WARNING, "regraft"):
        module(X)
    assert len(caplog.records) == 1 and "regraft.compare" in ops(module)

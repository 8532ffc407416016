"""What every rule must pass: other uses of inner values, writes and draws in between, modes."""

import pytest
import torch
from support.engine import X, applied, capture, ops, rule
from torch.nn import functional as F

from regraft.rewrites.rule import Numerics

RELU_EXP = lambda x: torch.relu(torch.exp(x))  # noqa: E731


def relu_exp(**declaration):
    return rule(RELU_EXP, lambda x: torch.exp(x).clamp(min=0), **declaration)


def outcome(one, function, *inputs, **settings):
    """How often a rule was applied, and the codes of its refusals."""
    module = capture(function, *(inputs or (X,)))
    record = applied(module, one, **settings)
    return len(record.applied), {miss.code for miss in record.near_misses}


@pytest.mark.parametrize("use", [lambda e: e * 2, lambda e: e], ids=["call", "output"])
def test_an_inner_value_used_elsewhere(use):
    def function(a):
        e = torch.exp(a)
        return torch.relu(e), use(e)

    assert outcome(relu_exp(), function) == (0, {"inner-value-escapes"})
    module = capture(function, X)
    assert len(applied(module, relu_exp(escapes="keep")).applied) == 1
    assert ops(module).count("exp") == 2 and "relu" not in ops(module)
    for ours, eager in zip(module(X), function(X), strict=True):
        assert torch.equal(ours, eager)


def test_an_escape_names_both_nodes_and_the_users_line():
    module = capture(lambda a: (torch.relu(e := torch.exp(a)), e * 2), X)
    (miss,) = applied(module, relu_exp()).near_misses
    assert miss.found == "mul: float32[3, 4]" and "exp: float32[3, 4] is also used by mul" in miss.message
    assert (miss.site.line, miss.root.line) == (1, 2)


def test_an_output_of_the_pattern_is_no_escape():
    both = rule(lambda x: (torch.relu(e := torch.exp(x)), e), lambda x: ((e := torch.exp(x)).clamp(min=0), e))
    assert outcome(both, lambda a: (torch.relu(e := torch.exp(a)), e * 2)) == (1, set())


def written_between(a):
    e = torch.exp(a)
    a.add_(1)
    return torch.relu(e)


def view_written_between(a):
    e = torch.exp(a)
    a.view(-1)[:2].zero_()
    return torch.relu(e)


def inner_written(a):
    e = torch.exp(a.clone())
    view = e.view(-1)
    view.add_(1)
    return torch.relu(e), view


@pytest.mark.parametrize("function", [written_between, view_written_between, inner_written])
def test_a_write_in_between(function):
    module = capture(function, X)
    record = applied(module, relu_exp())
    assert not record.applied and {m.code for m in record.near_misses} == {"mutated-between"}
    x, y = X.clone(), X.clone()
    ours, eager = module(x), function(y)
    assert torch.equal(x, y) and torch.equal(torch.as_tensor(ours[0]), torch.as_tensor(eager[0]))


def test_writes_before_or_after_do_not_matter():
    def before(a):
        a.add_(1)
        return torch.relu(torch.exp(a))

    def after(a):
        r = torch.relu(torch.exp(a))
        a.add_(1)
        return r

    for function in (before, after):
        module = capture(function, X)
        assert len(applied(module, relu_exp()).applied) == 1
        x, y = X.clone(), X.clone()
        assert torch.equal(module(x), function(y)) and torch.equal(x, y)


def dropout_rule(**numerics):
    declared = Numerics(**({"random": "stream"} | numerics))
    return rule(lambda x: F.dropout(torch.exp(x), 0.5), lambda x: F.dropout(x.exp() * 1, 0.5), numerics=declared)


def other_draw_between(a):
    e = torch.exp(a)
    return F.dropout(e, 0.5) + torch.rand_like(a)


def test_draws_keep_their_order():
    drop_then_tanh = rule(
        lambda x: torch.tanh(F.dropout(x, 0.5)), lambda x: torch.tanh(F.dropout(x, 0.5)) * 1,
        numerics=Numerics(random="stream"),
    )  # fmt: skip

    def between(a):
        d = F.dropout(a, 0.5)
        r = torch.rand_like(a)
        return torch.tanh(d) + r

    assert outcome(drop_then_tanh, between) == (0, {"random-order-changes"})
    module = capture(between, X)
    assert len(applied(module, drop_then_tanh, keep_stream=False).applied) == 1
    assert ops(module).count("dropout") == 1

    module = capture(lambda a: torch.rand_like(a) + torch.tanh(F.dropout(a, 0.5)), X)
    assert len(applied(module, drop_then_tanh).applied) == 1
    torch.manual_seed(0)
    ours = module(X)
    torch.manual_seed(0)
    assert torch.equal(ours, torch.rand_like(X) + torch.tanh(F.dropout(X, 0.5)))


def test_a_draw_that_only_has_the_same_distribution():
    function = lambda a: F.dropout(torch.exp(a), 0.5)  # noqa: E731
    alike = dropout_rule(random="distribution")
    assert outcome(alike, function) == (0, {"random-stream-changes"})
    assert outcome(alike, function, keep_stream=False)[0] == 1
    assert outcome(dropout_rule(), function)[0] == 1


def test_a_random_value_used_elsewhere_is_not_drawn_twice():
    keep = rule(
        lambda x: torch.tanh(F.dropout(x, 0.5)), lambda x: torch.tanh(F.dropout(x, 0.5)) * 1, escapes="keep",
        numerics=Numerics(random="stream"),
    )  # fmt: skip
    assert outcome(keep, lambda a: (torch.tanh(d := F.dropout(a, 0.5)), d)) == (0, {"inner-value-escapes"})


def test_grad_modes_are_not_mixed():
    def function(a):
        with torch.no_grad():
            e = torch.exp(a)
        return torch.relu(e)

    assert outcome(relu_exp(), function) == (0, {"pattern-differs"})

    def inside(a):
        with torch.no_grad():
            return torch.relu(torch.exp(a))

    module = capture(inside, X)
    assert len(applied(module, relu_exp()).applied) == 1
    assert ops(module) == ["_set_grad_enabled", "exp", "clamp", "_set_grad_enabled"]


def test_autocast_regions_are_not_mixed():
    def function(a):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            e = torch.exp(a)
        return torch.relu(e)

    assert outcome(relu_exp(), function) == (0, {"pattern-differs"})


PAIR = (
    lambda x, w, v: (torch.relu(x * w), torch.relu(x * v)),
    lambda x, w, v: ((x * w).clamp(min=0), (x * v).clamp(min=0)),
)


def test_outputs_that_depend_on_each_other():
    def function(a, b):
        first = torch.relu(a * b)
        return first, torch.relu(a * torch.exp(first))

    assert outcome(rule(*PAIR), function, X, X + 1) == (0, {"outputs-entangled"})


def late(compute):
    """A program whose second product has an operand computed after a use of the first product."""

    def function(a, b):
        first = torch.relu(a * b)
        used = torch.exp(first)
        return used, torch.relu(a * compute(b, used))

    return function


def random_late(b, _):
    return torch.dropout(b, 0.5, True)


def written_late(b, used):
    b.add_(1)
    return torch.sin(b)


def without_gradient(b, _):
    with torch.no_grad():
        return torch.sin(b)


@pytest.mark.parametrize(
    "compute", [lambda b, _: torch.sin(b), lambda b, _: torch.sin(torch.cos(b)) * 2, lambda b, _: b.t().t()]
)
def test_operands_computed_after_the_first_output_move_before_it(compute):
    module = capture(late(compute), X, X + 1)
    assert len(applied(module, rule(*PAIR)).applied) == 1 and "relu" not in ops(module)
    for ours, eager in zip(module(X, X + 1), late(compute)(X, X + 1), strict=True):
        assert torch.equal(ours, eager)


def test_an_operand_that_moves_is_computed_once():
    def function(a, b):
        first = torch.relu(a * b)
        other = torch.sin(b)
        return first, torch.relu(a * other), other + 1

    module = capture(function, X, X + 1)
    assert len(applied(module, rule(*PAIR)).applied) == 1 and ops(module).count("sin") == 1
    for ours, eager in zip(module(X, X + 1), function(X, X + 1), strict=True):
        assert torch.equal(ours, eager)


@pytest.mark.parametrize("compute", [random_late, written_late, without_gradient, lambda b, used: used + b])
def test_operands_that_must_not_move(compute):
    module = capture(late(compute), X, X + 1)
    record = applied(module, rule(*PAIR))
    assert {m.code for m in record.near_misses} == {"outputs-entangled"} and not record.applied

import pytest
import torch
from support.engine import X, capture, match, rule
from torch.nn import functional as F

from regraft.rewrites.matcher import Matcher
from regraft.rewrites.pattern import ANYTHING, choose, optional
from regraft.rewrites.reason import Reason

Y = X + 1
Z = torch.zeros(3, 4, 5)


def matches(pattern, function, *inputs, root=-1, **declaration):
    one = rule(pattern, lambda *operands: operands[0], **declaration)
    return match(one, capture(function, *(inputs or (X, Y))), root)


def bound(pattern, function, *inputs, **declaration):
    """Names of what the first match binds, by operand; None where nothing matches."""
    found, _ = matches(pattern, function, *inputs, **declaration)
    return {k: str(v).removesuffix("_1") for k, v in found[0].operands.items()} if found else None


def test_binds_operands():
    assert bound(lambda x, y: torch.relu(x) * y, lambda a, b: torch.relu(a) * torch.exp(b)) == {"x": "a", "y": "exp"}


def test_commutative_operands_match_in_both_orders():
    def pattern(x, y):
        return torch.relu(x) * y

    assert bound(pattern, lambda a, b: b * torch.relu(a)) == {"x": "a", "y": "b"}
    assert not bound(lambda x, y: torch.relu(x) - y, lambda a, b: b - torch.relu(a))
    assert not bound(lambda x, y: torch.relu(x) @ y, lambda a, b: b.mT @ torch.relu(a))


def test_a_further_output_is_found_through_many_shared_alternatives():
    """Looking along each path by itself would take 2**30 steps."""

    def pattern(x):
        y = x
        for i in range(30):
            y = choose(f"step{i}", relu=torch.relu(y), tanh=torch.tanh(y))
        return torch.exp(x), y

    def program(a):
        y = a
        for _ in range(30):
            y = torch.relu(y)
        return y, torch.exp(a)

    found, _ = matches(pattern, program, X)
    assert len(found) == 1 and len(found[0].matched) == 31


def test_a_scaled_addition_does_not_commute():
    def pattern(x, y):
        return torch.add(torch.relu(x), y, alpha=2)

    assert bound(pattern, lambda a, b: torch.add(torch.relu(a), b, alpha=2))
    assert not bound(pattern, lambda a, b: torch.add(b, torch.relu(a), alpha=2))
    assert not bound(pattern, lambda a, b: torch.relu(a) + b), "alpha is compared"
    assert not bound(lambda x, y: torch.relu(x) + y, lambda a, b: torch.add(torch.relu(a), b, alpha=2))


def test_one_variable_is_one_value():
    def pattern(x):
        return torch.exp(x) * torch.relu(x)

    assert bound(pattern, lambda a, b: torch.relu(a) * torch.exp(a))
    found, reason = matches(pattern, lambda a, b: torch.relu(a) * torch.exp(b))
    assert not found and reason.expected == "the same x as before"


def test_one_shared_term_is_one_node():
    def pattern(x, y):
        shared = torch.relu(x)
        return shared * (shared + y)

    def twice(a, b):
        return torch.relu(a) * (torch.relu(a) + b)

    def once(a, b):
        shared = torch.relu(a)
        return (b + shared) * shared

    assert bound(pattern, once)
    found, reason = matches(pattern, twice)
    assert not found and "the same relu(x) as before" in reason.expected


@pytest.mark.parametrize(
    ("wanted", "given", "same"),
    [(0.5, 0.5, True), (0.5, 0.5 + 1e-12, True), (0.5, 0.505, False), (2, 2.0, True), (1.0, True, False),
     (float("inf"), float("inf"), True), (float("inf"), 1e30, False), (0.0, 1e-30, False)],
)  # fmt: skip
def test_constants_are_compared(wanted, given, same):
    assert bool(bound(lambda x: torch.relu(x) * wanted, lambda a, b: torch.relu(a) * given)) is same


def test_arguments_left_out_have_their_default():
    assert bound(lambda x: F.gelu(x), lambda a, b: F.gelu(a))
    assert not bound(lambda x: F.gelu(x), lambda a, b: F.gelu(a, approximate="tanh"))
    assert bound(lambda x: F.gelu(x, approximate=ANYTHING), lambda a, b: F.gelu(a, approximate="tanh"))
    assert not bound(lambda x: x.softmax(-1), lambda a, b: a.softmax(-1, torch.float64))
    assert bound(lambda x: x.softmax(ANYTHING), lambda a, b: a.softmax(0))


@pytest.mark.parametrize(
    ("pattern", "function", "same"),
    [
        (lambda x: x.softmax(-1), lambda a: a.softmax(2), True),
        (lambda x: x.softmax(-1), lambda a: a.softmax(1), False),
        (lambda x: x.softmax(5), lambda a: a.softmax(2), False),
        (lambda x: x.mean(-1, keepdim=True), lambda a: a.mean(2, keepdim=True), True),
        (lambda x: x.mean(-1, keepdim=True), lambda a: a.mean((1, 2), keepdim=True), False),
        (lambda x: x.sum([-1, 0]), lambda a: a.sum((2, 0)), True),
        (lambda x: x.unsqueeze(-1), lambda a: a.unsqueeze(3), True),
        (lambda x: x.unsqueeze(-1), lambda a: a.unsqueeze(2), False),
        (lambda x: x.unsqueeze(0), lambda a: a.unsqueeze(3), False),
        (lambda x: x.mT, lambda a: a.permute(0, 2, 1), True),
        (lambda x: x.mT, lambda a: a.permute(1, 0, 2), False),
        (lambda x: x.mT, lambda a: a[0, 0].permute(0), False),
        (lambda x: x.softmax(-1), lambda a: a.sum().softmax(0), True),
        (lambda x: x.permute(0, 2, 1), lambda a: a.permute(0, -1, 1), True),
        (lambda x: torch.cat([x, x], -1), lambda a: torch.cat([a, a], -1), True),
        (lambda x: torch.cat([x, x], -1), lambda a: torch.cat([a, a, a], -1), False),
        (lambda x: torch.cat([x, x], -1), lambda a: torch.cat([a, a], 2), True),
        (lambda x: torch.cat([x, x], -1), lambda a: torch.cat([a, a], 1), False),
        (lambda x: torch.stack([x, x], -1), lambda a: torch.stack([a, a], 3), True),
        (lambda x: torch.stack([x, x], -1), lambda a: torch.stack([a, a], 2), False),
        (lambda x: x.unfold(-1, 2, 2), lambda a: a.unfold(2, 2, 2), True),
        (lambda x: x.argsort(), lambda a: a.argsort(2), True),
        (lambda x: x.argsort(), lambda a: a.argsort(1), False),
        (lambda x: x.mean((-1, -2)), lambda a: a.mean((1, 2)), True),
        (lambda x: x.mean((-1, -2)), lambda a: a.mean((0, 2)), False),
        (lambda x: x.sum(), lambda a: a.sum((0, 1, 2)), True),
        (lambda x: x.sum(), lambda a: a.sum((0, 1)), False),
        (lambda x: x.sum(), lambda a: a.sum((0, 1, 2), keepdim=True), False),
        (lambda x: x.mean((0, 1, 2)), lambda a: a.mean(), True),
        (lambda x: x.mean((0, 1, 2), keepdim=True), lambda a: a.mean(), False),
        (lambda x: x.roll((1, 2), (0, 1)), lambda a: a.roll((1, 2), (1, 0)), False),
    ],
)  # fmt: skip
def test_dims_are_what_the_operator_sees(pattern, function, same):
    assert bool(bound(pattern, function, Z)) is same


def test_numbers():
    def pattern(x, s):
        return torch.relu(x) * s

    def number(function, *inputs):
        return bound(pattern, function, *inputs, numbers=["s"])

    assert number(lambda a, b: torch.relu(a) * 0.3) == {"x": "a", "s": "0.3"}
    assert number(lambda a, b: torch.relu(a) * b, X, torch.ones(())) == {"x": "a", "s": "b"}
    assert not number(lambda a, b: torch.relu(a) * b)
    assert not bound(pattern, lambda a, b: torch.relu(a) * 0.3), "a tensor operand binds no number"


def attempt(x, y):
    scaled = optional("scale", torch.relu(x), lambda v: v * 0.5)
    return choose("end", add=lambda: scaled + y, sub=lambda: scaled - y)


def test_tags_tell_the_way_taken():
    found, _ = matches(attempt, lambda a, b: torch.relu(a) * 0.5 - b)
    assert found[0].tags == (("end", "sub"), ("scale", "yes"))
    assert found[0].tag_names() == ("end:sub", "scale")
    found, _ = matches(attempt, lambda a, b: b + torch.relu(a))
    assert found[0].tag_names() == ("end:add",)


def test_one_tag_is_one_choice():
    def pattern(x):
        part = choose("part", relu=lambda: torch.relu(x), exp=lambda: torch.exp(x))
        return part * part + choose("part", relu=lambda: torch.relu(x), exp=lambda: torch.exp(x))

    assert bound(pattern, lambda a, b: (e := torch.exp(a)) * e + e)
    assert not bound(pattern, lambda a, b: (e := torch.exp(a)) * torch.relu(a) + e)
    assert not bound(pattern, lambda a, b: (e := torch.exp(a)) * e + torch.relu(a))


def test_a_guard_runs_as_soon_as_its_operands_are_bound():
    seen = []

    def early(x):
        seen.append(f"early {x}")

    def late(match):
        seen.append(f"late {len(match.operands)}")

    def both(x, y):
        seen.append(f"both {x} {y}")

    matches(
        lambda x, y, z: torch.relu(x) @ y @ z, lambda a, b: torch.relu(a) @ b @ a, X, X.mT, guards=[late, both, early]
    )
    assert seen == ["early a_1", "both a_1 b_1", "late 3"]
    seen.clear()
    matches(
        lambda x, y, z: (torch.relu(x) + y) * torch.exp(z), lambda a, b: (torch.relu(a) + b) * b, guards=[early, both]
    )
    assert seen == ["early a_1", "both a_1 b_1"], "before the rest of the pattern is looked at"


def test_a_rejection_backtracks():
    def not_input(x):
        return Reason("is-input", "x is an input", (x,), "computed", "input") if x.op == "placeholder" else None

    def pattern(x, y):
        return x * y

    assert bound(pattern, lambda a, b: a * torch.exp(b), guards=[not_input]) == {"x": "exp", "y": "a"}
    found, reason = matches(pattern, lambda a, b: a * b, guards=[not_input])
    assert not found and reason.code == "is-input"


def test_a_rejection_takes_another_alternative():
    def never_scaled(match):
        return Reason("scaled", "no scale, please") if ("scale", "yes") in match.tags else None

    def pattern(x):
        return optional("scale", torch.relu(x) * 1, lambda v: v * 0.5)

    assert not bound(pattern, lambda a, b: torch.relu(a) * 1 * 0.5, guards=[never_scaled])

    def either(x):
        return choose("way", narrow=lambda: torch.relu(torch.exp(x)), wide=lambda: torch.relu(x))

    def wide(match):
        return Reason("narrow", "not so narrow") if ("way", "narrow") in match.tags else None

    assert bound(either, lambda a, b: torch.relu(torch.exp(a)), guards=[wide]) == {"x": "exp"}


def test_guards_of_parts_that_are_missing():
    seen = []

    def needs(y):
        seen.append("needs")

    def may(x, y=None):
        seen.append(f"may {y}")

    def pattern(x, y):
        return optional("bias", torch.relu(x), lambda v: v + y)

    matches(pattern, lambda a, b: torch.relu(a), guards=[needs, may])
    assert seen == ["may None"]
    seen.clear()
    matches(pattern, lambda a, b: torch.relu(a) + b, guards=[needs, may])
    assert seen == ["needs", "may b_1"]


def test_a_guard_must_not_give_a_bool():
    with pytest.raises(TypeError, match=r"guard is_big gave True: it must give None \(accept\) or a Reason"):

        def is_big(x):
            return True

        matches(lambda x: torch.relu(x), lambda a, b: torch.relu(a), guards=[is_big])


def test_several_outputs():
    def pattern(x, w, v):
        return torch.relu(x @ w), torch.tanh(torch.exp(x @ v))

    def function(a, b):
        return torch.relu(a @ b), torch.tanh(torch.exp(a @ torch.sin(b)))

    found, _ = matches(pattern, function, X, X.mT, root=1)
    assert {k: str(v).removesuffix("_1") for k, v in found[0].operands.items()} == {"x": "a", "w": "b", "v": "sin"}


def test_an_output_may_be_an_inner_value_of_another():
    def pattern(x):
        inner = torch.exp(x)
        return torch.relu(inner), inner

    found, _ = matches(pattern, lambda a, b: torch.relu(torch.exp(a)))
    assert [str(n) for n in found[0].matched] == ["relu", "exp"]


def test_an_output_through_an_optional_part():
    def pattern(x):
        return torch.relu(x), torch.tanh(optional("exp", x, torch.exp))

    for function in (
        lambda a, b: (torch.tanh(a), torch.relu(a)),
        lambda a, b: (torch.tanh(torch.exp(a)), torch.relu(a)),
    ):
        assert bound(pattern, function) == {"x": "a"}


def test_outputs_of_different_modes_are_not_merged():
    def pattern(x):
        return torch.relu(x), torch.exp(x)

    def function(a, b):
        with torch.no_grad():
            e = torch.exp(a)
        return e, torch.relu(a)

    module = capture(function, X, Y)
    from regraft.rewrites.effects import Effects

    Effects(module.graph)
    assert not match(rule(pattern, lambda x: (x, x)), module)[0]


def test_the_deepest_failure_is_kept():
    def pattern(x, y):
        return choose("way", deep=lambda: torch.tanh(torch.exp(x.softmax(-1))) * y, flat=lambda: torch.sin(x) * y)

    found, reason = matches(pattern, lambda a, b: torch.tanh(torch.exp(a.softmax(0))) * b)
    assert not found
    assert (reason.code, reason.expected, reason.found) == ("pattern-differs", "dim=-1", "0")
    assert reason.site.file == "user.py" and reason.site.line == 1, "the softmax is to blame"


def test_an_argument_says_more_than_a_part_that_may_be_missing():
    """Both fail equally deep: the exponent may be missing, so the dim is what differs."""

    def pattern(x):
        def wide(value):
            return choose("wide", yes=lambda: torch.exp(value), no=value)

        return torch.tanh(wide(x).softmax(-1)) - wide(x)

    found, reason = matches(pattern, lambda a, b: torch.tanh(a.softmax(0)) - a)
    assert not found and (reason.expected, reason.found) == ("dim=-1", "0")


def test_depth_counts_operators():
    one = rule(lambda x: torch.tanh(torch.exp(x.softmax(-1))), lambda x: x)
    matcher = Matcher(one)
    module = capture(lambda a: torch.tanh(torch.exp(a.softmax(0))), X)
    assert not list(matcher.match(list(module.graph.nodes)[-2]))
    assert (matcher.failure.depth, one.size) == (3, 3)


def test_opaque_values_are_operands_only():
    module = capture(lambda a: torch.relu(torch.exp(a)), X)
    exp, _ = (n for n in module.graph.nodes if n.op == "call_function")
    exp.meta["opaque"] = Reason("mutated-between", "somebody wrote", (exp,))
    found, reason = match(rule(lambda x: torch.relu(torch.exp(x)), lambda x: x), module)
    assert not found and reason.code == "mutated-between"
    assert match(rule(lambda x: torch.relu(x), lambda x: x, "shallow"), module)[0]

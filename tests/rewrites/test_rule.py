import functools

import pytest
import torch
from support.engine import rule

from regraft.rewrites.pattern import PatternError, choose, optional
from regraft.rewrites.rule import EXACT, Candidate, Numerics, declared, register_pattern
from regraft.rewrites.sample import Sample, T


def declare(pattern=lambda x, y: torch.relu(x + y), **changes):
    declaration = {"replacement": lambda x, y: torch.relu(x + y), "samples": [Sample(x=T("N"), y=T("N"))]} | changes
    return register_pattern("declared_here", **declaration)(pattern)


def test_a_declaration():
    made = declare(family="f", dims={"x": "... N"}, numbers=["y"], samples=[Sample(x=T("N"), y=2.0)])
    assert repr(made) == "<Rule declared_here (f, forward)>"
    assert declared("declared_here") is made
    assert made.roots == {"aten.relu"} and made.required == {"aten.relu", "aten.add"} and made.size == 2
    assert [(v.name, v.number) for v in made.variables] == [("x", False), ("y", True)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replacement": lambda x: x}, r"'replacement' takes \(x\), but .* give \(x, y\)"),
        ({"replacement": lambda y, x: x}, r"takes \(y, x\)"),
        ({"replacement": lambda x, y, z: x}, r"takes \(x, y, z\)"),
        ({"replacement": lambda x, y: x, "derived": {"d": lambda match, policy: 1}}, r"give \(x, y, \*, d\)"),
        ({"replacement": []}, "no replacement"),
        ({"replacement": None}, "replacement=None: a function is wanted, or a list of Candidate"),
        (
            {"pattern": torch.nn.Linear(3, 3)},
            r"is a Python function, not Linear: write def pattern\(x, weight\)",
        ),
        ({"pattern": torch.relu}, "a pattern is a Python function, not builtin_function_or_method"),
        ({"replacement": "fast"}, "replacement='fast': a function is wanted, or a list of Candidate"),
        ({"numbers": ["y"]}, r"gives y=.*, but numbers=\['y'\] says that y binds a number"),
        ({"replacement": [Candidate("fast", lambda x: x)]}, "replacement 'fast'"),
        ({"samples": []}, "no samples"),
        ({"samples": [Sample(z=T("N"))]}, r"a sample gives \['z'\]"),
        ({"samples": [Sample(x=T("N"), y=T("N"), tags={"t": "yes"})]}, "a sample takes t=yes"),
        ({"dims": {"z": "N"}}, "dims names 'z', but the pattern has x, y"),
        ({"dims": {"x": "N ... M"}}, "may stand in front only"),
        ({"dims": {"y": "N"}, "numbers": ["y"]}, "dims names 'y', but the pattern has x"),
        ({"numbers": ["z"]}, "numbers names 'z'"),
        ({"numbers": {"y": 1e-6}}, r"a list of parameters is wanted, numbers=.*their values are given by samples"),
        ({"numbers": "y"}, r"a list of parameters is wanted, numbers=\['y'\]"),
        ({"replacement": torch.nn.functional.silu}, r"takes \(input, inplace\).*replacement=lambda x, y: \.\.\."),
        ({"guards": [lambda z: None]}, r"guard <lambda>\(\) names 'z'"),
        ({"guards": [lambda: None]}, "names no operand"),
        ({"pattern": lambda x, y: torch.relu(x)}, "never uses y"),
        ({"pattern": lambda *xs: torch.relu(xs[0])}, "named one by one"),
        ({"pattern": lambda x, y: optional("o", x, lambda v: v + y)}, "must be computed by an operator"),
        ({"pattern": lambda x, y: (x + y, optional("o", x, torch.relu))}, "must be computed by an operator"),
        ({"pattern": lambda x, y: (x + 1, y + 1)}, "shares no operand"),
        ({"pattern": lambda x, y: x + y if x else y}, "branch"),
        ({"pattern": lambda x, y: x.frobnicate(y)}, "no ATen operator"),
        ({"stage": "backward"}, "stage 'backward'.*forward, simplify, bytes, lowered"),
        ({"nan": "maybe"}, "nan 'maybe'.*same, safe"),
        ({"escapes": "ignore"}, "escapes 'ignore'.*refuse, keep"),
        ({"samples": Sample(x=T("N"), y=T("N"))}, r"a list of samples is expected, samples=\[Sample\(\.\.\.\)\]"),
        ({"samples": [{"x": T("N"), "y": T("N")}]}, "a list of samples is expected"),
        ({"numerics": "exact"}, "numerics='exact' is not a Numerics, such as EXACT"),
        ({"profitable": "yes"}, "profitable='yes' is not a bool, such as True"),
    ],
)
def test_wrong_declarations_are_refused_when_declared(changes, message):
    with pytest.raises(PatternError, match=message):
        declare(**changes)


def test_one_tag_has_one_set_of_labels():
    def pattern(x, y):
        return choose("a", one=lambda: x + y, two=lambda: x * y) - choose("a", one=lambda: x + y, other=lambda: x / y)

    with pytest.raises(PatternError, match="tag 'a'"):
        declare(pattern)


def test_a_name_is_taken_once():
    first = declare()
    assert declare() is not first, "a module that is imported again declares the same rules again"
    with pytest.raises(PatternError, match=r"'declared_here' is declared already, in .*test_rule"):
        declare(lambda x, y: torch.relu(x) + y)


def test_unknown_names_list_the_known():
    declare()
    with pytest.raises(KeyError, match=r"no rule named 'nope' is declared; there are: .*declared_here"):
        declared("nope")


def test_replacements_may_gather():
    made = declare(replacement=lambda *operands, **derived: operands[0], derived={"d": lambda match, policy: 1})
    assert [c.name for c in made.candidates] == ["replacement"]


def test_guards_know_what_they_need():
    guards = [lambda x: None, lambda match: None, lambda x, y=None: None]
    made = declare(guards=guards)
    assert [(g.needs, g.requires, g.late) for g in made.guards] == [
        (("x",), ("x",), False), ((), (), True), (("x", "y"), ("x",), False),
    ]  # fmt: skip


def test_numerics_read_as_text():
    assert [str(n) for n in (EXACT, Numerics(slack=4), Numerics(random="stream"))] == [
        "exact", "error <= 4 x eager's", "error <= 2 x eager's, random: stream",
    ]  # fmt: skip


def test_doc_is_the_patterns():
    def pattern(x):
        """relu(relu(x))

        Twice is once.
        """
        return torch.relu(torch.relu(x))

    assert rule(pattern, torch.relu).doc == "relu(relu(x))\n\nTwice is once."


def times(factor):
    return lambda x, y: torch.relu(x + y) * factor


BASE = {"replacement": times(2)}


@pytest.mark.parametrize(
    "changes",
    [
        {"replacement": lambda x, y: torch.relu(y + x)},
        {"replacement": times(3)},
        {"replacement": functools.partial(lambda x, y, n: x * n + y, n=2)},
        {"replacement": [Candidate("other", times(2))]},
        {"dims": {"x": "N"}},
        {"dims": {"x": "M"}},
        {"numbers": ["y"], "samples": [Sample(x=T("N"), y=2.0)]},
        {"guards": [lambda x: None]},
        {"numerics": EXACT},
        {"escapes": "keep"},
        {"nan": "safe"},
        {"stage": "lowered"},
    ],
)
def test_digest_changes_with_what_the_rule_is(changes):
    assert declare(**BASE).digest == declare(**BASE).digest
    assert declare(**BASE).digest != declare(**BASE | changes).digest


def test_digest_sees_partial_arguments():
    def scaled(x, y, n):
        return (x + y) * n

    digests = {declare(replacement=functools.partial(scaled, n=n)).digest for n in (2, 3)}
    assert len(digests) == 2


def test_marks_are_what_tells_a_pattern_from_arithmetic():
    def gated(x, y):
        return torch.sigmoid(x * 2.0) * y + x.permute(1, 0)

    def plain(x, y):
        return x * y + x

    assert rule(gated, lambda x, y: x).marks == {"aten.sigmoid"}
    assert rule(plain, lambda x, y: x).marks == {"aten.mul", "aten.add"}, "it has nothing else"

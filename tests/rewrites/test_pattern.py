import pytest
import torch
from torch.nn import functional as F

from regraft.rewrites.pattern import (
    ANYTHING,
    Call,
    PatternError,
    Variable,
    cast,
    choose,
    choosing,
    optional,
    record_function,
    required_ops,
    root_ops,
    size,
    subterms,
    tags_of,
)

X, Y = Variable("x"), Variable("y")


def recorded(function):
    (term,) = record_function(function, (X, Y))
    return repr(term)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x, y: torch.relu(x + y), "relu(add(x, y))"),
        (lambda x, y: x.softmax(-1), "softmax(x, -1)"),
        (lambda x, y: F.softmax(x, dim=-1), "softmax(x, -1, None)"),
        (lambda x, y: x / 8, "mul(x, 0.125)"),
        (lambda x, y: x - 3, "add(x, -3)"),
        (lambda x, y: -x, "mul(x, -1)"),
        (lambda x, y: x.permute(1, 0).reshape(-1, 4), "reshape(permute(x, [1, 0]), [-1, 4])"),
        (lambda x, y: 2 * x, "mul(x, 2)"),
        (lambda x, y: torch.bmm(x, y), "matmul(x, y)"),
        (lambda x, y: x @ y, "matmul(x, y)"),
        (lambda x, y: F.dropout(x, 0.1), "dropout(x, 0.1, True)"),
        (lambda x, y: F.relu(x, inplace=True), "relu(x)"),
        (lambda x, y: torch.ops.aten.add.Tensor(x, y), "add(x, y)"),
        (lambda x, y: torch.where(x > 0, x, y), "where(gt(x, 0), x, y)"),
        (lambda x, y: torch.where(x == 0, x, y), "where(eq(x, 0), x, y)"),
        (lambda x, y: x.masked_fill(y != 0, 1.0), "masked_fill(x, ne(y, 0), 1.0)"),
        (lambda x, y: F.gelu(x, approximate="tanh"), "gelu(x, approximate='tanh')"),
    ],
)
def test_functions_become_terms_in_normal_spelling(function, text):
    assert recorded(function) == text


def test_every_spelling_of_a_swap_is_one_term():
    spellings = (
        lambda x, y: x.mT @ y,
        lambda x, y: x.transpose(-2, -1) @ y,
        lambda x, y: torch.swapaxes(x, -2, -1) @ y,
    )
    assert len({recorded(s) for s in spellings}) == 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, y: x if x.sum() else torch.relu(x), "branch"),
        (lambda x, y: torch.relu(x) if x > y else x, "branch"),
        (lambda x, y: torch.relu(x) if x == y else x, "branch"),
        (lambda x, y: x.foo(y), r"\.foo\(\), which is no ATen operator"),
        (lambda x, y: torch.relu(x.view(x.shape[0])), r"may not read \.shape"),
        (lambda x, y: torch.softmax(x), "cannot be recorded|no overload"),
        (lambda x, y: x, "must be computed by an operator"),
        (lambda x, y: None, "must be computed by an operator"),
        (lambda x, y: torch.relu(x[0]), "index"),
        (lambda x, y: torch.relu(next(iter(x))), "index"),
        (lambda x, y: torch.relu(x).add_(y), "writes to its operand"),
        (lambda x, y: abs(x), "cannot be recorded"),
        (lambda x, y: choose("a"), "no alternatives"),
    ],
)
def test_what_is_no_pattern_is_refused(function, message):
    with pytest.raises(PatternError, match=message):
        record_function(function, (X, Y))


def test_recording_ends_with_the_pattern():
    with pytest.raises(PatternError):
        record_function(lambda x, y: x, (X, Y))
    assert torch.equal(choose("a", one=torch.ones(1), two=None), torch.ones(1))


def test_terms_are_keys():
    assert len({X: 1, Y: 2}) == 2 and X == X and X != Y


def test_alternatives_on_tensors():
    def pattern(x):
        y = optional("twice", x, lambda v: v * 2)
        return choose("end", relu=lambda: torch.relu(y), neg=lambda: -y)

    x = torch.tensor([-1.0, 1.0])
    assert pattern(x).tolist() == [0, 2]
    with choosing({"twice": "no", "end": "neg"}):
        assert pattern(x).tolist() == [1, -1]
    with choosing({"end": "sum"}), pytest.raises(PatternError, match="no alternative 'sum'; it has relu, neg"):
        pattern(x)


def test_cast_on_tensors():
    assert cast(torch.ones(1), torch.float64).dtype == torch.float64
    assert cast(torch.ones(1)).dtype == torch.float32
    assert recorded(lambda x, y: cast(x)) == "to(x, anything)"


def test_facts_about_terms():
    def pattern(x, y):
        inner = choose("inner", relu=lambda: torch.relu(x), both=lambda: torch.relu(torch.sigmoid(x)))
        return optional("end", inner * y, torch.tanh)

    (term,) = record_function(pattern, (X, Y))
    assert root_ops(term) == {"aten.tanh", "aten.mul"}
    assert required_ops(term) == {"aten.mul", "aten.relu"}
    assert size(term) == 4  # tanh(mul(relu(sigmoid(x)), y))
    assert tags_of([term]) == {"end": ("yes", "no"), "inner": ("relu", "both")}
    assert root_ops(record_function(lambda x, y: optional("o", x, torch.relu), (X, Y))[0]) == frozenset()


def test_terms_that_alternatives_share_are_looked_at_once():
    """Forty alternatives in a row have 2**40 paths, and only eighty calls."""

    def pattern(x, y):
        for i in range(40):
            x = choose(f"step{i}", relu=torch.relu(x), tanh=torch.tanh(x))
        return x * y

    (term,) = record_function(pattern, (X, Y))
    assert required_ops(term) == {"aten.mul"} and size(term) == 41 and len(tags_of([term])) == 40
    assert len(list(subterms(term))) == 81 + 40 + 2


def test_anything_is_not_compared():
    (term,) = record_function(lambda x, y: torch.softmax(x, ANYTHING), (X, Y))
    assert isinstance(term, Call) and term.args[1] is ANYTHING

import torch
from support.engine import X, calls, capture, rule

from regraft.rewrites.index import RuleIndex
from regraft.rewrites.pattern import choose


def candidates(pattern, function):
    """Whether the index lets a rule be tried at the last call."""
    module = capture(function, X, X)
    return len(
        list(RuleIndex([rule(pattern, lambda *operands: operands[0])], module.graph).candidates(calls(module)[-1]))
    )


def test_by_root_operator():
    assert candidates(lambda x: torch.relu(x), lambda a, b: torch.relu(a)) == 1
    assert candidates(lambda x: torch.relu(x), lambda a, b: torch.exp(torch.relu(a))) == 0


def test_rejected_where_the_graph_lacks_an_operator():
    module = capture(lambda a: torch.relu(a), X)
    absent = rule(lambda x: torch.relu(torch.exp(x)), lambda x: x, "absent")
    present = rule(lambda x: torch.relu(x), lambda x: x, "present")
    assert RuleIndex([absent, present], module.graph).rules == [present]


def test_rejected_where_no_tensor_has_the_dtype():
    module = capture(lambda a: torch.relu(a), X)
    ours = rule(lambda x: torch.relu(x), lambda x: x, "ours", dtypes=(X.dtype, torch.int8))
    bytes_only = rule(lambda x: torch.relu(x), lambda x: x, "bytes", dtypes=(torch.int8,))
    assert RuleIndex([ours, bytes_only], module.graph).rules == [ours]
    assert RuleIndex([ours, bytes_only], module.graph, explained=("bytes",)).rules == [ours, bytes_only]


def test_rejected_by_the_first_operand():
    def pattern(x, y):
        return torch.exp(x) - y

    assert candidates(pattern, lambda a, b: torch.exp(a) - b) == 1
    assert candidates(pattern, lambda a, b: a - torch.exp(b)) == 0


def test_near_misses_of_one_operator_may_be_asked_for():
    module = capture(lambda a: (torch.exp(a), a - torch.exp(a)), X)
    one = rule(lambda x, y: torch.exp(x) - y, lambda x, y: x)
    assert list(RuleIndex([one], module.graph, explained=(one.name,)).candidates(calls(module)[-1])) == [one]


def test_commutative_roots_have_no_first_operand():
    for operator in (torch.add, torch.mul, torch.maximum, torch.eq):
        assert candidates(*_swapped(operator)) == 1


def _swapped(operator):
    return lambda x, y: operator(torch.exp(x), y), lambda a, b: operator(b, torch.exp(a))


def test_alternatives_are_united():
    def pattern(x):
        inner = choose("inner", exp=lambda: torch.exp(x), sin=lambda: torch.sin(x))
        return choose("outer", relu=lambda: torch.relu(inner), plain=inner)

    assert candidates(pattern, lambda a, b: torch.relu(torch.sin(a))) == 1
    assert candidates(pattern, lambda a, b: torch.exp(b)) == 1
    assert candidates(pattern, lambda a, b: torch.relu(a)) == 0


def test_rules_keep_their_order():
    module = capture(lambda a: torch.relu(a), X)
    rules = [rule(lambda x: torch.relu(x), lambda x: x, name) for name in "cab"]
    assert list(RuleIndex(rules, module.graph).candidates(calls(module)[-1])) == rules

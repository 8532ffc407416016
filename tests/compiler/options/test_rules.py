import regraft
from regraft.compiler.options.rules import resolve_rules


def test_rules_resolve_in_order_without_doubles():
    names = [rule.name for rule in resolve_rules(("linear", "default"))]
    assert names[0] == "linear" and sorted(names) == sorted(rule.name for rule in regraft.default_rules())

from types import SimpleNamespace

import pytest
import torch
from support.engine import rule

from regraft.rewrites import rule as rules_module
from regraft.rewrites import ruleset
from regraft.rewrites.ruleset import PLUGIN_GROUP, RuleSet, plugin_rules


@pytest.fixture
def three():
    patterns = (lambda x: torch.relu(torch.relu(x)), lambda x: torch.tanh(x) * 2, lambda x: torch.exp(x) + 1)
    return [rule(p, p, name) for name, p in zip("abc", patterns, strict=True)]


def names(rules):
    return [r.name for r in rules]


def test_composition_keeps_order(three):
    a, b, c = three
    both = RuleSet([c, a]) + RuleSet([a, b])
    assert names(both) == ["c", "a", "b"] and len(both) == 3
    assert names(both - "a") == ["c", "b"] and names(both - [a, c]) == ["b"]
    assert names(both) == ["c", "a", "b"], "sets are immutable"
    assert names(RuleSet() + a + "b") == ["a", "b"]
    assert a in both and "a" in both and "d" not in both and both["a"] is a
    assert repr(RuleSet([a, b])) == "RuleSet(a, b)"


def test_unknown_names(three):
    rules = RuleSet(three)
    with pytest.raises(KeyError, match="no rule named 'd' in this set; it has: a, b, c"):
        rules - "d"
    with pytest.raises(KeyError, match="no rule named 'd' is declared"):
        RuleSet(["d"])
    with pytest.raises(TypeError, match="not int: 3"):
        RuleSet([3])
    for one in ("a", three[0], 3):
        with pytest.raises(TypeError, match=r"made of a list of rules and names of rules: RuleSet\(\["):
            RuleSet(one)


def test_one_name_is_one_rule(three, monkeypatch):
    monkeypatch.setattr(rules_module, "_declared", {})
    other = rule(lambda x: torch.relu(torch.relu(x)), lambda x: x * 2, "a")
    with pytest.raises(ValueError, match="two different rules are named 'a'"):
        RuleSet(three) + other


def test_digest_depends_on_rules_and_order(three):
    a, b, _ = three
    assert RuleSet([a, b]).digest == RuleSet([a]).__add__(b).digest
    assert len({RuleSet(r).digest for r in ([a], [b], [a, b], [b, a], [])}) == 5


def test_plugins(three, monkeypatch):
    offers = {"one": three[0], "set": RuleSet(three[1:]), "made": lambda: RuleSet(three), "list": three[:2]}

    def installed(group):
        assert group == PLUGIN_GROUP
        return [SimpleNamespace(name=n, load=lambda o=o: o) for n, o in offers.items()]

    monkeypatch.setattr(ruleset, "entry_points", installed)
    assert names(plugin_rules("one")) == ["a"]
    assert names(plugin_rules("set")) == ["b", "c"]
    assert names(plugin_rules("made")) == ["a", "b", "c"]
    assert names(plugin_rules("list")) == ["a", "b"]
    with pytest.raises(KeyError, match="offers rules named 'none'; there are: one, set, made, list"):
        plugin_rules("none")

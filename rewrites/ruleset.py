"""Ordered, immutable sets of rules: composed with ``+`` and ``-``, scoped to one compilation, content-hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from typing import Any

from .rule import Rule, declared

PLUGIN_GROUP = "regraft.rules"


class RuleSet:
    """An ordered set of rules; earlier ones are tried first.

    ``a + b`` appends (a rule that is there already stays where it is), ``a - "name"`` removes.
    """

    def __init__(self, rules: Iterable[Rule | str] = ()) -> None:
        if isinstance(rules, (str, Rule)) or not isinstance(rules, Iterable):
            raise TypeError(f"a rule set is made of a list of rules and names of rules: RuleSet([{rules!r}])")
        self._rules: dict[str, Rule] = {}
        for item in rules:
            rule = declared(item) if isinstance(item, str) else item
            if not isinstance(rule, Rule):
                raise TypeError(f"a rule set holds Rules and names of rules, not {type(rule).__name__}: {rule!r}")
            other = self._rules.setdefault(rule.name, rule)
            if other is not rule and other.digest != rule.digest:
                raise ValueError(f"two different rules are named {rule.name!r}")

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules.values())

    def __len__(self) -> int:
        return len(self._rules)

    def __contains__(self, item: Rule | str) -> bool:
        return (item if isinstance(item, str) else item.name) in self._rules

    def __getitem__(self, name: str) -> Rule:
        if name not in self._rules:
            raise KeyError(f"no rule named {name!r} in this set; it has: {', '.join(self._rules) or 'none'}")
        return self._rules[name]

    def __add__(self, other: Any) -> RuleSet:
        return RuleSet([*self, *_items(other)])

    def __sub__(self, other: Any) -> RuleSet:
        gone = {i if isinstance(i, str) else i.name for i in _items(other)}
        for name in gone:
            self[name]
        return RuleSet(r for r in self if r.name not in gone)

    @property
    def digest(self) -> str:
        """Content hash: changes when any rule, or their order, does."""
        return hashlib.sha256(" ".join(f"{r.name}:{r.digest}" for r in self).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"RuleSet({', '.join(self._rules)})"


def _items(other: Any) -> Iterable[Any]:
    return (other,) if isinstance(other, (Rule, str)) else other


def plugin_names() -> dict[str, str]:
    """The names under which installed packages offer rules, each with its package; nothing is imported."""
    dists = {name: getattr(e, "dist", None) for name, e in _offers().items()}
    return {name: "" if dist is None else f"{dist.name} {dist.version}" for name, dist in dists.items()}


def _offers() -> dict[str, Any]:
    return {e.name: e for e in entry_points(group=PLUGIN_GROUP)}


def plugin_rules(name: str) -> RuleSet:
    """The rule set that an installed package offers under the entry point `name` of group ``regraft.rules``.

    Raises:
        KeyError: no installed package offers it.
    """
    found = _offers()
    if name not in found:
        raise KeyError(f"no installed package offers rules named {name!r}; there are: {', '.join(found) or 'none'}")
    offered = found[name].load()
    return RuleSet(_items(offered() if callable(offered) else offered))

"""Advice on a near miss: the advice of its rule, otherwise general advice."""

from __future__ import annotations

from collections.abc import Mapping

from ....rewrites.record import TELLING, NearMiss

_EVERYWHERE = {
    "inner-value-escapes": 'use it nowhere else, or let the rule keep it (escapes="keep")',
    "dtype-differs": "add a sample with this dtype to the rule",
    "taken": "put it before that rule in option `rules`, or leave that rule out (option `without`)",
    "rule-loops": "let one of the rules refuse, by a guard, what the other one makes",
}


def advice(miss: NearMiss, of_rule: Mapping[str, str]) -> str:
    """A change that would help, in one line; "" if none is known."""
    if miss.code != "pattern-differs":
        own = of_rule.get(f"{miss.code}: {miss.found.partition(':')[0]}", of_rule.get(miss.code))
        return _EVERYWHERE.get(miss.code, "") if own is None else own
    told = miss.marked and miss.depth >= TELLING  # more than the root has matched, possibly an optional part
    return of_rule.get(miss.found.partition(":")[0].partition(" of ")[0], "") if told else ""

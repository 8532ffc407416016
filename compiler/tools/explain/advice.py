"""Advice on a near miss: that of its rule, else one that holds for every rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....rewrites.record import NearMiss

_EVERYWHERE = {
    "inner-value-escapes": 'use it nowhere else, or let the rule keep it (escapes="keep")',
    "dtype-differs": "add a sample with this dtype to the rule",
    "taken": "put it before that rule in option `rules`, or leave that rule out (option `without`)",
    "rule-loops": "let one of the rules refuse, by a guard, what the other one makes",
}


def advice(miss: NearMiss, of_rule: Mapping[str, str]) -> str:
    """What to change, as one line, or "" where nothing is known."""
    if miss.code != "pattern-differs":
        return of_rule.get(miss.code, _EVERYWHERE.get(miss.code, ""))
    return of_rule.get(miss.found.partition(":")[0], "") if miss.is_telling else ""

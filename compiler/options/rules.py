"""The rule set that option `rules` asks for.

None                            the library's own rules, in their order
("default", my_rule)            the library's, then one's own
("sdpa", "my_plugin")           a rule by its name, the rules of an installed plugin
"""

from __future__ import annotations

import difflib
from typing import Any

from ...patterns import default_rules
from ...rewrites.rule import Rule, declared
from ...rewrites.ruleset import RuleSet, plugin_names, plugin_rules
from .checks import OptionError


def resolve_rules(items: tuple[Any, ...] | None) -> RuleSet:
    """The rule set that option ``rules`` asks for.

    Items are `Rule`s, `RuleSet`s, and names: of a rule, of an installed plugin, or ``"default"``.

    Raises:
        OptionError: an item is none of these.
    """
    if items is None:
        return default_rules()
    found = RuleSet()
    for item in items:
        found = found + _resolve(item)
    return found


def _resolve(item: Any) -> RuleSet:
    if isinstance(item, (Rule, RuleSet)):
        return RuleSet([item]) if isinstance(item, Rule) else item
    if not isinstance(item, str):
        raise OptionError(f"option 'rules' takes rules, rule sets and names, not {type(item).__name__}: {item!r}")
    if item == "default":
        return default_rules()
    defaults = default_rules()  # declares the library's own rules, so that their names are known
    if item in defaults:
        return RuleSet([defaults[item]])
    try:
        return RuleSet([declared(item)])
    except KeyError as unknown:
        try:
            return plugin_rules(item)
        except KeyError:
            offered = ", ".join(plugin_names()) or "nothing"
            if difflib.get_close_matches(item, ["default"]):
                raise OptionError(
                    f"option 'rules': no rule named {item!r} is declared (did you mean 'default'?)"
                ) from None
            raise OptionError(f"option 'rules': {unknown.args[0]}; installed packages offer {offered}") from None

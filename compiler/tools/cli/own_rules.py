"""Rules of one's own on the command line: ``--rules path.py:name`` or a plugin's name, tried before the library's."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .shared import UsageError

if TYPE_CHECKING:
    from ....rewrites.rule import Rule

OwnRules = Annotated[
    list[str] | None,
    typer.Option(
        "--rules", metavar="PATH[:NAME]",
        help="Rules of your own, before the library's: path.py:name, module:name, path.py for all it declares, or the "
        "name under which an installed package offers them.",
    ),
]  # fmt: skip


def own_rules(places: Sequence[str] | None) -> list[Rule]:
    """The rules at these places.

    Raises:
        UsageError: a place has no rules; the message says what it has.
        TargetError: there is no such file or module, or importing it failed.
    """
    found: dict[str, Rule] = {}
    for place in places or ():
        found |= {rule.name: rule for rule in _at(place)}
    return list(found.values())


def _at(place: str) -> list[Rule]:
    from ....rewrites.ruleset import plugin_names

    if place in plugin_names():
        return _offered(place)
    where, colon, name = place.rpartition(":")
    if not colon or name.endswith(".py"):
        where, name = place, ""
    module = _module(where)
    known = {key: rules for key, value in vars(module).items() if (rules := _rules_in(value))}
    if not name:
        if not known:
            raise UsageError(f"--rules {place}: {where} declares no rules; @regraft.register_pattern makes one")
        return list(dict.fromkeys(rule for rules in known.values() for rule in rules))
    if name in known:
        return known[name]
    named = {rule.name: [rule] for rules in known.values() for rule in rules}
    if name in named:
        return named[name]
    value = getattr(module, name, None)
    if callable(value) and (made := _rules_in(value())):
        return made
    raise UsageError(f"--rules {place}: {where} has no rule {name!r}; it has {', '.join(known) or 'none'}")


def _module(place: str) -> Any:
    """The module of a file or of a name; one that is not there may be meant as the name of an offer."""
    from ....rewrites.ruleset import plugin_names
    from ..targets.load import TargetError, module_at

    try:
        return module_at(place)
    except TargetError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError) or error.__cause__.name != place.partition(".")[0]:
            raise
        offers = ", ".join(plugin_names()) or "none"
        told = f"--rules {place}: there is no module of that name, and no installed package offers rules under it"
        raise UsageError(f"{told} (offered: {offers})") from error


def _offered(name: str) -> list[Rule]:
    """The rules that an installed package offers under a name."""
    from ....rewrites.ruleset import plugin_names, plugin_rules

    try:
        return list(plugin_rules(name))
    except Exception as error:
        package = plugin_names()[name]
        raise UsageError(f"rules {name!r} of {package} cannot be loaded: {type(error).__name__}: {error}") from error


def plugin_rules_named(name: str) -> list[Rule]:
    """The rules that installed packages offer under the name of an offer, a rule or a family.

    Raises:
        UsageError: the offer of that name cannot be loaded. Others that cannot are passed over.
    """
    from ....rewrites.ruleset import plugin_names

    if name in plugin_names():
        return _offered(name)
    found: dict[str, Rule] = {}
    for offer in plugin_names():
        with contextlib.suppress(UsageError):
            found |= {rule.name: rule for rule in _offered(offer) if name in (rule.name, rule.family)}
    return list(found.values())


def _rules_in(value: Any) -> list[Rule]:
    from ....rewrites.rule import Rule
    from ....rewrites.ruleset import RuleSet

    return [value] if isinstance(value, Rule) else list(value) if isinstance(value, RuleSet) else []


def known_rules(own: Iterable[Rule] = ()) -> list[Rule]:
    """The library's rules, and one's own."""
    from .... import default_rules

    return list(default_rules() + list(own))


def rules_named(name: str, own: Iterable[Rule] = ()) -> list[Rule]:
    """The rule of that name, or the rules of a family, also of installed packages, or all that one offers.

    Raises:
        UsageError: there is none.
    """
    from ....rewrites.ruleset import plugin_names

    known = known_rules(own)
    found = [rule for rule in known if name in (rule.name, rule.family)] or plugin_rules_named(name)
    if found:
        return found
    named = [*(rule.name for rule in known), *(rule.family for rule in known), *plugin_names()]
    names = list(dict.fromkeys(named))
    close = difflib.get_close_matches(name, names, n=3)
    asked = f"did you mean {', '.join(close)}?" if close else f"there are: {', '.join(names) or 'none'}"
    hint = asked if own else f"rules of your own are found with --rules PATH; {asked}"
    raise UsageError(f"there is no rule {name!r}; {hint}")


def with_offered(own: Sequence[Rule], chosen: Iterable[Rule]) -> list[Rule]:
    """One's own rules, and those chosen that an installed package offers: they run where they are asked for."""
    known = {rule.name for rule in known_rules(own)}
    return [*own, *(rule for rule in chosen if rule.name not in known)]


def with_rules(options: dict[str, Any], own: Sequence[Rule]) -> dict[str, Any]:
    """Options of the backend, one's own rules before those that they name: after them, those might take the match."""
    if not own:
        return options
    given = options.get("rules", ("default",))
    items = [given] if isinstance(given, str) else list(given)
    return {**options, "rules": (*own, *items)}

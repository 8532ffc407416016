"""The value of an option that wins: overrides > given options > template > mode > default.

    {"template": "max_autotune", "freezing": True, "overrides": {"triton.cudagraphs": False}}
        mode "max-autotune"     triton.cudagraphs=True, autotune.thorough=True
        freezing=True           given
        overrides               triton.cudagraphs=False

Names are dotted, or nested dicts, or both: ``{"triton": {"cudagraphs": False}}`` is the same override.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from .checks import OptionError, OptionGroup, check_choice, check_kind, check_name, hints
from .configurations import MODES, TEMPLATES, template_values

T = TypeVar("T")
CHOOSE = ("mode", "template")
"""Options that stand for values of others."""


def leaves(kind: type[Any], prefix: str = "") -> dict[str, Any]:
    """The type of each option of a dataclass of options and of its groups, by dotted name."""
    found: dict[str, Any] = {}
    for name, hint in hints(kind).items():
        if is_dataclass(hint):
            found |= leaves(hint, f"{prefix}{name}.")  # type: ignore[arg-type]
        else:
            found[f"{prefix}{name}"] = hint
    return found


def resolved(kind: type[Any], mode: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of options by dotted name, where they differ from the defaults or not, as one call asks for them.

    Args:
        kind: the dataclass of options.
        mode: the argument of that name.
        given: the argument `options`.

    Raises:
        OptionError: an unknown name, mode or template, two different modes, or a value where a group of options is.
    """
    overrides = given.get("overrides", {})
    if not isinstance(overrides, Mapping):
        raise OptionError(f"option 'overrides' must be a dict of option names to values, not {overrides!r}")
    plain = _flat(kind, {name: value for name, value in given.items() if name != "overrides"})
    if mode is not None and plain.setdefault("mode", mode) != mode:
        raise OptionError(f"mode={mode!r} contradicts options={{'mode': {plain['mode']!r}}}: give one of them")
    last = _flat(kind, overrides)
    for name in CHOOSE:
        if name in last:
            raise OptionError(f"{name!r} can't be overridden: give it beside 'overrides'")
    template = plain.setdefault("template", "none")
    check_choice("template", template, TEMPLATES)
    chosen = plain.setdefault("mode", TEMPLATES[template].mode)
    check_choice("mode", chosen, MODES)
    return {**MODES[chosen].values, **template_values(template), **plain, **last}


def built(kind: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass of options from values by dotted name."""
    own: dict[str, Any] = {}
    for name, value in values.items():
        first, _, rest = name.partition(".")
        if rest:
            own.setdefault(first, {})[rest] = value
        else:
            own[first] = value
    return kind(**{n: built(hints(kind)[n], v) if is_dataclass(hints(kind)[n]) else v for n, v in own.items()})  # type: ignore[arg-type]


def flat(options: Any, prefix: str = "") -> dict[str, Any]:
    """The inverse: values of all options by dotted name."""
    found: dict[str, Any] = {}
    for one in fields(options):
        value = getattr(options, one.name)
        found |= flat(value, f"{prefix}{one.name}.") if is_dataclass(value) else {f"{prefix}{one.name}": value}
    return found


def _flat(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Given values by dotted name; each name is checked."""
    valid = leaves(kind)
    found: dict[str, Any] = {}
    for name, value in _spelled(given):
        inside = [option for option in valid if option.startswith(f"{name}.")]
        if inside:
            raise OptionError(f"{name!r} is a group of options, not {value!r}; there are: {', '.join(inside)}")
        check_name(name, (*valid, "overrides"))
        if name not in CHOOSE and not (name == "verify" and isinstance(value, bool)):
            check_kind(name, value, valid[name])
        if name in found and found[name] != value:
            raise OptionError(f"option {name!r} is given twice: {found[name]!r} and {value!r}")
        found[name] = value
    return found


def _spelled(given: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        value = vars(value) if isinstance(value, OptionGroup) else value
        if isinstance(value, Mapping) and value:
            yield from _spelled(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value

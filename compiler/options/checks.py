"""Errors of options: what is unknown is refused with what is valid, and the nearest of it."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints


class OptionError(ValueError):
    """An unknown option, mode, template or value; the message lists the valid ones."""


def hints(kind: Any) -> Mapping[str, Any]:
    """The type of each field of a dataclass of options; every call of the backend asks."""
    return _hints(kind)


@functools.cache
def _hints(kind: Hashable) -> Mapping[str, Any]:
    return get_type_hints(kind)


def check_kind(name: str, value: Any, kind: Any) -> None:
    """Options of a few words have one of these, switches are bools, counts are positive, shares between 0 and 1.

    Raises:
        OptionError: they are not.
    """
    if get_origin(kind) is Literal:
        check_choice(name, value, get_args(kind))
    if kind is bool and not isinstance(value, bool):
        raise OptionError(f"option {name!r} must be True or False, not {value!r}")
    if kind is int and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise OptionError(f"option {name!r} must be a positive integer, not {value!r}")
    if kind is float and (not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1):
        raise OptionError(f"option {name!r} must be a number between 0 and 1, not {value!r}")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """A value that is one of a few words.

    Raises:
        OptionError: it is none of them.
    """
    choices = tuple(choices)
    if isinstance(value, str) and value in choices:
        return
    kind = name if name in ("mode", "template") else f"value for option {name!r}:"
    raise OptionError(f"unknown {kind} {value!r}{suggestion(value, choices)}; valid: {', '.join(choices)}")


def check_name(name: Any, valid: Iterable[str], what: str = "option") -> None:
    """The name of an option.

    Raises:
        OptionError: there is none of this name.
    """
    valid = tuple(valid)
    if name not in valid:
        raise OptionError(f"unknown {what} {name!r}{suggestion(name, valid)}; valid {what}s: {', '.join(valid)}")


def suggestion(value: Any, choices: Iterable[str]) -> str:
    """`` (did you mean 'freezing'?)``, or nothing where nothing is near."""
    close = difflib.get_close_matches(str(value), list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


class OptionGroup:
    """Options that belong together; values are checked by their types."""

    def __post_init__(self) -> None:
        for name, kind in hints(type(self)).items():
            check_kind(name, getattr(self, name), kind)

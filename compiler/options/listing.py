"""Options, modes and templates as data: what there is to choose, what it does, and what it is by default."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal, get_args, get_origin

from .checks import hints
from .configurations import MODES, TEMPLATES, Configuration
from .fields import Options
from .resolve import flat


@dataclass(frozen=True)
class OptionInfo:
    """One option.

    Args:
        name: dotted, as `options` and its ``"overrides"`` take it.
        default: its value where nothing says otherwise.
        values: what it may be: the words of a choice, or a description.
        doc: what it does.
    """

    name: str
    default: Any
    values: tuple[Any, ...]
    doc: str


def list_options() -> dict[str, OptionInfo]:
    """Every option by its dotted name, with its documentation, default and valid values."""
    defaults, docs = flat(Options()), _docs(Options)
    return {name: OptionInfo(name, defaults[name], values, docs[name]) for name, values in _values(Options).items()}


def list_modes() -> dict[str, Configuration]:
    """Every mode by its name, with its documentation and the values that it sets."""
    return dict(MODES)


def list_templates() -> dict[str, Configuration]:
    """Every configuration template by its name, with its documentation, its values and the mode that it implies."""
    return dict(TEMPLATES)


def _values(kind: type[Any], prefix: str = "") -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for name, hint in hints(kind).items():
        inner = is_dataclass(hint)
        found |= _values(hint, f"{prefix}{name}.") if inner else {f"{prefix}{name}": _choices(hint)}  # type: ignore[arg-type]
    return found


def _choices(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Literal:
        return get_args(hint)
    names: dict[Any, tuple[Any, ...]] = {tuple[str, ...]: ("a tuple of names",)}
    known = names | {bool: (False, True), int: ("a positive integer",), float: ("a number between 0 and 1",)}
    return known.get(hint, ("None", "a tuple of rules, rule sets and names"))


def _docs(kind: type[Any], prefix: str = "") -> dict[str, str]:
    """The text on each option in the docstrings of the dataclass and its groups."""
    text = (inspect.getdoc(kind) or "").partition("Args:\n")[2]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n(?: {8}.*)?)*)", text, flags=re.MULTILINE)
    found = {f"{prefix}{name}": " ".join(doc.split()) for name, doc in entries}
    for name, hint in hints(kind).items():
        if is_dataclass(hint):
            found |= _docs(hint, f"{prefix}{name}.")  # type: ignore[arg-type]
    return found

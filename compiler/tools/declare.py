"""`register_pattern` for everybody: the pattern goes through the normal form that programs go through.

The library's own rules are written in normal form, as their tests hold, and are declared as they are.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

from ...rewrites import rule
from ...rewrites.rule import Rule, Spell, as_recorded
from ...rewrites.traced import spelled
from ..normal import FORMS

_P = ParamSpec("_P")


def _tracing(
    declare: Callable[_P, Callable[[Callable[..., Any]], Rule]],
) -> Callable[_P, Callable[[Callable[..., Any]], Rule]]:
    """A way to declare rules whose patterns are traced on their samples."""

    @functools.wraps(declare)
    def register(*args: _P.args, **kwargs: _P.kwargs) -> Callable[[Callable[..., Any]], Rule]:
        kwargs.setdefault("spell", _speller(str(kwargs.get("stage", "forward"))))
        return declare(*args, **kwargs)

    shown = inspect.signature(declare)
    given = [p for name, p in shown.parameters.items() if name != "spell"]
    register.__signature__ = shown.replace(parameters=given)  # type: ignore[attr-defined]
    return register


def _speller(stage: str) -> Spell:
    """Patterns of stage "lowered" are written in the operators that are left after autograd."""
    return as_recorded if stage == "lowered" else lambda declaration: spelled(declaration, FORMS.get(stage, ()))


register_pattern = _tracing(rule.register_pattern)

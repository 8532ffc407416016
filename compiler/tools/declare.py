"""`register_pattern` for everybody: the pattern goes through the normal form that programs go through.

The library's own rules are written in normal form, as their tests hold, and are declared as they are.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

from ...rewrites import rule
from ...rewrites.pattern import PatternError
from ...rewrites.rule import Rule, Spell, as_recorded
from ...rewrites.traced import spelled
from ..normal import FORMS

_P = ParamSpec("_P")


def _tracing(
    declare: Callable[_P, Callable[[Callable[..., Any]], Rule]],
) -> Callable[_P, Callable[[Callable[..., Any]], Rule]]:
    """A way to declare rules whose patterns are traced on their samples."""
    shown = inspect.signature(declare)

    @functools.wraps(declare)
    def register(*args: _P.args, **kwargs: _P.kwargs) -> Callable[[Callable[..., Any]], Rule]:
        _require_declaration(shown, args, kwargs)
        kwargs.setdefault("spell", _speller(str(kwargs.get("stage", "forward"))))
        return declare(*args, **kwargs)

    given = [p for name, p in shown.parameters.items() if name != "spell"]
    register.__signature__ = shown.replace(parameters=given)  # type: ignore[attr-defined]
    return register


def _require_declaration(shown: inspect.Signature, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Tell what is missing where the decorator stands without its arguments, or without some of them."""
    name = given[0] if given else named.get("name")
    if isinstance(name, str):
        missing = [p.name for p in shown.parameters.values() if p.default is p.empty and p.name not in ("name", *named)]
        what = f"rule {name!r} has no {' and no '.join(missing)}" if missing and len(given) == 1 else ""
    else:
        what = f"a rule needs a name, not {name!r}" if named or name is None else "register_pattern takes arguments"
    if what:
        raise PatternError(f"{what}: write @register_pattern('name', replacement=function, samples=[Sample(...)])")


def _speller(stage: str) -> Spell:
    """Patterns of stages "bytes" and "lowered" are written in the operators that are left after autograd."""
    return (
        as_recorded if stage in ("bytes", "lowered") else lambda declaration: spelled(declaration, FORMS.get(stage, ()))
    )


register_pattern = _tracing(rule.register_pattern)

"""Functions as text, for digests: their source, and all that it reads from elsewhere.

def scaled(x):                    ->   the lines of scaled, of helper, and the value of FACTOR
    return helper(x) * FACTOR
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import CodeType
from typing import Any

import torch

# The code of these changes with versions that cache keys contain.
_LIBRARIES = ("torch", "regraft", "builtins", "math", "operator", "_operator", "functools")


def source_text(function: Callable[..., Any], seen: frozenset[int] = frozenset()) -> str:
    """The source of a function, and of the functions and values that it reads from its closure and its module."""
    if id(function) in seen:
        return ""
    seen = seen | {id(function)}
    if isinstance(function, partial):
        parts = (function.func, function.args, tuple(function.keywords.items()))
        return "\n".join(_content(part, seen) for part in parts)
    try:
        text = _lines(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        text = _code(code) if code else repr(getattr(function, "__name__", type(function).__name__))
    return "\n".join([text, *(_content(value, seen) for value in _read_by(function))])


def _lines(function: Callable[..., Any]) -> str:
    """The lines of a source file; a check makes many rules of the same functions."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return textwrap.dedent(inspect.getsource(function)) if code is None else _lines_of(code)


@cache
def _lines_of(code: CodeType) -> str:
    return textwrap.dedent(inspect.getsource(code))


def _code(code: CodeType) -> str:
    """The code of a function without a source file, as text."""
    constants = [_code(value) if isinstance(value, CodeType) else repr(value) for value in code.co_consts]
    return " ".join([code.co_code.hex(), *code.co_names, *constants])


def _read_by(function: Callable[..., Any]) -> Iterator[Any]:
    """The values that a function reads from its closure, and those of its module that are not a library's."""
    for cell in getattr(function, "__closure__", None) or ():
        yield cell.cell_contents
    code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    for name in sorted(_names(code)) if code else ():
        value = known.get(name)
        if str(getattr(value, "__module__", "")).partition(".")[0] not in _LIBRARIES:
            yield value


def _names(code: CodeType) -> set[str]:
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _content(value: Any, seen: frozenset[int] = frozenset()) -> str:
    """A value as text that is the same in every process."""
    if isinstance(value, (tuple, list)):
        return ", ".join(_content(item, seen) for item in value)
    if callable(value):
        return source_text(value, seen)
    return repr(value) if isinstance(value, (int, float, str, torch.dtype, type(None))) else type(value).__name__

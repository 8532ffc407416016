"""The part of a prelude that generated functions use: reading all of it takes longer than compiling a small kernel.

A prelude is a sequence of definitions. Functions are left out if their name occurs neither in the generated text nor
in definitions that stay. All functions of one name stay or go together, so that no call finds another overload.
Everything else stays: types, macros, and what macros define.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"//.*")
_NAMED = re.compile(r"\bINLINE\b[^(]*?(\w+)\(")
_EACH = re.compile(r"EACH[12]\((\w+)\)")  # defines `op_name` for vectors by the one for scalars


@dataclass(frozen=True)
class Definition:
    """One definition of a prelude.

    Args:
        text: with the comments before it.
        names: of the functions that it defines; empty if it always stays.
        words: all words in it.
    """

    text: str
    names: frozenset[str]
    words: frozenset[str]


def used_of(prelude: str, functions: str) -> str:
    """The definitions of a prelude that functions use, in order."""
    definitions = definitions_of(prelude)
    used = _words(functions).union(*(one.words for one in definitions if not one.names))
    left = [one for one in definitions if one.names]
    while found := {id(one): one.words for one in left if not used.isdisjoint(one.names)}:
        left = [one for one in left if id(one) not in found]
        used = used.union(*found.values())
    unused = set(map(id, left))
    return "\n".join(one.text for one in definitions if id(one) not in unused)


@functools.lru_cache(maxsize=8)
def definitions_of(prelude: str) -> tuple[Definition, ...]:
    """The definitions of a prelude."""
    return tuple(_definition(text) for text in _split(prelude))


def _definition(text: str) -> Definition:
    code = "\n".join(_COMMENT.sub("", line) for line in text.splitlines()).strip()
    each = _EACH.fullmatch(code)
    if each:
        return Definition(text, frozenset({f"op_{each[1]}"}), _words(code) | {f"op_{each[1]}"})
    function = "INLINE" in code.partition("{")[0] and not code.startswith("#")
    return Definition(text, frozenset(_NAMED.findall(code)) if function else frozenset(), _words(code))


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text))


def _split(prelude: str) -> Iterator[str]:
    """The texts of definitions: to the end of their braces, of a macro's lines, or of a conditional."""
    lines: list[str] = []
    braces = conditions = 0
    for line in prelude.splitlines():
        code = _COMMENT.sub("", line).strip()
        lines.append(line)
        braces += code.count("{") - code.count("}")
        conditions += code.startswith("#if") - code.startswith("#endif")
        if not code or braces or conditions or code.endswith("\\"):
            continue
        if code.startswith("#") or code[-1] in "};)" or lines[0].startswith("#"):
            yield "\n".join(lines)
            lines = []
    if lines:
        yield "\n".join(lines)

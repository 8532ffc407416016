"""The part of a prelude that generated functions use: reading all of it takes longer than compiling a small kernel.

A prelude is a sequence of definitions. One is left out if no name of it occurs in the generated text or in definitions
that stay: functions, types, macros, and what the calls of a macro define. All definitions of one name stay or go
together, so that no call finds another overload. What has no name that is seen here stays.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"//.*")
_ATTRIBUTE = re.compile(r"__attribute__\(\(.*?\)\)|__restrict|\\$", re.MULTILINE)
_FUNCTION = re.compile(r"\b(?:INLINE|static)\b[^(){};=]*?(\w+)\(")
_BRACES = re.compile(r"\{[^{}]*\}")
_TYPE = re.compile(
    r"\bstruct (\w+)(?:<[^;]*>)?\s*;|\busing (\w+) =|\btypedef [^;(]*?(\w+);|\btypedef [^;(]*\(\*(\w+)\)"
)
_MACRO = re.compile(r"#\s*define (\w+)(?:\(([^)]*)\))?(.*)", re.DOTALL)
_ARGUMENTS = r"(?:[^()]|\([^()]*\))*"
_COMMA = re.compile(r",(?![^(]*\))")
_DEFINED = re.compile(r"#\s*define (\w+)")


@dataclass(frozen=True)
class PreludeDefinition:
    """One definition of a prelude.

    Args:
        text: with the comments before it.
        names: of what it defines; empty if it always stays.
        words: all words in it.
    """

    text: str
    names: frozenset[str]
    words: frozenset[str]


@dataclass(frozen=True)
class _Macro:
    """A macro with parameters."""

    parameters: tuple[str, ...]
    body: str


@functools.lru_cache(maxsize=32)  # the layers of a model ask for the same kernels again
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
def definitions_of(prelude: str) -> tuple[PreludeDefinition, ...]:
    """The definitions of a prelude."""
    macros: dict[str, _Macro] = {}
    return tuple(_definition(text, macros) for text in _split(prelude))


def _definition(text: str, macros: dict[str, _Macro]) -> PreludeDefinition:
    """A definition; if it is a macro's, that is added to the macros known so far."""
    code = "\n".join(_COMMENT.sub("", line) for line in text.splitlines()).strip()
    macro = _MACRO.fullmatch(code)
    if macro:
        name, parameters, body = macro.groups()
        if parameters is not None:
            macros[name] = _Macro(tuple(part.strip() for part in parameters.split(",")), body.replace("\\\n", "\n"))
        return PreludeDefinition(text, frozenset({name}), _words(code))
    written = _written_out(code, macros)
    return PreludeDefinition(text, frozenset(_names(written)), _words(code) | _words(written))


def _names(code: str) -> Iterator[str]:
    """The names that a definition defines outside of its braces; of a conditional, all in it."""
    yield from _DEFINED.findall(code)
    outside, inner = _ATTRIBUTE.sub("", code), 1
    while inner:
        outside, inner = _BRACES.subn(";", outside)
    for kind in (_FUNCTION, _TYPE):
        for found in kind.finditer(outside):
            yield next(name for name in found.groups() if name)


def _written_out(code: str, macros: Mapping[str, _Macro]) -> str:
    """Code with calls of macros replaced by their bodies."""
    for _ in range(4):  # of macros that call others
        before = code
        for name, macro in macros.items():
            if f"{name}(" not in code:  # most are not: those cost no regular expression
                continue
            code = re.sub(rf"\b{name}\(({_ARGUMENTS})\)", functools.partial(_replaced, macro), code)
        if code == before:
            break
    return code


def _replaced(macro: _Macro, call: re.Match[str]) -> str:
    given = dict(zip(macro.parameters, (part.strip() for part in _COMMA.split(call[1])), strict=False))
    return re.sub(r"\s*##\s*", "", _WORD.sub(lambda word: given.get(word[0], word[0]), macro.body))


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text))


def _split(prelude: str) -> Iterator[str]:
    """The texts of definitions: to the end of their braces, of a macro's lines, or of a conditional."""
    lines: list[str] = []
    first, braces, conditions = "", 0, 0
    for line in prelude.splitlines():
        code = _COMMENT.sub("", line).strip()
        lines.append(line)
        first = first or code
        braces += code.count("{") - code.count("}")
        conditions += code.startswith("#if") - code.startswith("#endif")
        if not code or braces or conditions or code.endswith("\\"):
            continue
        if first.startswith("#") or code[-1] in "};)":
            yield "\n".join(lines)
            lines, first = [], ""
    if lines:
        yield "\n".join(lines)

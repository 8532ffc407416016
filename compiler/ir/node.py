"""Interned nodes: equal trees are one object, so that comparing, hashing and sharing cost nothing."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar
from weakref import WeakValueDictionary

_TABLE: WeakValueDictionary[Any, Node] = WeakValueDictionary()


class Interned(type):
    """Makes each distinct node once: ``Var("i", 8) is Var("i", 8)``."""

    def __call__(cls, *fields: Any) -> Any:
        # Numbers that compare equal yet differ (1, 1.0 and True; 0.0 and -0.0) and NaN go by their spelling.
        key = (cls, *[f if isinstance(f, (Node, str, tuple)) else (type(f), repr(f)) for f in fields])
        found = _TABLE.get(key)
        return _TABLE.setdefault(key, super().__call__(*fields)) if found is None else found


class Node(metaclass=Interned):
    """An immutable tree node, equal only to itself.

    Subclasses list their fields in `__slots__` and take them by position. `digest` tells structures apart, is the same
    in every process, and orders nodes deterministically.
    """

    __slots__: ClassVar[tuple[str, ...]] = ("__weakref__", "digest")
    digest: bytes

    def __init__(self, *fields: Any) -> None:
        if len(fields) != len(self.__slots__):
            raise TypeError(f"{type(self).__name__} takes {len(self.__slots__)} fields {self.__slots__}, got {fields}")
        for name, value in zip(self.__slots__, fields, strict=True):
            object.__setattr__(self, name, value)
        parts = b"\0".join([type(self).__name__.encode(), *map(_digest, fields)])
        object.__setattr__(self, "digest", hashlib.blake2b(parts, digest_size=8).digest())

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> Any:
        return type(self), self.fields()

    def fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.fields()))})"


def _digest(field: Any) -> bytes:
    if isinstance(field, Node):
        return field.digest
    if isinstance(field, tuple):
        return b"(" + b"\0".join(map(_digest, field)) + b")"
    return f"{type(field).__name__}:{field!r}".encode()

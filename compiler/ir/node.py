"""Interned nodes: equal trees are one object, so that comparing, hashing and sharing cost nothing."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Hashable, Iterator
from typing import Any, ClassVar
from weakref import ref


class _Kept(ref):  # type: ignore[type-arg]
    """A weak reference that knows its key in the table."""

    __slots__ = ("key",)
    key: Hashable


_TABLE: dict[Hashable, _Kept] = {}
# Reentrant: the collector may run `_forget` in a thread that holds it.
_LOCK = threading.RLock()


def _forget(kept: _Kept) -> None:
    with _LOCK:
        if _TABLE.get(kept.key) is kept:
            del _TABLE[kept.key]


class Interned(type):
    """Makes each distinct node once: ``Var("i", 8) is Var("i", 8)``."""

    def __call__(cls, *fields: Any) -> Any:
        """The one node with these fields."""
        key = (cls, cls.spelled(fields))  # type: ignore[attr-defined]
        kept = _TABLE.get(key)
        found = None if kept is None else kept()
        return cls._made(key, fields) if found is None else found

    def _made(cls, key: Hashable, fields: tuple[Any, ...]) -> Any:
        with _LOCK:
            kept = _TABLE.get(key)
            found = None if kept is None else kept()
            if found is None:
                found = super().__call__(*fields)
                kept = _Kept(found, _forget)
                kept.key = key
                _TABLE[key] = kept
            return found


class Node(metaclass=Interned):
    """An immutable tree node, equal only to itself.

    Subclasses list their fields in `__slots__` and take them by position.
    """

    __slots__: ClassVar[tuple[str, ...]] = ("__weakref__", "_digest", "_parts")
    _digest: bytes | None
    _parts: tuple[Any, ...] | None  # what a walk finds right below, once asked for: nodes never change

    def __init__(self, *fields: Any) -> None:
        if len(fields) != len(self.__slots__):
            raise TypeError(f"{type(self).__name__} takes {len(self.__slots__)} fields {self.__slots__}, got {fields}")
        put = object.__setattr__
        for name, value in zip(self.__slots__, fields, strict=True):
            put(self, name, value)
        put(self, "_digest", None)
        put(self, "_parts", None)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> Any:
        return type(self), self.fields()

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.fields()))})"

    @classmethod
    def spelled(cls, fields: tuple[Any, ...]) -> Hashable:
        """The key of a node within its class: its fields, and more where fields that compare equal may differ."""
        return fields

    def fields(self) -> tuple[Any, ...]:
        """The fields, as given."""
        return tuple([getattr(self, name) for name in self.__slots__])

    @property
    def digest(self) -> bytes:
        """Sixteen bytes that tell structures apart, the same in every process: for ordering and for naming."""
        if self._digest is None:
            _digest_all(self)
        assert self._digest is not None
        return self._digest


def _digest_all(root: Node) -> None:
    """Digest `root` and what is below it, without recursion: trees may be deep."""
    stack = [root]
    while stack:
        node = stack[-1]
        missing = [below for below in _below(node.fields()) if below._digest is None]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        parts = b"\0".join([type(node).__name__.encode(), *map(_digested, node.fields())])
        object.__setattr__(node, "_digest", hashlib.blake2b(parts, digest_size=16).digest())


def _below(field: Any) -> Iterator[Node]:
    if isinstance(field, Node):
        yield field
    elif isinstance(field, tuple):
        for part in field:
            yield from _below(part)


def _digested(field: Any) -> bytes:
    if isinstance(field, Node):
        return field.digest
    if isinstance(field, tuple):
        return b"(" + b"\0".join(map(_digested, field)) + b")"
    return f"{type(field).__name__}:{field!r}".encode()

"""Metadata as keys: what is inferred or traced from equal metadata is equal, and done once.

A network repeats its layers, so nearly every call on a mirror has been inferred before on tensors of the same sizes.
Results are shared, storage and all: that is for mirrors only, where nobody asks which values share memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import torch
from torch import fx

from .graph import val

_Made = TypeVar("_Made")
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class Unknown(Exception):  # noqa: N818 - no error: a value that has no key
    """A value whose key is not known; what depends on it is made anew."""


class Memo:
    """Remembers what was made of metadata. One memo serves one mirror: symbols mean the same throughout."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def get(self, what: Hashable, inputs: Any, make: Callable[[], _Made]) -> _Made:
        """The result of `make`, now or before, for the same `what` and inputs of equal metadata.

        Args:
            what: the function; equal ones do the same.
            inputs: its arguments: nodes (by their metadata), constants, and structures of these.
            make: computes it.
        """
        try:
            key = (what, key_of(inputs))
        except Unknown:
            return make()
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


def key_of(value: Any) -> Hashable:
    """A key of a value's metadata.

    Raises:
        Unknown: there is none, e.g. of an object of another type.
    """
    if isinstance(value, fx.Node):
        return ("node", key_of(val(value)))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(key_of, value))
    if isinstance(value, dict):
        return ("dict", *((k, key_of(v)) for k, v in value.items()))
    if isinstance(value, slice):
        return ("slice", key_of((value.start, value.stop, value.step)))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and hasattr(value.node, "expr"):
        return (type(value).__name__, value.node.expr)
    if isinstance(value, torch.Tensor):
        return _tensor_key(value)
    if isinstance(value, _PLAIN):
        return (type(value).__name__, repr(value) if isinstance(value, (float, complex)) else value)
    raise Unknown


def key_of_sizes(sizes: Iterable[Any]) -> Hashable:
    """A key of sizes: where symbolic ones are long, their text is long in the making."""
    return tuple(n.node.expr if isinstance(n, torch.SymInt) and hasattr(n.node, "expr") else n for n in sizes)


def _tensor_key(value: torch.Tensor) -> Hashable:
    if getattr(value, "fake_mode", None) is None or value.layout is not torch.strided:
        raise Unknown  # a real tensor may be a constant, whose value matters
    if getattr(value, "constant", None) is not None:
        raise Unknown
    return (
        value.dtype, value.device, value.requires_grad, value.is_conj(), value.is_neg(),
        key_of(tuple(value.shape)), key_of(value.stride()), key_of(value.storage_offset()),
    )  # fmt: skip

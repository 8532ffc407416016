"""Nested inputs and results as JSON: lists, tuples, sizes, dicts and named tuples of leaves.

    {"x": *, "pair": (*, *)}    ->    {"dict": ["x", "pair"], "of": ["*", {"tuple": 2, "of": ["*", "*"]}]}

Plain dicts and `OrderedDict` are told apart. Other containers that keep values by names (the results of Hugging Face's
models) become dicts.
"""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ...rewrites.compat import export
from .errors import AotError

_KEYS = (str, int, float, bool)


def structure_json(structure: Any) -> Any:
    """A structure of `torch.export` as JSON.

    Raises:
        AotError: it has a container that is none of these.
    """
    kind, context, children = export.tree_parts(structure)
    if kind is None:
        return "*"
    parts, fields = [structure_json(child) for child in children], getattr(kind, "_fields", None)
    if kind in (tuple, list):
        return {kind.__name__: len(parts), "of": parts}
    if kind is torch.Size:
        return {"size": len(parts), "of": parts}
    if issubclass(kind, tuple) and fields is not None:
        return {"namedtuple": kind.__name__, "fields": list(fields), "of": parts}
    if _is_torchs(kind):
        return {"torch": kind.__name__, "of": parts}
    keys = (
        context[1]
        if isinstance(context, (list, tuple)) and len(context) == 2 and isinstance(context[1], list)
        else context
    )
    if isinstance(keys, (list, tuple)) and len(keys) == len(parts) and all(isinstance(key, _KEYS) for key in keys):
        return {"dict": list(keys), "of": parts} | ({"ordered": True} if kind is OrderedDict else {})
    raise AotError(f"inputs and results may be nested in lists, tuples, dicts and named tuples, not in {kind.__name__}")


def _is_torchs(kind: type) -> bool:
    """Whether it is a type of what torch's functions return: `torch.return_types.sort`."""
    return getattr(torch.return_types, kind.__name__, None) is kind


def build(structure: Any, leaves: Iterator[Any]) -> Any:
    """The nested value of a structure, its leaves in order."""
    if structure == "*":
        return next(leaves)
    parts = [build(part, leaves) for part in structure["of"]]
    if "list" in structure:
        return parts
    for name, made in (("tuple", tuple), ("size", torch.Size)):
        if name in structure:
            return made(parts)
    if "namedtuple" in structure:
        return namedtuple(structure["namedtuple"], structure["fields"])(*parts)  # type: ignore[misc]
    if "torch" in structure:
        return getattr(torch.return_types, structure["torch"])(parts)
    kind = OrderedDict if structure.get("ordered") else dict
    return kind(zip(structure["dict"], parts, strict=True))


def flatten(structure: Any, value: Any, where: str, leaves: list[Any]) -> None:
    """Append the leaves of a nested value that must have a structure.

    Raises:
        TypeError: it has another; the message says where, and what it should be.
    """
    if structure == "*":
        leaves.append(value)
        return
    parts = structure["of"]
    if "dict" in structure:
        keys = structure["dict"]
        if not isinstance(value, (dict, OrderedDict)) and not isinstance(value, Mapping):
            raise TypeError(f"{where} must be a dict with the keys {_listed(keys)}, not a {type(value).__name__}")
        if len(value) != len(keys) or any(key not in value for key in keys):
            raise TypeError(f"{where} must have the keys {_listed(keys)}, not {_listed(list(value))}")
        for key, part in zip(keys, parts, strict=True):
            flatten(part, value[key], f"{where}[{key!r}]", leaves)
        return
    if not isinstance(value, (tuple, list)) or len(value) != len(parts):
        found = f"{len(value)} values" if isinstance(value, Sequence) else f"a {type(value).__name__}"
        raise TypeError(f"{where} must be a tuple or list of {len(parts)} values, not {found}")
    for position, (part, item) in enumerate(zip(parts, value, strict=True)):
        flatten(part, item, f"{where}[{position}]", leaves)


def _listed(keys: Sequence[Any]) -> str:
    return ", ".join(map(str, keys)) or "(none)"

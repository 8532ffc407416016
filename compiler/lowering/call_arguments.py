"""The arguments of a call as lowerings take them, and the check of its results against the metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rewrites.compat import OpOverload, number_arguments, schema_arguments, tree_leaves
from ...rewrites.words import counted
from .core import Lowering, Tensor
from .scalars import Scalar
from .sizes import Unlowered, number, real

DTYPES = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
})  # fmt: skip
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Opaque:
    """A value that lowerings cannot take: a tuple of an unknown call, a script object.

    Args:
        code: one of `fallbacks.REASONS`.
        message: a description of the value.
        bases: the buffers that it may contain.
    """

    code: str
    message: str
    bases: tuple[str, ...] = ()


def overload_text(target: OpOverload) -> str:
    """``"aten.sum.dim_IntList"``."""
    return str(target)


def lowered_arguments(low: Lowering, node: fx.Node, values: Mapping[fx.Node, Any]) -> tuple[list[Any], dict[str, Any]]:
    """A call's arguments in the order of its schema, lowered: symbolic numbers become scalars or indices."""
    names, numbers = schema_arguments(node.target), number_arguments(node.target)
    given = dict(zip((name for name, _, _ in names), node.args, strict=False)) | dict(node.kwargs)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, by_keyword, default in names:
        value = lowered_argument(low, given.get(name, default), values)
        value = _scalars(value) if name in numbers else _indices(value)
        if by_keyword:
            kwargs[name] = value
        else:
            args.append(value)
    return args, kwargs


def _scalars(value: Any) -> Any:
    return [*map(_scalars, value)] if isinstance(value, list) else Scalar.of(value)


def _indices(value: Any) -> Any:
    if isinstance(value, Scalar):
        raise Unlowered("data-dependent", "a size that is known when run")
    return [*map(_indices, value)] if isinstance(value, list) else value


def lowered_argument(low: Lowering, arg: Any, values: Mapping[fx.Node, Any]) -> Any:
    """One argument: nodes become their values, symbolic ints indices, symbolic floats scalars.

    Raises:
        Unlowered: lowerings do not support the value.
    """
    if isinstance(arg, fx.Node):
        value = values[arg]
        for leaf in value if isinstance(value, tuple) else (value,):
            if isinstance(leaf, Opaque):
                raise Unlowered(leaf.code, leaf.message)
        return value
    if isinstance(arg, (list, tuple)):
        return [lowered_argument(low, a, values) for a in arg]
    if isinstance(arg, torch.SymFloat):
        return Scalar(real(arg, low.numbers))
    return number(arg) if isinstance(arg, torch.SymInt) else arg


def check_places(low: Lowering, node: fx.Node, arguments: Any) -> None:
    """Check that all tensors are on one device, in supported dtypes; sets the device of new buffers.

    Raises:
        Unlowered: otherwise.
    """
    tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
    made = [leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]
    for dtype in [*(t.dtype for t in tensors), *(t.dtype for t in made)]:
        if dtype not in DTYPES:
            raise Unlowered("dtype", f"{dtype}")
    devices = {t.buffer.device for t in tensors} | {t.device for t in made}
    if len(devices) != 1 or next(iter(devices)).type not in DEVICES:
        raise Unlowered("device", f"devices {sorted(map(str, devices))}")
    low.device = next(iter(devices))


def checked(value: Any, meta: Any, node: fx.Node) -> Any:
    """`value`, if it has the sizes and dtypes of the metadata.

    Raises:
        Unlowered: it has not.
    """
    if isinstance(meta, (tuple, list)):
        values = tuple(value)
        if len(values) != len(meta):
            raise Unlowered("metadata", f"{node.target} gives {counted(len(meta), 'result')}, not {len(values)}")
        return tuple(checked(v, m, node) for v, m in zip(values, meta, strict=True))
    if not isinstance(meta, torch.Tensor):
        return value
    if not isinstance(value, Tensor):
        raise Unlowered("metadata", f"{node.target} gives a tensor, not {type(value).__name__}")
    promised = tuple(map(number, meta.shape)), meta.dtype
    if (value.sizes, value.dtype) != promised:
        raise Unlowered("metadata", f"{node.target}: {promised} promised, lowered {(value.sizes, value.dtype)}")
    return value

"""Sizes that a graph was compiled for, and that only a run can tell.

z = nonzero(x)              told: 4 rows, since the program asserts so later, or adds a tensor of 4 to it
check_sizes(z, ((0, 4),))   before a kernel reads it: kernels for 4 rows must never see 3
k = kernel(z)
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from ....rewrites import compat
from ....rewrites.graph import KNOWN_NAMESPACES
from ....rewrites.sizes import SizeTable


def check_sizes(tensor: torch.Tensor, sizes: tuple[tuple[int, int], ...]) -> None:
    """Refuse a tensor whose sizes are not those that its readers were compiled for: pairs of a dim and its size.

    Raises:
        RuntimeError: one is another.
    """
    for dim, size in sizes:
        if tensor.shape[dim] != size:
            found = f"dimension {dim} has size {tensor.shape[dim]}, not {size}"
            raise RuntimeError(f"Runtime assertion failed: {found}, as the program relies on")


def doubtful_results(node: fx.Node) -> list[fx.Node]:
    """The tensors of a call whose sizes depend on data, or are only what another's operator says of itself."""
    if not _is_doubtful(node):
        return []
    if isinstance(node.meta.get("val"), torch.Tensor):
        return [node]
    items = [user for user in node.users if user.target is operator.getitem]
    return [item for item in items if isinstance(item.meta.get("val"), torch.Tensor)]


def _is_doubtful(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, compat.OpOverload):
        return False
    if torch.Tag.dynamic_output_shape in target.tags or "unbacked_bindings" in node.meta:
        return True
    return target.namespace not in KNOWN_NAMESPACES


def claims(node: fx.Node, table: SizeTable) -> tuple[tuple[int, Any], ...]:
    """The sizes of a tensor that are known from elsewhere: pairs of a dim and a number, or the node of one."""
    return tuple(_claims(node, table))


def _claims(node: fx.Node, table: SizeTable) -> Iterator[tuple[int, Any]]:
    for dim, size in enumerate(node.meta["val"].shape):
        if not isinstance(size, torch.SymInt):
            yield dim, size
            continue
        try:
            known = table.node(size)
        except NotImplementedError:  # nothing says it but the tensor itself
            continue
        if not _comes_from(known, node):
            yield dim, known


def _comes_from(known: Any, node: fx.Node) -> bool:
    return isinstance(known, fx.Node) and (known is node or any(_comes_from(arg, node) for arg in known.args))

"""The operators as torch's minimum cut sees them, so that a torch release changes one file (torch 2.11 to 2.15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Fused:
    """Operators, as overload packets, that kernels fuse and that torch's lists leave out.

    Args:
        views: those that move nothing.
        again: those that a kernel can compute again where it reads their results.
        readers: those whose operands a kernel computes where it reads them.
    """

    views: frozenset[Any]
    again: frozenset[Any]
    readers: frozenset[Any]


_KNOWN: ContextVar[Fused | None] = ContextVar("fused", default=None)


@contextmanager
def knowing(fused: Fused) -> Iterator[None]:
    """Within the block, minimum cuts of this thread know these operators, too; cuts of other compilers do not."""
    from torch._functorch import partitioners

    if not hasattr(partitioners.get_default_op_list, "of_torch"):
        partitioners.get_default_op_list = _extended(partitioners.get_default_op_list)
    token = _KNOWN.set(fused)
    try:
        yield
    finally:
        _KNOWN.reset(token)


def _extended(of_torch: Callable[[], Any]) -> Callable[[], Any]:
    def operators() -> Any:
        types, fused = of_torch(), _KNOWN.get()
        if fused is None:
            return types
        again = fused.views | fused.again
        return replace(
            types,
            view_ops=types.view_ops | fused.views,
            recomputable_ops=types.recomputable_ops | again,
            fusible_ops=types.fusible_ops | again | fused.readers,
        )

    operators.of_torch = of_torch  # type: ignore[attr-defined]
    return operators

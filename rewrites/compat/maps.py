"""The map over gradients by `torch.autograd.grad(..., is_grads_batched=True)`, around code that takes plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


def maps_over_gradients() -> int:
    """How many such maps are running, one in the other."""
    number = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    return number


def by_rows(call: Callable[[list[Any]], Sequence[Any]], given: Sequence[Any], level: int) -> list[Any]:
    """What the innermost of `level` maps makes of a call: one call with each row of what it maps."""
    rows = [torch._remove_batch_dim(x, level, 1, 0).unbind() if _is_mapped(x) else None for x in given]
    count = max((len(found) for found in rows if found is not None), default=1)

    def row(number: int) -> list[Any]:
        pairs = zip(given, rows, strict=True)
        return [x if found is None else found[number % len(found)] for x, found in pairs]  # of an outer map: one row

    with _outside():
        results = zip(*(call(row(number)) for number in range(count)), strict=True)
        made = [torch.stack(each) if isinstance(each[0], torch.Tensor) else each[0] for each in results]
    return [torch._add_batch_dim(x, 0, level) if isinstance(x, torch.Tensor) else x for x in made]


def _is_mapped(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and torch._C._functorch.is_legacy_batchedtensor(value)


@contextmanager
def _outside() -> Iterator[None]:
    """Leave the innermost map."""
    torch._C._vmapmode_decrement_nesting()
    try:
        yield
    finally:
        torch._C._vmapmode_increment_nesting()

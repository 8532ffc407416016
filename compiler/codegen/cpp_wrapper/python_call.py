"""A call of a graph that C++ leaves to Python, with slots in place of values.

cond(%p, %true_graph, %false_graph, (%x, %y))   ->   PythonCall(cond, (Slot(0), <true>, <false>, (Slot(1), Slot(2))))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ....rewrites import compat


@dataclass(frozen=True)
class Slot:
    """The place of a value among the arguments of a call."""

    position: int


class PythonCall:
    """A function of values that calls a target with them.

    Args:
        target: what is called.
        args, kwargs: its arguments, slots among them.
    """

    def __init__(self, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._made = target, tuple(args), dict(kwargs)

    def __call__(self, *values: Any) -> Any:
        """Call the target."""
        target, args, kwargs = self._made
        return target(*_filled(args, values), **_filled(kwargs, values))

    def __reduce__(self) -> Any:
        target, args, kwargs = self._made
        if isinstance(target, compat.HigherOrderOperator) and compat.is_registered(target):
            return _of_operator, (target.__name__, args, kwargs)
        return PythonCall, self._made


def _of_operator(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> PythonCall:
    return PythonCall(getattr(torch.ops.higher_order, name), args, kwargs)


def _filled(template: Any, values: Sequence[Any]) -> Any:
    if isinstance(template, Slot):
        return values[template.position]
    if isinstance(template, dict):
        return {key: _filled(item, values) for key, item in template.items()}
    if isinstance(template, slice):
        return slice(*(_filled(part, values) for part in (template.start, template.stop, template.step)))
    if isinstance(template, (list, tuple)):
        items = [_filled(item, values) for item in template]
        if isinstance(template, list):
            return items
        return type(template)(*items) if hasattr(template, "_fields") else tuple(items)
    return template

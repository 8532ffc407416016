"""Compares the recorded run with Dynamo's: finds everything that tracing could change silently."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.reason import Reason

_FACTS = ("dtype", "device", "layout", "requires_grad", "ndim")
CHANGED_SIZES = "changed-sizes"
"""The code of a result of other sizes than Dynamo's: AOTAutograd would trace it as the recorder does."""


class Derivatives:
    """Watches the autograd graph grow, for derivatives that a recording of forward calls would lose."""

    def __init__(self) -> None:
        self._seen: set[Any] = set()

    def lost(self, values: Any, node: fx.Node) -> Reason | None:
        """The refusal, if a call computed `values` with a derivative that the user defined.

        Operators are recorded as they are, so autograd still finds their derivatives, including those of the user.
        """
        custom = [fn for fn in self.extend(values) if compat.is_custom_function(fn)]
        if not custom or isinstance(node.target, (*compat.OPERATORS, compat.HigherOrderOperator)):
            return None
        message = f"{node.name} runs the autograd function {type(custom[0]).__name__.removesuffix('Backward')}"
        return Reason("custom-derivative", message, (node,))

    def extend(self, values: Any) -> list[Any]:
        """The nodes of the autograd graph behind `values` that are new."""
        leaves = compat.tree_leaves(values)
        pending = [_history(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        found = []
        while pending:
            fn = pending.pop()
            if fn is not None and fn not in self._seen:
                self._seen.add(fn)
                found.append(fn)
                pending.extend(parent for parent, _ in fn.next_functions)
        return found


def _history(tensor: torch.Tensor) -> Any:
    """The autograd node of a tensor; None for a view that autograd has invalidated, which raises when it is used."""
    try:
        return tensor.grad_fn
    except RuntimeError:  # created under no_grad, and its base was written to
        return None


def disagreement(node: fx.Node, value: Any, wrong: frozenset[str] = frozenset()) -> Reason | None:
    """The difference between the value of one of Dynamo's nodes under the recorder and under Dynamo, or None.

    Args:
        node: a placeholder, which is compared at the end of the run, or the output.
        value: the value under the recorder.
        wrong: facts that Dynamo is known to have wrong.
    """
    if node.op != "output":
        return _difference(node, value, wrong)
    sources = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
    values = value if isinstance(value, (tuple, list)) else (value,)
    pairs = ((s, v) for s, v in zip(sources, values, strict=True) if isinstance(s, fx.Node))
    return next((reason for s, v in pairs if (reason := _difference(s, v, wrong)) is not None), None)


def _difference(node: fx.Node, value: Any, wrong: frozenset[str]) -> Reason | None:
    expected = node.meta.get("example_value")
    if not isinstance(expected, torch.Tensor) or not isinstance(value, torch.Tensor):
        return None
    for fact in _FACTS:
        if fact not in wrong and getattr(expected, fact) != getattr(value, fact):
            return _refusal(node, fact, getattr(expected, fact), getattr(value, fact))
    # Only plain numbers: a comparison of symbols would add guards.
    sizes = zip(expected.shape, value.shape, strict=True)
    if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes):
        return _refusal(node, "shape", expected.shape, value.shape)
    return None


def _refusal(node: fx.Node, fact: str, expected: Any, found: Any) -> Reason:
    message = f"tracing to ATen changed the {fact} of {node.name}"
    code = CHANGED_SIZES if fact in ("ndim", "shape") else "changed-result"
    return Reason(code, message, (node,), expected=str(expected), found=str(found))

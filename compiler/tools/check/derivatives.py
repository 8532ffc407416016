"""Does a candidate have its own backward? Replacements are traced, and tracing records the forward only.

    class Rounded(torch.autograd.Function)         forward: round(x), backward: the gradient as it is
    replacement=Rounded.apply                ->    %round = aten.round(%x), whose derivative is zero

Operators keep their backward: `torch.library.custom_op` with `register_autograd`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ....rewrites import compat
from ....rewrites.rule import Candidate, Rule
from .case import Case


def own_backwards(case: Case, rule: Rule) -> str:
    """The names of autograd functions that the candidates of a rule call."""
    called: list[tuple[Candidate, dict[str, Any]]] = []

    def noting(candidate: Candidate) -> Candidate:
        def function(*operands: Any, **derived: Any) -> Any:
            called.append((candidate, derived))
            return candidate.function(*operands, **derived)

        return replace(candidate, function=function)

    try:
        case.rewritten(replace(rule, candidates=tuple(map(noting, rule.candidates))))
        results = [c.function(*map(_leaf, case.operands), **derived) for c, derived in called[:1]]
    except Exception:  # other checks report the error
        return ""
    return ", ".join(sorted(_custom(results)))


def _leaf(operand: Any) -> Any:
    if not isinstance(operand, torch.Tensor):
        return operand
    copied = operand.detach().clone()
    return copied.requires_grad_() if copied.is_floating_point() else copied


def _custom(results: Any) -> set[str]:
    """The names of custom autograd functions in the graph of results."""
    pending = [r.grad_fn for r in compat.tree_leaves(results) if isinstance(r, torch.Tensor)]
    seen, found = set[Any](), set[str]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        pending.extend(parent for parent, _ in node.next_functions)
        if compat.is_custom_function(node) and not compat.is_operators_derivative(node):
            found.add(type(node).__name__.removesuffix("Backward"))
    return found

"""Calls that run the program as it was written: in modes that compiled programs lack, and for inputs of other kinds.

Dynamo compiles anew where something has changed that it guards, or that we have it guard (`compat.guards`). For the
rest, a compiled program has a list of what it relies on, which is looked at in each call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rewrites.compat import SET_GRAD_MODE
from ...rewrites.compat.dispatch import forward_ad_active, functionalizing
from ...rewrites.compat.dynamo import verifies_results
from ...rewrites.compat.guards import has_negative_zeros
from ...rewrites.compat.tensors import is_fake, requires_grad
from ...rewrites.compat.tracing import is_fake_of_dynamo
from ...rewrites.record import Fallback, GraphRecord
from ...rewrites.symbolic import SYMBOLIC

_Check = Callable[[Sequence[Any]], bool]


@dataclass(frozen=True)
class Reliance:
    """What a compiled program relies on in each call, and Dynamo does not guard.

    Args:
        holds: whether inputs are so.
        code, why: of the fallback that tells of the first call for which they are not.
        apart: inputs that hold only if no two of them overlap.
    """

    holds: _Check
    code: str
    why: str
    apart: frozenset[int] = frozenset()


def relying(
    compiled: Callable[..., Any], program: Callable[..., Any], reliances: Sequence[Reliance], record: GraphRecord
) -> Callable[..., Any]:
    """`compiled`, but `program` for inputs for which something does not hold.

    Args:
        compiled: what is returned itself if it relies on nothing.
        program: what it was compiled from.
        reliances: what it relies on.
        record: where the first call is told for which it does not hold.
    """
    if not reliances:
        return compiled
    told: set[str] = set()
    all_hold = functools.reduce(_both, [each.holds for each in reliances])

    def run(*inputs: Any) -> Any:
        if all_hold(inputs):
            return compiled(*inputs)
        broken = next((each for each in reliances if not each.holds(inputs)), reliances[0])
        if broken.code not in told:
            told.add(broken.code)
            message = f"{broken.why}: such calls run the program as it was written"
            record.fallbacks.append(Fallback("capture", broken.code, message))
        return program(*inputs)

    return run


def _both(a: _Check, b: _Check) -> _Check:
    return lambda inputs: a(inputs) and b(inputs)


def usual_calls(program: fx.GraphModule, inputs: Sequence[Any]) -> list[Reliance]:
    """Calls outside of inference mode, and by numbers."""
    return [*no_symbols(), *no_gradients(program, inputs)]


def no_gradients(program: fx.GraphModule, inputs: Sequence[Any]) -> list[Reliance]:
    """Inference mode of a program for which gradients can be computed: it enables them itself, or its caller does.

    Nothing has a gradient in that mode, even where grad mode is on. Dynamo leaves it to compile, so that AOTAutograd
    saves tensors for a backward; what inference mode has made cannot be saved.
    """
    modes = program.graph.find_nodes(op="call_function", target=SET_GRAD_MODE)
    enabled = torch.is_grad_enabled() or any(node.args[0] is True for node in modes)
    if not enabled or not any(map(requires_grad, inputs)):
        return []
    why = "gradients are enabled in inference mode, which has none"
    return [Reliance(lambda _: not torch.is_inference_mode_enabled(), "inference-mode", why)]


def no_symbols() -> list[Reliance]:
    """Numbers as inputs: only Dynamo's `verify_correctness` gives symbols, in one call before any of the user's.

    What it compares results with takes other numbers for symbols that are added or multiplied than they stand for, and
    so does the program as it was written.
    """
    if not verifies_results():
        return []
    why = "Dynamo verifies results for symbols"
    return [Reliance(lambda inputs: not any(isinstance(x, SYMBOLIC) for x in inputs), "symbols-given", why)]


def refused_mode(program: fx.GraphModule, inputs: Sequence[Any]) -> tuple[str, str] | None:
    """The code and the reason why this call is not compiled; None if it is. Dynamo's guards find out about changes."""
    if forward_ad_active():  # torch's kernels compute tangents, generated ones do not
        return "forward-ad", "compiled within forward_ad.dual_level: tangents are"
    if functionalizing():
        return "functionalize", "within torch.func.functionalize: results are"
    if has_negative_zeros(program, inputs):
        return "negative-zero", "a number that changes is -0.0 in this call: results are"
    if any(is_fake(x) and not is_fake_of_dynamo(x) for x in inputs):
        return "fake-input", "inputs are fake tensors, which have no elements: results are"
    return None

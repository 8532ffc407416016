"""Derivatives of derivatives: a compiled backward has none, the program as it was written has.

    (dx,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)      computed by the program as written
    dx.norm().backward()                                                      through torch's own operators

A backward that is to have a derivative runs within grad mode. It then runs the program again, on the inputs that its
forward had, as written. What was random in the forward, or has changed since, cannot be computed again: there the
compiled backward runs, and autograd raises an error when a derivative of it is asked for. `values_before.py` is about
what the program itself writes (running statistics).
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat.steps import compiled_step, function_of, replace_backward
from ...rewrites.record import Fallback, GraphRecord
from .values_before import Before, ValuesBefore, chosen

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_CALL = "_regraft_call"
_Call = tuple[Sequence[Any], Sequence[weakref.ref[Any]], Sequence[int]]


def twice_differentiable(
    compiled: Callable[..., Any], program: fx.GraphModule, inputs: Sequence[Any], record: GraphRecord
) -> Callable[..., Any]:
    """`compiled`, whose gradients have the derivatives of `program`'s where they are asked for.

    Args:
        compiled: what is returned itself where inputs are not all plain tensors and numbers, or it is the program.
        program: Dynamo's graph.
        inputs: those that it was compiled for.
        record: where the first such backward is told.
    """
    if compiled is program or not _may_run_again(program, inputs):
        return compiled
    again = _Again(program, record)
    tensors = [k for k, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
    free = [k for k in tensors if not isinstance(inputs[k], torch.nn.Parameter)]
    held = [k for k in range(len(inputs)) if k not in free]
    (kept, others), values = map(chosen, (held, free)), ValuesBefore(program, inputs)

    def run(*inputs: Any) -> Any:
        before = values.keep(inputs)
        results = compiled(*inputs)
        node = compiled_step(_each(results))
        if node is not None and not hasattr(node, _CALL):
            again.know(node, _each(results))
            values.settle(before, inputs)
            # Autograd keeps parameters, too. What else was given is not kept for what few ask for.
            given = kept(inputs), list(map(weakref.ref, others(inputs))), (*held, *free)
            setattr(node, _CALL, (again, given, values, before))
        return results

    return run


def _may_run_again(program: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a program that is to have derivatives has those of eager, when it is run as Dynamo has recorded it.

    Functions of the user's with a backward of their own (`torch.autograd.Function`), and bodies of control flow, are
    recorded with a backward that has no derivative.
    """
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    plain = all(type(x) in _PLAIN and not x.is_inference() for x in tensors)
    numbers = all(isinstance(x, (torch.Tensor, int, float, torch.SymInt, torch.SymFloat)) for x in inputs)
    parts = [part for part in program.modules() if isinstance(part, fx.GraphModule)]
    enabled = torch.is_grad_enabled() or any(map(_enables_gradients, parts))
    trained = enabled and any(x.requires_grad for x in tensors)
    with_bodies = [
        node.target
        for part in parts
        for node in part.graph.nodes
        if isinstance(node.target, compat.HigherOrderOperator) and node.target is not compat.CHECKPOINT
    ]
    return plain and numbers and trained and not with_bodies


def _enables_gradients(part: fx.GraphModule) -> bool:
    """Whether a program computes with gradients though it is called without them (`torch.enable_grad` inside)."""
    return any(node.args[0] is True for node in part.graph.find_nodes(op="call_function", target=compat.SET_GRAD_MODE))


def _each(results: Any) -> Sequence[Any]:
    """What a program returned, one result or several, as several."""
    return results if isinstance(results, (tuple, list)) else (results,)


class _Again:
    """A program that is run again for gradients that have derivatives, in the state in which it was compiled."""

    def __init__(self, program: fx.GraphModule, record: GraphRecord) -> None:
        self._program, self._record, self._told = program, record, False
        self._with_gradients = torch.is_grad_enabled()
        self._autocast = [
            (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)) for device in _devices()
        ]
        self._results: dict[int, int] = {}  # by the place among the results of autograd's node: ours
        self._function: Any = None  # whose nodes are known

    def know(self, node: Any, results: Sequence[Any]) -> None:
        """Have the backward of a node ask here first; which results are the node's is the same in each call.

        Calls after the first backward may have nodes of another function: see `autograd.plain_calls`.
        """
        if function_of(node) is not self._function:
            self._function = function_of(node)
            replace_backward(node, _backward)
            self._results = {
                x.output_nr: k for k, x in enumerate(results) if isinstance(x, torch.Tensor) and x.grad_fn is node
            }

    def gradients(
        self, node: Any, call: tuple[_Call, ValuesBefore, Before], given: Sequence[Any]
    ) -> tuple[Any, ...] | None:
        """The gradients of a node's inputs for those of its results, with derivatives; None where that cannot be."""
        of_call, values, before = call
        there = _inputs_of(*of_call)
        inputs = None if there is None else values.inputs(before, there)
        if inputs is None or any(
            x is not None and k not in self._results and bool(x.any()) for k, x in enumerate(given)
        ):
            return None
        wanted = {_edge(x): x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad}
        edges = [edge for edge in node.next_functions if edge[0] is not None]
        if not set(edges) <= set(wanted):
            return None
        with _drawing_nothing() as drawn, self._state():
            # Hooks of tensors run when their gradients come out of this node.
            seen = {edge: torch.ops.aten.alias.default(x) for edge, x in wanted.items()}
            shown = [seen[_edge(x)] if isinstance(x, torch.Tensor) and x.requires_grad else x for x in inputs]
            with torch.set_grad_enabled(self._with_gradients):
                results = _each(self._program(*shown))
            pairs = [(results[k], given[place]) for place, k in self._results.items() if given[place] is not None]
            pairs = [(result, gradient) for result, gradient in pairs if result.requires_grad]
            made = dict(zip(edges, _derivatives(pairs, [seen[edge] for edge in edges]), strict=True))
        if drawn:
            return None
        self._tell()
        left = [made.pop(edge, None) for edge in edges]
        return tuple(left.pop(0) if needed else None for needed in node.needs_input_grad)

    @contextmanager
    def _state(self) -> Iterator[None]:
        with ExitStack() as stack:
            for device, dtype, enabled in self._autocast:
                stack.enter_context(torch.autocast(device, dtype, enabled))
            stack.enter_context(torch.enable_grad())
            yield

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            message = "derivatives of gradients are asked for: such backwards run the program as it was written"
            self._record.fallbacks.append(Fallback("differentiate", "second-derivatives", message))


@compat.without_dynamo
def _backward(original: Callable[..., Any], node: Any, *gradients: Any) -> Any:
    """A compiled step's backward, which may be given all gradients as one list."""
    call = getattr(node, _CALL, None) if torch.is_grad_enabled() else None
    if call is not None:
        _ = node.saved_tensors  # raises where they are freed, or were written to
        boxed = len(gradients) == 1 and isinstance(gradients[0], list)
        made = call[0].gradients(node, call[1:], gradients[0] if boxed else gradients)
        if made is not None:
            return made
    return original(node, *gradients)


def _inputs_of(kept: Sequence[Any], refs: Sequence[weakref.ref[Any]], order: Sequence[int]) -> list[Any] | None:
    """The inputs of a call; None where one is gone."""
    free = [ref() for ref in refs]
    inputs = [x for _, x in sorted(zip(order, (*kept, *free), strict=True), key=operator.itemgetter(0))]
    return None if any(x is None for x in free) else inputs


def _edge(x: torch.Tensor) -> tuple[Any, int]:
    edge = torch.autograd.graph.get_gradient_edge(x)
    return edge.node, edge.output_nr


def _derivatives(pairs: Sequence[tuple[Any, Any]], inputs: Sequence[torch.Tensor]) -> Sequence[Any]:
    if not pairs:
        return [None] * len(inputs)
    results, gradients = zip(*pairs, strict=True)
    return torch.autograd.grad(results, inputs, gradients, create_graph=True, allow_unused=True)


def _devices() -> list[str]:
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@contextmanager
def _drawing_nothing() -> Iterator[list[bool]]:
    """A block in which no random numbers are drawn; the list is not empty where they were, and they are put back."""
    drawn: list[bool] = []
    before = torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    yield drawn
    after = torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    same = torch.equal(before[0], after[0]) and all(map(torch.equal, before[1], after[1]))
    if not same:
        drawn.append(True)
        torch.set_rng_state(before[0])
        torch.cuda.set_rng_state_all(before[1])

"""Training graphs that AOTAutograd only calls: their forward and backward as one autograd function, without it.

    forward     inputs                       ->  outputs of the program, what the backward keeps
    backward    what it kept, gradients      ->  gradients of the inputs

Only where AOTAutograd does no more itself than this (`compat.autograd.step_facts`): inputs and outputs are passed as
they are, inputs are written by the forward alone (running statistics), sizes are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat.autograd import (
    StepFacts,
    clear_saved,
    count_writes,
    has_saved_tensor_hooks,
    is_view,
    keeps_no_zeros,
    own_tensor,
)
from ...rewrites.compat.steps import step_function

_Boxed = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class StepForm:
    """What there is to know of the two graphs of a training step, to call them.

    Args:
        facts: which results are whose.
        tangents: sizes and strides of the gradients that the backward takes.
        without_gradient: positions of inputs that get none.
    """

    facts: StepFacts
    tangents: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    without_gradient: frozenset[int]


def form_of(facts: StepFacts, backward: fx.Graph, inputs: int) -> StepForm | None:
    """The form of a step; None where the backward's inputs or outputs are not what one would expect.

    Args:
        facts: of AOTAutograd.
        backward: inputs and output as AOTAutograd made them.
        inputs: how many the program has.
    """
    given = [node.meta.get("val") for node in backward.find_nodes(op="placeholder")]
    wanted = [place for place, differentiable in enumerate(facts.differentiable) if differentiable]
    results = backward.output_node().args[0]
    if not isinstance(results, (tuple, list)) or len(results) != inputs or len(given) != facts.saved + len(wanted):
        return None
    tangents = given[facts.saved :]
    if not all(isinstance(x, torch.Tensor) and not compat.has_symbols(x) for x in given):
        return None
    layouts = tuple((tuple(x.shape), tuple(x.stride())) for x in tangents)
    return StepForm(facts, layouts, frozenset(k for k, x in enumerate(results) if x is None))


def runner(step: StepForm, forward: _Boxed, backward: _Boxed) -> Callable[..., tuple[Any, ...]]:
    """The program as a function of its inputs, with a backward.

    Args:
        step: what there is to know of the two.
        forward: the compiled forward.
        backward: the compiled backward.
    """
    function, without = _function(step, forward, backward), sorted(step.without_gradient)

    def run(*inputs: Any) -> tuple[Any, ...]:
        if step.facts.written:
            count_writes([inputs[place] for place in step.facts.written])
        given = list(inputs)
        for place in without:
            x = inputs[place]
            # As AOTAutograd does: leaves stay, so that results depend on them as in eager, with gradients of 0.
            if isinstance(x, torch.Tensor) and x.requires_grad and not x.is_leaf:
                given[place] = x.detach()
        if torch.is_grad_enabled() and not compat.autocast_on():
            return function.apply(*given)  # type: ignore[no-any-return]
        with torch.enable_grad(), compat.autocast_off():
            return function.apply(*given)  # type: ignore[no-any-return]

    return run


def _function(step: StepForm, forward: _Boxed, backward: _Boxed) -> Any:
    facts = step.facts
    differentiable = [place for place, wanted in enumerate(facts.differentiable) if wanted]
    others = [place for place, wanted in enumerate(facts.differentiable) if not wanted]

    @step_function
    class PlainStep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Any, ...]:
            results = forward(list(inputs))
            outputs, saved = results[: facts.outputs], results[facts.outputs :]
            if facts.single_views:
                outputs = list(outputs)
                for place in facts.single_views:
                    outputs[place] = own_tensor(outputs[place])
            # What is a view would keep, and with an output among its bases be kept by, what it is a view of.
            ctx.save_for_backward(*[x.detach() if is_view(x) else x for x in saved])
            hooked = has_saved_tensor_hooks()
            ctx.laid = [(x.shape, x.stride(), x.dtype) for x in saved] if hooked else None
            if others:
                ctx.mark_non_differentiable(*[x for k in others if isinstance(x := outputs[k], torch.Tensor)])
            keeps_no_zeros(ctx)
            return tuple(outputs)

        @staticmethod
        @compat.without_dynamo  # which looks at what runs in a backward that a compiled program calls
        def backward(ctx: Any, *gradients: Any) -> Any:
            given = [*ctx.saved_tensors]
            if ctx.laid is not None:
                given = [laid_as_saved(x, *laid) for x, laid in zip(given, ctx.laid, strict=True)]
            for place, (sizes, strides) in zip(differentiable, step.tangents, strict=True):
                given.append(_laid_out(gradients[place], sizes, strides))
            clear_saved(ctx)
            if not torch.is_grad_enabled():
                return _backward(given)
            # Gradients of gradients: an error when they are asked for, not before.
            return _Once.apply(_backward, len(given), torch.empty(0, requires_grad=True), *given, *_parameters(ctx))

    def _backward(given: list[Any]) -> Any:
        with torch.no_grad():
            return tuple(backward(given))

    return PlainStep


def _parameters(ctx: Any) -> list[torch.Tensor]:
    """The inputs of a step that accumulate gradients themselves."""
    return [node.variable for node, _ in ctx.next_functions if hasattr(node, "variable")]


class _Once(torch.autograd.Function):
    """Results of a backward that has no derivative.

    All tensors that they depend on are arguments, so that autograd comes here for a derivative by any of them.
    """

    @staticmethod
    def forward(_ctx: Any, run: Callable[[list[Any]], Any], length: int, _: torch.Tensor, *tensors: Any) -> Any:
        return run(list(tensors[:length]))

    @staticmethod
    def backward(_ctx: Any, *_gradients: Any) -> Any:
        raise RuntimeError("torch.compile does not support double backward: gradients of gradients need eager mode")


def _laid_out(gradient: torch.Tensor, sizes: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """A gradient with the strides that the backward was compiled for."""
    if gradient.stride() == tuple(strides):
        return gradient
    return gradient.new_empty_strided(sizes, strides).copy_(gradient)


def laid_as_saved(x: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor as a backward reads it: with these strides.

    Raises:
        RuntimeError: a hook has given a tensor of another size or dtype.
    """
    if x.dtype != dtype or tuple(x.shape) != tuple(sizes):
        wrong, right = (f"{kind} {list(shape)}" for kind, shape in ((x.dtype, x.shape), (dtype, sizes)))
        raise RuntimeError(f"a hook of saved tensors gives a tensor of {wrong} where {right} was saved")
    if x.stride() == tuple(strides):
        return x
    return x.new_empty_strided(sizes, strides).copy_(x)

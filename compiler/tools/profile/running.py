"""Calls of a program as its user would make them, and nothing changed afterwards.

under no_grad:  function(*args)        otherwise:  function(*args), then backward from outputs with gradients
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

Step = Callable[[], Any]
_NUMBER = itertools.count()
FILE = __file__  # in stack traces, the frame that `of_its_own` puts around the user's


def step_of(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    leaves: list[torch.Tensor] | None = None,
) -> Step:
    """One call, forward and where there is something to differentiate backward.

    It gives the outputs, detached, and then the gradients of all that they depend on, which nobody else sees.

    Args:
        function: what to call.
        args: its arguments.
        kwargs: its keyword arguments.
        leaves: what to differentiate by; an empty list is filled at the first call, and may be shared by several steps.
    """
    above: dict[int, torch.Tensor] = {}
    leaves = [] if leaves is None else leaves

    def step() -> list[torch.Tensor]:
        outputs = list(tensors_in(function(*args, **kwargs)))
        roots = [out for out in outputs if out.requires_grad]
        for number, root in enumerate(roots):
            if number not in above or above[number].shape != root.shape:
                above[number] = torch.ones_like(root)
        if roots and not leaves:
            leaves.extend(_leaves_of(roots))
        given = [above[number] for number in range(len(roots))]
        gradients = torch.autograd.grad(roots, leaves, given, materialize_grads=True) if roots else ()
        return [out.detach() for out in (*outputs, *gradients)]

    return step


def _leaves_of(roots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that autograd would accumulate gradients for, those in closures included."""
    found = {id(root): root for root in roots if root.grad_fn is None}
    stack = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            found[id(variable)] = variable
        more = [following for following, _ in node.next_functions if following is not None and following not in seen]
        seen.update(more)
        stack.extend(more)
    return list(found.values())


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested mappings, sequences and dataclasses, in order."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    parts: Any = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = vars(value).values()
    for part in parts:
        yield from tensors_in(part)


def of_its_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` in a frame with a code object of its own.

    Dynamo keeps compiled code by code object, and stops compiling one after a few versions: what is compiled to be
    timed counts for this one, and goes with it.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    code = call.__code__.replace(co_name=f"call_{next(_NUMBER)}")
    return types.FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)


@contextlib.contextmanager
def undisturbed(function: Callable[..., Any]) -> Iterator[None]:
    """On exit a module's gradients and buffers (running statistics) and random numbers are as before."""
    module = function if isinstance(function, torch.nn.Module) else None
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()] if module is not None else []
    buffers = [(b, b.detach().clone()) for b in module.buffers()] if module is not None else []
    gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        for parameter, _ in gradients:
            parameter.grad = None  # what runs backward itself would add to them in place
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, kept in buffers:
                if not torch.equal(buffer, kept):
                    buffer.copy_(kept)


def seconds_of(step: Step) -> float:
    """Wall time of a call, waiting for the accelerator before and after."""
    wait()
    start = time.perf_counter()
    step()
    wait()
    return time.perf_counter() - start


def wait() -> None:
    """Until the accelerator, where there is one, has done everything."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()

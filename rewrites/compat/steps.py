"""Nodes of the autograd graph that compiled programs make: AOTAutograd's, and what takes its place."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import Lock
from typing import Any

import torch

_STEP = "_regraft_step"
_replacing = Lock()

_version = operator.attrgetter("_version")


def versions(tensors: Iterable[torch.Tensor]) -> list[int]:
    """How often the memory of each was written to."""
    return list(map(_version, tensors))


def step_function(function: Any) -> Any:
    """Let the nodes of a `torch.autograd.Function` be known as a compiled program's."""
    setattr(function, _STEP, True)
    return function


def compiled_step(results: Sequence[Any]) -> Any:
    """The node that a compiled program has made for its results; None where there is none."""
    for result in results:
        node = getattr(result, "grad_fn", None)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            function = node._forward_cls  # type: ignore[attr-defined]
            if hasattr(function, _STEP) or hasattr(function, "_aot_id"):
                return node
    return None


def function_of(node: Any) -> Any:
    """The `torch.autograd.Function` that has made a node."""
    return node._forward_cls


def replace_backward(node: Any, backward: Callable[..., Any]) -> None:
    """Have `backward` run the backwards of a compiled program, and give it what ran them before."""
    function = node._forward_cls
    with _replacing:
        if getattr(function.backward, "func", None) is not backward:
            function.backward = staticmethod(partial(backward, function.backward))

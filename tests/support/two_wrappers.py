"""A program through its wrapper in Python and through that in C++: the same results, strides and writes to inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import regraft

CPP = {"cpp.wrapper": True, "strict": True}


def fresh(value: Any) -> Any:
    """A leaf like a tensor, of the same strides; others as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    if 0 in value.stride():
        return value.detach().clone().requires_grad_(value.requires_grad)
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value.detach())
    return made.requires_grad_(value.requires_grad)


def run(compiled: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    """Results, gradients of inputs and inputs after a call, from the same random numbers each time."""
    given = [fresh(x) for x in inputs]
    torch.manual_seed(0)
    out = compiled(*given)
    leaves = tree_leaves(out)
    wanted = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
    if wanted:
        torch.autograd.backward(wanted, [torch.linspace(-1, 1, x.numel()).view(x.shape).to(x.dtype) for x in wanted])
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    return [*leaves, *(x.grad for x in tensors), *given, *(x._version for x in tensors)]


def assert_equal(actual: Sequence[Any], expected: Sequence[Any]) -> None:
    """Equal, strides too; not to the bit, since products may have been measured anew."""
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        if not isinstance(e, torch.Tensor):
            assert type(a) is type(e) and a == e
            continue
        assert a.stride() == e.stride()
        torch.testing.assert_close(a, e, equal_nan=True)


def compiled_both(function: Callable[..., Any], **more: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The function through Python, and through C++: two callables with caches of their own."""

    def made(options: dict[str, Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            return function(*args)

        code = call.__code__.replace()
        own = type(call)(code, call.__globals__, "call", None, call.__closure__)
        return torch.compile(own, backend="regraft", options=options, **more)

    return made({"strict": True}), made(CPP)


def check(function: Callable[..., Any], *calls: Sequence[Any], fallbacks: int = 0, **more: Any) -> regraft.Coverage:
    """Both wrappers agree on all of these inputs; gives the record of what was compiled for C++."""
    torch.compiler.reset()
    python, cpp = compiled_both(function, **more)
    expected = [run(python, inputs) for inputs in calls]
    with regraft.coverage() as cov:
        for inputs, told in zip(calls, expected, strict=True):
            assert_equal(run(cpp, inputs), told)
    found = [f for g in cov.graphs for f in g.fallbacks if f.stage == "wrapper"]
    assert len(found) == fallbacks, found
    if not fallbacks:
        assert any(name.startswith("wrapper:") for g in cov.graphs for name in g.details)
    return cov

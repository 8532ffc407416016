"""Tensors: what kind they are, and what autograd knows of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is metadata only, as compilers trace with."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def requires_grad(value: object) -> bool:
    """Whether `value` is a tensor that autograd differentiates by."""
    return isinstance(value, torch.Tensor) and value.requires_grad


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether a transformation of `torch.func` (a gradient, a map over a dim) has wrapped `tensor`."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def is_made_of_tensors(value: object) -> bool:
    """Whether `value` is of a class of tensors that AOTAutograd takes apart, as those spread over processes."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return is_traceable_wrapper_subclass(value)


def needs_a_value(error: BaseException) -> bool:
    """Whether an error says that a computation with metadata only needed the value of a tensor."""
    from torch._subclasses.fake_tensor import DataDependentOutputException

    return isinstance(error, DataDependentOutputException)


def depends_on_data(error: BaseException) -> bool:
    """Whether an error says that tracing needed a value or a size that only running computes."""
    from torch._subclasses import fake_tensor
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    kinds = (GuardOnDataDependentSymNode, fake_tensor.DynamicOutputShapeException)
    return needs_a_value(error) or isinstance(error, kinds)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """`tree` (nested lists, tuples, dicts) with `function` applied to its leaves."""
    from torch.utils import _pytree

    return _pytree.tree_map(function, tree)


def tree_leaves(tree: Any) -> list[Any]:
    """The leaves of nested lists, tuples and dicts, in order."""
    from torch.utils import _pytree

    return _pytree.tree_leaves(tree)


def writes_to(tensor: torch.Tensor) -> int:
    """How often the memory of `tensor` was written to; a counter that views share (`Tensor._version`)."""
    return tensor._version


def keeps_graph() -> bool:
    """Whether the backward that is running leaves its graph to be run again; also where none is running."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def is_backward_state(value: Any) -> bool:
    """Whether an input carries hooks from forward to backward for compiled autograd."""
    from torch.fx.experimental._backward_state import BackwardState

    return isinstance(value, BackwardState)


def is_custom_function(grad_fn: Any) -> bool:
    """Whether a node of the autograd graph was made by a user's `torch.autograd.Function`."""
    return isinstance(grad_fn, torch.autograd.function.BackwardCFunction)


def is_operators_derivative(grad_fn: Any) -> bool:
    """Whether a custom function is what `register_autograd` made of an operator: calls of that keep it."""
    return grad_fn._forward_cls.__module__ == "torch._library.autograd"


def is_subclass(value: Any) -> bool:
    """Whether a value is a tensor of a class that has its own idea of operators."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, torch.Tensor) and type(value) not in (torch.Tensor, torch.nn.Parameter, FakeTensor)


def parts_of(value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The plain tensors that a tensor of a wrapping class is made of; none for others."""
    if not hasattr(value, "__tensor_flatten__"):
        return ()
    parts = [getattr(value, name) for name in value.__tensor_flatten__()[0]]
    return tuple(inner for part in parts if isinstance(part, torch.Tensor) for inner in parts_of(part) or (part,))


def is_renamed_tensor(value: Any) -> bool:
    """Whether a value is a tensor of a class that adds to Python's side only: to the dispatcher it is a plain one."""
    if not isinstance(value, torch.Tensor) or type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return False
    return type(value).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl  # type: ignore[comparison-overlap]


def has_symbols(tensor: torch.Tensor) -> bool:
    """Whether a tensor's shape holds symbolic sizes."""
    return any(isinstance(n, torch.SymInt) for n in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))


def has_ragged_size(value: Any) -> bool:
    """Whether a value is or has a size that stands for the lengths of a nested tensor's rows: it is never a number."""
    numbers = value.shape if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(n, torch.SymInt) and n.node.is_nested_int() for n in numbers)


def writes_seen(tensor: torch.Tensor) -> int:
    """The number of writes in place that torch has counted of a tensor's memory."""
    return tensor._version


def of_stored_zeros(value: Any) -> Any:
    """A value of a graph, where one of zeros that take no memory (`aten._efficientzerotensor`) as zeros that do.

    torch makes such tangents in forward mode, and computes with their metadata outside of fake tensors.
    """
    return value.clone() if isinstance(value, torch.Tensor) and value._is_zerotensor() else value

"""Operators and their schemas."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import fx

OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket
HigherOrderOperator = torch._ops.HigherOrderOperator


def schema(target: Any) -> Any:
    """The schema of an operator: its name, its arguments, its results."""
    return target._schema


def overload_name(target: OpOverload) -> str:
    """The name of an overload, e.g. ``"Tensor"``; empty for the default."""
    return target._overloadname


def packet_name(target: OpOverload) -> str:
    """The name of an operator without namespace and overload, e.g. ``"add"``."""
    return target._opname


def symbolic_function(name: str) -> Any:
    """The function that torch.fx records for one of a symbolic number, e.g. ``"sqrt"``."""
    return getattr(torch, f"_sym_{name}")


def original_expression(node: Any) -> Any:
    """The expression that a symbolic number was made with, before what was learnt of its symbols."""
    return node._expr


def operator_path(target: Any) -> tuple[str, str, str] | None:
    """``(namespace, packet, overload)`` where `torch.ops` leads to `target`, else None."""
    if not isinstance(target, OpOverload):
        return None
    namespace, packet = target._schema.name.split("::")
    path = (namespace, packet, target._overloadname)
    packets = getattr(torch.ops, namespace)
    found = getattr(getattr(packets, packet, None), path[2], None)
    return path if found is target else None


def aliasing_arguments(target: OpOverload) -> tuple[tuple[int, str], ...]:
    """Positions and names of the arguments that an operator's schema says are viewed or written."""
    return tuple((i, a.name) for i, a in enumerate(target._schema.arguments) if a.alias_info is not None)


# Operators whose implementations are pure formulas; others look at values.
_QUANTIZED = {
    *("choose_qparams_per_token", "choose_qparams_per_token_asymmetric"),
    *("quantize_per_tensor", "dequantize_per_tensor", "quantize_per_channel", "dequantize_per_channel"),
    *("quantize_per_token", "dequantize_per_token", "dequantize_per_channel_group"),
}


def quantized_formula(target: Any) -> tuple[str, Callable[..., Any]] | None:
    """Name and implementation of an operator of `quantized_decomposed`, or of its overload for numbers; else None."""
    if not isinstance(target, OPERATORS):
        return None
    space, _, name = qualified_name(target).partition("::")
    formula = getattr(sys.modules.get("torch.ao.quantization.fx._decomposed"), name, None)
    return (name, formula) if space == "quantized_decomposed" and formula and name in _QUANTIZED else None


def multiplies_bytes() -> bool:
    """Whether this CPU has an instruction for products of bytes, as far as torch knows."""
    return bool(torch.cpu._is_vnni_supported())


def qualified_name(target: Any) -> str:
    """The name of an operator with its namespace, e.g. ``"aten::add"``, without that of an overload."""
    return target._schema.name if isinstance(target, OpOverload) else target._qualified_op_name


def is_mutable(target: OpOverload) -> bool:
    """Whether an operator writes to an argument."""
    return target._schema.is_mutable


def marked_effects() -> int:
    """How many functions `torch.fx` was told to keep, whoever reads them: an operator may become one of them."""
    return len(fx.node._side_effectful_functions)


def is_registered(target: HigherOrderOperator) -> bool:
    """Whether `torch.ops.higher_order` leads to `target` by its name."""
    return getattr(torch.ops.higher_order, target.__name__, None) is target


# Of operators that torch registers itself, in C++ or Python, and of our own.
_SHIPPED = {
    *("aten", "prims", "prim", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "sparse", "rngprims", "inductor"),
    *("quantized", "_quantized", "quantized_decomposed", "c10d", "_c10d_functional", "_c10d_functional_autograd"),
    *("_dtensor", "symm_mem", "profiler", "export", "regraft"),
}
_LAUNCHES = ("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional")  # of kernels of users, by numbers


def ships_with_torch(target: Any) -> bool:
    """Whether the versions of torch and regraft fix an operator and its derivative; True of other calls."""
    if isinstance(target, OPERATORS):
        return qualified_name(target).partition("::")[0] in _SHIPPED
    if isinstance(target, HigherOrderOperator):
        return type(target).__module__.partition(".")[0] == "torch" and target.__name__ not in _LAUNCHES
    return True


def is_method_of_torch(name: str) -> bool:
    """Whether torch defines what `name` is of tensors, not a user in its place."""
    own = vars(torch.Tensor).get(name)
    if isinstance(own, FunctionType):
        return Path(own.__code__.co_filename).is_relative_to(Path(torch.__file__).parent)
    return own is None or name not in vars(torch._C.TensorBase) or own.__name__ == name


OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
# Methods of tensors as C++ defines them.
TENSOR_METHODS = (type(torch._C.TensorBase.add), type(torch._C.TensorBase.__add__))
NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
MADE_OF_NUMBERS = torch._refs.tensor
"""As which Dynamo writes `torch.tensor` of numbers that change from call to call."""
CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint
COND = torch.ops.higher_order.cond
CHECKPOINT_POLICY = "_checkpoint_context_fn"  # where the body of a selective one holds what decides about operators
# What Dynamo puts in a graph for scopes: (enter, leave) of autocast and of inference mode, and the setter of grad mode.
AUTOCAST_SCOPE = (torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast)
INFERENCE_SCOPE = (torch.autograd.grad_mode._enter_inference_mode, torch.autograd.grad_mode._exit_inference_mode)
SET_GRAD_MODE = torch._C._set_grad_enabled
SCOPES = (*AUTOCAST_SCOPE, *INFERENCE_SCOPE, SET_GRAD_MODE, torch._C._log_api_usage_once)


def is_data_call(target: Any) -> bool:
    """Whether a call belongs to ``tensor.data``: reading it, or hiding the write of it from autograd."""
    hides = getattr(target, "__name__", "") == "_lower_version_count_by_1"
    get_data = torch._C._autograd._get_data_attr  # type: ignore[attr-defined]
    return target is get_data or (hides and target.__module__.startswith("torch._dynamo."))


def returns_nothing(target: OpOverload) -> bool:
    """Whether an operator has no results, and so must be called for its effect."""
    return not target._schema.returns


def argument(node: fx.Node, name: str) -> Any:
    """An argument of an operator call by the name in its schema; None where it is left to its default."""
    position = next(i for i, a in enumerate(node.target._schema.arguments) if a.name == name)
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


@functools.cache  # reading a schema makes an object of each of its arguments
def schema_arguments(target: OpOverload) -> tuple[tuple[str, bool, Any], ...]:
    """``(name, by keyword only, default)`` of an operator's arguments, in order."""
    return tuple((a.name, a.kwarg_only, a.default_value) for a in target._schema.arguments)


@functools.lru_cache(None)
def number_arguments(target: OpOverload) -> frozenset[str]:
    """Names of the arguments that take Python numbers, or tensors, for which numbers may stand."""
    kinds = ("number", "float", "Tensor")
    return frozenset(a.name for a in target._schema.arguments if any(kind in str(a.type) for kind in kinds))

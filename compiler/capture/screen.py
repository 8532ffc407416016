"""Inputs and calls that capture refuses before it traces, because recorded ATen calls would lose their meaning.

A recording contains the calls that reach torch's dispatcher. A Python function that changes the state of the process or
of autograd (streams, hooks, `.data`, `torch.func` transforms, functions that Dynamo does not trace into) would be
dropped silently. So functions that only call operators are listed, and all others are refused.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat import attention
from ...rewrites.reason import Reason

# Functions of these modules only call operators and compute sizes.
_MODULES = frozenset(
    ["torch", "torch.functional", "torch.nn.functional", "torch.linalg", "torch.special", "torch.fft", "torch._tensor"]
    + ["torch._refs", "torch._prims", "torch._jit_internal", "torch._VF", "_operator", "math", "builtins"]
    + ["torch._lowrank", "torch._linalg_utils", "torch.masked._ops", "torch.nn.grad", "torch.signal.windows.windows"]
    + [f"torch._C._{part}" for part in ("nn", "linalg", "fft", "special", "sparse")]
)
# Exceptions to that rule, by name: state of the process, and derivatives that a recorded graph would lose.
_STATEFUL = frozenset(
    """
    backward register_hook register_post_accumulate_grad_hook retain_grad requires_grad_ set_data share_memory_
    compile vmap seed manual_seed use_deterministic_algorithms setattr exec eval print open input
    """.split()  # noqa: SIM905
)
_STATEFUL_PREFIXES = ("set_default", "set_rng", "set_float32", "set_num", "set_flush", "set_warn", "_set_")
# Functions that set what all later programs see. AOTAutograd calls them while it traces, and never again.
_SETTERS = frozenset(
    """
    seed use_deterministic_algorithms _set_deterministic_algorithms set_deterministic_debug_mode
    set_default_dtype set_default_tensor_type set_default_device set_float32_matmul_precision set_num_threads
    set_flush_denormal set_warn_always set_rng_state set_autocast_enabled set_autocast_dtype set_autocast_cache_enabled
    set_autocast_cpu_enabled set_autocast_cpu_dtype set_autocast_gpu_dtype _set_cublas_allow_tf32
    _set_cudnn_allow_tf32 _set_mkldnn_enabled _set_float32_matmul_precision _set_fp32_precision_setter
    enable_flash_sdp enable_mem_efficient_sdp enable_math_sdp enable_cudnn_sdp allow_fp16_bf16_reduction_math_sdp
    """.split()  # noqa: SIM905
)
_ATTRIBUTES = frozenset(["data", "grad", "grad_fn", "_base", "_version"])
_OPERATORS_IN_PLACE = "add and floordiv lshift matmul mod mul or pow rshift sub truediv xor".split()  # noqa: SIM905
_SPECIAL_IN_PLACE = frozenset(["__setitem__", *(f"__i{name}__" for name in _OPERATORS_IN_PLACE)])


def screen(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Reason | None:
    """The reason why `gm` must not be traced on these inputs, or None."""
    if compat.functorch_active():
        return Reason("functorch-active", "compiled inside a torch.func transform")
    placeholders = gm.graph.find_nodes(op="placeholder")
    if len(placeholders) != len(example_inputs):
        return Reason(
            "arity", f"the graph has {len(placeholders)} placeholders, but {len(example_inputs)} inputs were given"
        )
    pairs = zip(placeholders, example_inputs, strict=True)
    reasons = itertools.chain(itertools.starmap(_refused_input, pairs), map(refused_call, gm.graph.nodes))
    return next((reason for reason in reasons if reason is not None), None)


def opaque_memory(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Reason | None:
    """The reason why `gm` must not be compiled, or None: tensors in oneDNN's own layout, whose fakes are strided."""
    inputs = zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=False)
    opaque = [node for node, value in inputs if isinstance(value, torch.Tensor) and value.is_mkldnn]
    opaque += gm.graph.find_nodes(op="call_method", target="to_mkldnn")
    message = "{} lies in memory as oneDNN wants it; the program runs as it was written"
    return Reason("opaque-memory", message.format(opaque[0].name), (opaque[0],)) if opaque else None


def sets_state(gm: fx.GraphModule) -> Reason | None:
    """The reason why `gm` must not be compiled, or None: a call that sets state of torch, as each run must do."""
    graphs = (module.graph for module in gm.modules() if isinstance(module, fx.GraphModule))
    calls = (node for graph in graphs for node in graph.nodes if node.op == "call_function")
    setter = next((node for node in calls if getattr(node.target, "__name__", "") in _SETTERS), None)
    if setter is None:
        return None
    message = f"{setter.target.__name__} sets state that later programs see; the program runs as it was written"
    return Reason("sets-state", message, (setter,))


def _refused_input(node: fx.Node, value: Any) -> Reason | None:
    if isinstance(value, torch.Tensor):
        return _refused_tensor(node, value)
    if value is None or isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return None
    if isinstance(value, (int, float, bool)):
        return Reason("number-input", f"input {node.name} is a Python number: tracing would fix its value", (node,))
    if compat.is_backward_state(value):
        return Reason("backward-state", "the graph carries backward hooks for compiled autograd", (node,))
    return Reason("object-input", f"input {node.name} is a {type(value).__name__}", (node,))


def _refused_tensor(node: fx.Node, value: torch.Tensor) -> Reason | None:
    if compat.is_fake_of_dynamo(value):
        return None
    if compat.is_fake(value):
        return Reason("fake-input", f"input {node.name} is a fake tensor of another FakeTensorMode", (node,))
    if type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or compat.is_renamed_tensor(value):
        return None
    return Reason("tensor-subclass", f"input {node.name} is a {type(value).__name__}", (node,))


def refused_call(node: fx.Node) -> Reason | None:
    """The reason why one of Dynamo's nodes must not be traced, or None."""
    if node.op == "call_method":
        return _refusal(node, f"Tensor.{node.target}") if _is_stateful(str(node.target)) else None
    if node.op != "call_function" or _is_plain(node.target, node.args):
        return None
    return _refusal(node, f"{getattr(node.target, '__module__', '')}.{getattr(node.target, '__name__', node.target)}")


def _refusal(node: fx.Node, name: str) -> Reason:
    if "_functorch" in name or name.endswith("_saved_tensors_hooks_disable"):  # grad, vjp and jacrev begin with it
        return Reason("functorch-transform", f"{name} belongs to a torch.func transform", (node,))
    return Reason("opaque-call", f"{name} may have effects beyond calling operators", (node,))


def _is_plain(target: Any, args: Sequence[Any]) -> bool:
    """Whether the operators that a call makes have all its effects, or `retrace.py` handles it by name."""
    if isinstance(target, (*compat.OPERATORS, compat.HigherOrderOperator)) or target in compat.SCOPES:
        return True
    if target in (attention.BACKEND_NAMED, attention.ALLOW_BACKENDS):
        return True
    if target is getattr:
        return args[1] not in _ATTRIBUTES
    name = getattr(target, "__name__", "")
    if isinstance(target, compat.TENSOR_METHODS):
        return not _is_stateful(name)
    if compat.is_data_call(target) or compat.is_numpy_call(target) or compat.asks_for_transforms(target):
        return True
    module = _module(target)
    return (module in _MODULES or module.startswith("torch.fx.")) and not _is_stateful(name)


def _module(target: Any) -> str:
    if getattr(operator, getattr(target, "__name__", ""), None) is target:
        return "_operator"
    return getattr(target, "__module__", None) or ""


def writes_in_place(method: str) -> bool:
    """Whether a method of tensors writes to its tensor: `add_`, `__iadd__`, but not `__add__`."""
    return method in _SPECIAL_IN_PLACE or (method.endswith("_") and not method.endswith("__"))


def _is_stateful(name: str) -> bool:
    return name in _STATEFUL or name.startswith(_STATEFUL_PREFIXES)

"""Dispatch: plain eager runs, modes, autocast, kernels of operators, decompositions."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from .operators import OpOverload


@contextlib.contextmanager
def plain_eager() -> Iterator[None]:
    """Real tensors and nothing else: suspends whatever a compilation or the user may have wrapped around eager torch.

    That is: dispatch modes (fake, proxy, functional; also before autograd), torch-function modes (default device),
    functorch transforms, functionalization, the Python dispatcher, autocast, inference mode, the tracing context. All
    of it is back on exit.
    """
    from torch._dispatch.python import no_python_dispatcher, suspend_functionalization
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
    from torch._guards import tracing
    from torch.utils._python_dispatch import _disable_current_modes

    suspended: tuple[Callable[[], Any], ...] = (
        _disable_current_modes,
        temporarily_clear_interpreter_stack,
        suspend_functionalization,
        no_python_dispatcher,
        torch._C.DisableTorchFunction,
        torch._C._DisableAutocast,
        lambda: torch.inference_mode(False),
        lambda: tracing(None),
    )
    with contextlib.ExitStack() as stack:
        for context in suspended:
            stack.enter_context(context())
        yield


def bare_calls(namespace: str, *names: str) -> SimpleNamespace:
    """Operators of `torch.ops.<namespace>` by ``packet.overload``, bound to their C++ entry: one Python frame less.

    >>> aten = bare_calls("aten", "add.Tensor", "view.default")
    >>> aten.add.Tensor(x, y)
    """
    bound = SimpleNamespace()
    operators = getattr(torch.ops, namespace)
    for name in names:
        packet, overload = name.split(".")
        target = getattr(getattr(operators, packet), overload)
        # Operators of script objects decide in Python how to dispatch; they keep their own call.
        call = target._op if type(target) is torch._ops.OpOverload else target
        if not hasattr(bound, packet):
            setattr(bound, packet, SimpleNamespace())
        setattr(getattr(bound, packet), overload, call)
    return bound


def no_dispatch_modes() -> contextlib.AbstractContextManager[Any]:
    """Suspend all dispatch modes: fake tensors, recorders, the user's own."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


@contextlib.contextmanager
def no_function_modes() -> Iterator[None]:
    """Suspend all torch-function modes, the recorder's among them."""
    from torch.overrides import _len_torch_function_stack, _pop_mode, _push_mode

    modes = [_pop_mode() for _ in range(_len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)


def indexing_by_tensors() -> contextlib.AbstractContextManager[Any]:
    """Let ``x[i]`` of a scalar tensor `i` be a call of an operator rather than a view at a known place."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    return TransformGetItemToIndex()


@contextlib.contextmanager
def not_recorded() -> Iterator[None]:
    """Run tensor code on the fakes of a trace without recording it."""
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    with disable_proxy_modes_tracing(), no_function_modes():
        yield


def kernels_of_torch() -> contextlib.AbstractContextManager[Any]:
    """Call the kernels that operators have in C++, autograd's among them, where tracing has others in Python."""
    from torch._dispatch.python import no_python_dispatcher

    return no_python_dispatcher()


def functorch_active() -> bool:
    """Whether a `torch.func` transform (vmap, grad, jvp) is running."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def forward_ad_active() -> bool:
    """Whether tensors may carry tangents: `torch.autograd.forward_ad.dual_level` is entered."""
    return torch.autograd.forward_ad._current_level >= 0


def functionalizing() -> bool:
    """Whether tensors are wrapped by `torch.func.functionalize`, which AOTAutograd does not take."""
    from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

    if not functorch_active():
        return False
    functionalize = torch._C._functorch.TransformType.Functionalize
    return any(found.key() == functionalize for found in retrieve_all_functorch_interpreters())


def autocast_kernel(operator: Any, devices: Sequence[str]) -> Any:
    """The dispatch key under which `operator` has a kernel that casts, for the first of `devices` with autocast on."""
    for device in devices:
        key = getattr(torch._C.DispatchKey, f"Autocast{device.upper()}", None)
        if key is None or not torch.is_autocast_enabled(device):
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key.name):
            return key
    return None


def autocast_on() -> bool:
    """Whether autocast is enabled for any device."""
    return torch._C._is_any_autocast_enabled()


def autocast_off() -> contextlib.AbstractContextManager[Any]:
    """Switch autocast off for all devices, until exit."""
    return torch._C._DisableAutocast()


def run_kernel(operator: Any, key: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call the kernel that `operator` has under a dispatch key."""
    return operator._op_dk(key, *args, **kwargs)


def is_composite(operator: Any) -> bool:
    """Whether an operator is made of others that autograd sees one by one."""
    return operator._can_decompose()


def is_split_by_autograd(operator: Any) -> bool:
    """Whether AOTAutograd traces an operator as others that Python makes it of, whatever decompositions it is given."""
    return torch._C.DispatchKey.Autograd in getattr(operator, "py_kernels", ())


def decomposition(target: OpOverload) -> Callable[..., Any] | None:
    """How an operator is made of core ATen operators, where torch says so."""
    return _registered().get(target) or _decompositions().get(target)


@functools.cache
def _registered() -> Mapping[Any, Callable[..., Any]]:
    """The part of `_decompositions` that is there without looking at every operator, which takes 0.07 s."""
    from torch._decomp import _core_aten_decompositions_post_autograd

    return _core_aten_decompositions_post_autograd()


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions())

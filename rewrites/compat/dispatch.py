"""Dispatch: plain eager runs, modes, autocast, kernels of operators, decompositions."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

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


def guard_the_rest(program: fx.GraphModule) -> None:
    """Have Dynamo compile anew where numbers and modes have changed that it does not look at."""
    guard_forward_ad()
    guard_zeros()
    guard_autocast_dtypes(program)
    guard_hooks_of_all_modules()
    guard_hooks_of_modules(program)


def guard_forward_ad() -> None:
    """Have Dynamo compile a program anew where tensors may carry tangents, and where not; it does not by itself."""
    context = torch._guards.TracingContext.try_get()
    if context is None:
        return
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.source import GlobalStateSource

    guard = torch._guards.Guard(GlobalStateSource(), GuardBuilder.DUAL_LEVEL)
    context.guards_context.dynamo_guards.add(guard)


def guard_zeros() -> None:
    """Have Dynamo compile a program anew for -0.0 where it was compiled for 0.0, and the reverse: to it they are equal.

    Of numbers of layers of torch (the probability of a dropout) it does not ask.
    """
    context = torch._guards.TracingContext.try_get()
    if context is None:
        return
    found = context.guards_context.dynamo_guards
    sources = {guard.originating_source for guard in found if guard.create_fn_name() in _OF_VALUES}
    for source in sources:
        if not source.guard_source.is_unspecialized_builtin_nn_module():
            found.add(torch._guards.Guard(source, _guard_zero))


_OF_VALUES = ("CONSTANT_MATCH", "EQUALS_MATCH", "TYPE_MATCH")


def _guard_zero(builder: Any, guard: Any) -> None:
    """Guard the sign of a float that is zero."""
    from torch._dynamo.guards import get_verbose_code_parts

    value = builder.get(guard)
    if type(value) is not float or value != 0:
        return
    sign = math.copysign(1, value)
    text = f"{guard.name} has the sign of {value}"
    parts = get_verbose_code_parts(text, guard)
    manager = builder.get_guard_manager(guard)
    alone = sign < 0 and guard.create_fn_name() == "TYPE_MATCH"  # as `has_negative_zeros` says, it runs as written
    check = lambda x: math.copysign(1, x) == sign if x == 0 else not alone  # noqa: E731
    try:
        manager.add_lambda_guard(check, parts, guard.user_stack)
    except TypeError:  # torch 2.11
        manager.add_lambda_guard(check, parts)


def has_negative_zeros(program: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a float of which Dynamo has made an input is -0.0 now: as a constant, torch makes it 0.0."""
    placeholders = zip(program.graph.find_nodes(op="placeholder"), inputs, strict=False)
    floats = [x for node, x in placeholders if getattr(node.meta.get("grapharg"), "is_tensor", True) is False]
    known = [x.item() for x in floats if type(x) is torch.Tensor and x.dtype == torch.float64 and not x.dim()]
    return any(n == 0 and math.copysign(1, n) < 0 for n in known)


def guard_autocast_dtypes(program: fx.GraphModule) -> None:
    """Have Dynamo compile anew where a program that enters autocast itself gets another dtype by default."""
    entered = program.graph.find_nodes(op="call_function", target=torch.amp.autocast_mode._enter_autocast)
    devices = sorted({node.args[0] for node in entered if node.args})
    if devices:
        guard_equal(lambda: [torch.get_autocast_dtype(device) for device in devices], "the dtypes of autocast are")


def guard_hooks_of_all_modules() -> None:
    """Have Dynamo compile anew where hooks of all modules are registered or removed: it guards no hooks."""
    from torch.nn.modules import module as modules

    names = [name for name in vars(modules) if name.startswith("_global_") and name.endswith("_hooks")]
    hooks = [known for name in names if isinstance(known := getattr(modules, name), dict)]
    guard_equal(lambda: [list(known.values()) for known in hooks], "the hooks of all modules are")


def guard_hooks_of_modules(program: fx.GraphModule) -> None:
    """Have Dynamo compile anew where a module has got hooks, or one with hooks is in its place.

    By default Dynamo finds modules without hooks, and guards only the hooks of others. Each guard takes 0.03 us in
    every call: there are none for dicts that follow others, nor for hooks of a backward where there is none.
    """
    context = torch._guards.TracingContext.try_get()
    if context is None:
        return
    from torch._dynamo.guards import GuardBuilder

    switched = program.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)
    backward = torch.is_grad_enabled() or bool(switched)
    kinds = _HOOKS_OF_MODULES if backward else _HOOKS_OF_MODULES[:2]
    found = context.guards_context.dynamo_guards
    empty = [guard.originating_source for guard in found if guard.create_fn_name() == "EMPTY_NN_MODULE_HOOKS_DICT"]
    for source in empty:
        if getattr(source, "member", "") in kinds:
            found.add(torch._guards.Guard(source, GuardBuilder.SEQUENCE_LENGTH))


_HOOKS_OF_MODULES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def guard_equal(read: Callable[[], Any], text: str) -> None:
    """Have Dynamo compile anew where something global that `read` gives is not as now."""
    context = torch._guards.TracingContext.try_get()
    if context is None:
        return
    from torch._dynamo.source import GlobalStateSource

    now = read()

    def add(builder: Any, guard: Any) -> None:  # noqa: ARG001
        root, parts = builder.guard_manager.root, [f"{text} {now}"]
        try:
            root.add_lambda_guard(lambda _: read() == now, parts, None)
        except TypeError:  # torch 2.11
            root.add_lambda_guard(lambda _: read() == now, parts)

    context.guards_context.dynamo_guards.add(torch._guards.Guard(GlobalStateSource(), add))


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


def autocast_as_compiled() -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """The autocast in which AOTAutograd runs a graph that is compiled now: none if it is on, else as it is then."""
    return autocast_off if torch._C._is_any_autocast_enabled() else contextlib.nullcontext


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

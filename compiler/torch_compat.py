"""The one place that touches torch's internals, so that a torch release changes one file (torch 2.11 to 2.15).

Every function here wraps exactly one internal fact of torch and says which. Nothing else under `regraft` may use a
private name of torch.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

OpOverload = torch._ops.OpOverload
HigherOrderOperator = torch._ops.HigherOrderOperator


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


def without_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as Dynamo leaves it alone, with all that it calls."""
    # Disabling imports Dynamo, a second or two; where it was never imported, nothing can be compiled.
    return torch.compiler.disable(function) if "torch._dynamo" in sys.modules else function


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is metadata only, as compilers trace with."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


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


def is_mutable(target: OpOverload) -> bool:
    """Whether an operator writes to an argument."""
    return target._schema.is_mutable


def is_registered(target: HigherOrderOperator) -> bool:
    """Whether `torch.ops.higher_order` leads to `target` by its name."""
    return getattr(torch.ops.higher_order, target.__name__, None) is target


# --- capture: tracing below Python and above autograd ----------------------------------------------------------------

OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
# Methods of tensors as C++ defines them.
TENSOR_METHODS = (type(torch._C.TensorBase.add), type(torch._C.TensorBase.__add__))
NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint
CHECKPOINT_POLICY = "_checkpoint_context_fn"  # where the body of a selective one holds what decides about operators

# What Dynamo puts in a graph for scopes: (enter, leave) of autocast and of inference mode, and the setter of grad mode.
AUTOCAST_SCOPE = (torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast)
INFERENCE_SCOPE = (torch.autograd.grad_mode._enter_inference_mode, torch.autograd.grad_mode._exit_inference_mode)
SET_GRAD_MODE = torch._C._set_grad_enabled
SCOPES = (*AUTOCAST_SCOPE, *INFERENCE_SCOPE, SET_GRAD_MODE, torch._C._log_api_usage_once)


def trace_before_dispatch(function: Callable[..., Any], inputs: Sequence[Any]) -> fx.GraphModule:
    """Record `function` as ATen calls that nothing has decomposed yet, each node with its caller's metadata."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.traceback import preserve_node_meta

    with preserve_node_meta():
        return make_fx(function, pre_dispatch=True)(*inputs)


def lazy_module(root: Any, graph: fx.Graph, name: str) -> fx.GraphModule:
    """A graph module whose Python code is written when somebody calls or reads it, not at each change of its graph."""
    from torch.fx import _lazy_graph_module

    return _lazy_graph_module._LazyGraphModule(root, graph, class_name=name)


def recorder() -> Any:
    """The tracing mode of `trace_before_dispatch`, to be asked inside the traced function.

    It has a `tracer` (nodes, proxies).
    """
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return get_proxy_mode()


def wrap_decompositions(recorder: Any, wrap: Callable[[Any], Any]) -> None:
    """Replace the recorder's table of decompositions for the rest of a recording."""
    from torch.fx.experimental import proxy_tensor

    if hasattr(recorder, "decomposition_table"):
        recorder.decomposition_table = wrap(recorder.decomposition_table)
    else:  # up to torch 2.12 the table is global, and set back when the recording ends
        proxy_tensor.CURRENT_DECOMPOSITION_TABLE = wrap(proxy_tensor.CURRENT_DECOMPOSITION_TABLE)


def track(value: Any, node: fx.Node, tracer: Any) -> Any:
    """Make `node` stand for `value` (tensors, symbolic numbers, nested) from now on; sets the node's ``val``."""
    from torch.fx.experimental.proxy_tensor import track_tensor_tree

    return track_tensor_tree(value, fx.Proxy(node, tracer), constant=None, tracer=tracer)


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


def new_fake_mode(shape_env: Any) -> Any:
    """A fake tensor mode like the one Dynamo makes for its backend; `shape_env` None means static sizes."""
    import torch._functorch.config as functorch_config
    from torch._subclasses.fake_tensor import FakeTensorMode

    with functorch_config.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
        return FakeTensorMode(shape_env=shape_env)


def correct_fakes(fake_mode: Any, correct: Callable[[Any, Sequence[Any], dict[str, Any], Any], Any]) -> None:
    """Have ``correct(operator, args, kwargs, result)`` give what operators give in a fake mode, from now on."""
    dispatch = fake_mode.dispatch
    if getattr(dispatch, "corrects", False):
        return

    def corrected(func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        result = dispatch(func, types, args, kwargs or {})
        return correct(func, args, kwargs or {}, result)

    corrected.corrects = True  # type: ignore[attr-defined]
    fake_mode.dispatch = corrected  # of this mode alone, which belongs to one compilation


def tracing_context() -> Any:
    """Dynamo's facts on the compilation under way (``fake_mode``, ``tensor_to_context``), or None outside of one."""
    from torch._guards import TracingContext

    return TracingContext.try_get()


@contextlib.contextmanager
def borrowed_context(fake_mode: Any) -> Iterator[None]:
    """Let the tracing context speak of `fake_mode`, and keep what tracing leaves in its caches out of it."""
    from torch._guards import HopDispatchSetCache

    context = tracing_context()
    if context is None:
        yield
        return
    before = context.fake_mode, context.hop_dispatch_set_cache
    context.fake_mode, context.hop_dispatch_set_cache = fake_mode, HopDispatchSetCache()
    try:
        yield
    finally:
        context.fake_mode, context.hop_dispatch_set_cache = before


def fake_of(tensor: torch.Tensor, fake_mode: Any) -> torch.Tensor | None:
    """The fake of a real input, its sizes Dynamo's own symbols; None where Dynamo does not know the tensor."""
    if fake_mode.shape_env is None:
        return fake_mode.from_tensor(tensor)
    context = tracing_context()
    symbols = None if context is None else context.tensor_to_context.get(tensor)
    if symbols is None:
        return None
    return fake_mode.from_tensor(tensor, symbolic_context=symbols, source=symbols.tensor_source, trace=False)


def replaced_tensors(
    module: torch.nn.Module, tensors: dict[str, torch.Tensor]
) -> contextlib.AbstractContextManager[Any]:
    """Put `tensors` in the place of a module's parameters and buffers of these qualified names, until exit."""
    from torch.nn.utils import stateless

    return stateless._reparametrize_module(module, tensors)


def rename_unbacked(fake_mode: Any, node: fx.Node, result: Any) -> None:
    """Give data-dependent sizes that running `node` again made the names that they have in the node's metadata."""
    from torch.fx.experimental.symbolic_shapes import rebind_unbacked

    if fake_mode.shape_env is not None and node.meta.get("unbacked_bindings"):
        rebind_unbacked(fake_mode.shape_env, node, result)


@contextlib.contextmanager
def forget_new_symbols_on_error(shape_env: Any) -> Iterator[None]:
    """A trace that fails leaves no data-dependent sizes that wait to be bound to a node."""
    pending = list(getattr(shape_env, "pending_fresh_unbacked_symbols", ()))
    try:
        yield
    except BaseException:
        if hasattr(shape_env, "pending_fresh_unbacked_symbols"):
            shape_env.pending_fresh_unbacked_symbols[:] = pending
        raise


def saved_tensor_hooks_off() -> contextlib.AbstractContextManager[Any]:
    """Keep the user's saved-tensor hooks (offloading to the CPU, say) away from the fakes of a trace."""
    from torch._dynamo.utils import _disable_saved_tensors_hooks_during_tracing

    return _disable_saved_tensors_hooks_during_tracing()


def is_numpy_call(target: Any) -> bool:
    """Whether Dynamo has put a NumPy call here, to be run as operators on tensors (random numbers are not)."""
    import torch._numpy
    from torch._dynamo import utils

    if isinstance(target, utils.numpy_to_tensor_wrapper):
        return getattr(torch._numpy, target.f.__name__, None) is target.f
    return target is utils.numpy_attr_wrapper or isinstance(
        target, (utils.numpy_method_wrapper, utils.numpy_operator_wrapper)
    )


def is_data_call(target: Any) -> bool:
    """Whether a call belongs to ``tensor.data``: reading it, or hiding the write of it from autograd."""
    hides = getattr(target, "__name__", "") == "_lower_version_count_by_1"
    get_data = torch._C._autograd._get_data_attr  # type: ignore[attr-defined]
    return target is get_data or (hides and target.__module__.startswith("torch._dynamo."))


def functorch_active() -> bool:
    """Whether a `torch.func` transform (vmap, grad, jvp) is running."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_backward_state(value: Any) -> bool:
    """Whether an input carries hooks from forward to backward for compiled autograd."""
    from torch.fx.experimental._backward_state import BackwardState

    return isinstance(value, BackwardState)


def is_custom_function(grad_fn: Any) -> bool:
    """Whether a node of the autograd graph was made by a user's `torch.autograd.Function`."""
    return isinstance(grad_fn, torch.autograd.function.BackwardCFunction)


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


@contextlib.contextmanager
def quiet_fakes() -> Iterator[None]:
    """Let calls on fake tensors fail without a log entry."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def run_kernel(operator: Any, key: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call the kernel that `operator` has under a dispatch key."""
    return operator._op_dk(key, *args, **kwargs)


def is_composite(operator: Any) -> bool:
    """Whether an operator is made of others that autograd sees one by one."""
    return operator._can_decompose()


def compile_lock() -> contextlib.AbstractContextManager[Any]:
    """Dynamo's lock, which it holds while it compiles: other threads wait for their turn."""
    from torch._dynamo import convert_frame

    return convert_frame.compile_lock


def tracing_apart() -> contextlib.AbstractContextManager[Any]:
    """What AOTAutograd traces inside is a program of its own, all of whose sizes are numbers."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return torch._guards.tracing(torch._guards.TracingContext(FakeTensorMode()))


def dynamo_signal() -> type[BaseException]:
    """What Dynamo raises to itself through a backend: to start a frame anew, or to leave it to Python."""
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException


def compile_name() -> str:
    """Name of the compilation in progress: Dynamo's frame and attempt, e.g. ``"graph 0/1"``."""
    current = torch._guards.CompileContext.current_compile_id()
    return f"graph {current}" if current is not None else "graph"


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


def adopt_name(node: fx.Node, source: fx.Node) -> None:
    """Give a placeholder the name of another graph's, and the place in the user's program that Dynamo has it from."""
    node._rename(source.name)
    node.target = source.target
    if hasattr(source, "_dynamo_source"):
        node._dynamo_source = source._dynamo_source  # type: ignore[attr-defined]


def has_plain_signature(graph: fx.Graph) -> bool:
    """Whether the inputs and outputs of a graph are its placeholders and its output node, not trees of them."""
    return type(graph._codegen) is fx.CodeGen


def returns_nothing(target: OpOverload) -> bool:
    """Whether an operator has no results, and so must be called for its effect."""
    return not target._schema.returns


def attribute(module: torch.nn.Module, qualified_name: str) -> Any:
    """An attribute of a module or of its submodules."""
    return functools.reduce(getattr, qualified_name.split("."), module)


def argument(node: fx.Node, name: str) -> Any:
    """An argument of an operator call by the name in its schema; None where it is left to its default."""
    position = next(i for i, a in enumerate(node.target._schema.arguments) if a.name == name)
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


def capture_function(
    function: Callable[..., Any], operands: Sequence[Any], *, dynamic: bool
) -> tuple[fx.GraphModule, list[int]]:
    """The ATen graph of a function of tensors and constants, and the places of the operands that are its inputs."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    places = [i for i, o in enumerate(operands) if isinstance(o, torch.Tensor)]
    fakes = [mode.from_tensor(operands[i], static_shapes=not dynamic) for i in places]

    def run(*values: Any) -> Any:
        given = list(operands)
        for i, value in zip(places, values, strict=True):
            given[i] = value
        return function(*given)

    with mode:
        return trace_before_dispatch(run, fakes), places


@functools.cache  # reading a schema makes an object of each of its arguments
def schema_arguments(target: OpOverload) -> tuple[tuple[str, bool, Any], ...]:
    """``(name, by keyword only, default)`` of an operator's arguments, in order."""
    return tuple((a.name, a.kwarg_only, a.default_value) for a in target._schema.arguments)


@functools.lru_cache(None)
def number_arguments(target: OpOverload) -> frozenset[str]:
    """Names of the arguments that take Python numbers, or tensors, for which numbers may stand."""
    kinds = ("number", "float", "Tensor")
    return frozenset(a.name for a in target._schema.arguments if any(kind in str(a.type) for kind in kinds))


def decomposition(target: OpOverload) -> Callable[..., Any] | None:
    """How an operator is made of core ATen operators, where torch says so."""
    return _decompositions().get(target)


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions())


def fake_mode_of(tensors: Sequence[Any]) -> Any:
    """The fake mode that tensors belong to, None where there is none."""
    from torch._guards import detect_fake_mode

    return detect_fake_mode(list(tensors))


def has_symbols(tensor: torch.Tensor) -> bool:
    """Whether a tensor's shape holds symbolic sizes."""
    return any(isinstance(n, torch.SymInt) for n in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))


def is_module_state(placeholder: fx.Node) -> bool:
    """Whether an input of Dynamo's graph is a tensor that a module holds, at no address that others rely on."""
    return placeholder.meta.get("tensor_dict", {}).get("_dynamo_static_input_type") == "unguarded"

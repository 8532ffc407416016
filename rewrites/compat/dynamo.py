"""Dynamo: its lock, its signals, and what it says of graphs and their inputs."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import sympy
import torch
from torch import fx


def without_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as Dynamo leaves it alone, with all that it calls."""
    # Disabling imports Dynamo, a second or two; where it was never imported, nothing can be compiled.
    return torch.compiler.disable(function) if "torch._dynamo" in sys.modules else function


def saved_tensor_hooks_off() -> contextlib.AbstractContextManager[Any]:
    """Keep the user's saved-tensor hooks (offloading to the CPU, say) away from the fakes of a trace."""
    from torch._dynamo.utils import _disable_saved_tensors_hooks_during_tracing

    return _disable_saved_tensors_hooks_during_tracing()


def is_called_plainly(module: torch.nn.Module) -> bool:
    """Whether a call of a module is a call of its class's `forward`, without hooks of it or of all modules."""
    from torch.nn.modules import module as modules

    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooked = any(getattr(module, kind, None) for kind in kinds) or modules._has_any_global_hook()
    own = "forward" in vars(module) or type(module).__call__ is not torch.nn.Module.__call__
    return not hooked and not own and module._compiled_call_impl is None


def is_numpy_call(target: Any) -> bool:
    """Whether Dynamo has put a NumPy call here, to be run as operators on tensors (random numbers are not)."""
    import torch._numpy
    from torch._dynamo import utils

    if isinstance(target, utils.numpy_to_tensor_wrapper):
        modules = (torch._numpy, torch._numpy.linalg, torch._numpy.fft)
        return any(known is target.f for m in modules for known in vars(m).values())  # `power` is named `pow` there
    return target is utils.numpy_attr_wrapper or isinstance(
        target, (utils.numpy_method_wrapper, utils.numpy_operator_wrapper)
    )


def asks_for_transforms(target: Any) -> bool:
    """Whether a call only asks whether a transform of `torch.func` is active: libraries do, and Dynamo records it."""
    return target is torch._C._are_functorch_transforms_active


def compile_lock() -> contextlib.AbstractContextManager[Any]:
    """Dynamo's lock, which it holds while it compiles: other threads wait for their turn."""
    from torch._dynamo import convert_frame

    return convert_frame.compile_lock


class _Backends(dict[str, Any]):
    """Dynamo's backends by name, of which ours may be registered more than once.

    Threads that look a backend up at once, for the first time, all import and register it: to Dynamo the second is an
    error.
    """

    def __contains__(self, name: object) -> bool:
        registering = sys._getframe(1).f_code.co_name == "register_backend"
        return super().__contains__(name) and not (registering and name == "regraft")


def complete_torch() -> None:
    """Add what torch lacks for our backend, once and for all."""
    _allow_lookups_at_once()
    _let_floats_have_remainders()


def _allow_lookups_at_once() -> None:
    """Let several threads name our backend for the first time at once."""
    from torch._dynamo.backends import registry

    known = getattr(registry, "_COMPILER_FNS", None)
    if type(known) is dict:
        registry._COMPILER_FNS = _Backends(known)


def _let_floats_have_remainders() -> None:
    """Let AOTAutograd compute remainders of floats that change (``x * (n % 0.7)``): torch lacks it, and raises."""
    from torch.utils._sympy.reference import TensorReferenceAnalysis

    if not hasattr(TensorReferenceAnalysis, "python_mod"):
        TensorReferenceAnalysis.python_mod = staticmethod(torch.ops.aten.remainder.Tensor)  # type: ignore[attr-defined]


@functools.cache
def finish_before_forks() -> None:
    """Let a fork wait until no thread compiles: in the child nobody would ever release Dynamo's lock."""
    if hasattr(os, "register_at_fork"):
        lock: Any = compile_lock()
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


def recompile_reason() -> str:
    """The guard that failed, where Dynamo compiles the frame in progress again; "" where it does not."""
    from torch._dynamo import utils

    context = getattr(utils, "get_metrics_context", lambda: None)()
    return str(getattr(context, "_metrics", {}).get("recompile_reason") or "")


def graph_break(gm: Any) -> tuple[str, list[Any]]:
    """Why Dynamo ended a graph before the program did, and the frames of the user's program; "" where it did not."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is None or not getattr(reason, "graph_break", False):
        return "", []
    return str(reason.reason), list(reason.user_stack)


def dynamo_signal() -> type[BaseException]:
    """The exception that Dynamo raises to itself through a backend: to start a frame anew, or to leave it to Python."""
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException


def wants_whole_graph() -> bool:
    """Whether Dynamo may not leave any of the frame in progress to Python (`fullgraph=True`), or is not at work."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        frame = InstructionTranslator.current_tx()
    except AttributeError:
        return True
    if frame is None:  # torch 2.11 raises nothing outside of Dynamo
        return True
    return bool(frame.one_graph or getattr(frame, "error_on_graph_break", False))


def leave_to_python(message: str) -> NoReturn:
    """Have Dynamo run the frame in progress as it was written, and compile the functions that it calls."""
    from torch._dynamo.exc import SkipFrame

    raise SkipFrame(message)


def verifies_results() -> bool:
    """Whether Dynamo calls what is compiled once to compare its results, with the symbols that it was compiled for."""
    return bool(torch._dynamo.config.verify_correctness)


def forget_fixed_floats() -> None:
    """Have Dynamo treat the floats of further programs as numbers that change.

    Where AOTAutograd could not keep a float symbolic, Dynamo traces the program again with its value, and from then on
    takes floats with this name for constants, in all programs: it compiles them anew for each value, and writes 0.0 for
    -0.0. While it splits a graph for DDP it needs them for the parts to come: without them it would begin anew at each.
    """
    from torch._dynamo.symbolic_convert import TensorifyState
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is None or not context.fakify_first_call:
        TensorifyState.clear()


_BROADCASTS = frozenset(("infer_size", "_broadcast_shapes", "_broadcast_in_dim_meta"))  # functions of torch


def assumed_equal(shape_env: Any) -> list[Any]:
    """The equations that torch has assumed of data-dependent sizes, since they are no broadcast if not known to be 1.

    Eager broadcasts a size of 1; the compiled program raises an error for it. Equations of the inputs' sizes alone are
    no such assumptions (under `prefer_deferred_runtime_asserts_over_guards` they are asserted, otherwise guards).
    """
    known = getattr(shape_env, "deferred_runtime_asserts", {}).values()
    asserts = [made for several in known for made in several if isinstance(made.expr, sympy.Eq)]
    asserts = [made for made in asserts if any(map(shape_env.is_unbacked_symint, made.expr.free_symbols))]
    return [made.expr for made in asserts if any(f.name in _BROADCASTS for f in made.stack.summary())]


def knows_values(shape_env: Any) -> bool:
    """Whether something is known of the value of an input (of a tensor, of a float): its sizes do not count.

    Dynamo has a symbol for the value of each integer tensor without dims, such as the counter of a BatchNorm; mostly
    nobody asks for it. What is asked becomes a guard, and the symbol may then be in no graph.
    """
    from torch._dynamo.source import TensorPropertySource

    known = getattr(shape_env, "var_to_sources", {})
    values = {
        symbol for symbol, sources in known.items() if not all(isinstance(s, TensorPropertySource) for s in sources)
    }
    if not values:
        return False
    asked = [guard.expr for guard in shape_env.guards]
    fixed = [symbol for pair in shape_env.replacements.items() for symbol in pair]
    late = [each.expr for asserts in shape_env.deferred_runtime_asserts.values() for each in asserts]
    return any(not values.isdisjoint(expression.free_symbols) for expression in (*asked, *fixed, *late))


def compile_name() -> str:
    """Name of the compilation in progress: Dynamo's frame and attempt, e.g. ``"graph 0/1"``."""
    current = torch._guards.CompileContext.current_compile_id()
    return f"graph {current}" if current is not None else "graph"


def adopt_name(node: fx.Node, source: fx.Node) -> None:
    """Give a placeholder the name of another graph's, and the place in the user's program that Dynamo has it from."""
    node._rename(source.name)
    node.target = source.target
    adopt_source(node, source)


def adopt_source(node: fx.Node, source: fx.Node) -> None:
    """Give a placeholder Dynamo's note on where another one comes from in the user's program."""
    if hasattr(source, "_dynamo_source"):
        node._dynamo_source = source._dynamo_source  # type: ignore[attr-defined]


def adopt_signature(graph: fx.Graph, source: fx.Graph) -> None:
    """Give a graph the signature of another: trees of inputs and outputs, where it has them."""
    graph._codegen = source._codegen


def is_erased(node: fx.Node) -> bool:
    """Whether a node has been removed from its graph."""
    return node._erased


def mark_boxed(function: Any) -> None:
    """Tell AOTAutograd that a function takes its inputs as one list, which it empties."""
    function._boxed_call = True


def has_plain_signature(graph: fx.Graph) -> bool:
    """Whether the inputs and outputs of a graph are its placeholders and its output node, not trees of them."""
    return type(graph._codegen) is fx.CodeGen


def attribute(module: torch.nn.Module, qualified_name: str) -> Any:
    """An attribute of a module or of its submodules."""
    return functools.reduce(getattr, qualified_name.split("."), module)


def is_module_state(placeholder: fx.Node) -> bool:
    """Whether an input of Dynamo's graph is a tensor that a module holds, at no address that others rely on."""
    return placeholder.meta.get("tensor_dict", {}).get("_dynamo_static_input_type") == "unguarded"


def is_held(placeholder: fx.Node) -> bool:
    """Whether an input of Dynamo's graph is a tensor that a module or an optimizer holds."""
    return "_dynamo_static_input_type" in placeholder.meta.get("tensor_dict", {})


def alike(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A check that as many tensors have the classes, dtypes, devices, sizes and strides of these.

    It is Dynamo's own, takes a tenth of a microsecond for each tensor, and also fails for one tensor given twice.
    """
    from torch._C._dynamo.guards import TensorGuards

    sizes: Any = [list(x.shape) for x in tensors]
    strides: Any = [list(x.stride()) for x in tensors]
    check: Callable[..., bool] = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check


def guard_alike(tensors: Sequence[torch.Tensor]) -> None:
    """Have Dynamo compile anew where these tensors have got other dtypes, sizes or strides (`x.data = y`).

    Also where some had one gradient, of which the step of an optimizer makes one input, and have got several.
    """
    context = torch._guards.TracingContext.try_get()
    if context is None or not tensors:
        return
    from torch._dynamo.source import GlobalStateSource

    seen_by, one = [weakref.ref(x) for x in tensors], _with_one_gradient(tensors)

    def add(builder: Any, guard: Any) -> None:  # noqa: ARG001
        same, root = alike([x for seen in seen_by if (x := seen()) is not None]), builder.guard_manager.root

        def holds(_: Any) -> bool:
            now: list[Any] = list(map(operator.call, seen_by))
            return same(*now) and all(now[a].grad is now[b].grad for a, b in one)

        parts = [f"dtypes, sizes and strides of what the graph holds ({len(seen_by)}) are as they were"]
        try:
            root.add_lambda_guard(holds, parts, None)
        except TypeError:  # before there were user stacks
            root.add_lambda_guard(holds, parts)

    context.guards_context.dynamo_guards.add(torch._guards.Guard(GlobalStateSource(), add))


def _with_one_gradient(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Pairs of tensors that have the same gradient."""
    first: dict[int, int] = {}
    gradients = [(k, x.grad) for k, x in enumerate(tensors) if x.is_leaf and x.grad is not None]
    pairs = [(first.setdefault(id(gradient), k), k) for k, gradient in gradients]
    return [(a, b) for a, b in pairs if a != b]


def held_while_needed(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A list of tensors that a graph holds, which Dynamo empties when the optimizer that they belong to is gone."""
    context, held = torch._guards.TracingContext.try_get(), list(tensors)
    if context is not None:
        context.params_flat = held
    return held


def on_reset(backend: Callable[..., Any], action: Callable[[], None]) -> None:
    """Have ``torch._dynamo.reset`` call `action` where this backend was used: it looks for an attribute `reset`."""
    backend.reset = action  # type: ignore[attr-defined]


def dynamo_seconds() -> float:
    """Seconds that Dynamo itself has spent on all compilations of this process so far, without its backends."""
    if "torch._dynamo" not in sys.modules:
        return 0.0
    from torch._dynamo.utils import compilation_time_metrics

    spent = {key: sum(times) for key, times in compilation_time_metrics.items()}
    return max(spent.get("_compile.compile_inner", 0.0) - spent.get("OutputGraph.call_user_compiler", 0.0), 0.0)

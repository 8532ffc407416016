"""Tracing: recorders, fake tensors and the facts of the compilation under way."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import fx

from .tensors import is_fake


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


def new_fake_mode(shape_env: Any) -> Any:
    """A fake tensor mode like the one Dynamo makes for its backend; `shape_env` None means static sizes."""
    import torch._functorch.config as functorch_config
    from torch._subclasses.fake_tensor import FakeTensorMode

    with functorch_config.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
        return FakeTensorMode(shape_env=shape_env)


def _counted_from_the_left(func: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a call, negative dims of a norm as the dims that they mean.

    torch 2.11's metadata keeps a dim of size 1 that a negative number names:

        linalg_vector_norm(x, 2, [-2]), x of sizes [2, 1, 2]      fake: [2, 1, 2]      eager: [2, 2]
    """
    if func is not torch.ops.aten.linalg_vector_norm.default or len(args) < 3 or not args[2]:
        return args
    x, order, dims, *rest = args
    return (x, order, [d + x.dim() if d < 0 else d for d in dims], *rest)


def correct_fakes(
    fake_mode: Any,
    correct: Callable[[Any, Sequence[Any], dict[str, Any], Any], Any],
    instead: Callable[[Any, Sequence[Any]], Any] = lambda func, args: None,
) -> None:
    """Have ``correct(operator, args, kwargs, result)`` give what operators give in a fake mode, from now on.

    Args:
        fake_mode: the mode.
        correct: called for each operator, after torch's metadata.
        instead: ``instead(operator, args)`` gives the result where torch's metadata raises, and None elsewhere.
    """
    dispatch = fake_mode.dispatch
    if getattr(dispatch, "corrects", False):
        return

    def corrected(func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        args = _counted_from_the_left(func, args)
        result = instead(func, args)
        if result is None:
            result = dispatch(func, types, args, kwargs or {})
        return correct(func, args, kwargs or {}, result)

    corrected.corrects = True  # type: ignore[attr-defined]
    fake_mode.dispatch = corrected  # of this mode alone, which belongs to one compilation


@contextlib.contextmanager
def sizes_from_data(fake_mode: Any) -> Iterator[None]:
    """Let sizes in a fake mode follow from data, also where Dynamo's graphs break at them.

    Operators may give as many elements as data says (`nonzero`), and numbers may be values of tensors (`pad`'s widths).
    """
    shape_env = fake_mode.shape_env
    before = getattr(shape_env, "settings", None), fake_mode.allow_scalar_outputs
    if before[0] is None:
        yield
        return
    shape_env.settings = dataclasses.replace(before[0], allow_dynamic_output_shape_ops=True, allow_scalar_outputs=True)
    fake_mode.allow_scalar_outputs = True
    try:
        yield
    finally:
        shape_env.settings, fake_mode.allow_scalar_outputs = before


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
    if is_fake_of_dynamo(tensor):
        return _fake_like(tensor, fake_mode)
    context = tracing_context()
    symbols = None if context is None else context.tensor_to_context.get(tensor)
    if symbols is None:
        return None
    return fake_mode.from_tensor(tensor, symbolic_context=symbols, source=symbols.tensor_source, trace=False)


def is_fake_of_dynamo(value: Any) -> bool:
    """Whether Dynamo's splitting for DDP gave this tensor: it compiles a part of a graph at a time, for fakes.

    AOTAutograd answers the first call of such a part, by fakes with the strides of the compiled program's results.
    """
    context = tracing_context()
    if context is None or not context.fakify_first_call:
        return False
    return is_fake(value) and value.fake_mode is context.fake_mode


def _fake_like(tensor: torch.Tensor, fake_mode: Any) -> torch.Tensor:
    """A fake of another mode with the same symbols; what has been computed with a gradient is no leaf there either."""
    with fake_mode:
        fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        if not tensor.is_leaf:
            return fake.copy_(torch.empty((), dtype=tensor.dtype, device=tensor.device, requires_grad=True))
        return fake.requires_grad_(tensor.requires_grad)


def note_sources(placeholders: Sequence[fx.Node], inputs: Sequence[Any]) -> None:
    """Let the tracing context say of the base of a view what Dynamo's graph says: which input it is.

    Otherwise the last word on an input that another is a view of is that it is its base, whose sizes nobody has named:
    symbols of their own are made for it, and a guard on one of them (of a `chunk`, of a window) makes Dynamo fail.
    Other sources that differ from the graph's stay: that of a number as a tensor tells that it may change.
    """
    context = tracing_context()
    if context is None:
        return
    for node, value in zip(placeholders, inputs, strict=True):
        source = getattr(node, "_dynamo_source", None)
        known: Any = context.tensor_to_context.get(value) if isinstance(value, torch.Tensor) else None
        last = getattr(known, "tensor_source", None)
        if source is not None and getattr(last, "member", None) == "_base" and last != source:
            context.tensor_to_context[value] = dataclasses.replace(known, tensor_source=source)


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


def is_unbacked(size: Any) -> bool:
    """Whether a size is one data-dependent symbol."""
    return isinstance(size, torch.SymInt) and _is_unbacked(size.node.expr, size.node.shape_env)


def _is_unbacked(expr: Any, shape_env: Any) -> bool:
    return bool(expr.is_Symbol and shape_env.is_unbacked_symint(expr))


def equate_unbacked(size: Any, other: Any) -> bool:
    """Give data-dependent sizes the names of others that they are known to be equal to; whether they had their own.

    Sums and products are equated term by term, where both differ in nothing but names: ``u1 + u2`` and ``u7 + u8``.
    """
    if not isinstance(size, torch.SymInt) or not isinstance(other, torch.SymInt):
        return False
    shape_env, expr, to = size.node.shape_env, size.node.expr, other.node.expr
    names, others = (_own_symbols(a, b, shape_env) for a, b in ((expr, to), (to, expr)))
    renaming = dict(zip(names, others, strict=False))
    if not renaming or len(names) != len(others) or expr.xreplace(renaming) != to:
        return False
    for name, known in renaming.items():
        shape_env._rename_unbacked_to(name, known)
    return True


def _own_symbols(expr: Any, other: Any, shape_env: Any) -> list[Any]:
    """The data-dependent symbols of one of two expressions only, oldest first."""
    own = [s for s in expr.free_symbols - other.free_symbols if _is_unbacked(s, shape_env)]
    return sorted(own, key=lambda symbol: (len(str(symbol)), str(symbol)))


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


@contextlib.contextmanager
def forget_new_symbols(fake_mode: Any) -> Iterator[None]:
    """What runs in the block leaves no data-dependent sizes that wait to be bound to a node, as later traces demand."""
    shape_env = getattr(fake_mode, "shape_env", None)
    pending = getattr(shape_env, "pending_fresh_unbacked_symbols", None)
    before = list(pending or ())
    try:
        yield
    finally:
        if pending is not None:
            pending[:] = before


@contextlib.contextmanager
def refusing_guards(shape_env: Any) -> Iterator[None]:
    """Within the block, a question about sizes that only a guard would answer raises, as if there were no example.

    Metadata that asks with an answer for sizes that are not known takes that answer.
    """
    from torch.fx.experimental import _config as config
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    def refuse(condition: Any, *_: Any) -> None:
        raise GuardOnDataDependentSymNode(condition, f"{condition} would be a guard")

    before = vars(shape_env).get("_check_frozen")
    shape_env._check_frozen = refuse  # called before each new guard or runtime assertion
    try:
        with config.patch(backed_size_oblivious=True):
            yield
    finally:
        if before is None:
            del shape_env._check_frozen
        else:
            shape_env._check_frozen = before


@contextlib.contextmanager
def quiet_fakes() -> Iterator[None]:
    """Let calls of this thread on fake tensors fail without a log entry."""
    logging.getLogger("torch._subclasses.fake_tensor").addFilter(_is_told)  # once: it adds none that is there
    token = _QUIET.set(True)
    try:
        yield
    finally:
        _QUIET.reset(token)


def _is_told(record: logging.LogRecord) -> bool:  # noqa: ARG001
    return not _QUIET.get()


_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)


def tracing_apart() -> contextlib.AbstractContextManager[Any]:
    """What AOTAutograd traces inside is a program of its own, all of whose sizes are numbers."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return torch._guards.tracing(torch._guards.TracingContext(FakeTensorMode()))


def capture_function(
    function: Callable[..., Any], operands: Sequence[Any], *, dynamic: bool, fixed: Mapping[int, Sequence[int]] = {}
) -> tuple[fx.GraphModule, list[int]]:
    """The ATen graph of a function of tensors and constants, and the places of the operands that are its inputs.

    Sizes of the dims in `fixed`, by the operand's place, are numbers even if others are `dynamic`.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    places = [i for i, o in enumerate(operands) if isinstance(o, torch.Tensor)]
    fakes = [_fake_of(mode, operands[i], dynamic, fixed.get(i, ())) for i in places]

    with mode:
        return trace_before_dispatch(of_places(function, operands, places), fakes), places


def of_places(function: Callable[..., Any], operands: Sequence[Any], places: Sequence[int]) -> Callable[..., Any]:
    """A function as one of the operands in some places; the others are constants."""

    def run(*values: Any) -> Any:
        given = list(operands)
        for i, value in zip(places, values, strict=True):
            given[i] = value
        return function(*given)

    return run


def _fake_of(mode: Any, operand: torch.Tensor, dynamic: bool, fixed: Sequence[int]) -> torch.Tensor:
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    if not dynamic or not fixed:
        return mode.from_tensor(operand, static_shapes=not dynamic)
    kinds = [DimDynamic.STATIC if d in fixed else DimDynamic.DUCK for d in range(operand.dim())]
    place = operand.storage_offset(), operand.shape, operand.stride()
    alone = torch.empty(0, dtype=operand.dtype, device=operand.device).set_(operand.untyped_storage(), *place)  # type: ignore[call-overload]  # no view: its base would have sizes of its own
    alone.requires_grad_(operand.requires_grad)
    return mode.from_tensor(alone, symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds))


def named_sizes(examples: Mapping[str, int]) -> tuple[Any, dict[str, torch.SymInt]]:
    """A fake mode, and a symbolic size of it for each name; no two are one symbol, whatever their examples are."""
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    environment = ShapeEnv(duck_shape=False)
    sizes: dict[str, Any] = {}
    for name, example in examples.items():
        source = ConstantSource(name)
        symbol = environment.create_symbol(
            example, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None
        )  # fmt: skip
        sizes[name] = environment.create_symintnode(symbol, hint=example, source=source)
    return FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True), sizes


def assumptions(fake_mode: Any) -> list[Any]:
    """The conditions on symbolic sizes that a traced function rests on, as expressions.

    Those that it has asked for, and equalities. What torch's own functions ask on their way (which kernel is faster for
    these sizes) says nothing about the function.
    """
    import sympy

    inside = str(Path(torch.__file__).parent)
    asked = [(guard.expr, getattr(guard.sloc, "framework_loc", None)) for guard in fake_mode.shape_env.guards]
    return [e for e, at in asked if isinstance(e, sympy.Eq) or not str(getattr(at, "filename", "")).startswith(inside)]


def takes_guards(environment: Any) -> bool:
    """Whether what is asked of symbols now becomes a condition of later calls: not once Dynamo has its guards."""
    return not environment.frozen and not environment._suppress_guards_tls()


def evaluated(expression: Any, values: Mapping[Any, Any]) -> Any:
    """The number that an expression of symbolic sizes is, where its symbols are these numbers (symbolic ones too).

    Raises:
        KeyError: it has a symbol that is not among them.
    """
    import sympy
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    found = sympy_interp(PythonReferenceAnalysis, dict(values), expression)
    if not isinstance(found, sympy.logic.boolalg.Boolean) or isinstance(found, sympy.logic.boolalg.BooleanAtom):
        return found
    environment = next(v.node.shape_env for v in values.values() if isinstance(v, torch.SymInt))
    return environment.create_symboolnode(found)  # what torch has no symbolic arithmetic for


def fake_mode_of(tensors: Sequence[Any]) -> Any:
    """The fake mode that tensors belong to, None where there is none."""
    from torch._guards import detect_fake_mode

    return detect_fake_mode(list(tensors))

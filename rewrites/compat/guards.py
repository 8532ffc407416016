"""Guards of Dynamo's, for what it does not look at by itself: with other numbers, modes or code, it compiles anew."""

from __future__ import annotations

import math
import operator
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import fx


def guard_the_rest(program: fx.GraphModule) -> None:
    """Have Dynamo compile anew where numbers and modes have changed that it does not look at."""
    guard_forward_ad()
    guard_zeros()
    guard_autocast_dtypes(program)
    guard_environment()
    guard_hooks_of_all_modules()
    guard_hooks_of_modules(program)
    guard_classes(program)


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
    """Have Dynamo compile anew where a program that enters autocast itself, or asks, gets another dtype by default."""
    entered = program.graph.find_nodes(op="call_function", target=torch.amp.autocast_mode._enter_autocast)
    devices = {node.args[0] for node in entered if node.args}
    if any(name.startswith("get_autocast_") for code in _traced() for name in code.co_names):
        devices |= {"cpu", "cuda"}
    read = [partial(torch.get_autocast_dtype, device) for device in sorted(devices)]
    if read:
        guard_equal(lambda: [dtype() for dtype in read], "the dtypes of autocast are")


def guard_environment() -> None:
    """Have Dynamo compile anew where a variable of the environment has changed that code may have looked for.

    Dynamo guards those that it has found, not those that were missing.
    """
    codes = _traced()
    if not any("environ" in code.co_names or "getenv" in code.co_names for code in codes):
        return
    names = sorted({text for code in codes for text in code.co_consts if isinstance(text, str) and text.isidentifier()})
    guard_equal(lambda: [os.environ.get(name) for name in names], "variables of the environment are")


def guard_hooks_of_all_modules() -> None:
    """Have Dynamo compile anew where hooks of all modules are registered or removed: it guards no hooks."""
    from torch.nn.modules import module as modules

    names = [name for name in vars(modules) if name.startswith("_global_") and name.endswith("_hooks")]
    hooks = [known for name in names if isinstance(known := getattr(modules, name), dict)]
    guard_equal(lambda: [list(known.values()) for known in hooks], "the hooks of all modules are")


def guard_hooks_of_modules(program: fx.GraphModule) -> None:
    """Have Dynamo compile anew where a module has got hooks, or one with hooks is in its place.

    By default Dynamo finds modules without hooks, and guards only the hooks of others. Each guard takes 0.05 us in
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


def guard_classes(program: fx.GraphModule) -> None:
    """Have Dynamo compile anew where what traced code has found in a class is another, or in a class derived from it.

        Attention.forward = another             a method that is traced, or of tensors and recorded
        Attention.scale = 0.5                   a number or text that traced code names
        Attention.forward.__defaults__ = (2,)   of methods and functions

    It looks for classes of objects and at what objects themselves have. A module's call is never traced.
    """
    context = torch._guards.TracingContext.try_get()
    if context is None:
        return
    codes = frozenset(_traced())
    recorded = {str(node.target) for node in program.graph.find_nodes(op="call_method")}
    of_tensors = [(torch.Tensor, name) for name in sorted(recorded) if hasattr(torch.Tensor, name)]
    found = context.guards_context.dynamo_guards
    sources = [guard for guard in found if guard.create_fn_name() in _OF_OBJECTS]

    def add(builder: Any, guard: Any) -> None:  # noqa: ARG001
        values = [builder.get(source) for source in sources]
        classes = dict.fromkeys(x if isinstance(x, type) else type(x) for x in values)
        read = [(kind, name) for kind in classes for name in _read_in(kind, codes)]
        methods = (getattr(kind, name) for kind, name in read)
        functions = [*values, *(getattr(x, "__func__", x) for x in methods)]
        with_defaults = {x: "__defaults__" for x in functions if isinstance(x, FunctionType) and x.__defaults__}
        attributes: list[tuple[Any, str]] = [*read, *with_defaults.items(), *of_tensors]
        text = f"methods, constants and defaults of classes and functions ({len(attributes)}) are as they were"
        _add_to_root(builder, _same(attributes), text)

    _guard_state(add)


_OF_OBJECTS = ("TYPE_MATCH", "ID_MATCH", "CLASS_MATCH", "CLOSURE_MATCH", "FUNCTION_MATCH")
_CONSTANTS = (int, float, bool, str, type(None))


def _read_in(kind: type, codes: frozenset[CodeType]) -> Iterator[str]:
    """Names of what a class has that this code runs or may read, and of what calls a module."""
    module = issubclass(kind, torch.nn.Module)
    if module:
        yield "__call__"
    named = {name for code in codes for name in code.co_names}
    for base in kind.__mro__:
        for name, value in vars(base).items():
            function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            runs = isinstance(function, FunctionType) and function.__code__ in codes
            constant = type(value) in _CONSTANTS and name in named and not name.startswith("__")
            if (runs or constant) and not (module and name == "__call__"):
                yield name


def _same(attributes: Sequence[tuple[Any, str]]) -> Callable[[Any], bool]:
    """A check that these are the same attributes of classes and functions; it keeps none of these alive.

    It runs in every call. Where each object is at the address of before, nothing has changed; where one is elsewhere,
    values are compared, as those are that are made anew each time, such as methods of classes.
    """
    again = [(owner, name) for owner, name in attributes if getattr(owner, name) is not getattr(owner, name)]
    places, equal, made_again = _Places([pair for pair in attributes if pair not in again]), _equal(attributes), None
    if again:
        made_again = _equal(again)

    def holds(given: Any) -> bool:
        if places.are_same():
            return made_again is None or made_again(given)
        return equal(given)

    return holds


class _Places:
    """Where attributes of some classes and functions are.

    An address is that of the same object as long as this lives: what is held weakly is told of.
    """

    def __init__(self, attributes: Sequence[tuple[Any, str]]) -> None:
        names: dict[int, list[str]] = {}
        for owner, name in attributes:
            names.setdefault(id(owner), []).append(name)
        owners = {id(owner): owner for owner, _ in attributes}
        self._gone: list[Any] = []
        self._owners = [weakref.ref(owner, self._gone.append) for owner in owners.values()]
        self._read = [operator.attrgetter(*names[key], names[key][0]) for key in owners]  # of one name, a tuple too
        values = list(self._now())
        self._places = list(map(id, values))
        self._values = [
            weakref.ref(value, self._gone.append) if isinstance(value, (FunctionType, type)) else value
            for value in values
        ]

    def _now(self) -> Iterator[Any]:
        return chain.from_iterable(map(operator.call, self._read, map(operator.call, self._owners)))

    def are_same(self) -> bool:
        """Whether each is where it was."""
        try:
            return not self._gone and list(map(id, self._now())) == self._places
        except AttributeError:
            return False


def _equal(attributes: Sequence[tuple[Any, str]]) -> Callable[[Any], bool]:
    """A check that attributes are equal to what they are now, and of the same types."""
    owners, names = [weakref.ref(owner) for owner, _ in attributes], [name for _, name in attributes]
    values = [getattr(owner, name) for owner, name in attributes]
    known, kinds = [_seen(value) for value in values], list(map(type, values))

    def holds(_: Any) -> bool:
        try:
            now = list(map(getattr, map(operator.call, owners), names))
            before = list(map(operator.call, known))
            if now == before:
                return list(map(type, now)) == kinds
            return all(a == b or _traces(a) for a, b in zip(now, before, strict=True))
        except (AttributeError, RuntimeError, ValueError):  # of an owner that is gone; of defaults that are tensors
            return False

    return holds


def _traces(method: Any) -> bool:
    """Whether a method is what another thread has put in its place for as long as it traces a graph."""
    return getattr(getattr(method, "__code__", None), "co_filename", "") == torch.fx._symbolic_trace.__file__


def _seen(value: Any) -> Callable[[], Any]:
    if isinstance(value, MethodType):
        return weakref.WeakMethod(value)
    return weakref.ref(value) if isinstance(value, FunctionType) else lambda: value


def _traced() -> list[CodeType]:
    """The code that Dynamo has traced so far in this compilation: of the frame, and of functions that it inlined."""
    return torch._guards.TracingContext.get_traced_code() or []


def guard_equal(read: Callable[[], Any], text: str) -> None:
    """Have Dynamo compile anew where something global that `read` gives is not as now."""
    now = read()
    _guard_state(lambda builder, _: _add_to_root(builder, lambda _: read() == now, f"{text} {now}"))


def _guard_state(add: Callable[[Any, Any], None]) -> None:
    """Let `add(builder, guard)` make a guard, once Dynamo builds them, that belongs to no source of the program."""
    context = torch._guards.TracingContext.try_get()
    if context is None:
        return
    from torch._dynamo.source import GlobalStateSource

    context.guards_context.dynamo_guards.add(torch._guards.Guard(GlobalStateSource(), add))


def _add_to_root(builder: Any, holds: Callable[[Any], bool], text: str) -> None:
    root = builder.guard_manager.root
    try:
        root.add_lambda_guard(holds, [text], None)
    except TypeError:  # torch 2.11
        root.add_lambda_guard(holds, [text])

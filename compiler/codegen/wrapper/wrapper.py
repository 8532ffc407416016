"""Wrappers: a functional ATen graph as one generated Python function, compiled and ready to call.

This is the seam where code generation enters: what has a kernel of its own is called by the same function.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import logging
import weakref
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from ....rewrites import compat
from ....rewrites.compat.logs import profiling
from ..cpp_wrapper.graph import in_cpp
from ..cpp_wrapper.load import load_cpp
from .emit import WrapperSource, emit
from .memory_plan import MemoryPlan, plan_memory
from .profiled import RANGE, profiled_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

logger = logging.getLogger("regraft")
_NUMBER = itertools.count()


@dataclass(frozen=True)
class WrapperStats:
    """Counts of a wrapper's allocations and reuses of memory.

    Args:
        nodes: calls in the graph.
        reused: results written over a dead operand.
        peak_before: most bytes allocated at once (inputs and constants apart) without that, as estimated from metadata.
        peak_after: the same, with it.
    """

    nodes: int
    reused: int
    peak_before: int
    peak_after: int


@dataclass(frozen=True)
class Wrapper:
    """A generated function and its text.

    Args:
        name: e.g. ``"graph_0.forward"``.
        source: the text of the generated module, deterministic and runnable given the objects of `parts`.
        call: the function, in boxed convention: one list of inputs in, which it empties; the graph's outputs out. To
            be called with gradients off, as AOTAutograd does.
        stats: what it does with memory.
        parts: the same text with the constants and functions that it binds by name, and the user's lines.
        plan: what is written over what.
    """

    name: str
    source: str
    call: Callable[[list[Any]], Any]
    stats: WrapperStats
    parts: WrapperSource
    plan: MemoryPlan = field(repr=False)


def generate(graph_module: fx.GraphModule, *, name: str) -> Wrapper:
    """Write, compile and load the wrapper of a functional ATen graph (writes to inputs included).

    Raises:
        NotImplementedError: an argument is a symbolic number that no node computes.
    """
    plan = plan_memory(graph_module.graph)
    source = emit(graph_module, plan, name=name)
    calls = sum(node.op.startswith("call_") for node in graph_module.graph.nodes)
    stats = WrapperStats(calls, len(plan.reuses), plan.peak_before, plan.peak_after)
    return Wrapper(name, source.text, _load_python(source, name), stats, source, plan)


def load(source: WrapperSource, name: str) -> Callable[[list[Any]], Any]:
    """The function of a generated module: in C++ where it is written so and can be had here, else in Python."""
    python = _load_python(source, name)
    if source.cpp is None:
        return python
    try:
        return load_cpp(source.cpp, python)
    except Exception as error:  # a compiler that is gone, an operator that is not registered in this process
        logger.debug("regraft: %s is called from Python: %s", name, error)
        return python


def called_from_cpp(wrapper: Wrapper, graph_module: fx.GraphModule) -> Wrapper:
    """The wrapper of a graph with its function in C++.

    Raises:
        NotInCppError: something of the graph, or of this machine, does not let C++ call it.
        CompilerMissing, CompileFailed: there is no compiler, or it refuses a source.
    """
    cpp = in_cpp(graph_module, wrapper.plan)
    call = load_cpp(cpp, wrapper.call)
    return replace(wrapper, call=call, parts=replace(wrapper.parts, cpp=cpp))


def _load_python(source: WrapperSource, name: str) -> Callable[[list[Any]], Any]:
    """Compile a generated module and return its `call`; tracebacks show its lines, and errors the user's line."""
    # The number keeps apart two texts of one name; it is no part of the text.
    filename = f"<regraft {name} #{next(_NUMBER)}>"
    # Compiled kernels are called by their bare functions, a Python frame less.
    objects = {key: getattr(value, "bare", value) for key, value in source.objects.items()}
    namespace: dict[str, Any] = {"__name__": f"regraft_wrapper_{name}", "objects": objects}
    exec(compile(source.text, filename, "exec"), namespace)
    plain = namespace["call"]

    @functools.cache
    def profiled() -> Callable[[list[Any]], Any]:
        space = {**namespace, RANGE: torch.profiler.record_function}
        exec(compile(profiled_text(source), filename, "exec"), space)
        return space["call"]  # type: ignore[no-any-return]

    def call(args: list[Any]) -> Any:
        run = profiled() if profiling() else plain
        try:
            return run(args)
        except Exception as error:
            _add_site(error, run, source)
            raise

    compat.mark_boxed(call)
    linecache.cache[filename] = (len(source.text), None, source.text.splitlines(keepends=True), filename)
    weakref.finalize(call, linecache.cache.pop, filename, None)
    return call


def _add_site(error: Exception, run: Any, source: WrapperSource) -> None:
    """Say which line of the user's program an error comes from."""
    traceback = error.__traceback__
    while traceback is not None:
        site = source.sites.get(traceback.tb_lineno) if traceback.tb_frame.f_code is run.__code__ else None
        if site is not None:
            error.add_note(f"compiled by regraft from {site}")
            return
        traceback = traceback.tb_next

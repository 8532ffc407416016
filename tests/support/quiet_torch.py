"""What Python, pytest and torch do beside a test, at a cost, and no test looks at: left out.

A fifth of the time of tests that compile: Dynamo evicts the processor's caches to time its guards once, for a log;
pytest listens to the logger of `TORCH_TRACE`, so that each graph is written as text; the garbage collector walks
all modules over and over; each `torch.manual_seed` writes the stack as text, once for each kind of device that has
not been used yet (2 ms in all, from inside a test), and each mode of fake tensors keeps it; and `make_fx` has calls of
modules pass through a tracer that does nothing with them, at which Python looks at every class below
`torch.nn.Module`. For each compilation torch makes states of random numbers that nobody draws, and writes its options
as text, and those of trainings, joint graphs and their parts, too. Beside the value of a node, its dtype, strides and
the like are noted, of which the parts of torch that compile ask no more than whether they are there. In each phase of
a test, pytest listens to the fifty loggers of torch that do not propagate. Half the time of drawing samples from
torch's database of operators goes to looking for the method of a `unittest.TestCase` on the stack, line by line of its
source.
"""

from __future__ import annotations

import atexit
import gc
import logging
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch._dynamo.guards
from _pytest.logging import catching_logs
from torch._decomp.decompositions_for_rng import PhiloxState
from torch._dynamo import utils as dynamo_utils
from torch._functorch._aot_autograd import graph_compile
from torch._subclasses import fake_tensor
from torch.fx import _symbolic_trace
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import PythonKeyTracer
from torch.fx.passes.shape_prop import TensorMetadata

from .thorough import THOROUGH

_STACKS = types.SimpleNamespace(format_stack=list)
_UNKEPT_STACKS = types.SimpleNamespace(**{**vars(traceback), "extract_stack": traceback.StackSummary})


def quieten() -> None:
    """For the rest of this process."""
    torch._dynamo.guards.profile_guard_manager = _not_timed
    torch._dynamo.config.run_gc_after_compile = THOROUGH
    trace = logging.getLogger("torch.__trace")
    trace.addHandler = _unless_of_pytest(trace.addHandler)
    patcher = _symbolic_trace._Patcher
    patcher.patch_method = _unless_nothing_looks(patcher.patch_method)
    torch.cuda.traceback = torch.xpu.traceback = torch.mtia.traceback = _STACKS  # type: ignore[attr-defined]
    fake_tensor.traceback = _UNKEPT_STACKS  # type: ignore[assignment]
    mode = fake_tensor.FakeTensorMode
    mode._get_output_info_for_cache_entry = _checked_once(mode._get_output_info_for_cache_entry)  # type: ignore[method-assign]
    for name, logger in logging.Logger.manager.loggerDict.items():
        if name.startswith("torch.") and isinstance(logger, logging.Logger) and not logger.isEnabledFor(logging.DEBUG):
            logger.debug = _not_logged  # type: ignore[method-assign]
    PhiloxState.reset = _without_state  # type: ignore[method-assign]
    for name in ("_get_dynamo_config_for_logging", "_scrubbed_inductor_config_for_logging"):
        setattr(dynamo_utils, name, _not_logged)
    graph_compile._log_joint_graph = _not_logged  # type: ignore[assignment]
    graph_compile._log_fw_bw_graphs = lambda *_, **__: (None, None)
    proxy_tensor._extract_tensor_metadata = lambda _: _SOME_METADATA  # type: ignore[attr-defined]
    if "attached_loggers" in getattr(catching_logs, "__slots__", ()):
        catching_logs.__enter__ = _heard_by_few(_loggers())  # type: ignore[method-assign]
    database = sys.modules.get("torch.testing._internal.common_utils")
    if database is not None:
        database.extract_test_fn = lambda: None  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # what is left to libraries when Python ends, some call leaks
    gc.set_threshold(20_000, 20, 500)


class Garbage:
    """Objects that are garbage, and not collected yet: Python itself would walk those of each compilation twice.

    Graphs slow down the tracing of others, too: a `GraphModule` is a class of its own, and where torch traces modules,
    it changes methods of `torch.nn.Module` and back, at which Python looks at every class below.
    """

    def __init__(self, graphs: int = 200, objects: int = 1_000_000) -> None:
        self._most, self._limit, self._objects = graphs, graphs, objects

    def collect(self) -> None:
        """Collect garbage if there are more graphs, or objects, than so many."""
        if _graphs() > self._limit or gc.get_count()[0] > self._objects:
            gc.collect()
            gc.freeze()  # what is left lives long: the next collection need not look at it
            self._limit = _graphs() + self._most


GARBAGE = Garbage()


def _graphs() -> int:
    return len(torch.fx.GraphModule.__subclasses__())


def _not_timed(*_: Any) -> float:
    """Microseconds that guards take."""
    return 0.0


def _not_logged(*_: Any, **__: Any) -> None:
    """Debug messages that nobody has asked for."""


_SOME_METADATA = TensorMetadata(torch.Size(), torch.float32, False, (), None, False, {})
_NO_NUMBERS = torch.empty(0)


def _without_state(self: Any) -> None:
    """`PhiloxState.reset`, which makes an empty tensor three times over."""
    self.seed = self.base_offset = _NO_NUMBERS
    self.relative_offset, self.offset_advanced_at_least_once = 0, False


def _loggers() -> list[logging.Logger]:
    """Those that do not propagate, but for torch's."""
    found = [x for x in logging.Logger.manager.loggerDict.values() if isinstance(x, logging.Logger) and not x.propagate]
    return [logger for logger in found if logger.name.partition(".")[0] != "torch"]


def _heard_by_few(others: Sequence[logging.Logger]) -> Callable[..., logging.Handler]:
    """`catching_logs.__enter__`, which looks through all loggers for those that do not propagate."""

    def enter(self: Any) -> logging.Handler:
        root = logging.getLogger()
        if self.level is not None:
            self.handler.setLevel(self.level)
            self.orig_level = root.level
            root.setLevel(min(root.level, self.level))
        self.attached_loggers.extend((root, *others))
        for logger in self.attached_loggers:
            logger.addHandler(self.handler)
        return self.handler

    return enter


def _checked_once(info_of: Callable[..., Any]) -> Callable[..., Any]:
    """`FakeTensorMode._get_output_info_for_cache_entry`, which makes a second result only to compare dispatch keys.

    They are compared once for each operator and set of keys: making a tensor of symbolic sizes takes milliseconds.
    """
    compared: set[tuple[Any, str]] = set()

    def output_info(self: Any, state: Any, key: Any, func: Any, args: Any, kwargs: Any, output: Any) -> Any:
        if not isinstance(output, torch.Tensor):
            return info_of(self, state, key, func, args, kwargs, output)
        case = func, torch._C._dispatch_key_set(output)
        if case not in compared:
            made = info_of(self, state, key, func, args, kwargs, output)
            compared.add(case)
            return made
        self._output_from_cache_entry = lambda *_: output
        try:
            return info_of(self, state, key, func, args, kwargs, output)
        finally:
            del self._output_from_cache_entry

    return output_info


def _unless_of_pytest(add: Callable[[logging.Handler], None]) -> Callable[[logging.Handler], None]:
    def add_handler(handler: logging.Handler) -> None:
        if not type(handler).__module__.startswith("_pytest"):
            add(handler)

    return add_handler


def _unless_nothing_looks(patch: Callable[..., None]) -> Callable[..., None]:
    """`_Patcher.patch_method`, but for those of modules where `make_fx` traces: `PythonKeyTracer` calls them as is."""

    def patch_method(self: Any, cls: type, name: str, new: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if cls is not torch.nn.Module or type(_tracer_of(new)) is not PythonKeyTracer:
            patch(self, cls, name, new, *args, **kwargs)

    return patch_method


def _tracer_of(wrapper: Callable[..., Any]) -> Any:
    cells = dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__ or (), strict=True))
    return cells["self"].cell_contents if "self" in cells else None

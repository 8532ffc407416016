"""`regraft.kernels`: compile a program, run it with a clock around every kernel, and say what bounds each."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from ....rewrites import compat
from ....rewrites.graph import packet_name
from ....rewrites.machine import environment
from ...backend import Compilation
from ...backend import backend as compile_graph
from ...codegen.kernel_call import KernelCall
from ...codegen.triton.kernel_names import kernel_name
from ...codegen.wrapper.emit import module_path
from ...ir.canonical import canonical
from ...options import Options
from ...runtime.gc_pause import uncollected
from ...templates import TemplateKernel, TritonTemplateKernel
from .cost import CallCost, cost_of, shapes_of, sites
from .limits import Limits, measured_limits
from .record import RecordedGraph, Recorder
from .report import KernelReport
from .rows import KernelRow
from .running import of_its_own, seconds_of, step_of, undisturbed

SECONDS = 5.0  # for all timed calls
MIN_ROUNDS, MAX_ROUNDS = 3, 30
_SITES = 12  # of one row


class NothingRanError(ValueError):
    """No compiled graph ran, so that there is nothing to report."""


def kernels(
    function: Callable[..., Any],
    *args: Any,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    **kwargs: Any,
) -> KernelReport:
    """The time of `function(*args, **kwargs)`, kernel by kernel.

    The function is compiled anew and called some dozens of times, half of them with a clock around each kernel; under
    `torch.no_grad()` forward alone, else forward and backward. Gradients, buffers of a module and random number
    generators are as before afterwards; what the function itself writes to its arguments stays written.

    Args:
        function: a module or function; its first call compiles.
        *args: its arguments.
        mode: as for `torch.compile`. Kernels are timed one by one; whole calls as the mode says, CUDA graphs included.
        options: as for `torch.compile(..., backend="regraft")`.
        dynamic: as for `torch.compile`.
        **kwargs: the function's keyword arguments.

    Returns:
        The report: text by `str`, files by `write`.

    Raises:
        OptionError: an unknown mode, option or value.
        NothingRanError: no graph was compiled, or none ran.
    """
    chosen, recorder = Options.parse(mode, options), Recorder()

    def observed(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        with uncollected():
            return Compilation(gm, example_inputs, chosen, observe=recorder).run()

    with undisturbed(function):
        step = whole = step_of(torch.compile(of_its_own(function), backend=observed, dynamic=dynamic), args, kwargs)
        step()
        if chosen.triton.cudagraphs and any(graph.cuda for graph in recorder.graphs):
            whole = step_of(torch.compile(of_its_own(function), backend=_plain(chosen), dynamic=dynamic), args, kwargs)
            whole()
        calls = _timed(step, whole, recorder)
    ran = [graph for graph in recorder.graphs if graph.samples]
    if not ran:
        raise NothingRanError("no compiled graph ran: the program has no tensor operations, or runs eagerly")
    return _report(ran, calls)


def _plain(options: Options) -> Callable[..., Any]:
    """A backend with these options, not observed."""
    given = {name: value for name, value in vars(options).items() if name != "rules" or value is not None}
    return lambda gm, inputs: compile_graph(gm, inputs, options=given)


def _timed(step: Callable[[], Any], whole: Callable[[], Any], recorder: Recorder) -> list[float]:
    """Seconds of whole calls, by turns with calls that are timed kernel by kernel."""
    for warm in (whole, step):
        warm()
    recorder.timing = True
    step()  # finds how long launches take
    recorder.timing = False
    for graph in recorder.graphs:
        graph.samples.clear()
    calls: list[float] = []
    start = time.perf_counter()
    while len(calls) < MIN_ROUNDS or (len(calls) < MAX_ROUNDS and time.perf_counter() - start < SECONDS):
        calls.append(seconds_of(whole))
        recorder.timing = True
        try:
            step()
        finally:
            recorder.timing = False
    return calls


def _report(graphs: list[RecordedGraph], calls: list[float]) -> KernelReport:
    rows: dict[tuple[str, ...], KernelRow] = {}
    for graph in graphs:
        for name, node in graph.nodes.items():
            samples = [sample[name] for sample in graph.samples if name in sample]
            if samples:
                # A graph may run several times in one call of the program.
                _add(rows, graph, node, statistics.median(samples), max(round(len(samples) / len(calls)), 1))
    made = sorted(rows.values(), key=lambda row: -row.seconds)
    device = torch.device("cuda", torch.cuda.current_device()) if any(g.cuda for g in graphs) else torch.device("cpu")
    limits = measured_limits(device, {row.dtype for row in made if row.flops})
    kind = "inference" if {graph.kind for graph in graphs} == {"inference"} else "training"
    bounded = [row.bounded_by(limits) for row in made]
    return KernelReport(bounded, limits, statistics.median(calls), len(calls), kind, environment())


def _add(rows: dict[tuple[str, ...], KernelRow], graph: RecordedGraph, node: fx.Node, seconds: float, n: int) -> None:
    """Add a call to the row of all that are equal to it."""
    name, kind = _name_and_kind(node)
    shapes = shapes_of(node)
    places = list(sites(node.meta.get("regraft_fused") or filter(None, [node.meta.get("stack_trace")])))
    key = (graph.kind, name, shapes)
    row = rows.get(key)
    if row is None:
        cost: CallCost = cost_of(node)
        row = rows[key] = KernelRow(
            name, kind, graph.kind, shapes=shapes, read=cost.read, written=cost.written, flops=cost.flops,
            operations=cost.operations, dtype=cost.dtype, rule=str(node.meta.get("regraft_rule", "")),
            module=module_path(node),
        )  # fmt: skip
    row.count += n
    row.seconds += n * seconds
    row.sites = list(dict.fromkeys([*row.sites, *places]))[:_SITES]


def _name_and_kind(node: fx.Node) -> tuple[str, str]:
    """The name of a call in the table, and who made its code: generated, template or library."""
    target = node.target
    if isinstance(target, KernelCall):
        return _generated_name(target), "generated"
    if isinstance(target, (TemplateKernel, TritonTemplateKernel)):
        return target.name, "template"
    return str(target) if isinstance(target, compat.OpOverload) else packet_name(target), "library"


def _generated_name(call: KernelCall) -> str:
    """The name that profilers of GPUs show; on CPUs what is computed and a hash, equal for equal kernels."""
    plans = getattr(call.run, "plans", ())
    if plans:
        return str(plans[0].unit.function)
    return kernel_name(canonical(call.kernel), getattr(call.run, "name", call.kernel.name))


__all__ = ["Limits", "NothingRanError", "kernels"]

"""Code generation for one graph: supported nodes become kernels, all others stay calls.

    graph  ->  lower  ->  loop program  ->  schedule  ->  kernels  ->  build  ->  assemble  ->  graph
                 ^                                                      |
                 +---  rejected by the code generator: stay calls   <--+

The device of its buffers determines a kernel's language: C++ on CPUs, Triton on CUDA devices. A graph whose kernels
cannot be built runs as it is, and reports count and show it.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.faults import Faults
from ...rewrites.graph import val
from ...rewrites.reason import Reason, site_of
from ...rewrites.record import Code, KeptCall
from ...rewrites.switches import allowed, naming, pausing
from ..ir.kernel import Kernel
from ..ir.printer import kernel_text, program_text
from ..ir.program import Definition, Program
from ..ir.verify_lanes import lane_findings
from ..ir.verify_launch import launch_findings
from ..ir.verify_value import ProgramFault
from ..lowering.graph import Lowered, lower
from ..schedule import Schedule, overwrites, schedule
from ..schedule.begin_early import begin_early
from ..schedule.check import check_schedule
from ..schedule.target import CPU, Target, gpu
from . import cpp, triton
from .assemble import assemble
from .kernel_call import TemplateCall

logger = logging.getLogger("regraft")


@dataclass(frozen=True)
class Generated:
    """The generated form of one graph as `source`, its `code` for the report, and every stage as text if asked for."""

    source: fx.Graph
    graph: fx.Graph
    code: Code
    program: Program
    schedule: Schedule

    def texts(self) -> dict[str, str]:
        """The loop program, the fusion log, the kernels, those of a CPU in lanes, and their C++ or Triton."""
        kernels = self.schedule.kernels
        found = {
            "program": program_text(self.program),
            "fusion": str(self.schedule.log),
            "kernels": "\n\n".join(map(kernel_text, kernels)),
        }
        of = {kind: [k for k in kernels if _device(k).type == kind] for kind in ("cpu", "cuda")}
        if of["cpu"] or not kernels:
            found["lanes"] = "\n\n".join(kernel_text(cpp.planned(kernel, cpp.host_target())) for kernel in of["cpu"])
            found["c++"] = cpp.source_text(of["cpu"])
        if of["cuda"]:
            sites = {node.name: site_of(node) for node in self.source.nodes}
            found["triton"] = triton.source_text(of["cuda"], {n: f"{s}" for n, s in sites.items() if s is not None})
        return found


class NotGeneratedError(Exception):
    """A graph has no generated kernels; `reason` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.message)
        self.reason = reason


@dataclass(frozen=True)
class Planned:
    """A graph's loop program and its schedule, from which kernels are built."""

    lowered: Lowered
    schedule: Schedule


def begin_kernels(graph_module: fx.GraphModule) -> Planned:
    """Plan the kernels of a graph, and start compiling those for GPUs in other processes.

    Raises:
        NotGeneratedError: no kernels can be generated for this graph.
        UnsupportedKernels: some operations must stay calls.
    """
    with pausing():
        planned = _planned(graph_module, {})
    triton.begin([kernel for kernel in planned.schedule.kernels if _device(kernel).type == "cuda"])
    return planned


def _planned(graph_module: fx.GraphModule, kept: Mapping[str, str], faults: Faults | None = None) -> Planned:
    target = _target(graph_module.graph)
    lowered = lower(graph_module, keep=kept, faults=faults)
    plan = schedule(lowered.program, target=target)
    if any(isinstance(node.target, TemplateCall) and node.target.early for node in graph_module.graph.nodes):
        plan = replace(plan, steps=begin_early(plan.steps))
    return Planned(lowered, plan)


def generate_kernels(
    graph_module: fx.GraphModule,
    kind: str,
    *,
    verify: bool = False,
    begun: Planned | None = None,
    faults: Faults | None = None,
) -> Generated:
    """The graph with generated kernels in place of the nodes that they compute.

    Args:
        graph_module: a graph after the rules for lowered graphs; it is not changed.
        kind: ``"inference"``, ``"forward"`` or ``"backward"``, for the record.
        verify: check every dependence of the schedule with an independent checker.
        begun: the plan that `begin_kernels` made for this graph.
        faults: is told about lowerings that fail.

    Raises:
        NotGeneratedError: no kernels can be generated: another device, or no compiler.
    """
    kept = _switched_off(graph_module.graph)
    while True:
        with naming(graph_module.graph):
            planned = begun if begun is not None and not kept else _planned(graph_module, kept, faults)
        lowered, plan = planned.lowered, planned.schedule
        if verify:
            _check(lowered.program, plan)
        try:
            functions = _build(plan.kernels)
        except triton.UnsupportedKernels as refusal:
            kept |= _refused(plan, refusal, kept)
            faults = None  # it was told already
            continue
        graph = assemble(graph_module.graph, plan, functions, overwrites, lowered.written)
        code = _code(kind, graph_module.graph, lowered, len(plan.kernels))
        return Generated(graph_module.graph, graph, code, lowered.program, plan)


def _switched_off(graph: fx.Graph) -> dict[str, str]:
    """The nodes that stay calls because switches disable their kernels, and why."""
    operators = (n for n in graph.nodes if isinstance(n.target, compat.OpOverload) and _tensors(val(n)))
    return {n.name: "switched off" for n in operators if not allowed("kernel", str(n.target), n)}


def _target(graph: fx.Graph) -> Target:
    """The target to schedule for: a GPU if the graph has tensors on one.

    Raises:
        NotGeneratedError: a tensor is on an unsupported device.
    """
    devices = {t.device for node in graph.nodes for t in _tensors(val(node))}
    others = {d.type for d in devices} - {"cpu", "cuda"}
    if others:
        message = f"kernels are generated for CPUs and CUDA devices; this graph uses {', '.join(sorted(others))}"
        raise NotGeneratedError(Reason("device", message))
    chosen = next((d for d in devices if d.type == "cuda"), None)
    if chosen is None:
        return CPU
    if torch.version.hip is not None:
        raise NotGeneratedError(Reason("device", "kernels are not generated for AMD's GPUs"))
    return gpu(triton.processors(chosen.index or 0))


def _tensors(value: Any) -> Sequence[Any]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if hasattr(v, "device")]


def _check(program: Program, plan: Schedule) -> None:
    with compat.plain_eager():  # the checker computes with real tensors, inside of Dynamo's fake mode
        findings: list[object] = [*check_schedule(program, plan)]
        findings += [fault for kernel in plan.kernels for fault in _plan_findings(kernel)]
    if findings:
        raise AssertionError("the schedule is not legal:\n" + "\n".join(map(str, findings)))


def _plan_findings(kernel: Kernel) -> Iterator[ProgramFault]:
    """The faults in how a device runs a kernel."""
    yield from launch_findings(kernel)
    if _device(kernel).type == "cpu":
        yield from lane_findings(cpp.planned(kernel, cpp.host_target()))


def _build(kernels: Sequence[Kernel]) -> dict[str, Any]:
    """The callable of each kernel, by name.

    Raises:
        NotGeneratedError: there is no compiler, or a kernel spans devices.
        UnsupportedKernels: some kernels have no machine code.
    """
    builders: dict[str, Callable[[Sequence[Kernel]], Sequence[Any]]] = {"cpu": cpp.build, "cuda": triton.build}
    made: dict[str, Any] = {}
    for kind, builder in builders.items():
        chosen = [kernel for kernel in kernels if _device(kernel).type == kind]
        if not chosen:
            continue
        try:
            runs = builder(chosen)
        except (cpp.CompilerMissing, triton.TritonMissing) as error:
            warn_once(str(error))
            code = "no-compiler" if kind == "cpu" else "no-triton"
            raise NotGeneratedError(Reason(code, str(error))) from error
        made.update((kernel.name, run) for kernel, run in zip(chosen, runs, strict=True))
    return made


def _device(kernel: Kernel) -> torch.device:
    devices = {p.buffer.device for p in kernel.params if not p.buffer.scalar}
    if len(devices) > 1:
        message = f"a kernel would span devices: {', '.join(sorted(map(str, devices)))}"
        raise NotGeneratedError(Reason("device", message))
    return next(iter(devices), torch.device("cpu"))


def _refused(plan: Schedule, refusal: triton.UnsupportedKernels, kept: Mapping[str, str]) -> dict[str, str]:
    """The nodes of rejected kernels, which will stay calls, and why.

    Raises:
        NotGeneratedError: they were calls already.
    """
    logger.info("regraft: some operations stay calls: %s", refusal)
    refused = {k: refusal.why[k.name].partition("\n")[0] for k in plan.kernels if k.name in refusal.why}
    nodes = {n: why for k, why in refused.items() for part in triton.blamed(k) for n in part.nodes}
    if not nodes.keys() - kept.keys():
        raise NotGeneratedError(Reason("unsupported", str(refusal))) from refusal
    return nodes


@functools.cache
def warn_once(message: str) -> None:
    """Warn the user once about something that the machine lacks."""
    logger.warning("regraft: %s; graphs run by calls of ATen, correct but slower", message)


def _code(kind: str, graph: fx.Graph, lowered: Lowered, kernels: int) -> Code:
    tensors = sum(isinstance(item, Definition) for item in lowered.program.items)
    made = {node.name: node.target.template for node in graph.nodes if isinstance(node.target, TemplateCall)}
    kept = [call for call in lowered.kept if call.node not in made]
    counts = Counter((call.operator, call.code) for call in kept)
    messages = {(call.operator, call.code): call.message for call in reversed(kept)}
    calls = tuple(KeptCall(operator, n, code, messages[operator, code]) for (operator, code), n in counts.most_common())
    return Code(kind, tensors, kernels, calls, dict(Counter(made.values())))

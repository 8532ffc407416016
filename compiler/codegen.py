"""Code generation of one graph: what the rules left becomes kernels, what has none stays a call.

    graph  ->  lower  ->  loop program  ->  schedule  ->  kernels  ->  build  ->  assemble  ->  graph

A graph whose kernels cannot be built runs as it is: correct, counted and shown.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from ..rewrites.graph import val
from ..rewrites.reason import Reason
from ..rewrites.record import Code, KeptCall
from . import cpp, torch_compat
from .assemble import assemble
from .ir.kernel import Kernel
from .ir.printer import kernel_text, program_text
from .ir.program import Definition, Program
from .lowering.graph import Lowered, lower
from .schedule import Schedule, overwrites, schedule
from .schedule.check import check_schedule
from .templates import TemplateKernel

logger = logging.getLogger("regraft")


@dataclass(frozen=True)
class Generated:
    """What became of one graph: `code` for the report, and every stage as text when asked for."""

    graph: fx.Graph
    code: Code
    program: Program
    schedule: Schedule

    def texts(self) -> dict[str, str]:
        """The loop program, the fusion log, the kernels and their C++."""
        kernels = self.schedule.kernels
        return {
            "program": program_text(self.program),
            "fusion": str(self.schedule.log),
            "kernels": "\n\n".join(map(kernel_text, kernels)),
            "c++": cpp.source_text(kernels),
        }


class NotGeneratedError(Exception):
    """Why a graph has no generated kernels; `reason` says it."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.message)
        self.reason = reason


def generate_kernels(graph_module: fx.GraphModule, kind: str, *, verify: bool = False) -> Generated:
    """The graph with generated kernels in place of what they compute.

    Args:
        graph_module: after the lowered rules; it stays as it is.
        kind: ``"inference"``, ``"forward"`` or ``"backward"``, for the record.
        verify: prove every dependence of the schedule by an independent checker.

    Raises:
        NotGeneratedError: nothing can be generated here: another device, no compiler.
    """
    _check_devices(graph_module.graph)
    lowered = lower(graph_module)
    plan = schedule(lowered.program)
    if verify:
        _check(lowered.program, plan)
    kernels = [step for step in plan.steps if isinstance(step, Kernel)]
    compiled = _build(kernels)
    functions = {kernel.name: run for kernel, run in zip(kernels, compiled, strict=True)}
    graph = assemble(graph_module.graph, plan, functions, overwrites)
    return Generated(graph, _code(kind, graph_module.graph, lowered, len(kernels)), lowered.program, plan)


def _check_devices(graph: fx.Graph) -> None:
    devices = {t.device.type for node in graph.nodes for t in _tensors(val(node))}
    if devices - {"cpu"}:
        message = f"kernels are generated for CPUs only, this graph uses {', '.join(sorted(devices))}"
        raise NotGeneratedError(Reason("device", message))


def _tensors(value: Any) -> Sequence[Any]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if hasattr(v, "device")]


def _check(program: Program, plan: Schedule) -> None:
    with torch_compat.plain_eager():  # it computes with real tensors, inside Dynamo's fake mode
        findings = check_schedule(program, plan)
    if findings:
        raise AssertionError("the schedule breaks dependences:\n" + "\n".join(map(str, findings)))


def _build(kernels: Sequence[Kernel]) -> Sequence[Any]:
    try:
        return cpp.build(kernels)
    except cpp.CompilerMissing as error:
        warn_once(str(error))
        raise NotGeneratedError(Reason("no-compiler", str(error))) from error


@functools.cache
def warn_once(message: str) -> None:
    """Tell the user once what is missing on the machine."""
    logger.warning("regraft: %s; graphs run by calls of ATen, correct but slower", message)


def _code(kind: str, graph: fx.Graph, lowered: Lowered, kernels: int) -> Code:
    tensors = sum(isinstance(item, Definition) for item in lowered.program.items)
    made = {node.name: node.target.template for node in graph.nodes if isinstance(node.target, TemplateKernel)}
    kept = [call for call in lowered.kept if call.node not in made]
    counts = Counter((call.operator, call.code) for call in kept)
    messages = {(call.operator, call.code): call.message for call in reversed(kept)}
    calls = tuple(KeptCall(operator, n, code, messages[operator, code]) for (operator, code), n in counts.most_common())
    return Code(kind, tensors, kernels, calls, dict(Counter(made.values())))

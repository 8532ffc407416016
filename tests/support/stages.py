"""Random programs held against eager, stage by stage: the loop program, its schedule, the generated code.

The first stage that differs is the one at fault: `lowering`, `schedule` (kernels by the interpreter) or `code`.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from regraft.compiler.codegen.assemble import assemble
from regraft.compiler.codegen.cpp import source_text
from regraft.compiler.codegen.wrapper.wrapper import generate
from regraft.compiler.ir.interpreter import run_kernel
from regraft.compiler.ir.kernel import Kernel
from regraft.compiler.ir.printer import kernel_text, program_text
from regraft.compiler.ir.verify import verify_kernel, verify_program
from regraft.compiler.lowering import Lowered, lower
from regraft.compiler.schedule import CPU, Schedule, Target, check_schedule, overwrites, schedule

from .lowering import run as interpret
from .lowering import trace
from .random_programs import RandomProgram

Run = Callable[..., None]
# Kernels run by the interpreter one iteration at a time: beyond so many iterations they are left out.
PATIENCE = 1500
INTEGRAL = (torch.bool, torch.uint8, torch.int32, torch.int64)
LOOSE = {torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float32: 2e-4, torch.float64: 1e-9}
LOOSE |= dict.fromkeys(INTEGRAL, 0.0)


@dataclass
class Staged:
    """A program at all stages."""

    program: RandomProgram
    dynamic: bool
    expected: list[Any]
    module: fx.GraphModule
    lowered: Lowered
    plan: Schedule


class Wrong(Exception):
    """A stage is wrong."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(f"{stage}: {message}")
        self.stage, self.message = stage, message


def staged(program: RandomProgram, *, dynamic: bool = False, target: Target = CPU) -> Staged | None:
    """Lower and schedule a program for a target; None where eager refuses it.

    Raises:
        Wrong: a stage fails, or a checker objects.
    """
    try:
        inputs = program.inputs()
        expected = [*program(*inputs), *inputs]
        module = trace(program, *program.arguments(dynamic), dynamic=dynamic, numbers=dynamic)
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
        return None
    # Two spellings of one symbolic size are not always seen to be equal: such calls are kept, and no fault.
    made = _tried("lowering", lambda: lower(module, strict=not dynamic))
    _sound("lowering", [kept.message for kept in made.kept if kept.code == "failed"])
    # That an index stays in range cannot always be proven of symbolic sizes.
    _sound("lowering", [f for f in verify_program(made.program) if not (dynamic and f.code == "range")])
    plan = _tried("schedule", lambda: schedule(made.program, target=target))
    _sound("schedule", [f for k in plan.kernels for f in verify_kernel(k) if not (dynamic and f.code == "range")])
    _sound("schedule", check_schedule(made.program, plan))
    return Staged(program, dynamic, expected, module, made, plan)


def check_lowering(stage: Staged) -> None:
    """Hold the loop program against eager."""
    inputs = stage.program.arguments(stage.dynamic)
    outputs = _tried("lowering", lambda: interpret(stage.module, stage.lowered, inputs))
    _agree("lowering", stage, [*outputs, *filter(torch.is_tensor, inputs)])


def check_schedule_by_interpreter(stage: Staged, patience: int = PATIENCE) -> bool:
    """Hold the kernels, run by the interpreter, against eager; False where they would take too long."""
    if not all(_quick(kernel, patience) for kernel in stage.plan.kernels):
        return False
    check_code(stage, {kernel.name: _interpreted(kernel) for kernel in stage.plan.kernels}, "schedule")
    return True


def check_code(stage: Staged, compiled: dict[str, Run], name: str = "code") -> None:
    """Hold the assembled graph, its kernels compiled, against eager."""
    inputs = stage.program.arguments(stage.dynamic)

    def run() -> Sequence[Any]:
        graph = assemble(stage.module.graph, stage.plan, compiled, overwrites, stage.lowered.written)
        module = fx.GraphModule(stage.module, graph)
        return generate(module, name="random").call(list(inputs))

    _agree(name, stage, [*_tried(name, run), *filter(torch.is_tensor, inputs)])


def texts(program: RandomProgram, dynamic: bool) -> str:
    """The graph of a program, and what became of it as far as it came."""
    module = trace(program, *program.arguments(dynamic), dynamic=dynamic, numbers=dynamic)
    found = [str(module.graph)]
    try:
        made = lower(module)
        found.append(program_text(made.program))
        plan = schedule(made.program)
        found += [str(plan.log), *map(kernel_text, plan.kernels)]
        found.append(source_text(plan.kernels))
    except Exception:
        found.append(traceback.format_exc())
    return "\n\n".join(found)


def _tried(stage: str, run: Callable[[], Any]) -> Any:
    try:
        with torch.no_grad():
            return run()
    except Exception as error:
        raise Wrong(stage, f"{type(error).__name__}: {error}") from error


def _sound(stage: str, findings: Sequence[Any]) -> None:
    if findings:
        raise Wrong(stage, "; ".join(map(str, findings[:3])))


def _interpreted(kernel: Kernel) -> Run:
    def run(*args: Any) -> None:
        names = [param.buffer.name for param in kernel.params]
        sizes = {size.name: n for size, n in zip(kernel.sizes, args[len(names) :], strict=True)}
        run_kernel(kernel, dict(zip(names, args, strict=False)), sizes, shuffle=random.Random(0))

    return run


def _quick(kernel: Kernel, patience: int) -> bool:
    return _work(kernel.body) <= patience


def _work(body: Any) -> int:
    total = 0
    for statement in body:
        inner = getattr(statement, "body", None)
        times = statement.var.extent if hasattr(statement, "var") else 1
        if not isinstance(times, int):
            times = 16
        total += 1 if inner is None else times * _work(inner)
    return total


# -- agreement ---------------------------------------------------------------------------------------------------------


def _agree(stage: str, staged: Staged, actual: Sequence[Any]) -> None:
    program, others = staged.program, None
    for k, (ours, theirs) in enumerate(zip(actual, staged.expected, strict=True)):
        message = difference(ours, theirs, 0.0 if program.exact else LOOSE[theirs.dtype])
        if message is not None and not program.exact:
            others = _perturbed(program) if others is None else others
            message = difference(ours, theirs, _looseness(program), [run[k] for run in others])
        if message is not None:
            raise Wrong(stage, f"result {k}: {message}")


def _looseness(program: RandomProgram) -> float:
    """How far results may be off, for the coarsest dtype of any value on the way."""
    return max(LOOSE[dtype] for dtype in program.dtypes())


def difference(ours: Any, theirs: Any, tolerance: float, others: Sequence[torch.Tensor] = ()) -> str | None:
    """How a tensor differs from eager's; `others` are eager's on inputs a little off, to know what is unstable."""
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return f"{ours.dtype}{list(ours.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
    tolerance = tolerance if theirs.dtype.is_floating_point else 0.0
    close = torch.isclose(ours, theirs, tolerance, tolerance, equal_nan=True)
    if tolerance:  # next to overflow
        close = close | ((ours.abs() > 1e38) & (theirs.abs() > 1e38) & (ours.sign() == theirs.sign()))
    if others and not close.all():
        close = close | _unstable(ours, theirs, others)
    if close.all():
        return None
    at = (~close).nonzero()[0].tolist()
    return (
        f"{int((~close).sum())} of {close.numel()} elements, {ours[tuple(at)]} instead of {theirs[tuple(at)]} at {at}"
    )


def _unstable(ours: torch.Tensor, theirs: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """Elements of the result that move as much when inputs move by a rounding error."""
    others = [other for other in others if other.shape == theirs.shape]
    if not theirs.dtype.is_floating_point:
        return torch.stack([other != theirs for other in others]).any(0)
    ours, theirs, others = ours.double(), theirs.double(), [other.double() for other in others]
    moves = torch.stack([(other - theirs).abs() for other in others])
    changing = (
        (moves != moves) & ~(theirs.isnan() & torch.stack(others).isnan()) & (torch.stack(others) != theirs)
    ).any(0)
    return changing | ((ours - theirs).abs() <= 30 * moves.nan_to_num().amax(0))


def _perturbed(program: RandomProgram, times: int = 6) -> list[list[Any]]:
    """Results on inputs that are a few rounding errors off, and computed in more digits."""
    found = []
    for seed in range(times):
        inputs = program.inputs()
        _shake(inputs, torch.Generator().manual_seed(seed))
        found += _results(program, inputs)
    for dtype in (torch.float32, torch.float64):
        finer = [
            t.to(dtype) if t.is_floating_point() and t.dtype.itemsize < dtype.itemsize else t for t in program.inputs()
        ]
        found += _results(program, finer)
    return found


def _shake(inputs: Sequence[torch.Tensor], generator: torch.Generator) -> None:
    for tensor in inputs:
        if tensor.dtype.is_floating_point and 0 not in tensor.stride():
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * torch.finfo(tensor.dtype).eps
            tensor.copy_(tensor * (1 + noise.to(tensor.device)))


def _results(program: RandomProgram, inputs: list[torch.Tensor]) -> list[list[Any]]:
    try:
        return [[*program(*inputs), *inputs]]
    except (RuntimeError, IndexError, ValueError):
        return []

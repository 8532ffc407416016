"""Scheduling turns a loop program into kernels and calls, in an order in which they can run.

    Program -> dependences (dead code) -> unread -> parts -> inline -> order, narrow integers (GPU) -> early ends
            -> split (long reductions) -> flat -> members -> fusion (legality, profit) -> calls packed (CPU) -> tree
            (shared loops) -> contract (scratch) -> kernels -> launches shared (GPU) -> launches planned (GPU) -> check

`schedule` is the only entry point. A `Target` has all properties of the machine: nothing else distinguishes CPUs and
GPUs. The fusion log contains the decisions and their reasons; `check_schedule` checks the result independently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...rewrites.switches import allowed
from ..ir.kernel import Kernel
from ..ir.program import Buffer, Definition, Extern, Program
from .buffer_order import as_folds_read, in_reading_order
from .call_packing import pack_calls
from .check import ScheduleFault, check_schedule
from .dependences import live
from .early_ends import end_early
from .empty import without_empty_work
from .flat_access import flatten
from .fusion import Fuser, local_buffers
from .groups import Group, Step
from .inlining import inline
from .inplace import overwrites
from .interleaved import by_groups
from .kernels import kernel_of
from .launches.kernel_launches import with_launches
from .legality import FusionRefusal, can_fuse
from .log import FusionLog
from .merge_slices import join_parts
from .narrow_integers import narrow_integers
from .profit import bytes_of, guessing, score_fusion, touched, written
from .result import Schedule
from .shared_launches import share_launches
from .split import split_reductions
from .target import CPU, GPU, Target, gpu
from .unread import without_unread


def schedule(program: Program, *, fuse: bool = True, target: Target = CPU) -> Schedule:
    """Schedule a program.

    Kernels index flat buffers: each param has one dim of stride 1, and loads and stores have one index, the offset of
    the element. Numbers that are passed by value have no index.

    Args:
        program: the program; it is not changed.
        fuse: False creates one kernel per definition, for bisecting.
        target: the target of the kernels.
    """
    # On a CPU, how much there is to do decides what runs on one core: later calls may have more to do.
    with guessing(program.examples if target.elements else {}):
        return _scheduled(program, fuse, target)


def _scheduled(program: Program, fuse: bool, target: Target) -> Schedule:
    items = [without_empty_work(item) for item in without_unread(live(program), program)]
    inlined: list[tuple[str, str]] = []
    if fuse and target.choices and allowed("fusion", "parts of a buffer"):
        items = join_parts(items, program.buffers, program.outputs)
    if fuse:
        items, inlined = inline(items, program.buffers, program.outputs, target)
    buffers = program.buffers
    if fuse and target.choices:
        items = [by_groups(item) for item in items]
        buffers = in_reading_order(items, buffers, program.outputs)
        items, buffers = narrow_integers(items, buffers, program.outputs)
    if fuse:
        buffers = as_folds_read(items, buffers, program.outputs)
        with guessing(program.examples):
            items = end_early(items, buffers, program.outputs)
    program = split_reductions(Program(buffers, items, program.outputs, program.examples), target)
    steps, log = _fused(program, fuse, target)
    log.inlined.extend(inlined)
    made = _kernels(steps, program, target)
    if fuse and target.shared:
        made, log.shared = share_launches(made, program.buffers, program.outputs, target)
    made = tuple(_with_examples(step, program.examples) if isinstance(step, Kernel) else step for step in made)
    if target.processors:
        made = with_launches(made, target.processors)
    return Schedule(made, _real(made, program.buffers), log, target, program)


def _with_examples(kernel: Kernel, examples: Mapping[str, int]) -> Kernel:
    """A kernel that knows its sizes on the example."""
    parts = tuple(_with_examples(part, examples) for part in kernel.parts)
    own = tuple((size.name, examples[size.name]) for size in kernel.sizes if size.name in examples)
    return replace(kernel, parts=parts, examples=own)


def _fused(program: Program, fuse: bool, target: Target) -> tuple[list[Step], FusionLog]:
    items = program.items
    flat = [flatten(i, program.buffers) if isinstance(i, Definition) else i for i in items]
    kept = {*program.outputs, *(name for name, b in program.buffers.items() if b.kind != "made")}
    kept |= {name for i in items if isinstance(i, Extern) for name in (*i.reads, *i.writes)}
    with guessing(program.examples):  # memory is that of the example: calls with more take more in any case
        memory = {name: bytes_of(buffer) for name, buffer in program.buffers.items()}
    fuser = Fuser(flat, program.buffers, frozenset(kept), target, memory)
    steps = fuser.run(rounds=None if fuse else 0)
    if fuse and target.packs:
        steps = pack_calls(steps, program.buffers, program.outputs, fuser.axes, target)
    return steps, fuser.log


def _kernels(steps: list[Step], program: Program, target: Target) -> tuple[Kernel | Extern, ...]:
    local = local_buffers(steps, program.buffers, program.outputs)
    elsewhere = any(buffer.device.type != "cpu" for buffer in program.buffers.values())
    made: list[Kernel | Extern] = []
    for number, step in enumerate(steps):
        if isinstance(step, Extern):
            made.append(step)
            continue
        mine, own = local & touched(step), CPU if elsewhere and _at_home(step, program) else target
        made.append(kernel_of(step, f"k{number}_{step.name}", program.buffers, mine, own))
    return tuple(made)


def _at_home(group: Group, program: Program) -> bool:
    """Whether code runs on the host."""
    return all(program.buffers[name].device.type == "cpu" for name in written(group))


def _real(steps: tuple[Kernel | Extern, ...], buffers: dict[str, Buffer]) -> dict[str, Buffer]:
    """The buffers written by steps, in the order of first use."""
    found: dict[str, Buffer] = {}
    for step in steps:
        names = [p.buffer.name for p in step.params] if isinstance(step, Kernel) else [*step.reads, *step.writes]
        found.update((n, buffers[n]) for n in names if buffers[n].kind == "made")
    return found


__all__ = [
    "CPU",
    "GPU",
    "FusionLog",
    "FusionRefusal",
    "Schedule",
    "ScheduleFault",
    "Target",
    "can_fuse",
    "check_schedule",
    "gpu",
    "overwrites",
    "schedule",
    "score_fusion",
    "split_reductions",
]  # fmt: skip

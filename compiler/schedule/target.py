"""The target of a schedule: all numbers behind decisions that depend on the machine.

CPU    few strong cores: kernels are merged, small work stays on one core, reductions stay whole
GPU    many programs: any work runs in parallel, long reductions are split, and recomputing a value is
       cheaper than reading it from memory
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..gpu import HOPPER


@dataclass(frozen=True)
class Target:
    """The properties of a machine; numbers count loop iterations unless they say otherwise.

    Args:
        name: the name in texts.
        busy: the number of outer iterations that keeps the machine busy.
        small: the most work that gains nothing from running in parallel.
        share: the work of one outer iteration up to which too few of them are acceptable: that of one program.
        packs: whether successive small kernels are merged, to save calls.
        scratch: the most elements of one scratch buffer per iteration; `scratch_bytes`: the most bytes of all of them.
        programs: the number of parallel iterations at which splitting a reduction aims; 0: reductions stay whole.
        lanes: the number of neighbors in memory that one program processes together.
        chunk: the smallest part of a split reduction for one program.
        operations: the number of operations in the time of moving one byte; 0: values of several operations are stored.
        choices: whether selecting one of two values costs no more than computing both.
        elements: the number of elements that each of the `busy` programs processes at once; 0: programs have no lanes.
        serial: the largest ratio of total traffic to saved traffic for a fusion that makes several loops of one group
            sequential; 0: no limit.
        shared: the most bytes of traffic of a kernel that may share its launch with independent kernels; 0: none may.
        processors: the multiprocessors of a GPU, for which kernels have launches; 0 for a CPU.
        atomic: whether parallel iterations may combine into one element of memory. Scatter stores may also race then:
            it is not specified which of several stores to one element wins.
    """

    name: str
    busy: int
    small: int
    share: int
    packs: bool
    scratch: int
    scratch_bytes: int
    programs: int = 0
    lanes: int = 1
    chunk: int = 1
    operations: int = 0
    choices: bool = False
    elements: int = 0
    serial: int = 0
    shared: int = 0
    processors: int = 0
    atomic: bool = False


CPU = Target("cpu", busy=64, small=1 << 14, share=0, packs=True, scratch=1 << 16, scratch_bytes=1 << 20)
_MULTIPROCESSOR = Target(
    "gpu", busy=2, small=0, share=1 << 14, packs=False, scratch=1 << 14, scratch_bytes=1 << 18, programs=2, lanes=64,
    chunk=1 << 12, operations=8, choices=True, elements=1 << 10, serial=8, shared=256 << 20, atomic=True,
)  # fmt: skip


NARROWEST = 16  # fewest neighbors in memory that one program processes together


def gpu(processors: int = HOPPER.processors) -> Target:
    """A GPU with this many multiprocessors.

    Two programs per multiprocessor keep it busy. A program holds rows of 16384 elements. In the time of moving one byte
    (at about 4 TB/s), 8 operations are computed. A launch, with the time in which its last programs leave
    multiprocessors idle, takes about 3 us: less than a twentieth of the time of a kernel that moves more than 256 MiB.
    """
    one = _MULTIPROCESSOR
    return replace(one, busy=one.busy * processors, programs=one.programs * processors, processors=processors)


GPU = gpu()

__all__ = ["CPU", "GPU", "NARROWEST", "Target", "gpu"]

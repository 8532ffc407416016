"""The target of a schedule: the numbers behind every decision that depends on the machine.

CPU    few strong cores: calls are merged, small work stays on one core, reductions stay whole
GPU    many programs at once: no work is too small to run side by side, long reductions are split,
       computing a value again is cheaper than memory
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Target:
    """The preferences of a machine; all numbers are of loop iterations unless they say otherwise.

    Args:
        name: for texts.
        busy: outer iterations that keep all of it busy.
        small: work that nothing is gained for by running it side by side.
        share: work of one outer iteration that may be given to too few of them: what one program does at a time.
        packs: whether small kernels that follow each other become one, to save calls.
        scratch: elements of one buffer that an iteration may keep to itself; `scratch_bytes` of all of them, in bytes.
        programs: iterations side by side that splitting a reduction aims at; 0: reductions stay whole.
        lanes: neighbours in memory that one program takes together.
        chunk: what is left of a reduction for one program, at least.
        operations: how many of them take as long as moving one byte; 0: values of several operations are kept.
        choices: whether choosing between two values costs no more than computing them.
        elements: that each of the `busy` programs has at once; 0: programs are no blocks of lanes.
        serial: how many times the traffic that a fusion saves there may be, where it makes several loops of one of the
            two serial; 0: as much as there is.
        shared: bytes of traffic up to which a kernel may share its launch with others that do not need it; 0: none may.
        atomic: whether stores that combine with memory may meet in one element, side by side; likewise a store at
            indices read from memory, which of equal ones is the last being nobody's promise there.
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
    atomic: bool = False


CPU = Target("cpu", busy=64, small=1 << 14, share=0, packs=True, scratch=1 << 16, scratch_bytes=1 << 20)
_MULTIPROCESSOR = Target(
    "gpu", busy=2, small=0, share=1 << 14, packs=False, scratch=1 << 14, scratch_bytes=1 << 18, programs=4, lanes=64,
    chunk=1 << 12, operations=8, choices=True, elements=1 << 10, serial=8, shared=256 << 20, atomic=True,
)  # fmt: skip


def gpu(processors: int = 132) -> Target:
    """A GPU of so many multiprocessors (132: Hopper).

    Two programs a processor keep it busy, four hide what memory takes. A program holds rows of 16384 elements. While a
    byte is moved (some 4 TB/s), 8 operations are computed. A launch, and the time in which its last programs leave
    processors idle, take some 3 us: less than a twentieth of what a kernel takes that moves more than 256 MiB.
    """
    return replace(
        _MULTIPROCESSOR, busy=_MULTIPROCESSOR.busy * processors, programs=_MULTIPROCESSOR.programs * processors
    )


GPU = gpu()

__all__ = ["CPU", "GPU", "Target", "gpu"]

"""The verifier of launches: does each cover its loops once, by tiles that every GPU can run?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...rewrites.words import counted
from .accesses import nests, statements
from .index.index import Var
from .kernel import Kernel, Loop, Statement
from .launch import Blocks, Launch
from .verify_value import ProgramFault

THREADS = 32  # threads of a warp
_MOST_THREADS = 1024  # threads of a program
_MOST_ELEMENTS = 1 << 20  # elements of a tile, in Triton
_SHARED = 99 << 10  # bytes of shared memory that a program has on every GPU: tiles of two axes turn there


def launch_findings(kernel: Kernel) -> Iterator[ProgramFault]:
    """The faults of the launches of a kernel, or of its parts; a kernel for a CPU has no launches."""
    if kernel.parts:
        if kernel.launches:
            yield ProgramFault("launch", kernel.name, "has launches of its own beside those of its parts")
        yield from (ProgramFault("launch", kernel.name, message) for message in _shared(kernel))
        for part in kernel.parts:
            yield from launch_findings(part)
    elif kernel.launches:
        yield from _of_kernel(kernel)


def _shared(kernel: Kernel) -> Iterator[str]:
    for number, count in Counter(number for shared in kernel.shared for number in shared).items():
        if number not in range(len(kernel.parts)):
            yield f"there is no part {number}, which shares a launch"
        elif count > 1:
            yield f"part {number} is in {count} launches"
        elif len(kernel.parts[number].launches) != 1:
            yield f"part {number} shares a launch and has {len(kernel.parts[number].launches)}"


def _of_kernel(kernel: Kernel) -> Iterator[ProgramFault]:
    found = nests(kernel.body)
    if len(found) != len(kernel.launches):
        yield ProgramFault("launch", kernel.name, f"has {len(kernel.launches)} launches for {len(found)} statements")
        return
    widest = max((p.buffer.dtype.itemsize for p in kernel.params), default=1)
    for launch, (loops, body) in zip(kernel.launches, found, strict=True):
        for message in (*_loops(launch, loops, body), *_tile(launch.blocks, widest)):
            yield ProgramFault("launch", kernel.name, message)


def _loops(launch: Launch, loops: Sequence[Var], body: Sequence[Statement]) -> Iterator[str]:
    covered = Counter(launch.loops)
    yield from (f"no program has iterations of {var.name}" for var in loops if not covered[var])
    yield from (f"{var.name} is {n} times among the loops of programs" for var, n in covered.items() if n > 1)
    yield from (f"{var.name} is no parallel loop around the statement" for var in covered if var not in loops)
    if launch.blocks.columns and any(isinstance(s, Loop) for s in statements(body)):
        yield "columns are iterations of programs, but loops inside of programs need them"


def _tile(blocks: Blocks, widest: int) -> Iterator[str]:
    numbers = {"rows": blocks.row_block, "columns": blocks.column_block, "warps": blocks.warps}
    yield from (f"{n} {name} are no power of two" for name, n in numbers.items() if n < 1 or n & (n - 1))
    if not blocks.rows and blocks.row_block != 1:
        yield f"a block has {counted(blocks.row_block, 'row')}, of no loop"
    if blocks.warps * THREADS > _MOST_THREADS:
        yield f"a program has {blocks.warps * THREADS} threads, more than {_MOST_THREADS}"
    elements = blocks.row_block * blocks.column_block
    if elements > _MOST_ELEMENTS:
        yield f"a tile has {elements} elements, more than {_MOST_ELEMENTS}"
    if blocks.rows and blocks.columns and elements * widest > _SHARED:
        yield f"a tile has {elements * widest} bytes, more than the {_SHARED} of shared memory"


__all__ = ["THREADS", "launch_findings"]

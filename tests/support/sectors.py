"""What a generated kernel's programs ask of memory, and what memory moves for it, without a GPU.

touched(kernel)      ->  [Touched(programs=512, asked=12548, moved=12576)]        a launch each, of its first program

Memory moves sectors of 32 bytes. What the lanes of one instruction ask for of a sector is asked for once.
"""

from __future__ import annotations

from dataclasses import dataclass

from regraft.compiler.codegen.kernel_call import evaluate
from regraft.compiler.ir.kernel import Kernel
from regraft.compiler.ir.program import Buffer

from .triton_kernels import interpreter, kernel_source


@dataclass(frozen=True)
class Touched:
    """What one launch touches.

    Args:
        programs: of the launch.
        asked: bytes that its first program loads and stores.
        moved: bytes of the sectors that hold them.
    """

    programs: int
    asked: int
    moved: int


def touched(kernel: Kernel) -> list[Touched]:
    """What each launch of a kernel of fixed sizes touches."""
    source = kernel_source(kernel)
    buffers = {param.buffer.name: param.buffer for param in kernel.params}
    calls = []
    for launch in source.launches:
        arguments = [_argument(buffers[name]) for name in launch.params]
        arguments += [(evaluate(w.copies, {}) * w.buffer.sizes[0], w.buffer.dtype) for w in launch.workspaces]
        calls.append((launch.name, arguments))
    found = interpreter().touched(source.text, calls)
    return [Touched(evaluate(x.programs, {}), *each) for x, each in zip(source.launches, found, strict=True)]


def share_moved(kernels: list[Kernel]) -> float:
    """How many times what is asked for is moved, by all kernels together."""
    launches = [launch for kernel in kernels for launch in touched(kernel)]
    moved = sum(launch.programs * launch.moved for launch in launches)
    return moved / max(1, sum(launch.programs * launch.asked for launch in launches))


def _argument(buffer: Buffer) -> tuple[int, object] | int:
    elements = 1
    for size in buffer.sizes:
        elements *= size
    return 1 if buffer.scalar else (max(elements, 1), buffer.dtype)

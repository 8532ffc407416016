"""Short kernels one after the other: each begins while those before it end, and waits for them by itself.

product            its programs lead into the next kernel's        k0        usual: all before it has ended
k0: for j < 2048                                            ->     k1  waits, its programs are there already
k1: for j < 64                                                     product waits, its weights are on their way

Launches take as long as a step of microseconds: what begins early has them behind it. The first kernel is launched in
the usual way, so that whatever ran before the program has ended when any of its kernels begins, and what lies still
while the program runs may be read at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..ir.kernel import Kernel
from ..ir.program import Extern


def begin_early(steps: Sequence[Kernel | Extern]) -> tuple[Kernel | Extern, ...]:
    """Steps whose kernels on GPUs may begin early, but for those up to the first that is sure to be launched."""
    made: list[Kernel | Extern] = []
    launched = False
    for step in steps:
        on_gpu = isinstance(step, Kernel) and any(p.buffer.device.type == "cuda" for p in step.params)
        made.append(replace(step, early=True) if isinstance(step, Kernel) and on_gpu and launched else step)
        launched = launched or (isinstance(step, Kernel) and on_gpu and not step.sizes)
    return tuple(made)

"""Small programs through all stages, as text, for a look at what a change changes: `golden/texts.txt`.

schedule, lanes: the kernels as loop IR, for a CPU, and as they are planned for it; avx2: their bodies in C++
launches, triton: the same programs for a GPU
"""

import pytest

pytest.importorskip("triton")

from support.golden import with_pinned_torch
from support.lowering import trace
from support.triton_kernels import kernel_source

from regraft.compiler.codegen.cpp.kernel_text import kernel_text, planned
from regraft.compiler.codegen.cpp.target import target
from regraft.compiler.ir import printer
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import CPU, GPU, schedule

from .cpp.test_kernels import PROGRAMS

SCHEDULED = [
    "pointwise with broadcasts", "transposed", "layer_norm", "softmax", "causal softmax", "variance", "padding",
    "concatenation", "embedding", "cross entropy",
]  # fmt: skip
NAMES = [
    *SCHEDULED, "heads", "group_norm", "softmax across", "argmax", "cumulative sum", "gelu", "float16", "integers",
    "gather", "scatter with additions",
]  # fmt: skip


def texts(name):
    function, *inputs = PROGRAMS[name]
    program = lower(trace(function, *inputs), strict=True).program
    kernels = schedule(program, target=CPU).kernels
    if name in SCHEDULED:
        yield "schedule", "\n".join(map(printer.kernel_text, kernels))
        yield "lanes", "\n".join(printer.kernel_text(planned(kernel, target("avx2"))) for kernel in kernels)
    yield "avx2", "\n".join(kernel_text(kernel, target("avx2")) for kernel in kernels)
    kernels = schedule(program, target=GPU).kernels
    if name in SCHEDULED:
        yield "launches", "\n".join(map(printer.kernel_text, kernels))
    yield "triton", "\n".join(kernel_source(kernel).text for kernel in kernels)


@with_pinned_torch
def test_texts_of_all_stages(golden):
    golden.check({f"{stage}: {name}": text for name in NAMES for stage, text in texts(name)})

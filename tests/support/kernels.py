"""Machine code against eager: trace a function, lower, schedule and compile it, run the kernels, compare.

compiled_agrees(lambda x: x.relu(), torch.randn(3, 4))       every kernel in C++, results are eager's
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from regraft.compiler import cpp
from regraft.compiler.ir.interpreter import allocate
from regraft.compiler.ir.kernel import Kernel
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import schedule

from .lowering import Replay, compare, fresh, trace


def compiled_agrees(
    function: Callable[..., Any], *inputs: Any, dynamic: bool = False, target: cpp.Target | None = None, **tolerance: Any
) -> tuple[Kernel, ...]:
    """Assert that the compiled function computes what eager does; gives the kernels."""
    module = trace(function, *inputs, dynamic=dynamic)
    made = lower(module, strict=True)
    plan = schedule(made.program)
    eager_inputs, own_inputs = fresh(inputs), fresh(inputs)
    replay = Replay(module, own_inputs)
    tensors, sizes = replay.given(made), replay.symbols()
    tensors |= {name: allocate(buffer, sizes) for name, buffer in plan.buffers.items()}
    run_steps(plan, tensors, sizes, replay, target)
    output = next(node for node in module.graph.nodes if node.op == "output")
    compare(fx.map_arg(output.args[0], lambda node: replay.value(node, tensors)), function(*eager_inputs), **tolerance)
    for ours, theirs in zip(own_inputs, eager_inputs, strict=True):
        compare(ours, theirs, **tolerance)
    return plan.kernels


def run_steps(plan: Any, tensors: dict[str, Any], sizes: Mapping[str, int], replay: Replay, target: Any) -> None:
    """Run a schedule: kernels in C++, the rest in eager."""
    functions = iter(cpp.build(plan.kernels, target))
    for step in plan.steps:
        if isinstance(step, Kernel):
            call(next(functions), step, tensors, sizes)
        else:
            tensors.update(replay.extern(step, tensors))


def call(function: Callable[..., None], kernel: Kernel, tensors: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Call a compiled kernel with tensors and sizes by name."""
    function(*(tensors[p.buffer.name] for p in kernel.params), *(sizes[s.name] for s in kernel.sizes))


def run_compiled(
    kernel: Kernel, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int] | None = None, target: Any = None
) -> dict[str, torch.Tensor]:
    """What `ir.interpreter.run_kernel` does, in C++: params by name, those missing allocated."""
    given = dict(tensors)
    for param in kernel.params:
        given.setdefault(param.buffer.name, allocate(param.buffer, sizes or {}))
    (function,) = cpp.build([kernel], target)
    call(function, kernel, given, sizes or {})
    return given

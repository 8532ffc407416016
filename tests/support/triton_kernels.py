"""Generated Triton kernels without a GPU: interpreted on tensors of the CPU, and compiled for real ones.

interpreted_agrees(lambda x: x.relu(), torch.randn(3, 4))      every kernel interpreted, results are eager's
compile_for(kernel_source(kernel), 90)                         machine code for Hopper
compiles(kernel_source(kernel))                                the same for every GPU that is promised
"""

from __future__ import annotations

import functools
import importlib.util
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from regraft.compiler.codegen.kernel_call import evaluate
from regraft.compiler.codegen.triton import (
    KernelSource,
    UnsupportedDtypeError,
    UnsupportedStoreError,
)
from regraft.compiler.codegen.triton import kernel_source as planned_source
from regraft.compiler.codegen.triton.build import NARROW
from regraft.compiler.gpu import A100, H100, HOPPER, L4
from regraft.compiler.ir.interpreter import allocate, bound_sizes
from regraft.compiler.ir.kernel import Kernel
from regraft.compiler.ir.launch import Launch
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import GPU, Target, schedule
from regraft.compiler.schedule.launches.kernel_launches import planned

from .lowering import Replay, compare, fresh, trace

# By capability: bytes of shared memory that a program may have.
_SHARED = {gpu.capability: gpu.shared_bytes for gpu in (H100, A100, L4)}


class _Interpreter:
    """The worker, and what it is asked."""

    def __init__(self) -> None:
        worker = Path(__file__).with_name("triton_worker.py")
        command = [sys.executable, str(worker)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, source: str, calls: list[tuple[str, int, list[Any]]]) -> list[list[Any]]:
        return self._ask("run", source, calls)

    def touched(self, source: str, calls: list[tuple[str, list[Any]]]) -> list[tuple[int, int]]:
        """Bytes asked for and moved by the first program of each launch, of tensors given as elements and dtype."""
        return self._ask("touched", source, calls)

    def _ask(self, *request: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump(request, self._process.stdin)
        self._process.stdin.flush()
        done, result = pickle.load(self._process.stdout)
        if not done:
            raise AssertionError(f"{result}\n{request[1]}")
        return result


@functools.cache
def interpreter() -> _Interpreter:
    """The one worker of this process."""
    return _Interpreter()


def kernel_source(kernel: Kernel, plans: Sequence[Launch] = ()) -> KernelSource:
    """The source of a kernel with these launches; one that no schedule has made is planned for an H100."""
    if plans:
        kernel = replace(kernel, launches=tuple(plans))
    bare = not (kernel.launches or any(part.launches for part in kernel.parts))
    return planned_source(planned(kernel, HOPPER.processors) if bare else kernel)


def interpret(
    kernel: Kernel, tensors: Mapping[str, Any], sizes: Mapping[str, int], plans: Sequence[Launch] = ()
) -> KernelSource:
    """Run a kernel on tensors by name, in place."""
    source = kernel_source(kernel, plans)
    memory, read = dict(tensors), {p.buffer.name for p in kernel.params if p.access == "read"}
    for launch in source.launches:
        arguments = [_flat(memory[name]) for name in launch.params] + [sizes[name] for name in launch.sizes]
        for workspace in launch.workspaces:
            elements = evaluate(workspace.copies, sizes) * workspace.buffer.sizes[0]
            arguments.append(torch.full((elements,), -77, dtype=workspace.buffer.dtype))
        is_wide = launch.reach is not None and evaluate(launch.reach, sizes) >= NARROW
        text = source.wide if is_wide else source.text
        (after,) = interpreter().run(text, [(launch.name, evaluate(launch.programs, sizes), arguments)])
        for name, result in zip(launch.params, after, strict=False):
            if isinstance(memory[name], torch.Tensor) and name not in read:
                _flat(memory[name]).copy_(result)
    return source


def interpreted(kernel: Kernel) -> Callable[..., None]:
    """A kernel as what the code generator calls: tensors in the order of its params, then sizes."""
    names = [param.buffer.name for param in kernel.params]

    def run(*args: Any) -> None:
        sizes = {size.name: n for size, n in zip(kernel.sizes, args[len(names) :], strict=True)}
        interpret(kernel, dict(zip(names, args, strict=False)), sizes)

    return run


def unsupported(kernel: Kernel) -> str:
    """Why a kernel has no Triton; empty where it has."""
    try:
        kernel_source(kernel)
    except (UnsupportedDtypeError, UnsupportedStoreError) as error:
        return str(error)
    return ""


def run_interpreted(
    kernel: Kernel,
    tensors: Mapping[str, Any],
    sizes: Mapping[str, int] | None = None,
    plans: Sequence[Launch] = (),
) -> dict[str, Any]:
    """What `ir.interpreter.run_kernel` does, in Triton: params by name, those missing allocated."""
    given = dict(tensors)
    for param in kernel.params:
        if param.buffer.name not in given:
            given[param.buffer.name] = allocate(param.buffer, sizes or {})
    interpret(kernel, given, sizes or {}, plans)
    return given


def device_lost(device: str) -> str:
    """What a GPU has failed with, so that nothing runs on it any more in this process; empty where it has not."""
    if device != "cuda":
        return ""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0][:300]
    return ""


def _flat(tensor: Any) -> Any:
    """All memory of a tensor as one dim."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return tensor.as_strided((span,), (1,))


def interpreted_agrees(
    function: Callable[..., Any], *inputs: Any, dynamic: bool = False, target: Target = GPU, **tolerance: Any
) -> list[KernelSource]:
    """Assert that the generated kernels, interpreted, compute what eager does; gives their sources."""
    module = trace(function, *inputs, dynamic=dynamic)
    made = lower(module, strict=True)
    plan = schedule(made.program, target=target)
    eager_inputs, own_inputs = fresh(inputs), fresh(inputs)
    replay = Replay(module, own_inputs)
    tensors = replay.given(made)
    given = {name: x for name, x in tensors.items() if isinstance(x, torch.Tensor)}
    sizes = {**bound_sizes(made.program.buffers.values(), given), **replay.symbols()}
    tensors |= {name: allocate(buffer, sizes) for name, buffer in plan.buffers.items()}
    sources = []
    for step in plan.steps:
        if isinstance(step, Kernel):
            sources.append(interpret(step, tensors, sizes))
        else:
            tensors.update(replay.extern(step, tensors))
    output = next(node for node in module.graph.nodes if node.op == "output")
    try:
        compare(
            fx.map_arg(output.args[0], lambda node: replay.value(node, tensors)), function(*eager_inputs), **tolerance
        )
        for ours, theirs in zip(own_inputs, eager_inputs, strict=True):
            compare(ours, theirs, **tolerance)
    except AssertionError as error:
        raise AssertionError(f"{error}\n" + "\n".join(source.text for source in sources)) from error
    return sources


def compiled(source: KernelSource, capability: int, *, aligned: bool = True) -> list[Any]:
    """Triton's compiled kernels of every launch, for a GPU of this capability.

    `aligned`: all buffers begin at multiples of 16 bytes, as where torch's allocator gives them.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.py"
        path.write_text(source.text)
        spec = importlib.util.spec_from_file_location("kernels", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        made = []
        for launch in source.launches:
            pointers = [k for k, kind in enumerate(launch.signature.values()) if kind.startswith("*") and aligned]
            attributes = {(k,): [["tt.divisibility", 16]] for k in pointers}
            ast = ASTSource(getattr(module, launch.name), launch.signature, attrs=attributes)
            options = {"num_warps": launch.warps, "enable_fp_fusion": False}
            options |= {"num_stages": launch.stages} if hasattr(launch, "stages") else {}  # those of templates
            made.append(triton.compile(ast, target=GPUTarget("cuda", capability, 32), options=options))
    return made


def compile_for(source: KernelSource, capability: int, *, aligned: bool = False) -> list[str]:
    """The assembly of every launch (see `compiled`), which fits into shared memory."""
    made = compiled(source, capability, aligned=aligned)
    for one in made:
        assert one.metadata.shared <= _SHARED[capability], (one.metadata.name, one.metadata.shared)
    return [one.asm["ptx"] for one in made]


def compiles(source: KernelSource) -> bool:
    """Whether every launch has machine code, for Hopper and for Ampere."""
    return all(all(compile_for(source, capability)) for capability in (90, 80))


def spilled(made: Any) -> int:
    """Bytes of a thread's registers that compiled code keeps in memory."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return sum(map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", text)))

"""Machine code against eager: trace a function, lower, schedule and compile it, run the kernels, compare.

compiled_agrees(lambda x: x.relu(), torch.randn(3, 4))       every kernel in C++, results are eager's
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import fx

from regraft.compiler.codegen import cpp
from regraft.compiler.codegen.cpp.build import source_text
from regraft.compiler.codegen.cpp.compiler import FLAGS, find_compiler
from regraft.compiler.codegen.cpp.kernel_text import kernel_text
from regraft.compiler.codegen.cpp.target import target
from regraft.compiler.ir.index.index import Var
from regraft.compiler.ir.interpreter import allocate, bound_sizes
from regraft.compiler.ir.kernel import Assign, Kernel, Loop, Param
from regraft.compiler.ir.program import Buffer, Store
from regraft.compiler.ir.value import Value
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import schedule

from .lowering import Replay, compare, fresh, lowered, trace


def numbers(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers of a dtype, of both signs where it has them, and far from 0."""
    return (torch.randn(*sizes) * 50).to(dtype)


def avx512_text(function: Callable[..., Any], *inputs: torch.Tensor) -> str:
    """The C++ of a function's kernels for processors with AVX-512."""
    return "".join(kernel_text(k, target("avx512")) for k in schedule(lowered(function, *inputs).program).kernels)


def instructions(function: Callable[..., Any], *inputs: torch.Tensor) -> str:
    """The machine code, as text, of a function's kernels for processors with AVX-512."""
    kernels = schedule(lowered(function, *inputs).program).kernels
    command = [find_compiler().path, *FLAGS, *target("avx512").flags, "-S", "-x", "c++", "-", "-o", "-"]
    text = source_text(kernels, target("avx512"))
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


@contextmanager
def before_a_page(dtype: torch.dtype, count: int) -> Iterator[torch.Tensor]:
    """Numbers in memory that ends where a page begins that nobody may read."""
    page, size = mmap.PAGESIZE, count * dtype.itemsize
    room = -(-size // page) * page
    memory = mmap.mmap(-1, room + page)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(at + room), page, 0) == 0
    try:
        yield torch.frombuffer(memory, dtype=dtype, count=count, offset=room - size).copy_(numbers(count))
    finally:
        assert libc.mprotect(ctypes.c_void_p(at + room), page, mmap.PROT_READ | mmap.PROT_WRITE) == 0


@dataclass(frozen=True)
class _Program:
    """A function as kernels, and what tells whether they compute what eager does, given them in machine code."""

    kernels: tuple[Kernel, ...]
    target: cpp.InstructionSet | None
    check: Callable[[Sequence[Callable[..., None]]], None]


_WAITING: list[list[_Program]] = []  # the programs of each `one_unit` around


def compiled_agrees(
    function: Callable[..., Any],
    *inputs: Any,
    dynamic: bool = False,
    target: cpp.InstructionSet | None = None,
    **tolerance: Any,
) -> tuple[Kernel, ...]:
    """Assert that the compiled function computes what eager does; gives the kernels."""
    module = trace(function, *inputs, dynamic=dynamic)
    made = lower(module, strict=True)
    plan = schedule(made.program)
    eager_inputs, own_inputs = fresh(inputs), fresh(inputs)
    replay = Replay(module, own_inputs)
    expected = function(*eager_inputs)  # now, since a caller may change what the function refers to

    def check(functions: Sequence[Callable[..., None]]) -> None:
        tensors = replay.given(made)
        sizes = {**bound_sizes(made.program.buffers.values(), _only_tensors(tensors)), **replay.symbols()}
        tensors |= {name: allocate(buffer, sizes) for name, buffer in plan.buffers.items()}
        _run_steps(plan, functions, tensors, sizes, replay)
        output = next(node for node in module.graph.nodes if node.op == "output")
        compare(fx.map_arg(output.args[0], lambda node: replay.value(node, tensors)), expected, **tolerance)
        for ours, theirs in zip(own_inputs, eager_inputs, strict=True):
            compare(ours, theirs, **tolerance)

    program = _Program(plan.kernels, target, check)
    if _WAITING:
        _WAITING[-1].append(program)
    else:
        _check([program])
    return plan.kernels


@contextmanager
def one_unit() -> Iterator[None]:
    """Programs that `compiled_agrees` is given inside are compiled at the end, as one source for each target.

    Half the time of compiling a small source is the same for every source. Also a decorator, `@one_unit()`.
    """
    _WAITING.append([])
    try:
        yield
    except BaseException:
        _WAITING.pop()
        raise
    _check(_WAITING.pop())


def _check(programs: Sequence[_Program]) -> None:
    for one in dict.fromkeys(program.target for program in programs):
        same = [program for program in programs if program.target == one]
        functions = iter(cpp.build([kernel for program in same for kernel in program.kernels], one))
        for program in same:
            mine = list(islice(functions, len(program.kernels)))
            try:
                program.check(mine)
            except AssertionError as error:
                error.add_note(f"program {programs.index(program)} of {len(programs)}")
                raise


def _only_tensors(given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}


def _run_steps(
    plan: Any,
    functions: Iterable[Callable[..., None]],
    tensors: dict[str, Any],
    sizes: Mapping[str, int],
    replay: Replay,
) -> None:
    """Run a schedule: kernels in C++, the rest in eager."""
    compiled = iter(functions)
    for step in plan.steps:
        if isinstance(step, Kernel):
            call(next(compiled), step, tensors, sizes)
        else:
            tensors.update(replay.extern(step, tensors))


def call(function: Callable[..., None], kernel: Kernel, tensors: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Call a compiled kernel with tensors and sizes by name."""
    function(*(tensors[p.buffer.name] for p in kernel.params), *(sizes[s.name] for s in kernel.sizes))


def run_compiled(
    kernel: Kernel, tensors: Mapping[str, Any], sizes: Mapping[str, int] | None = None, target: Any = None
) -> dict[str, Any]:
    """What `ir.interpreter.run_kernel` does, in C++: params by name, those missing allocated."""
    (made,) = run_compiled_all([kernel], [tensors], target, sizes)
    return made


def run_compiled_all(
    kernels: Sequence[Kernel],
    tensors: Sequence[Mapping[str, Any]],
    target: Any = None,
    sizes: Mapping[str, int] | None = None,
) -> list[dict[str, Any]]:
    """Several kernels of one unit, each on its own tensors."""
    results = []
    for function, kernel, mine in zip(cpp.build(kernels, target), kernels, tensors, strict=True):
        given = dict(mine)
        for param in kernel.params:
            if param.buffer.name not in given:
                given[param.buffer.name] = allocate(param.buffer, sizes or {})
        call(function, kernel, given, sizes or {})
        results.append(given)
    return results


def flat_buffer(name: str, size: Any, dtype: torch.dtype = torch.float32, **more: Any) -> Buffer:
    """Contiguous memory of one dim."""
    return Buffer(name, dtype, (size,), (1,), torch.device("cpu"), **more)


def kernel(
    name: str, reads: Sequence[Buffer], writes: Sequence[Buffer], body: Any, scratch: Any = (), sizes: Any = ()
) -> Kernel:
    """A kernel with its params spelled out."""
    params = (*(Param(b, "read") for b in reads), *(Param(b, "write") for b in writes))
    return Kernel(name, params, tuple(sizes), tuple(scratch), tuple(body))


def loop_kernel(name: str, size: int, reads: Sequence[Buffer], out: Buffer, value: Callable[[Any], Value]) -> Kernel:
    """``for i < size parallel: out[i] = value(i)``"""
    i = Var("i", size)
    store = Assign(Store(out.name, (i.index(),), value(i.index())))
    return kernel(name, reads, [out], [Loop(i, (store,), True)])

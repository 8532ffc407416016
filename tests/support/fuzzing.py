"""Random programs in batches: the kernels of many are compiled together; what disagrees is made smaller.

cpu            generated C++, every stage before it run by the interpreter of loop programs
cuda           generated Triton, inputs and eager on the GPU
interpreter    generated Triton, run by its interpreter on the CPU
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from regraft.compiler.codegen import cpp, triton
from regraft.compiler.ir.kernel import Kernel
from regraft.compiler.schedule import GPU, gpu

from .random_programs import RandomProgram, smaller
from .stages import Staged, Wrong, check_code, check_lowering, check_schedule_by_interpreter, staged
from .triton_kernels import interpreted, unsupported

Programs = Mapping[int, tuple[RandomProgram, bool]]  # by number: a program, and whether its sizes are symbolic


BUILDERS: dict[str, Callable[[Sequence[Kernel]], Sequence[Any]]] = {
    "cpu": lambda kernels: cpp.build(kernels),
    "cuda": lambda kernels: triton.build(kernels),
    "interpreter": lambda kernels: [interpreted(kernel) for kernel in kernels],
}


@dataclass(frozen=True)
class Failure:
    """A program that a stage gets wrong: `lowering`, `schedule`, `code`, or `crash` of the process that ran it."""

    number: int
    program: RandomProgram
    dynamic: bool
    stage: str
    message: str

    def __str__(self) -> str:
        sizes = " of symbolic sizes" if self.dynamic else ""
        return f"{self.stage} differs from eager, program {self.number}{sizes}: {self.message}\n{self.program}"


def check_batch(programs: Programs, counts: Counter[str], device: str = "cpu") -> list[Failure]:
    """Hold programs against eager at every stage, each failure at the first stage that is wrong.

    Args:
        programs: what to run.
        counts: is added to.
        device: a key of `BUILDERS`.
    """
    failures: list[Failure] = []
    ready: dict[int, Staged] = {}
    for number, (program, dynamic) in programs.items():
        try:
            made = (
                _interpreted(program, dynamic, counts)
                if device == "cpu"
                else _for_gpu(program, dynamic, counts, device)
            )
        except Wrong as wrong:
            failures.append(Failure(number, program, dynamic, wrong.stage, wrong.message))
            continue
        if made is not None:
            ready[number] = made
    failures += list(_compiled(programs, ready, counts, device))
    counts["programs"] += len(programs)
    counts["wrong"] += len(failures)
    return failures


def _interpreted(program: RandomProgram, dynamic: bool, counts: Counter[str]) -> Staged | None:
    made = staged(program, dynamic=dynamic)
    if made is None:
        counts["refused by eager"] += 1
        return None
    check_lowering(made)
    counts["kernels by interpreter"] += check_schedule_by_interpreter(made)
    counts["kernels"] += len(made.plan.kernels)
    counts["calls kept"] += len(made.lowered.kept)
    return made


def _for_gpu(program: RandomProgram, dynamic: bool, counts: Counter[str], device: str) -> Staged | None:
    """A program scheduled for a GPU; None also where some kernel has no Triton, so that the compiler keeps a call."""
    on_gpu = device == "cuda"
    target = gpu(triton.processors(0)) if on_gpu else GPU
    made = staged(replace(program, device="cuda") if on_gpu else program, dynamic=dynamic, target=target)
    if made is None:
        counts["refused by eager"] += 1
        return None
    if any(unsupported(kernel) for kernel in made.plan.kernels):
        counts["no Triton for it"] += 1
        return None
    counts["kernels"] += len(made.plan.kernels)
    counts["calls kept"] += len(made.lowered.kept)
    return made


def _compiled(programs: Programs, ready: Mapping[int, Staged], counts: Counter[str], device: str) -> Iterator[Failure]:
    kernels = [kernel for made in ready.values() for kernel in made.plan.kernels]
    try:
        functions = iter(BUILDERS[device](kernels))
    except Exception as error:
        if len(ready) > 1:
            for number, made in ready.items():
                yield from _compiled(programs, {number: made}, counts, device)
            return
        for number in ready:
            yield Failure(number, *programs[number], "code", f"{type(error).__name__}: {str(error)[:2000]}")
        return
    for number, made in ready.items():
        compiled = {kernel.name: next(functions) for kernel in made.plan.kernels}
        try:
            check_code(made, compiled)
            counts["agree"] += 1
        except Wrong as wrong:
            yield Failure(number, *programs[number], wrong.stage, wrong.message)


def failure_of(program: RandomProgram, dynamic: bool, number: int = 0, device: str = "cpu") -> Failure | None:
    """What is wrong with one program."""
    return next(iter(check_batch({number: (program, dynamic)}, Counter(), device)), None)


def shrink(failure: Failure, tries: int = 200, device: str = "cpu") -> Failure:
    """The same failure in as small a program as is found."""
    found = True
    while found and tries > 0:
        found = False
        for program in smaller(failure.program):
            tries -= 1
            new = failure_of(program, failure.dynamic, failure.number, device)
            if new is not None and new.stage == failure.stage and _kind(new) == _kind(failure):
                failure, found = new, True
                break
            if tries <= 0:
                break
    return failure


def _kind(failure: Failure) -> str:
    """The first word of a message: what is wrong, apart from where."""
    return failure.message.split(" ")[0].split(":")[0]

"""Kernels to callables: Triton, machine code, launches.

k3_layer_norm (17 equal layers)  ->  one module  ->  machine code for aligned pointers  ->  TritonKernel
                                                     for any pointers: when the first one comes that is not aligned
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ...ir.canonical import canonical
from ...ir.kernel import Kernel
from ...ir.program import Buffer
from ..kernel_call import spell
from .compile_pool import pool
from .compiler import Cubin, Unit, begin_units, compile_units
from .device import capability, index_of
from .driver import driver
from .dtypes import UnsupportedDtypeError
from .errors import TritonFailed, UnsupportedKernels
from .kernel_body import UnsupportedStoreError
from .kernel_names import kernel_name, provenance
from .kernel_text import LaunchText
from .launch import Convention, begin_launcher, launcher
from .source import KernelSource, kernel_source

NARROW = 1 << 30  # numbers that 32 bits hold, and twice as large ones, which blocks reach


@dataclass(frozen=True)
class WorkspaceArgument:
    """Memory that a launch needs beside its arguments: so many elements, an expression of the sizes."""

    elements: str
    dtype: torch.dtype


@dataclass(frozen=True)
class LaunchPlan:
    """One launch of a kernel, as data.

    Args:
        unit: the function that is launched.
        convention: which arguments it takes: of the kernel, then its workspaces, then the number of programs.
        programs: their number, an expression of the sizes where `convention` leaves it open.
        workspaces: the buffers to allocate.
        reach: the largest number that `unit` must hold in 32 bits, an expression of the sizes; empty where it is small.
        wide: the function that is launched instead where that number is too large.
    """

    unit: Unit
    convention: Convention
    programs: str
    workspaces: tuple[WorkspaceArgument, ...]
    reach: str = ""
    wide: Unit | None = None


@dataclass(frozen=True)
class TritonKernel:
    """A kernel on a GPU; call it with tensors in the order of the kernel's params, then sizes.

    Sizes and strides of buffers are those of the kernel, not looked up. It is launched on the current stream of its
    device, and returns before it has run. Pickles as its source: whoever loads it finds the machine code on disk or
    compiles it again.

    Args:
        name: the kernel's.
        device: the index of its GPU.
        params: how many there are, then come the sizes, named `sizes` in expressions.
        plans: its launches, in order.
        bare: the bare callable, a little faster than the object.

    Raises:
        RuntimeError: the driver refuses a launch, or an earlier one has failed: indices out of range among others.
    """

    name: str
    device: int
    params: int
    sizes: tuple[str, ...]
    plans: tuple[LaunchPlan, ...]
    bare: Callable[..., None] = field(repr=False)

    def __call__(self, *args: Any) -> None:
        """Run the kernel."""
        self.bare(*args)

    def __reduce__(self) -> Any:
        return _restored, (self.name, self.device, self.params, self.sizes, self.plans)


def _restored(
    name: str, device: int, params: int, sizes: tuple[str, ...], plans: tuple[LaunchPlan, ...]
) -> TritonKernel:
    (made,) = _bound([(name, device, params, sizes, plans)])
    if isinstance(made, TritonFailed):
        raise made
    return made


def build(kernels: Sequence[Kernel]) -> list[TritonKernel]:
    """Compile kernels of CUDA buffers, equal ones (names apart) once, side by side.

    Raises:
        TritonMissing: something must be compiled, and there is no Triton.
        UnsupportedKernels: Triton cannot compute or compile some of them; it says which and why.
    """
    made = _bound(_described(kernels))
    _raise_for(kernels, made)
    return [one for one in made if isinstance(one, TritonKernel)]


def start() -> None:
    """Prepare the compiler and the launcher, to be ready when the first kernel is written."""
    pool().start()
    begin_launcher()


def begin(kernels: Sequence[Kernel]) -> None:
    """Have them compiled, for whoever builds them later.

    Raises:
        UnsupportedKernels: Triton cannot compute some of them.
    """
    begin_units([plan.unit for *_, plans in _described(kernels) for plan in plans])


def _raise_for(kernels: Sequence[Kernel], results: Sequence[object]) -> None:
    why = {k.name: str(error) for k, error in zip(kernels, results, strict=True) if isinstance(error, Exception)}
    if why:
        raise UnsupportedKernels(why)


def blamed(kernel: Kernel) -> list[Kernel]:
    """The parts of a refused kernel that Triton cannot compute; all of it where none is to blame alone."""
    return [part for part in kernel.parts if isinstance(_written(canonical(part)), Exception)] or [kernel]


def source_text(kernels: Sequence[Kernel], lines: Mapping[str, str] | None = None) -> str:
    """The Triton of kernels, equal ones once, for reading: above each the graph nodes of all that are equal to it.

    Args:
        kernels: the kernels to write.
        lines: where the user's program has graph nodes, by name, as text.
    """
    nodes: dict[Kernel, tuple[str, ...]] = {}
    for kernel in kernels:
        key = canonical(kernel)
        nodes[key] = (*nodes.get(key, ()), *kernel.nodes)
    made = {key: _written(key) for key in nodes}
    texts = {key: one.text if isinstance(one, KernelSource) else f"# {one}" for key, one in made.items()}
    return "\n\n".join(provenance(nodes[key], lines or {}) + text for key, text in texts.items())


def _written(kernel: Kernel) -> KernelSource | Exception:
    """The source of a kernel, its functions named by their text; or why there is none."""
    try:
        source = kernel_source(replace(kernel, name="KERNEL"))
    except (UnsupportedDtypeError, UnsupportedStoreError) as error:
        return error
    name = kernel_name(kernel, source.text)
    launches = tuple(replace(one, name=one.name.replace("KERNEL", name)) for one in source.launches)
    return KernelSource(source.text.replace("KERNEL", name), launches, source.wide.replace("KERNEL", name))


_Described = tuple[str, int, int, tuple[str, ...], tuple[LaunchPlan, ...]]


def _described(kernels: Sequence[Kernel]) -> list[_Described]:
    """Name, device, params, sizes and launches of kernels, equal ones written once."""
    keys = [canonical(kernel) for kernel in kernels]
    written = {key: _written(key) for key in dict.fromkeys(keys)}
    sources = {key: source for key, source in written.items() if isinstance(source, KernelSource)}
    _raise_for(kernels, [written[key] for key in keys])
    return [(kernel.name, *_planned(key, sources[key])) for kernel, key in zip(kernels, keys, strict=True)]


def _planned(kernel: Kernel, source: KernelSource) -> tuple[int, int, tuple[str, ...], tuple[LaunchPlan, ...]]:
    """Device, params, sizes and launches of a kernel."""
    index = index_of(kernel)
    sizes = tuple(f"n{k}" for k in range(len(kernel.sizes)))
    plans = tuple(_plan(kernel, source, one, capability(index)) for one in source.launches)
    return index, len(kernel.params), sizes, plans


def _plan(kernel: Kernel, source: KernelSource, launch: LaunchText, capability: int) -> LaunchPlan:
    places = {p.buffer.name: k for k, p in enumerate(kernel.params)}
    places |= {size.name: len(places) + k for k, size in enumerate(kernel.sizes)}
    buffers = {p.buffer.name: p.buffer for p in kernel.params}
    names = {size.name: f"n{k}" for k, size in enumerate(kernel.sizes)}
    given = len(places)
    kinds = "".join(_kind(buffers[name]) for name in launch.params) + "i" * len(launch.sizes)
    order = tuple(places[name] for name in (*launch.params, *launch.sizes))
    spaces = len(launch.workspaces)
    fixed = isinstance(launch.programs, int)
    convention = Convention(
        given + spaces + (not fixed), (*order, *range(given, given + spaces)), kinds + "a" * spaces,
        launch.programs if fixed else -1, launch.early,
    )  # fmt: skip
    workspaces = tuple(
        WorkspaceArgument(f"({spell(w.copies, names)}) * ({spell(w.buffer.sizes[0], names)})", w.buffer.dtype)
        for w in launch.workspaces
    )
    aligned = tuple(k for k, kind in enumerate(convention.kinds) if kind == "a")
    unit = Unit(source.text, launch.name, tuple(launch.signature.items()), aligned, launch.warps, capability)
    plan = LaunchPlan(unit, convention, spell(launch.programs, names), workspaces)
    if launch.reach is None:
        return plan
    return replace(plan, reach=spell(launch.reach, names), wide=replace(unit, text=source.wide))


def _kind(buffer: Buffer) -> str:
    """Single elements may lie anywhere, parts of a larger tensor: nothing is won by their alignment."""
    if buffer.scalar:
        return "f" if buffer.dtype.is_floating_point else "i"
    return "t" if buffer.sizes in ((), (1,)) else "a"


# -- from plans to callables ------------------------------------------------------------------------------------------


def _bound(described: Sequence[_Described]) -> list[TritonKernel | TritonFailed]:
    units = [plan.unit for *_, plans in described for plan in plans]
    found = dict(zip(units, compile_units(units), strict=True))
    made: list[TritonKernel | TritonFailed] = []
    for name, device, params, sizes, plans in described:
        try:
            runs = [_run(plan, device, params, sizes, found[plan.unit]) for plan in plans]
        except TritonFailed as error:
            made.append(error)
        else:
            made.append(TritonKernel(name, device, params, sizes, plans, _in_order(runs)))
    return made


def _in_order(runs: Sequence[Callable[..., None]]) -> Callable[..., None]:
    if len(runs) == 1:
        return runs[0]

    def run(*args: Any) -> None:
        for one in runs:
            one(*args)

    return run


def _run(
    plan: LaunchPlan, device: int, params: int, sizes: tuple[str, ...], cubin: Cubin | TritonFailed
) -> Callable[..., None]:
    """A launch as a function of the kernel's arguments."""
    start = _launcher(plan, device, cubin)
    if plan.reach:
        start = _for_reach(start, plan, device, params, sizes)
    if not plan.workspaces and plan.convention.programs >= 0:
        return start
    programs = _function(plan.programs, sizes) if plan.convention.programs < 0 else None
    spaces = [(_function(w.elements, sizes), w.dtype) for w in plan.workspaces]
    where = torch.device("cuda", device)

    def run(*args: Any) -> None:
        given = args[params:]
        more: list[Any] = [torch.empty(elements(*given), dtype=dtype, device=where) for elements, dtype in spaces]
        if programs is not None:
            more.append(programs(*given))
        start(*args, *more)

    return run


def _for_reach(
    start: Callable[..., None], plan: LaunchPlan, device: int, params: int, sizes: tuple[str, ...]
) -> Callable[..., None]:
    """A launch that takes another variant for sizes so large that 32 bits do not hold its indices."""
    assert plan.wide is not None
    reach, end = _function(plan.reach, sizes), params + len(sizes)
    wide = _Variant(replace(plan, unit=plan.wide), device)

    def run(*args: Any) -> None:
        (start if reach(*args[params:end]) < NARROW else wide)(*args)

    return run


def _function(text: str, names: tuple[str, ...]) -> Callable[..., int]:
    """An expression of sizes as a function of them."""
    return eval(f"lambda {', '.join(names)}: {text}", {"__builtins__": {"min": min, "max": max}})


def _launcher(plan: LaunchPlan, device: int, cubin: Cubin | TritonFailed) -> Callable[..., None]:
    if isinstance(cubin, TritonFailed):
        raise cubin
    if cubin.scratch:
        raise TritonFailed(f"{cubin.source}: needs global scratch memory, which no launch gives it")
    return launcher(driver().load(cubin, device), device, plan.convention, _Variant(_unaligned(plan), device))


def _unaligned(plan: LaunchPlan) -> LaunchPlan:
    """A launch that takes any pointers."""
    convention = replace(plan.convention, kinds=plan.convention.kinds.replace("a", "t"))
    return replace(plan, unit=replace(plan.unit, aligned=()), convention=convention)


class _Variant:
    """A launch that is seldom needed, compiled at its first call."""

    def __init__(self, plan: LaunchPlan, device: int) -> None:
        self._plan, self._device = plan, device
        self._run: Callable[..., None] | None = None

    def __call__(self, *args: Any) -> None:
        if self._run is None:
            (cubin,) = compile_units([self._plan.unit])
            self._run = _launcher(self._plan, self._device, cubin)
        self._run(*args)

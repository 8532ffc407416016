"""A template's Triton kernel as a callable: it is compiled when first needed, and allocates its results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ....rewrites.compat import is_fake
from ....rewrites.compat.memory import empty_strided
from ...codegen.kernel_call import TemplateCall
from ...codegen.triton import KernelSource, LaunchText, TritonFailed
from ...codegen.triton.compiler import Cubin, Unit, compile_units
from ...codegen.triton.device import capability
from ...codegen.triton.driver import driver
from ...codegen.triton.launch import Convention, launcher
from .cpp_call import Layout

_Plain = dict[str, Sequence[Callable[..., None]]]  # launches for unaligned tensors, compiled when needed


@dataclass(eq=False)
class TritonTemplateKernel(TemplateCall):
    """A generated kernel as the target of a `call_function` node: takes its inputs, returns new tensors.

    It is launched on the current stream, and the call returns before it has run. Pickles as its source: after loading,
    the first call finds the machine code on disk or compiles it again.

    Args:
        name: a readable name, unique to the source.
        template: the name of the template, e.g. ``"gemm"``.
        source: Triton code whose parameters are inputs, outputs and workspaces; each launch takes all of them, or
            those in its ``places``.
        plain: the same for tensors that are not aligned to 16 bytes.
        inputs: the layouts for which the kernel was generated; tensors in other layouts are copied first.
        outputs: the layouts of the results; a single result is returned by itself, several as a tuple.
        device: the index of its GPU.
        flops: the number of multiplications and additions of its products.
        workspaces: memory that one launch passes to the next.
        zeros: indices of results that the kernel writes in part; the rest of these results is filled with zeros.
    """

    name: str
    template: str
    source: KernelSource
    plain: KernelSource
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    device: int
    flops: int = 0
    workspaces: tuple[Layout, ...] = ()
    zeros: tuple[int, ...] = ()
    _run: Callable[..., None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.__name__ = self.__qualname__ = self.name
        self.__module__ = "regraft"

    @property
    def early(self) -> bool:
        """Whether it may start before earlier kernels have ended, and waits for them by itself."""
        return self.source.launches[0].early

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Launch the kernel on its inputs.

        Raises:
            TritonMissing, TritonFailed: see `build`.
            RuntimeError: the driver refuses the launch, or an earlier one has failed.
        """
        if type(tensors[0]) is not torch.Tensor and is_fake(tensors[0]):
            made = [tensors[0].new_empty_strided(x.sizes, x.strides, dtype=x.dtype) for x in self.outputs]
            return made[0] if len(made) == 1 else tuple(made)
        for tensor, layout in zip(tensors, self.inputs, strict=True):
            if tensor.stride() != layout.strides:
                tensors = tuple(x.placed(t) for x, t in zip(self.inputs, tensors, strict=True))
                break
        empty = _empty(self.device)
        made = [empty(x.sizes, x.strides, x.dtype) for x in self.outputs]
        for position in self.zeros:
            made[position].zero_()
        (self._run or self.build())(*tensors, *made)
        return made[0] if len(made) == 1 else tuple(made)

    def build(self) -> Callable[..., None]:
        """Compile the kernel, or find it on disk, and load it: a function of its inputs and results.

        Raises:
            TritonMissing, TritonFailed: there is no Triton, or it or the driver refuses the source.
        """
        cubins = compile_units(self.units)
        self._run = self._loaded(self.source, cubins, self._kinds, {})
        return self._run

    @property
    def identity(self) -> str:
        """The source and the layouts, which tell kernels apart."""
        return f"{self.source.text}\n{self.inputs} {self.outputs}"

    @property
    def units(self) -> list[Unit]:
        """The functions to compile for aligned tensors."""
        return self._units(self.source, self._kinds)

    @property
    def _kinds(self) -> str:
        """The kinds of all buffers: single elements need no alignment."""
        return "".join("t" if x.sizes in ((), (1,)) else "a" for x in (*self.inputs, *self.outputs, *self.workspaces))

    def _units(self, source: KernelSource, kinds: str) -> list[Unit]:
        made = []
        for launch in source.launches:
            aligned = tuple(k for k, place in enumerate(self._places(launch)) if kinds[place] == "a")
            stages = getattr(launch, "stages", 3)
            signature = tuple(launch.signature.items())
            made.append(
                Unit(source.text, launch.name, signature, aligned, launch.warps, capability(self.device), stages)
            )
        return made

    def _places(self, launch: LaunchText) -> Sequence[int]:
        """The indices of the buffers that a launch takes."""
        return getattr(launch, "places", ()) or range(len(self._kinds))

    def _loaded(
        self,
        source: KernelSource,
        cubins: Sequence[Cubin | TritonFailed],
        kinds: str,
        known: _Plain | None,
    ) -> Callable[..., None]:
        """All launches as one function of inputs and outputs; without `known`, tensors may be unaligned."""
        starts = self._starts(source, cubins, kinds, known)
        if len(starts) == 1 and not self.workspaces:
            return starts[0]
        empty = _empty(self.device)

        def run(*tensors: torch.Tensor) -> None:
            memory = (*tensors, *(empty(x.sizes, x.strides, x.dtype) for x in self.workspaces))
            for start in starts:
                start(*memory)

        return run

    def _starts(
        self,
        source: KernelSource,
        cubins: Sequence[Cubin | TritonFailed],
        kinds: str,
        known: _Plain | None,
    ) -> list[Callable[..., None]]:
        failed = next((cubin for cubin in cubins if isinstance(cubin, TritonFailed)), None)
        if failed is not None:
            raise failed
        starts = []
        for number, (launch, cubin) in enumerate(zip(source.launches, cubins, strict=True)):
            assert isinstance(cubin, Cubin)
            otherwise = _never if known is None else functools.partial(_otherwise, self, known, number)
            starts.append(self._start(launch, cubin, kinds, otherwise))
        return starts

    def _start(
        self, launch: LaunchText, cubin: Cubin, kinds: str, otherwise: Callable[..., None]
    ) -> Callable[..., None]:
        """One launch as a function of all buffers."""
        places, count, extra = tuple(self._places(launch)), len(kinds), 1 if cubin.scratch else 0
        order = (*places, *range(count, count + extra))
        taken = "".join(kinds[place] for place in places) + "t" * extra
        convention = Convention(count + extra, order, taken, launch.programs, launch.early)
        start = launcher(driver().load(cubin, self.device), self.device, convention, otherwise)
        if not extra:
            return start
        empty, elements = _empty(self.device), cubin.scratch * launch.programs

        def run(*tensors: torch.Tensor) -> None:
            start(*tensors, empty((elements,), (1,), torch.uint8))

        return run

    def run_plain(self, known: _Plain, number: int, *tensors: torch.Tensor) -> None:
        """Launch on tensors that are not aligned; the functions compiled for them are cached in `known`."""
        if "starts" not in known:
            kinds = "t" * len(self._kinds)
            known["starts"] = self._starts(self.plain, compile_units(self._units(self.plain, kinds)), kinds, None)
        known["starts"][number](*tensors[: len(self._kinds)])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}


def _otherwise(
    kernel: TritonTemplateKernel,
    known: _Plain,
    number: int,
    *tensors: torch.Tensor,
) -> None:
    kernel.run_plain(known, number, *tensors)


def _never(*_: Any) -> None:
    raise AssertionError("tensors at any address are taken")


@functools.cache
def _empty(device: int) -> Callable[..., torch.Tensor]:
    return empty_strided(torch.device("cuda", device))

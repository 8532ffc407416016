"""A template's kernel on a GPU as something to call: compiled when first needed, allocating its results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from ..torch_compat import is_fake
from ..torch_memory import empty_strided
from ..triton import KernelSource, TritonFailed
from ..triton.build import capability
from ..triton.compiler import Cubin, Unit, compile_units
from ..triton.driver import driver
from ..triton.launch import Convention, launcher
from .kernel import Layout


@dataclass(eq=False)
class TritonTemplateKernel:
    """A generated kernel as the target of a `call_function` node: takes the tensors it reads, gives new ones.

    It is launched on the current stream, and returns before it has run. Pickles as its source: whoever loads it finds
    the machine code on disk or compiles it again, at the first call.

    Args:
        name: readable, and unique to the source.
        template: what it was made from, e.g. ``"gemm"``.
        source: its Triton, one launch: inputs, then outputs.
        plain: for tensors that are not aligned to 16 bytes: the same, relying on nothing of that kind.
        inputs: layouts it was generated for; tensors that come in others are copied into these first.
        outputs: the layouts of the results; one of them is given as it is, several as a tuple.
        device: the index of its GPU.
        flops: multiplications and additions of its products.
        zeros: positions of results that the kernel does not write everywhere: elsewhere they hold zeros.
    """

    name: str
    template: str
    source: KernelSource
    plain: KernelSource
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    device: int
    flops: int = 0
    zeros: tuple[int, ...] = ()
    _run: Callable[..., None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.__name__ = self.__qualname__ = self.name
        self.__module__ = "regraft"

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Run the kernel on the tensors it reads.

        Raises:
            TritonMissing, TritonFailed: see `build`.
            RuntimeError: the driver refuses the launch, or an earlier one has failed.
        """
        if type(tensors[0]) is not torch.Tensor and is_fake(tensors[0]):
            made = [tensors[0].new_empty_strided(x.sizes, x.strides, dtype=x.dtype) for x in self.outputs]
            return made[0] if len(made) == 1 else tuple(made)
        for tensor, layout in zip(tensors, self.inputs, strict=True):
            if tensor.stride() != layout.strides:
                tensors = tuple(map(_placed, tensors, self.inputs))
                break
        empty = _empty(self.device)
        made = [empty(x.sizes, x.strides, x.dtype) for x in self.outputs]
        for position in self.zeros:
            made[position].zero_()
        (self._run or self.build())(*tensors, *made)
        return made[0] if len(made) == 1 else tuple(made)

    def build(self) -> Callable[..., None]:
        """Compile (or find compiled) and load the kernel: a function of what it reads and of the results.

        Raises:
            TritonMissing, TritonFailed: there is no Triton, or it or the driver refuses the source.
        """
        (cubin,) = compile_units([self.unit])
        self._run = self._loaded(self.source, cubin, self._kinds, functools.partial(_otherwise, self, {}))
        return self._run

    @property
    def unit(self) -> Unit:
        """What is compiled, for tensors that are aligned."""
        return self._unit(self.source, tuple(k for k, kind in enumerate(self._kinds) if kind == "a"))

    @property
    def _kinds(self) -> str:
        """Of the arguments: single elements may lie anywhere, nothing is won by their alignment."""
        return "".join("t" if x.sizes in ((), (1,)) else "a" for x in (*self.inputs, *self.outputs))

    def _unit(self, source: KernelSource, aligned: tuple[int, ...]) -> Unit:
        (launch,) = source.launches
        signature = tuple(launch.signature.items())
        stages = getattr(launch, "stages", 3)
        return Unit(source.text, launch.name, signature, aligned, launch.warps, capability(self.device), stages)

    def _loaded(
        self, source: KernelSource, cubin: Cubin | TritonFailed, kinds: str, otherwise: Callable[..., None]
    ) -> Callable[..., None]:
        if isinstance(cubin, TritonFailed):
            raise cubin
        programs, extra = source.launches[0].programs, 1 if cubin.scratch else 0
        count = len(kinds) + extra
        convention = Convention(count, tuple(range(count)), kinds + "t" * extra, programs)
        start = launcher(driver().load(cubin, self.device), self.device, convention, otherwise)
        if not extra:
            return start
        empty, elements = _empty(self.device), cubin.scratch * programs

        def run(*tensors: torch.Tensor) -> None:
            start(*tensors, empty((elements,), (1,), torch.uint8))

        return run

    def run_plain(self, known: dict[str, Callable[..., None]], *tensors: torch.Tensor) -> None:
        """Run on tensors that are not aligned; what was compiled for that is kept in `known`."""
        if "run" not in known:
            (cubin,) = compile_units([self._unit(self.plain, ())])
            known["run"] = self._loaded(self.plain, cubin, "t" * len(self._kinds), _never)
        known["run"](*tensors[: len(self._kinds)])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}


def nothing() -> None:
    """Do nothing."""


def compile_beside(
    kernels: Sequence[TritonTemplateKernel], work: Callable[[], Any], more: Callable[[], None] = nothing
) -> None:
    """Have the machine code of kernels on disk, and do some work; what fails to compile says so when it is built.

    Args:
        kernels: compiled in other processes.
        work: done beside that.
        more: done as well, where that takes longer.
    """
    with ThreadPoolExecutor(1) as thread:
        compiled = thread.submit(compile_units, [kernel.unit for kernel in kernels])
        work()
        if not compiled.done():
            more()
        compiled.result()


def _otherwise(kernel: TritonTemplateKernel, known: dict[str, Callable[..., None]], *tensors: torch.Tensor) -> None:
    kernel.run_plain(known, *tensors)


def _never(*_: Any) -> None:
    raise AssertionError("tensors at any address are taken")


@functools.cache
def _empty(device: int) -> Callable[..., torch.Tensor]:
    return empty_strided(torch.device("cuda", device))


def _placed(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    if tensor.stride() == layout.strides:
        return tensor
    made = torch.empty_strided(layout.sizes, layout.strides, dtype=layout.dtype, device=tensor.device)
    return made.copy_(tensor)

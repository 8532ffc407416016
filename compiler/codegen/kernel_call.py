"""Calls of generated kernels as nodes of a graph: functional in the graph, with output buffers in the kernel.

%k0 = k0_layer_norm(%x, %w, %b)        out = empty_strided((128, 768), (768, 1), float32)
%out = getitem(%k0, 0)           ->    k0_layer_norm(x, w, b, out)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ...rewrites.purity import PureCall
from ..ir.index.index import Index, Least, Most, Quotient, Remainder, Size, terms
from ..ir.kernel import Kernel
from ..ir.program import Buffer

if TYPE_CHECKING:
    from .cpp.compiler import LibrarySource


class TemplateCall(PureCall):
    """A call of a template's kernel, as the target of a `call_function` node; reports count it by template.

    Args:
        template: the name of the template, e.g. ``"attention"``.
    """

    template: str

    @property
    def early(self) -> bool:
        """Whether it may start before earlier kernels have ended, and waits for them by itself."""
        return False


@dataclass(frozen=True)
class Layout:
    """Sizes, strides and dtype of a tensor that a kernel was generated for."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, buffer: Buffer) -> Layout:
        """That of a buffer."""
        return cls(buffer.sizes, buffer.strides, buffer.dtype)

    def placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, or a copy of it that lies like this."""
        if tensor.stride() == self.strides:
            return tensor
        made = torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device=tensor.device)
        return made.copy_(tensor)


class CppTemplateCall(TemplateCall):
    """A template's kernel for CPUs, which C++ may call as well as Python.

    Args:
        name: of its function.
        inputs: layouts that it was generated for; tensors that come in others are copied into these first.
        output: the layout of the result.
        numbers: what its function takes besides tensors.
    """

    name: str
    inputs: tuple[Layout, ...]
    output: Layout
    numbers: tuple[int, ...]

    def unit(self) -> LibrarySource:
        """The C++ that holds the kernel's function."""
        raise NotImplementedError


@dataclass(eq=False)
class KernelCall:
    """A compiled kernel as the target of a `call_function` node.

    The node's arguments are the buffers that exist before the call, in the order of `given`, then the sizes that the
    kernel and its results need, in the order of `sizes`. It returns the buffers that it allocates: one tensor, a tuple
    of tensors, or None.

    Args:
        kernel: the loop tree.
        run: the compiled function of all params in the kernel's order, then the kernel's sizes.
        given: the names of buffers that are arguments; `made`: the buffers that the call allocates.
        sizes: the names of symbolic sizes that are arguments.
        overwrites: pairs of an allocated buffer and an argument, by name, whose memory it may reuse if it is dead.
    """

    kernel: Kernel
    run: Callable[..., None]
    given: tuple[str, ...]
    made: tuple[Buffer, ...]
    sizes: tuple[str, ...] = ()
    overwrites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Attributes that fx expects of the target of a call.
        self.__name__ = self.__qualname__ = self.kernel.name
        self.__module__ = "regraft"

    def __call__(self, *args: Any) -> Any:
        """Run functionally, with results in new memory."""
        known = dict(zip(self.given, args, strict=False))
        env = dict(zip(self.sizes, args[len(self.given) :], strict=True))
        results = [self._empty(buffer, env) for buffer in self.made]
        known.update((buffer.name, result) for buffer, result in zip(self.made, results, strict=True))
        self.run(*(known[p.buffer.name] for p in self.kernel.params), *(env[s.name] for s in self.kernel.sizes))
        return None if not results else results[0] if len(results) == 1 else tuple(results)

    @property
    def updates(self) -> tuple[str, ...]:
        """Existing buffers that the kernel writes."""
        made = {buffer.name for buffer in self.made}
        return tuple(p.buffer.name for p in self.kernel.params if p.access != "read" and p.buffer.name not in made)

    @staticmethod
    def _empty(buffer: Buffer, env: Mapping[str, int]) -> torch.Tensor:
        sizes, strides = (tuple(evaluate(n, env) for n in part) for part in (buffer.sizes, buffer.strides))
        return torch.empty_strided(sizes, strides, dtype=buffer.dtype, device=buffer.device)


def evaluate(number: Any, env: Mapping[str, int]) -> int:
    """The value of an index of sizes."""
    return int(eval(spell(number, {}), {"__builtins__": {"min": min, "max": max}}, dict(env)))


def spell(number: Any, names: Mapping[str, str]) -> str:
    """An index of sizes as a Python expression, in which sizes have the given names (by default their own)."""
    if not isinstance(number, Index):
        return str(number)
    return " + ".join(_term(monomial, factor, names) for monomial, factor in terms(number)) or "0"


def _term(monomial: Sequence[Any], factor: int, names: Mapping[str, str]) -> str:
    parts = [_atom(atom, names) for atom in monomial]
    return "*".join(([str(factor)] if factor != 1 or not parts else []) + parts)


_INFIX = {Quotient: "//", Remainder: "%"}
_FUNCTIONS = {Least: "min", Most: "max"}


def _atom(atom: Any, names: Mapping[str, str]) -> str:
    if isinstance(atom, Size):
        return names.get(atom.name, atom.name)
    a, b = (spell(field, names) for field in atom.fields())
    if type(atom) in _INFIX:
        return f"(({a}) {_INFIX[type(atom)]} ({b}))"
    return f"{_FUNCTIONS[type(atom)]}({a}, {b})"

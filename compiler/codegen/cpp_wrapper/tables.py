"""Tables that the functions of one library share: operators, kernels, constants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ....rewrites import compat
from ....rewrites.compat import export
from ..cpp.compiler import LibrarySource
from .errors import refusal
from .numbers import string_text

# Namespaces whose operators torch itself implements in C++.
_OF_TORCH = ("aten", "mkldnn", "onednn", "quantized", "inductor")


@dataclass(frozen=True)
class Dialect:
    """The surroundings that statements are written for: an artifact, or a wrapper in this process.

    Args:
        words: C++ that comes before them; values get no name that it contains.
        constants: the expression of a constant, ``{}`` for its position.
        everywhere: they run without Python, so that operators must be torch's own.
        owns_inputs: inputs are dropped after their last use.
    """

    words: str
    constants: str = "constants[{}]"
    everywhere: bool = False
    owns_inputs: bool = False


@dataclass
class Tables:
    """Collects what functions refer to.

    Args:
        dialect: of the functions.
        operators: position of each operator's handle, by name and overload.
        kernels: the C++ source of each kernel's unit, by the kernel's function.
        constants: each constant's name and value, in order; a value of None is computed when the library is loaded.
    """

    dialect: Dialect
    operators: dict[tuple[str, str], int] = field(default_factory=dict)
    kernels: dict[str, LibrarySource] = field(default_factory=dict)
    constants: dict[str, torch.Tensor | None] = field(default_factory=dict)

    @property
    def units(self) -> list[LibrarySource]:
        """The sources of kernels, with what the compiler must be told."""
        return list(dict.fromkeys(self.kernels.values()))

    def operator(self, target: Any, node: fx.Node) -> str:
        """The expression for an operator's handle.

        Raises:
            NotInCppError: it is not torch's own, or Python computes it, and there may be no Python.
        """
        path = compat.operator_path(target)
        if path is None or (self.dialect.everywhere and path[0] not in _OF_TORCH):
            why = "is implemented outside of torch's C++ library (a custom operator, or one of regraft's own)"
            raise refusal("operator", node, why)
        key = export.schema_name(target)
        return f"op{self.operators.setdefault(key, len(self.operators))}()"

    def kernel(self, name: str, unit: LibrarySource) -> str:
        """The name of a kernel's function, its source noted."""
        self.kernels.setdefault(name, unit)
        return name

    def constant(self, name: str, value: torch.Tensor | None) -> str:
        """The expression for a constant."""
        if self.dialect.everywhere and value is not None and value.layout != torch.strided:
            value = None
        if name not in self.constants:
            self.constants[name] = value
        return self.dialect.constants.format(list(self.constants).index(name))

    def handles(self) -> str:
        """The functions that give operators' handles."""
        lines = []
        for (name, overload), position in self.operators.items():
            found = f"operator_named({string_text(name)}, {string_text(overload)})"
            lines.append(f"static Handle op{position}() {{ static const auto found = {found}; return found; }}")
        return "\n".join(lines)

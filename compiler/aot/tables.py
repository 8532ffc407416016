"""Tables that the functions of one artifact share: operators, kernels, constants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ...rewrites import compat
from ...rewrites.compat import export
from ..codegen.cpp.compiler import Source
from .errors import AotError
from .numbers import string_text

# Namespaces whose operators torch itself implements in C++.
_OF_TORCH = ("aten", "mkldnn", "onednn", "quantized", "inductor")


@dataclass
class Tables:
    """Collects what functions refer to.

    Args:
        operators: position of each operator's handle, by name and overload.
        units: C++ sources of kernels, with what the compiler must be told; `kernels` the functions that are called.
        constants: each constant's name and value, in order; a value of None is computed when the artifact is loaded.
    """

    operators: dict[tuple[str, str], int] = field(default_factory=dict)
    units: dict[Source, None] = field(default_factory=dict)
    kernels: dict[str, None] = field(default_factory=dict)
    constants: dict[str, torch.Tensor | None] = field(default_factory=dict)

    def operator(self, target: Any, node: Any) -> str:
        """The expression for an operator's handle.

        Raises:
            AotError: it is not torch's own, or Python computes it.
        """
        path = compat.operator_path(target)
        if path is None or path[0] not in _OF_TORCH:
            raise refusal(
                node, "is implemented outside of torch's C++ library (a custom operator, or one of regraft's own)"
            )
        key = export.schema_name(target)
        return f"op{self.operators.setdefault(key, len(self.operators))}()"

    def kernel(self, name: str, unit: Source) -> str:
        """The name of a kernel's function, its source noted."""
        self.units.setdefault(unit)
        self.kernels.setdefault(name)
        return name

    def constant(self, name: str, value: torch.Tensor | None) -> str:
        """The expression for a constant."""
        if name not in self.constants:
            self.constants[name] = value
        return f"model.constants[{list(self.constants).index(name)}]"

    def text(self) -> str:
        """The declarations that functions need."""
        lines = [f'extern "C" void {name}(void**, const long long*, Runtime*);' for name in self.kernels]
        for (name, overload), position in self.operators.items():
            found = f"operator_named({string_text(name)}, {string_text(overload)})"
            body = f"static const auto found = {found}; return found;"
            lines.append(f"static const c10::OperatorHandle& op{position}() {{ {body} }}")
        return "\n".join(lines)


def refusal(node: Any, why: str) -> AotError:
    """Why a call cannot go ahead of time, with the user's line."""
    from ...rewrites.reason import site_of

    site = site_of(node)
    target = getattr(node, "target", node)
    name = ".".join(filter(None, compat.operator_path(target) or ())) or getattr(target, "__name__", str(target))
    return AotError(f"{name} cannot go ahead of time: it {why}" + (f"; called in {site}" if site is not None else ""))

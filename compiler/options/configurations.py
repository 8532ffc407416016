"""Modes and configuration templates: sets of option values that have a name.

    mode "max-autotune"        ->  triton.cudagraphs, autotune.thorough
    template "max_autotune"    ->  the mode that it implies, and values of its own

A configuration template has nothing to do with the templates that kernels are made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Configuration:
    """A named set of option values.

    Args:
        doc: what it is for.
        values: values by the dotted names of options.
        mode: the mode that a template implies where none is given; of a mode, "".
    """

    doc: str
    values: Mapping[str, Any] = field(default_factory=dict)
    mode: str = ""


MODES = {
    "default": Configuration("A good balance of compile time and speed."),
    "reduce-overhead": Configuration(
        "Replay CUDA graphs, where all inputs are on a GPU: calls cost one launch.", {"triton.cudagraphs": True}
    ),
    "max-autotune": Configuration(
        "Measure more candidates, for longer, and replay CUDA graphs.",
        {"triton.cudagraphs": True, "autotune.thorough": True},
    ),
    "max-autotune-no-cudagraphs": Configuration(
        "Measure more candidates, for longer; no CUDA graphs.", {"autotune.thorough": True}
    ),
}
"""What `mode` may be."""

_KERNELS = ("kernels.attention", "kernels.products", "kernels.convolutions")

TEMPLATES = {
    "none": Configuration("No configuration template: values are those of the mode.", mode="default"),
    "triton": Configuration(
        "Generated Triton kernels for attention, products and convolutions wherever there are any, on GPUs; what "
        "they compete with is not measured.",
        dict.fromkeys(_KERNELS, "generated"),
        "default",
    ),
    "cpp_wrapper": Configuration(
        "Call graphs for CPUs through one generated function in C++ rather than in Python.",
        {"cpp.wrapper": True},
        "default",
    ),
    "cutlass": Configuration(
        "CUTLASS kernels among the candidates for products, all of them measured thoroughly.",
        {"kernels.products": "cutlass"},
        "max-autotune-no-cudagraphs",
    ),
    "aten": Configuration(
        "Attention, products and convolutions stay calls of ATen's libraries; what lies between is generated.",
        dict.fromkeys(_KERNELS, "library"),
        "default",
    ),
    "cudagraphs": Configuration("Replay CUDA graphs.", {"triton.cudagraphs": True}, "reduce-overhead"),
    "max_autotune": Configuration("Measure more candidates, for longer, and replay CUDA graphs.", {}, "max-autotune"),
    "freezing": Configuration(
        "For inference: weights are constants, folded and packed.", {"freezing": True}, "default"
    ),
    "tma": Configuration(
        "Products and convolutions by persistent kernels whose operands the GPU's own unit copies (TMA), wherever "
        "operands lie as it needs them.",
        {"triton.tma": "always"},
        "default",
    ),
}
"""What `template` may be."""


def template_values(name: str) -> dict[str, Any]:
    """All values that a template sets: those of the mode that it implies, and its own."""
    template = TEMPLATES[name]
    return {**MODES[template.mode].values, **template.values}

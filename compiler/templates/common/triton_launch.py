"""One launch of a template's Triton kernel, from the lines of its body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ...codegen.triton import LaunchText
from ...codegen.triton.dtypes import signature_name
from ...ir.program import Buffer

_FLOAT8 = {torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5"}


@dataclass(frozen=True)
class TemplateLaunch(LaunchText):
    """One launch of a template.

    Args:
        stages: of its software pipeline (``num_stages``).
        places: which of the kernel's arguments it takes: of what it reads, its results, its workspaces; empty: all.
    """

    stages: int = 3
    places: tuple[int, ...] = ()


def launch_of(
    name: str,
    lines: Sequence[str],
    arguments: Mapping[str, Buffer],
    programs: int,
    warps: int,
    stages: int = 3,
    early: bool = False,
) -> TemplateLaunch:
    """A function of the arguments that its lines use.

    Args:
        name: of the function.
        lines: its body, indented.
        arguments: all arguments of the kernel, in order: what it reads, its results, its workspaces.
        programs: how many there are; `warps` of each.
        warps: see `programs`.
        stages: see `TemplateLaunch`.
        early: see `LaunchText`.
    """
    body = "\n".join(lines)
    places = tuple(k for k, argument in enumerate(arguments) if argument in body)
    given = list(arguments.items())
    used = {given[k][0]: signature_type(given[k][1]) for k in places}
    text = f"@triton.jit\ndef {name}({', '.join(used)}):\n{body}\n"
    params = tuple(given[k][1].name for k in places)
    return TemplateLaunch(name, text, params, (), (), used, programs, warps, early, stages, places)


def signature_type(buffer: Buffer) -> str:
    """The type of a pointer in a kernel's signature."""
    return f"*{_FLOAT8.get(buffer.dtype) or signature_name(buffer.dtype)}"

"""Several products of one activation in one launch: query, key and value, the two halves of a gated layer.

    program < 1024         a tile of the first product, as its own kernel has it
    program < 1280         a tile of the second product, and so on

Weights are read where they are. A small product does not wait for a launch of its own, and leaves nothing idle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ...codegen.triton import KernelSource
from ...codegen.triton.source import module_text
from ..common.triton_launch import TemplateLaunch, signature_type
from .description import Product
from .triton_cores import CoresTriton
from .triton_lanes import LanesTriton
from .triton_matmul import GemmTriton
from .triton_tiles import GemmTile


@dataclass(frozen=True)
class JointProduct:
    """One of the products.

    Args:
        product: what is computed.
        places: of what it reads, then of its results, among the arguments of the whole kernel.
    """

    product: Product
    places: tuple[int, ...]


def joint_triton(members: Sequence[JointProduct], tile: GemmTile, label: str = "") -> KernelSource:
    """The source of one kernel for several products; it takes what `JointProduct.places` says, each thing once.

    Args:
        members: in the order of their programs; all of them `early`, or none.
        tile: one that fits each, with the depth in one part.
        label: what is computed, for the name.
    """
    kind = CoresTriton if tile.cores else LanesTriton if tile.by_lanes else GemmTriton
    early = members[0].product.early
    functions: dict[str, str] = {}  # equal ones once
    calls, types = [], dict[int, str]()
    first = 0
    for member in members:
        writer = kind(member.product, tile, 0)
        writer.write_part()
        body = "\n".join(writer.writer.lines)
        used = [place for place, name in enumerate(writer.arguments) if name in body]
        text = f"({', '.join(['program', *(writer.arguments[place] for place in used)])}):\n{body}\n"
        name = functions.setdefault(text, f"part{len(functions)}")
        theirs = [member.places[place] for place in used]
        types |= {at: signature_type(writer.buffers[place]) for at, place in zip(theirs, used, strict=True)}
        number = f"program - {first}" if first else "program"
        first += tile.count(member.product)
        calls.append((first, f"{name}({', '.join([number, *(f'p{place}_ptr' for place in theirs)])})"))
    lines = ["    program = tl.program_id(0)", *(["    let_later_begin()"] if early else [])]
    for at, (end, call) in enumerate(calls):
        head = f"{'elif' if at else 'if'} program < {end}:" if at < len(calls) - 1 else "else:"
        lines += [f"    {head}", f"        {call}"] if len(calls) > 1 else [f"    {call}"]
    digest = hashlib.blake2b("\n".join([str(types), *functions, *lines]).encode(), digest_size=6).hexdigest()
    name = f"gemm_{f'{label}_' if label else ''}{digest}_{tile}{f'_j{len(members)}' if len(members) > 1 else ''}"
    places = tuple(sorted(types))
    signature = {f"p{place}_ptr": types[place] for place in places}
    body = "\n".join(lines)
    text = f"@triton.jit\ndef {name}({', '.join(signature)}):\n{body}\n"
    stages = 1 if tile.by_lanes else tile.stages
    launch = TemplateLaunch(name, text, (), (), (), signature, first, tile.warps, early, stages, places)
    parts = [f"@triton.jit\ndef {part}{text}" for text, part in functions.items()]
    return KernelSource(module_text([*parts, text]), (launch,))

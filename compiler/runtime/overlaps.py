"""Inputs that overlap in memory: what is compiled for some places is not right for others.

    x, y = t[0:5], t[3:8]      x.add_(1); y + 1      compiled; with t[0:5] and t[4:9] it runs as it was written
    x, y = t[0:5], u[0:5]      x.add_(1); y + 1      compiled; with t[0:5] and t[3:8] it runs as it was written
    x, y = t[0:5], t[5:9]      x.add_(1); y + 1      the same

Where one of them is written, AOTAutograd makes one tensor of them, and of it the inputs again, at the offsets that it
has seen. Dynamo guards that they overlap in some way, not in which; and nothing at all where they did not overlap. That
holds for a buffer that a module writes, too, of which a caller gives a part (`module(module.state[0])`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat.memory import storage_key
from ...rewrites.graph import nodes_in
from ...rewrites.symbolic import hint

_Place = tuple[int, int, int]  # an input, the first that lies in its memory, and the offset there


def at_their_places(
    compiled: Callable[..., Any],
    program: Callable[..., Any],
    places: Sequence[_Place],
    apart: Sequence[int] = (),
) -> Callable[..., Any]:
    """`compiled`, but `program` for inputs that lie otherwise.

    Args:
        compiled: what is returned itself where nothing needs to be looked at.
        program: what it was compiled from.
        places: as `places_of` found them.
        apart: as `apart_from_written` found them.
    """
    if not places and not apart:
        return compiled

    def run(*inputs: Any) -> Any:
        met = all(_lies(inputs[k], inputs[first], offset) for k, first, offset in places)
        return compiled(*inputs) if met and not _meet([inputs[k] for k in apart]) else program(*inputs)

    return run


def _meet(inputs: Sequence[torch.Tensor]) -> bool:
    keys = {storage_key(x) for x in inputs}
    return len(keys) < len(inputs) and bool(_shared(inputs))


def places_of(program: fx.GraphModule, inputs: Sequence[Any]) -> list[_Place]:
    """Where the inputs lie in each memory in which some of them overlap; none for a program that writes to nothing."""
    try:
        shared = _shared(inputs)
    except (RuntimeError, NotImplementedError):  # tensors without memory of their own
        return []
    places = [(k, own[0], hint(inputs[k].storage_offset())) for own in shared for k in own]
    known = all(offset is not None for _, _, offset in places)
    return places if known and any(map(_may_write, program.graph.nodes)) else []


def apart_from_written(program: fx.GraphModule, inputs: Sequence[Any]) -> list[int]:
    """Inputs that do not overlap, if the program may write to one of them: the caller's, and what a module holds.

    What modules and optimizers hold is looked at only where it is written: few buffers, and not all weights. Of inputs
    that do overlap, the first stands for all: they stay where they are, or the program runs as written.
    """
    placeholders = program.graph.find_nodes(op="placeholder")[: len(inputs)]
    free = {k for k, node in enumerate(placeholders) if not compat.is_held(node)}
    try:
        written = _memories_written(program)
        changed = {k for k, node in enumerate(placeholders) if _is_among(node, written)}
        memories = _by_memory(inputs, sorted(free | (changed if written is not None else set())))
        together = _shared(inputs)
    except (RuntimeError, NotImplementedError):  # tensors without memory of their own
        return []
    found = sorted(k for own in memories for k in (own[:1] if own in together else own))
    return found if len(found) > 1 and changed.intersection(found) and free.intersection(found) else []


def _is_among(node: fx.Node, memories: set[int] | None) -> bool:
    """Whether an input lies in one of these memories, as far as is known."""
    seen = _seen(node)
    if memories is None or seen is None:
        return True
    return isinstance(seen, torch.Tensor) and seen.layout == torch.strided and storage_key(seen) in memories


def _memories_written(program: fx.GraphModule) -> set[int] | None:
    """Of the tensors that Dynamo has seen, the memories that may be written to; None if that is not known."""
    found: set[int] = set()
    for node in filter(_may_write, program.graph.nodes):
        targets = node.args[:1] if node.op == "call_method" else (node.args, node.kwargs)
        values = [_seen(read) for read in nodes_in(targets)]
        if node.op == "call_module" or None in values:
            return None
        found.update(storage_key(x) for x in values if isinstance(x, torch.Tensor) and x.layout == torch.strided)
    return found


def _seen(node: fx.Node) -> Any:
    """What Dynamo has made of a value, whose memory is not that of the input."""
    return node.meta.get("example_value")


def _may_write(node: fx.Node) -> bool:
    """Whether a call of Dynamo's graph may write to what it is given."""
    if node.op not in ("call_function", "call_method"):
        return node.op == "call_module"
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    in_place = name.startswith("i") and node.target is getattr(operator, name, None)
    if name.endswith("_") or name == "setitem" or in_place or "out" in node.kwargs:
        return True
    told = any(argument is True for argument in (*node.args, node.kwargs.get("inplace")))
    return told or not _is_torchs(node.target)


def _is_torchs(target: Any) -> bool:
    module = getattr(target, "__module__", None) or "torch"
    return isinstance(target, str) or module.partition(".")[0] in ("torch", "_operator", "math")


def _shared(inputs: Sequence[Any]) -> list[list[int]]:
    """The inputs of each memory in which some of them overlap."""
    return [own for own in _by_memory(inputs, range(len(inputs))) if _overlap([inputs[k] for k in own])]


def _by_memory(inputs: Sequence[Any], numbers: Iterable[int]) -> list[list[int]]:
    """Those of the inputs with these numbers that have memory, one list for each memory."""
    found: dict[int, list[int]] = {}
    for number in numbers:
        x = inputs[number]
        if isinstance(x, torch.Tensor) and x.layout == torch.strided:
            found.setdefault(storage_key(x), []).append(number)
    return list(found.values())


def _overlap(own: Sequence[torch.Tensor]) -> bool:
    """Whether the ranges of one memory that two of these tensors reach over have a part in common."""
    ranges = sorted(map(_range, own)) if len(own) > 1 else []
    ends = accumulate((end for _, end in ranges), max)
    return any(begin < end for end, (begin, _) in zip(ends, ranges[1:], strict=False))


def _range(x: torch.Tensor) -> tuple[int, int]:
    """The first byte, and the one behind the last."""
    first = hint(x.storage_offset()) or 0
    steps = zip(map(hint, x.shape), map(hint, x.stride()), strict=True)
    last = first + sum(max((size or 1) - 1, 0) * (stride or 0) for size, stride in steps)
    return first * x.itemsize, (last + 1) * x.itemsize


def _lies(x: torch.Tensor, first: torch.Tensor, offset: int) -> bool:
    return x.storage_offset() == offset and storage_key(x) == storage_key(first)

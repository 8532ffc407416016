"""Inputs that overlap in memory: what is compiled for some places is not right for others.

    x, y = t[0:5], t[3:8]      x.add_(1); y + 1      compiled; with t[0:5] and t[4:9] it runs as it was written
    x, y = t[0:5], u[0:5]      x.add_(1); y + 1      compiled; with t[0:5] and t[3:8] it runs as it was written
    x, y = t[0:5], t[5:9]      x.add_(1); y + 1      the same
    x, y = t[0:5], t[3:8]      x.add_(1); y + 1      compiled, `t` of 9 elements; with `t` of 20 the same

AOTAutograd makes one tensor of them if one of them is written, and of it the inputs again, at the offsets and of
the sizes that it has seen. Dynamo guards that they overlap in some way, not in which; and nothing at all where they did
not overlap. That holds for a buffer that a module writes, too, of which a caller gives a part
(`module(module.state[0])`), and for a weight that it only reads, where the program writes to what it is given
(`module(module.weight.detach())`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat.memory import is_others_memory, shared_memories, storage_key
from ...rewrites.graph import nodes_in
from ...rewrites.reach import meet, reach
from ...rewrites.symbolic import hint
from .as_written import Reliance
from .ranges import ranges_meet

_Place = tuple[int, int, int]  # an input, the first that lies in its memory, and the offset there
_Base = tuple[tuple[int, ...], Any]  # the inputs of one memory, and what AOTAutograd makes their tensor of


@dataclass(frozen=True)
class Lying:
    """How the inputs of a program lay when it was compiled, as far as that matters.

    Args:
        places: as `places_of` found them.
        bases: as `bases_of` found them.
        apart: as `apart_from_written` found them.
        written, held: as `held_beside_written` found them.
    """

    places: Sequence[_Place]
    bases: Sequence[_Base]
    apart: Sequence[int]
    written: Sequence[int]
    held: Sequence[int]

    @classmethod
    def of(cls, program: fx.GraphModule, inputs: Sequence[Any]) -> Lying:
        """How the inputs lie now."""
        places, apart = places_of(program, inputs), apart_from_written(program, inputs)
        bases = bases_of(inputs) if places else []
        return cls(places, bases, apart, *held_beside_written(program, inputs))

    def reliances(self, known: Sequence[Reliance] = ()) -> list[Reliance]:
        """What a program compiled for such inputs relies on besides `known`; nothing if nothing need be looked at."""
        seen = any(each.apart.issuperset(self.apart) for each in known)
        lying = replace(self, apart=()) if seen else self  # hundreds of gradients are looked at once
        if not lying.places and not lying.apart and not lying.written:
            return []
        why = "inputs share memory otherwise than in the call that was compiled"
        return [Reliance(lying.holds, "memory-shared", why)]

    def holds(self, inputs: Sequence[Any]) -> bool:
        """Whether these inputs lie in the same way."""
        return (
            all(_lies(inputs[k], inputs[first], offset) for k, first, offset in self.places)
            and all(_base([inputs[k] for k in own]) == base for own, base in self.bases)
            and not _meet([inputs[k] for k in self.apart])
            and not (self.written and _are_parts([inputs[k] for k in self.written], inputs, self.held))
        )


def _are_parts(written: Sequence[torch.Tensor], inputs: Sequence[Any], held: Sequence[int]) -> bool:
    """Whether what the caller gives lies in what the module holds: only where others look into its memory at all."""
    shared = shared_memories(written)
    near = [inputs[k] for k in held if storage_key(inputs[k]) in shared] if shared else []
    return bool(near) and bool(_shared([*written, *near]))


def _meet(inputs: Sequence[torch.Tensor]) -> bool:
    """Whether two of these overlap."""
    if any(map(is_others_memory, inputs)):
        return _meet_at_addresses([x for x in inputs if x.numel()])
    keys = {storage_key(x) for x in inputs}
    return len(keys) < len(inputs) and bool(_shared(inputs))


def _meet_at_addresses(inputs: Sequence[torch.Tensor]) -> bool:
    """The same by their addresses: NumPy's arrays may overlap, too, each as a memory of its own."""
    return ranges_meet([x.data_ptr() for x in inputs], map(extent, inputs))


def extent(x: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last; 0 without elements."""
    if not x.numel():
        return 0
    if x.is_contiguous():
        return x.nbytes
    return (1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))) * x.itemsize


def bases_of(inputs: Sequence[Any]) -> list[_Base]:
    """Of each memory in which some inputs overlap, these inputs and what they are seen as parts of."""
    return [(tuple(own), _base([inputs[k] for k in own])) for own in _shared(inputs)]


def _base(own: Sequence[torch.Tensor]) -> Any:
    """What AOTAutograd takes for the tensor that these inputs are parts of.

    That is the one that autograd knows, in its sizes and strides, or else the whole memory as one row.
    """
    known = [x._base for x in own if x._base is not None]
    if not known:
        return hint(own[0].untyped_storage().nbytes())
    base = known[0]
    alone = all(other is base for other in (*known, *(x for x in own if x._base is None)))
    numbers = (*base.shape, *base.stride(), base.storage_offset())
    return (base.dim(), base.dtype, *map(hint, numbers)) if alone else None


def places_of(program: fx.GraphModule, inputs: Sequence[Any]) -> list[_Place]:
    """The places of inputs in each memory in which some of them overlap; none if the program writes to nothing."""
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


def held_beside_written(program: fx.GraphModule, inputs: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Inputs of the caller's that the program may write to, and what modules hold and it does not write.

    Of the latter `apart_from_written` looks at none. None of either where they overlap now, or there are none.
    """
    placeholders = program.graph.find_nodes(op="placeholder")[: len(inputs)]
    try:
        memories = _memories_written(program)
        strided = [k for own in _by_memory(inputs, range(len(inputs))) for k in own]
        changed = {k for k in strided if _is_among(placeholders[k], memories)}
        written = [k for k in strided if k in changed and not compat.is_held(placeholders[k])]
        held = [k for k in strided if compat.is_held(placeholders[k]) and (memories is None or k not in changed)]
        now = _overlap_between(inputs, written, held)
    except (RuntimeError, NotImplementedError):  # tensors without memory of their own
        return [], []
    return (written, held) if written and held and not now else ([], [])


def _overlap_between(inputs: Sequence[Any], written: Sequence[int], held: Sequence[int]) -> bool:
    keys = {storage_key(inputs[k]) for k in written}
    return any(storage_key(inputs[k]) in keys for k in held)


def inputs_written(program: fx.GraphModule, inputs: Sequence[Any]) -> set[int]:
    """The inputs whose memory the program may write to."""
    placeholders = program.graph.find_nodes(op="placeholder")[: len(inputs)]
    try:
        written = _memories_written(program)
        return {k for k, node in enumerate(placeholders) if _is_among(node, written)}
    except (RuntimeError, NotImplementedError):  # tensors without memory of their own
        return set()


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
    return [
        own for own in _by_memory(inputs, range(len(inputs))) if len(own) > 1 and meet(reach(inputs[k]) for k in own)
    ]


def _by_memory(inputs: Sequence[Any], numbers: Iterable[int]) -> list[list[int]]:
    """Those of the inputs with these numbers that have memory, one list for each memory."""
    found: dict[int, list[int]] = {}
    for number in numbers:
        x = inputs[number]
        if isinstance(x, torch.Tensor) and x.layout == torch.strided:
            found.setdefault(storage_key(x), []).append(number)
    return list(found.values())


def _lies(x: torch.Tensor, first: torch.Tensor, offset: int) -> bool:
    return x.storage_offset() == offset and storage_key(x) == storage_key(first)

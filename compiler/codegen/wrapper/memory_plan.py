"""Reuse of dead memory: a pointwise result may be written over an operand that nobody reads again.

    mm = aten.mm.default(x, w)                   mm = aten.mm.default(x, w)
    add = aten.add.Tensor(mm, bias)        ->    add = aten.add_.Tensor(mm, bias)
    del mm                                       del mm

Only memory that the wrapper itself made is written over, and only where the result has the operand's very dtype, shape
and strides, so that the same kernel runs over the same addresses in the same order and gives the same bits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ....rewrites import compat
from ....rewrites.graph import val
from ....rewrites.layout import same_layout
from ....rewrites.switches import allowed
from ....rewrites.symbolic import concrete, hint, known_equal
from ..kernel_call import KernelCall
from .aliasing import Aliases

if TYPE_CHECKING:
    from collections.abc import Iterator

# Pointwise operators with an in-place form that computes the same bits.
_UNARY = ("exp", "gelu", "neg", "relu", "sigmoid", "silu", "tanh")
_BINARY = ("add", "div", "mul", "sub")
_ADDED_TO = ("addmm", "baddbmm", "add_product")  # a product on top of the first operand


@dataclass(frozen=True)
class Reuse:
    """A result written over one of its operands: call `target` instead, with ``out=operand`` where `out` says so.

    `reshaped` says that the result has another shape or other strides than the operand (generated kernels only).
    """

    operand: fx.Node
    target: Any
    out: bool = False
    reshaped: bool = False


@dataclass(frozen=True)
class MemoryPlan:
    """The buffers that are written over others, and the peak of bytes that a call allocates, without and with that.

    Sizes that are symbolic count with their example values; inputs and constants don't count. Results of generated
    kernels stand in `reuses` under the node that gives the result: the call, or its `getitem`.
    """

    reuses: dict[fx.Node, Reuse]
    peak_before: int
    peak_after: int


def plan_memory(graph: fx.Graph) -> MemoryPlan:
    """Decide, in the graph's order, which results are written over dead operands."""
    aliases = Aliases(graph)
    reuses: dict[fx.Node, Reuse] = {}
    if not _uses_streams(graph):
        for node in graph.nodes:
            if isinstance(node.target, KernelCall):
                reuses.update(_kernel_reuses(node, node.target, aliases))
                continue
            reuse = next((r for r in _candidates(node) if _is_legal(node, r.operand, aliases)), None)
            if reuse is not None and allowed("memory", f"{node.name} over {reuse.operand.name}", node):
                reuses[node] = reuse
    return MemoryPlan(reuses, _peak(aliases, {}), _peak(aliases, reuses))


def _uses_streams(graph: fx.Graph) -> bool:
    """Dead in program order is not dead on the device where the user's own streams run side by side."""
    return any(getattr(node.target, "namespace", "") == "streams" for node in graph.nodes)


def _candidates(node: fx.Node) -> Iterator[Reuse]:
    """In-place over the first operand; over the second by ``out=``, which keeps the operands' order (NaN bits)."""
    namespace, name, overload = compat.operator_path(node.target) or ("", "", "")
    known = namespace in ("aten", "regraft") and name in (*_UNARY, *_BINARY, *_ADDED_TO)
    if not known or overload.endswith("out") or not node.args:
        return
    if name in _ADDED_TO and node.args[0] in node.args[1:]:
        return  # a product reads all of its operands for each element
    in_place = getattr(getattr(getattr(torch.ops, namespace), f"{name}_"), overload, None)
    if isinstance(node.args[0], fx.Node) and in_place is not None:
        yield Reuse(node.args[0], in_place)
    if overload == "Tensor" and len(node.args) > 1 and isinstance(node.args[1], fx.Node):
        yield Reuse(node.args[1], getattr(torch.ops.aten, name).out, out=True)


def _kernel_reuses(node: fx.Node, call: KernelCall, aliases: Aliases) -> dict[fx.Node, Reuse]:
    """Results of a generated kernel over dead operands, each operand given away once."""
    operands = dict(zip(call.given, node.args, strict=False))
    taken: set[Any] = set()
    reuses: dict[fx.Node, Reuse] = {}
    for made, result in zip(call.made, results(node), strict=True):
        for name in call.overwrites.get(made.name, ()):
            operand = operands[name]
            legal = operand not in taken and _is_legal(node, operand, aliases, result)
            if legal and allowed("memory", f"{result.name} over {operand.name}", node):
                taken.add(operand)
                reuses[result] = Reuse(operand, call, reshaped=not same_layout(val(operand), val(result)))
                break
    return reuses


def results(node: fx.Node) -> list[fx.Node]:
    """The nodes that stand for the results of a kernel call, in order."""
    call = node.target
    assert isinstance(call, KernelCall)
    if len(call.made) <= 1:
        return [node] * len(call.made)
    items = {user.args[1]: user for user in node.users}
    return [items[position] for position in range(len(call.made))]


def _is_legal(node: fx.Node, operand: Any, aliases: Aliases, result: fx.Node | None = None) -> bool:
    buffer = aliases.of(operand)
    if buffer is None or not buffer.ours or buffer.last != aliases.position[node]:
        return False
    # A second operand that overlaps the first, yet is not it, would be read after it was written.
    if any(aliases.of(other) is buffer for other in node.all_input_nodes if other is not operand):
        return False
    if result is None:
        return _same_memory(val(operand), val(node))
    made = aliases.of(result)
    # The user gets no result that is a view of something else.
    may_reshape = made is not None and made.ours
    return _same_memory(val(operand), val(result)) or (may_reshape and _same_extent(val(operand), val(result)))


def _same_memory(old: Any, new: Any) -> bool:
    """Whether `new` fits over `old` byte for byte, and `old` is all of its memory rather than a part."""
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor) or old.dtype.is_complex:
        return False
    if old.layout != torch.strided or new.layout != torch.strided or old.device != new.device:
        return False
    whole = old.untyped_storage().nbytes()
    return same_layout(old, new) and known_equal(old.numel() * old.dtype.itemsize, whole)


def _same_extent(old: Any, new: Any) -> bool:
    """Whether two dense tensors of one dtype fill the same number of bytes, `old` all of its memory."""
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor) or old.dtype != new.dtype:
        return False
    if not (_is_dense(old) and _is_dense(new)) or old.device != new.device:
        return False
    whole = old.untyped_storage().nbytes()
    return known_equal(old.numel(), new.numel()) and known_equal(old.numel() * old.dtype.itemsize, whole)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements fill a range of memory without gaps or overlaps."""
    if tensor.layout != torch.strided or any(not concrete(n) for n in (*tensor.shape, *tensor.stride())):
        return False
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _peak(aliases: Aliases, reuses: dict[fx.Node, Reuse]) -> int:
    """The most bytes live at once: memory lives until the last read of whatever may share it, outputs to the end."""
    handed = {id(aliases.of(reuse.operand)): _bytes(result) for result, reuse in reuses.items()}
    births, ends = Counter[int](), Counter[int]()
    for buffer in aliases.buffers():
        for node in buffer.born:
            births[aliases.position[node]] += 0 if node in reuses else _bytes(node)
        ends[buffer.last] += sum(map(_bytes, buffer.born)) - handed.get(id(buffer), 0)
    live = peak = 0
    for position in aliases.position.values():
        live += births[position]
        peak = max(peak, live)
        live -= ends[position]
    return peak


def _bytes(node: fx.Node) -> int:
    """Bytes that the call allocates for a value that is new memory: none for inputs and constants."""
    tensor = val(node)
    if node.op in ("placeholder", "get_attr") or not isinstance(tensor, torch.Tensor):
        return 0
    return _storage_bytes(tensor) if tensor.layout == torch.strided else 0


def _storage_bytes(tensor: torch.Tensor) -> int:
    return int(hint(tensor.untyped_storage().nbytes()) or 0)

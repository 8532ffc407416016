"""Computes small tensors that depend on constants alone while compiling.

    slopes = pow(2.0, -(arange(8) + 1));  bias = slopes[:, None, None] * distance
        ->  bias = constant[:, None, None] * distance

Only tensors are folded that are small, that are no results of the program, and that cost more to compute than to read,
as integers computed from floats do. A GPU's are folded if they are computed from integers alone, since the last bits of
floats are its own. The range of a table of indices is recorded (metadata `TABLE_SPAN`), so that kernels need not check
indices. A table that is only used as an index is stored in 32 bits.
"""

from __future__ import annotations

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.editor import hold_constant
from ...rewrites.facts import MAX_BYTES, Fact, Table, facts_of_graph, is_cheap, is_same_on_cpu, literal, on_cpu
from ...rewrites.graph import is_tensor, nodes_in, val
from ...rewrites.purity import is_foldable, mutable, returned_storages, storages, tensors_of
from ...rewrites.walk import recompiles
from ..lowering.core import TABLE_SPAN

_NAME = "_folded"
_INT32 = torch.iinfo(torch.int32)
_INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten._unsafe_index.Tensor}


@recompiles
def fold_constant_tables(graph_module: fx.GraphModule) -> int:
    """Replace small tensors that depend on no input by constants of the module, in place; returns their number.

    Args:
        graph_module: a functional graph (writes to inputs at its end apart).
    """
    graph = graph_module.graph
    facts = facts_of_graph(graph, mutable(graph))
    wanted = [(node, value) for node in _frontier(graph, facts) if (value := _laid_out(node)) is not None]
    constants = []
    for node, value in wanted:
        constant = hold_constant(graph_module, free_name(graph_module), value, node)
        node.replace_all_uses_with(constant)
        constants.append((constant, value))
    for node in reversed(facts):
        if not node.users and node.op == "call_function":
            graph.erase_node(node)
    for constant, value in constants:
        describe(graph_module, constant, value)
    return len(wanted)


def describe(module: fx.GraphModule, constant: fx.Node, table: torch.Tensor) -> None:
    """Record the range of a table of integers; store it in 32 bits if it is only used as an index."""
    if table.dtype not in (torch.int32, torch.int64) or not table.numel():
        return
    with compat.plain_eager():
        least, greatest = int(table.min()), int(table.max())
        short = table.int() if _INT32.min <= least <= greatest <= _INT32.max and _only_indexes(constant) else table
    constant.meta[TABLE_SPAN] = least, greatest
    if short is not table:
        setattr(module, str(constant.target), short)
        constant.meta["val"] = val(constant).int()


def _only_indexes(node: fx.Node) -> bool:
    """Whether all readers of a table use it as an index only."""
    return all(user.target in _INDEXING and user.args[0] is not node for user in node.users)


def _laid_out(node: fx.Node) -> torch.Tensor | None:
    """The value of a table with the strides that its readers expect; None if elements share memory.

    A slice keeps the strides of the larger table, and an expanded table keeps its strides of 0.
    """
    value, promised = compute(node), val(node)
    if value is None:
        return None
    once = [1 if stride == 0 else size for size, stride in zip(promised.shape, promised.stride(), strict=True)]
    with compat.plain_eager(), torch.no_grad():
        made = memory_like(promised, once)
        try:
            made.copy_(value[tuple(slice(size) for size in once)])
        except RuntimeError:
            return None
        return made.expand(value.shape)


def memory_like(promised: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Memory on the device of a fake tensor, with its strides."""
    return torch.empty_strided(sizes, promised.stride(), dtype=promised.dtype, device=promised.device)


def _frontier(graph: fx.Graph, facts: dict[fx.Node, Fact]) -> list[fx.Node]:
    """The tables that calls outside of the folded part read, and that are worth storing."""
    returned = returned_storages(graph)
    costly: set[fx.Node] = set()
    found = []
    for node, fact in facts.items():
        if not isinstance(fact, Table) or node.op != "call_function":
            continue
        if not is_cheap(node) or _rounds(node) or any(n in costly for n in node.all_input_nodes):
            costly.add(node)
        read = any(not isinstance(facts.get(user), Table) for user in node.users)
        if node in costly and read and not storages(node) & returned:
            found.append(node)
    return found


def _rounds(node: fx.Node) -> bool:
    """Whether floats become integers: computed indices are checked at run time, tables have a known range.

    x[int((arange(112) + 0.0) * 0.5)]   ->   x[constant]
    """
    if not is_tensor(node) or val(node).dtype.is_floating_point or val(node).dtype == torch.bool:
        return False
    return any(is_tensor(n) and val(n).dtype.is_floating_point for n in node.all_input_nodes)


def compute(node: fx.Node, *, limit: int = MAX_BYTES, on_device: bool = False) -> torch.Tensor | None:
    """The value of a tensor that depends on constants alone, computed by eager; else None.

    Args:
        node: the node that computes the tensor.
        limit: the most bytes of any intermediate tensor.
        on_device: compute on the program's device; by default on the CPU, only what has the same bits there.
    """
    cone = _cone(node, limit, on_device)
    if cone is None:
        return None
    with compat.plain_eager(), torch.no_grad():
        constants = {n: constant for n in cone if (constant := literal(n)) is not None}
        values = {n: constant.to(val(n).device) if on_device else constant for n, constant in constants.items()}
        for n in cone:
            if n in values:
                continue
            args, kwargs = fx.node.map_arg((n.args, dict(n.kwargs)), values.__getitem__)
            try:
                values[n] = n.target(*args, **(kwargs if on_device else on_cpu(kwargs)))  # type: ignore[operator]
            except (RuntimeError, IndexError, ValueError):
                return None  # the error belongs to the run
        value = values[node]
        return value.clone(memory_format=torch.preserve_format) if isinstance(value, torch.Tensor) else None


def _cone(node: fx.Node, limit: int, on_device: bool) -> list[fx.Node] | None:
    """The calls that compute a tensor, in order; None if one is too large or reads something that is not constant."""
    found: set[fx.Node] = set()
    todo = [node]
    while todo:
        current = todo.pop()
        if current in found:
            continue
        if literal(current) is None:
            if not _is_small(current, limit, on_device):
                return None
            todo.extend(current.all_input_nodes)
        found.add(current)
    return sorted(found)


def _is_small(node: fx.Node, limit: int, on_device: bool) -> bool:
    """Whether a call gives small tensors, one or several, that may be computed now."""
    if node.op != "call_function" or not is_foldable(node):
        return False
    plain = (on_device or is_same_on_cpu(node)) and all(value.layout == torch.strided for value in tensors_of(node))
    small = all(value.numel() * value.dtype.itemsize <= limit for value in tensors_of(node))
    return plain and small and all(map(tensors_of, nodes_in([node.args, node.kwargs])))


def free_name(module: fx.GraphModule) -> str:
    """A name under which a module has nothing."""
    return next(name for i in range(1 << 30) if not hasattr(module, name := f"{_NAME}{i}"))

"""Kernels of products that read the same few rows become one: after each has been chosen.

    %up = gemm(%x, %w_up); %y = gemm_silu_mul(%x, %w_gate, %up)     ->   %y = gemm_silu_mul(%x, %w_gate, %w_up)
    %q = gemm(%x, %w_q); %k = gemm(%x, %w_k); %v = gemm(%x, %w_v)   ->   %q, %k, %v = gemm(%x, %w_q, %w_k, %w_v)

A product whose result only the epilogue of another reads is summed in the same programs. What is left of the products
of one activation shares a launch. Weights are read where they are. This is not measured: programs do what they did
before, and a launch and what it leaves idle are saved.
"""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from ...gpu import Gpu
from ...ir.index.index import Atom, substitute
from ...ir.program import Buffer
from ...ir.value import Load, Rewriter, Value
from ..attention.description import address
from ..common.cpp_call import Layout
from ..common.formula import COPIES, is_move, packet
from ..common.task import Task
from ..common.triton_call import TritonTemplateKernel
from .description import ELEMENT, OTHER, Matrix, Product
from .replacement import RULE
from .splice import writes
from .triton_cost import has_few_rows
from .triton_joint import JointProduct, joint_triton
from .triton_tiles import GemmTile, fits


@dataclass(frozen=True)
class Part:
    """A kernel of the graph: its product (by position of its inputs), its tile, its results."""

    product: Product
    tile: GemmTile
    label: str


class Merge:
    """The pass over one graph.

    Args:
        task: the graph, and how.
        parts: what kernels of products are, by name.
    """

    def __init__(self, task: Task, parts: dict[str, Part]) -> None:
        self._task, self._parts = task, parts

    def run(self) -> int:
        """Merge what can be; returns how many kernels went into others."""
        merged = sum(self._take_in(node) for node in list(self._task.graph.nodes) if self._part(node) is not None)
        groups: dict[Any, list[fx.Node]] = defaultdict(list)
        for node in self._task.graph.nodes:
            part = self._part(node)
            if part is not None and can_join(part.product):
                groups[node.args[0], part.product.depth, part.tile.by_lanes, part.product.early].append(node)
        return merged + sum(self._join(nodes) for nodes in groups.values() if len(nodes) > 1)

    def _part(self, node: fx.Node) -> Part | None:
        if not isinstance(node.target, TritonTemplateKernel):
            return None
        part = self._parts.get(node.target.name)
        if part is None or part.product.batch.extent > 1 or part.product.more or part.tile.descriptors:
            return None
        return part if has_few_rows(part.product) else None

    # -- two right operands ---------------------------------------------------------------------------------------

    def _take_in(self, node: fx.Node) -> bool:
        """Sum another product in a kernel whose epilogue alone reads it."""
        part = self._part(node)
        assert part is not None
        for place, given in enumerate(node.args[2:], 2):
            assert isinstance(given, fx.Node)
            found = self._part(given)
            if found is None or list(given.users) != [node] or node.args.count(given) != 1:
                continue
            if self._is_written(given, node):
                continue
            product = _with_other(part.product, found.product, place) if given.args[0] is node.args[0] else None
            tile = None if product is None else _whole_tile([product], part.tile, self._task.gpu)
            if product is None or tile is None:
                continue
            args = (*(x for x in node.args if x is not given), *given.args[1:])
            self._put(node, [Part(product, tile, part.label)], args, [node])
            self._task.graph.erase_node(given)
            return True
        return False

    # -- one launch -----------------------------------------------------------------------------------------------

    def _join(self, nodes: list[fx.Node]) -> int:
        """Put products that do not depend on each other into one launch, before the first of them."""
        first = nodes[0]
        order = {node: number for number, node in enumerate(self._task.graph.nodes)}
        ready = [node for node in nodes if all(_is_ready(given, order, order[first]) for given in node.all_input_nodes)]
        parts = [part for part in map(self._part, ready) if part is not None]
        largest = max(parts, key=lambda part: part.product.column.extent)
        tile = _whole_tile([part.product for part in parts], largest.tile, self._task.gpu)
        if tile is None or len(parts) < 2 or self._is_written(first, ready[-1]):
            return 0
        for node in ready:
            for given in node.all_input_nodes:
                _move_ahead(given, order, order[first], first)
        args = tuple(dict.fromkeys(given for node in ready for given in node.args))
        self._put(first, [replace(part, tile=tile) for part in parts], args, ready)
        return len(ready) - 1

    def _is_written(self, first: fx.Node, last: fx.Node) -> bool:
        """Whether memory is written to between two nodes."""
        node = first.next
        while node is not last:
            if writes(node):
                return True
            node = node.next
        return False

    def _put(self, before: fx.Node, parts: list[Part], args: Sequence[Any], nodes: list[fx.Node]) -> None:
        """Put the call of one kernel in place of nodes, one a part; `args` are what it reads."""
        reads = [_places(node, args) if len(parts) > 1 else tuple(range(len(args))) for node in nodes]
        members = tuple((part.product, read) for part, read in zip(parts, reads, strict=True))
        label = "_".join(dict.fromkeys(part.label for part in parts if part.label))[:40]
        kernel = _kernel(members, parts[0].tile, label, self._task.device)
        if len(parts) == 1:
            self._parts[kernel.name] = parts[0]
        graph = self._task.graph
        with graph.inserting_before(before):
            call = graph.call_function(kernel, tuple(args))
            values = tuple(node.meta["val"] for node in nodes)
            call.meta = {**nodes[0].meta, "regraft_rule": RULE, "val": values[0] if len(nodes) == 1 else values}
            places = range(len(nodes))
            items = [graph.call_function(operator.getitem, (call, n)) for n in places] if len(nodes) > 1 else [call]
        for node, item in zip(nodes, items, strict=True):
            item.meta = {**node.meta, "regraft_rule": RULE}
            node.replace_all_uses_with(item)
            graph.erase_node(node)


def can_join(product: Product) -> bool:
    """Whether a product may share a launch with others of the activation that it reads as it is."""
    one_matrix = type(product) is Product and product.batch.extent == 1 and not product.more
    return one_matrix and has_few_rows(product) and product.left is None


def _places(node: fx.Node, args: Sequence[Any]) -> tuple[int, ...]:
    return tuple(args.index(given) for given in node.args)


@functools.lru_cache(maxsize=256)
def _kernel(
    members: tuple[tuple[Product, tuple[int, ...]], ...], tile: GemmTile, label: str, device: int
) -> TritonTemplateKernel:
    """The kernel of products, each with the places of what it reads."""
    count = 1 + max(place for _, read in members for place in read)
    inputs: dict[int, Buffer] = {}
    made: list[JointProduct] = []
    for number, (product, read) in enumerate(members):
        inputs |= dict(zip(read, product.reads, strict=True))
        made.append(JointProduct(product, (*read, count + number)))
    source = joint_triton(made, tile, label)
    plain = joint_triton(made, replace(tile, cores=False), label) if tile.cores else source
    outputs = tuple(Layout.of(product.out) for product, _ in members)
    given = tuple(Layout.of(inputs[place]) for place in range(count))
    flops = sum(product.flops * (2 if product.other is not None else 1) for product, _ in members)
    return TritonTemplateKernel(source.launches[0].name, "gemm", source, plain, given, outputs, device, flops)


def _whole_tile(products: Sequence[Product], tile: GemmTile, gpu: Gpu) -> GemmTile | None:
    """The tile with the depth in one part, or the nearest one that fits all; None where there is none."""
    tile = replace(tile, splits=1)
    while tile.columns >= 1 and tile.stages >= 1:
        if all(fits(product, tile, gpu) for product in products):
            return tile
        if tile.by_lanes and tile.columns > 1:
            tile = replace(tile, columns=tile.columns // 2)
        else:
            tile = replace(tile, stages=tile.stages // 2 if tile.by_lanes else tile.stages - 1)
    return None


def _with_other(product: Product, other: Product, place: int) -> Product | None:
    """A product whose epilogue computes another itself, of which it loads element (i, j) as the input at `place`."""
    if product.left is not None or other.left is not None or product.other is not None or other.other is not None:
        return None
    if _facts(product) != _facts(other) or product.early != other.early:
        return None
    taken = product.reads[place]
    renamed = {b.name: f"q{number}" for number, b in enumerate(other.reads)}
    moved: list[bool] = []

    def within(value: Value) -> Value | None:
        if value == ELEMENT:
            return OTHER
        if isinstance(value, Load) and value.buffer in renamed:
            return Load(renamed[value.buffer], value.indices, value.dtype)
        return None

    inner = Rewriter(within)(other.value)

    def outside(value: Value) -> Value | None:
        if not isinstance(value, Load) or value.buffer != taken.name:
            return None
        elsewhere = _at(product, address(taken, value.indices)) != _at(other, other.place)
        moved.append(elsewhere or value.dtype != inner.dtype)
        return inner

    value = Rewriter(outside)(product.value)
    if any(moved) or not moved:
        return None
    weight = replace(other.b, buffer=replace(other.b.buffer, name=renamed[other.b.buffer.name]))
    own = tuple(buffer for buffer in product.buffers if buffer.name != taken.name)
    more = tuple(replace(buffer, name=renamed[buffer.name]) for buffer in other.buffers)
    also = other.right
    if also is not None:
        buffers = tuple(replace(buffer, name=renamed[buffer.name]) for buffer in also.buffers)
        also = replace(also, value=Rewriter(within)(also.value), buffers=buffers)
    return replace(product, value=value, other=weight, also=also, buffers=(*own, weight.buffer, *more))


def _facts(product: Product) -> Any:
    """The facts that two products must have in common to be summed in the same programs."""
    b: Matrix = product.b
    sizes = product.batch.extent, product.row.extent, product.column.extent, product.depth
    computed = None if product.right is None else product.right.dtype
    return sizes, (b.batch, b.row, b.column), b.buffer.dtype, product.a, product.exact, computed


def _at(product: Product, place: Any) -> Any:
    """A place, where loops of one iteration say nothing."""
    single: dict[Atom, Any] = {var: 0 for var in (product.batch, product.row, product.column) if var.extent == 1}
    return substitute(place, single) if single else place


# -- order ------------------------------------------------------------------------------------------------------------


def _is_ready(node: fx.Node, order: dict[fx.Node, int], limit: int) -> bool:
    """Whether a node is there before a place in the graph, or is a view of what is."""
    if order[node] < limit:
        return True
    is_view = is_move(node) and packet(node) not in COPIES
    return is_view and all(_is_ready(given, order, limit) for given in node.all_input_nodes)


def _move_ahead(node: fx.Node, order: dict[fx.Node, int], limit: int, before: fx.Node) -> None:
    if order[node] < limit:
        return
    for given in node.all_input_nodes:
        _move_ahead(given, order, limit, before)
    before.prepend(node)
    order[node] = -1

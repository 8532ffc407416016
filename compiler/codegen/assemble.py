"""Turns a schedule into a graph of extern calls and calls of generated kernels.

    %mm   = aten.mm(%x, %w)                        %mm = aten.mm(%x, %w)
    %add  = aten.add(%mm, %b)       schedule       %k0 = k0_relu(%mm, %b)
    %relu = aten.relu(%add)           ->           %v  = aten.view(%k0, [-1])
    %v    = aten.view(%relu, [-1])                 return (%v,)
    return (%v,)

Views are created again if something other than a kernel reads them; kernels see through views.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch import fx

from ...rewrites.compat import tree_leaves
from ...rewrites.graph import gives_view, is_tensor
from ...rewrites.sizes import SizeTable
from ..ir.index import index as ix
from ..ir.kernel import Kernel
from ..ir.program import Buffer, Extern
from ..lowering.sizes import size_name
from .kernel_call import KernelCall
from .wrapper.size_checks import check_sizes, claims, doubtful_results

if TYPE_CHECKING:
    from ..schedule import Schedule

_MOVES = (torch.ops.aten.set_.source_Tensor,)
"""Calls that give a tensor other memory."""


def assemble(
    graph: fx.Graph,
    schedule: Schedule,
    compiled: Mapping[str, Callable[..., None]],
    overwrites: Callable[[Kernel], Sequence[tuple[str, str]]],
    written: Mapping[str, str],
) -> fx.Graph:
    """The graph of a schedule.

    Args:
        graph: the graph that was lowered; it is not changed.
        schedule: its kernels and extern calls, in order.
        compiled: the function of each kernel, by name.
        overwrites: pairs (new, existing) of a kernel's buffers that may share memory.
        written: nodes that stand for an input after a write to it, by name: their readers read the input.
    """
    return _Assembly(graph, schedule, compiled, overwrites, written).run()


class _Assembly:
    def __init__(
        self,
        graph: fx.Graph,
        schedule: Schedule,
        compiled: Mapping[str, Any],
        overwrites: Any,
        written: Mapping[str, str],
    ) -> None:
        self._old = {node.name: node for node in graph.nodes}
        self._output = next(node for node in reversed(graph.nodes) if node.op == "output")
        self._schedule = schedule
        self._compiled = compiled
        self._overwrites = overwrites
        self._graph = fx.Graph()
        self._made: dict[fx.Node, fx.Node] = {}  # old node -> new node
        self._buffers: dict[str, fx.Node] = {}  # buffer -> new node
        self._unchecked: list[fx.Node] = []  # tensors whose sizes have not been checked
        for node in graph.nodes:
            if node.op == "placeholder":
                self._copy(node)
        self._buffers.update((name, self._buffers[into]) for name, into in written.items())
        self._sizes = SizeTable(self._graph)
        self._numbers = {name: node for node in reversed(graph.nodes) for name in _numbers(node.meta.get("val"))}

    def run(self) -> fx.Graph:
        for step in self._schedule.steps:
            if isinstance(step, Extern):
                if step.writes and step.node.op == "call_function" and is_tensor(step.node):
                    self._check_sizes()
                self._extern(step)
            else:
                self._kernel(step)
        self._check_sizes()
        result = fx.map_arg(self._output.args[0], self._value)
        made = self._graph.output(result)
        made.meta = dict(self._output.meta)
        return self._graph

    def _copy(self, node: fx.Node) -> fx.Node:
        made = self._graph.node_copy(node, self._value)
        self._made[node] = made
        self._buffers.setdefault(node.name, made)
        return made

    def _value(self, node: fx.Node) -> fx.Node:
        """The new node for an old node: its buffer, or a view or size that is computed again."""
        if node.name in self._buffers:
            return self._buffers[node.name]
        if node not in self._made and node.target is torch.ops.aten.copy_.default:
            return self._value(node.args[0])  # type: ignore[arg-type]  # a kernel has written there: not once more
        return self._made[node] if node in self._made else self._copy(node)

    def _extern(self, step: Extern) -> None:
        if step.node.target in _MOVES:
            self._make_views(step.node)
        self._copy(step.node)
        for user in step.node.users:
            if user.target is operator.getitem and user.name in step.writes:
                self._copy(user)
        self._unchecked += [self._made[node] for node in doubtful_results(step.node) if node in self._made]

    def _make_views(self, call: fx.Node) -> None:
        """Make the views of a tensor that a call gives other memory: they look at the old one."""
        seen = {call.args[0]}
        for node in self._old.values():
            if node is call:
                return
            if gives_view(node) and node.args[0] in seen:
                seen.add(node)
                self._value(node)

    def _check_sizes(self) -> None:
        """Check sizes before code relies on them, but after the assertions of the program itself."""
        for node in self._unchecked:
            known = claims(node, self._sizes)
            if known:
                made = self._graph.call_function(check_sizes, (node, known))
                made.meta = {"val": None, **{key: node.meta[key] for key in ("stack_trace",) if key in node.meta}}
        self._unchecked = []

    def _kernel(self, kernel: Kernel) -> None:
        self._check_sizes()
        # Kernels index flat memory; allocated tensors have the program's sizes and strides.
        made = tuple(self._schedule.buffers[p.buffer.name] for p in kernel.params if self._is_new(p.buffer))
        fresh = {buffer.name for buffer in made}
        given = tuple(p.buffer.name for p in kernel.params if p.buffer.name not in fresh)
        sizes = self._sizes_of(kernel, made)
        overwrites: dict[str, tuple[str, ...]] = {}
        for new, old in self._overwrites(kernel):
            if new in fresh:
                overwrites[new] = (*overwrites.get(new, ()), old)
        call = KernelCall(kernel, self._compiled[kernel.name], given, made, tuple(s.name for s in sizes), overwrites)
        args = [self._buffer(name) for name in given] + [self._size(size) for size in sizes]
        name = made[0].name if len(made) == 1 else kernel.name
        node = self._graph.create_node("call_function", call, tuple(args), name=name)
        node.meta.update(self._provenance(kernel))
        self._results(node, made)

    def _is_new(self, buffer: Buffer) -> bool:
        return buffer.name in self._schedule.buffers and buffer.name not in self._buffers

    def _buffer(self, name: str) -> fx.Node:
        return self._buffers[name] if name in self._buffers else self._copy(self._old[name])

    def _results(self, node: fx.Node, made: Sequence[Buffer]) -> None:
        metas = [self._old[buffer.name].meta.get("val") if buffer.name in self._old else None for buffer in made]
        if len(made) == 1:
            self._buffers[made[0].name] = node
            node.meta["val"] = _tensor_meta(made[0], metas[0])
            return
        for position, (buffer, meta) in enumerate(zip(made, metas, strict=True)):
            item = self._graph.create_node("call_function", operator.getitem, (node, position), name=buffer.name)
            item.meta["val"] = _tensor_meta(buffer, meta)
            self._buffers[buffer.name] = item
        node.meta["val"] = tuple(self._buffers[buffer.name].meta["val"] for buffer in made) or None

    def _sizes_of(self, kernel: Kernel, made: Sequence[Buffer]) -> list[ix.Size]:
        """The kernel's sizes first, then those that only the shapes of results need."""
        numbers = [n for buffer in made for n in (*buffer.sizes, *buffer.strides)]
        more = sorted({a for n in numbers for a in ix.atoms(n) if isinstance(a, ix.Size)}, key=lambda s: s.name)
        return [*kernel.sizes, *(s for s in more if s not in kernel.sizes)]

    def _size(self, size: ix.Size) -> Any:
        """The size of an input, a number that the graph computes, or the number in its metadata."""
        node = self._numbers.get(size.name)
        if node is not None and not isinstance(size, ix.Late):
            return self._value(node)
        # Other nodes with this number may come after the call that defines it.
        expr = self._named.get(size.name) if node is None else node.meta["val"].node.expr
        return self._sizes.symbol(size.name) if expr is None else self._sizes.computed(expr)

    @functools.cached_property
    def _named(self) -> dict[str, Any]:
        """The named symbols in numbers and among the sizes and strides of tensors, and in what computes them."""
        values = [x for node in self._old.values() for x in tree_leaves(node.meta.get("val"))]
        tensors = [x for x in values if torch.is_tensor(x) and x.layout == torch.strided]
        numbers = [*values, *(n for x in tensors for n in (*x.shape, *x.stride()))]
        exprs = {n.node.expr for n in numbers if isinstance(n, torch.SymInt)}
        parts = {part for expr in exprs for part in sympy.preorder_traversal(expr) if part.args}
        return {size_name(part): part for part in parts}

    def _provenance(self, kernel: Kernel) -> dict[str, Any]:
        """Source line, module and rule of the last node that the kernel computes, and the stack traces of all nodes."""
        nodes = [self._old[name] for name in kernel.nodes if name in self._old]
        if not nodes:
            return {}
        meta = {key: value for key, value in nodes[-1].meta.items() if key not in ("val", "tensor_meta")}
        meta["regraft_fused"] = tuple(dict.fromkeys(filter(None, (node.meta.get("stack_trace") for node in nodes))))
        rules = sorted({node.meta["regraft_rule"] for node in nodes if "regraft_rule" in node.meta})
        return {**meta, "regraft_rule": ", ".join(rules)} if rules else meta


def _numbers(value: Any) -> list[str]:
    """The name of the size that a value is, if it is one."""
    return [size_name(value.node.expr)] if isinstance(value, torch.SymInt) else []


def _tensor_meta(buffer: Buffer, meta: Any) -> Any:
    """Metadata of a buffer: that of the graph node for which it stands, if there is one."""
    if isinstance(meta, torch.Tensor):
        return meta
    plain = [n for n in (*buffer.sizes, *buffer.strides) if isinstance(n, ix.Index)]
    if plain:
        return None
    return torch.empty_strided(buffer.sizes, buffer.strides, dtype=buffer.dtype, device="meta")


def calls(graph: fx.Graph) -> Iterator[KernelCall]:
    """The kernel calls of an assembled graph."""
    return (node.target for node in graph.nodes if isinstance(node.target, KernelCall))

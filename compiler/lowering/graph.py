"""Lowers a functional ATen graph to a loop program, node by node.

placeholder, get_attr      ->   buffers that exist from the start
call of an operator        ->   definitions, or a view of a buffer, or an extern call
arithmetic of sizes        ->   extern calls, their results known as indices
copy_ into a placeholder   ->   a definition that stores to the input
output                     ->   buffers whose values are results
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import fx

from ...rewrites.compat import (
    OpOverload,
    aliasing_arguments,
    attribute,
    is_mutable,
    is_subclass,
    tree_leaves,
)
from ...rewrites.faults import Faults
from ...rewrites.purity import may_move
from ...rewrites.reason import site_of
from ..ir.index.index import Size
from ..ir.program import Buffer, Extern, Program
from ..ir.value import Load, walk
from ..prims import ops as random_ops
from . import operators
from .arithmetic import op
from .call import lower_call
from .call_arguments import DTYPES, Opaque
from .core import TABLE_SPAN, Lowering, Tensor, cast, whole
from .dead_copies import drop_dead_copies
from .equal_sizes import equating
from .in_place import write_in_place
from .scalars import Scalar
from .sizes import Unlowered, equal_sizes_of, examples, number
from .sizes import tokens as tokens_of

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_SEEDING = (random_ops.seeds.default, random_ops.split.default)


@dataclass(frozen=True)
class Kept:
    """A call that was not lowered, for the report: the node's name, its operator, and the reason."""

    node: str
    operator: str
    code: str
    message: str


@dataclass
class Lowered:
    """A lowered graph.

    Args:
        program: the loop program.
        views: node name -> name of the buffer that the node views. If such a tensor is needed itself, the node runs
            again on the buffer.
        kept: the calls that were not lowered.
        written: node name -> name of the input to which the node's elements are written directly.
    """

    program: Program
    views: dict[str, str] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)


assert operators.MODULES


def lower(
    module: fx.GraphModule,
    *,
    strict: bool = False,
    keep: Mapping[str, str] | None = None,
    faults: Faults | None = None,
) -> Lowered:
    """Lower a graph after AOTAutograd, which is functional except for writes to inputs.

    Args:
        module: the graph, whose nodes have metadata ``val``; it is not changed.
        strict: raise an error if a lowering fails or contradicts the metadata, instead of keeping the call.
        keep: nodes that stay calls, by name, with reasons: the code generator of their device has rejected them.
        faults: is told about lowerings that fail.
    """
    return _Walk(module, strict, keep or {}, faults).run()


class _Walk:
    def __init__(self, module: fx.GraphModule, strict: bool, keep: Mapping[str, str], faults: Faults | None) -> None:
        self._module, self._strict, self._keep, self._faults = module, strict, keep, faults
        self._low = Lowering()
        self._values: dict[fx.Node, Any] = {}
        self._lowered = Lowered(Program(self._low.buffers, self._low.items))
        self._written = _written_inputs(module.graph)
        self._tokens: dict[fx.Node, tuple[str, ...]] = {}  # buffers that stand for results other than tensors

    def run(self) -> Lowered:
        inputs = self._module.graph.find_nodes(op="placeholder")
        with equating(equal_sizes_of([node.meta.get("val") for node in inputs])):
            for node in self._module.graph.nodes:
                self._low.origin = self._low.current = node
                getattr(self, f"_{node.op}")(node)
        written = self._lowered.written = write_in_place(self._lowered.program)
        moved = {**drop_dead_copies(self._lowered.program), **written}
        self._lowered.views = {view: moved.get(name, name) for view, name in self._lowered.views.items()}
        return self._lowered

    # -- what is there from the start --------------------------------------------------------------------------------

    def _placeholder(self, node: fx.Node) -> None:
        self._note_known(node, "input")
        self._lowered.program.examples.update(examples(node.meta.get("val")))
        self._values[node] = self._given(node, node.meta.get("val"), "input")

    def _get_attr(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        value = attribute(self._module, node.target) if value is None else value
        given = self._given(node, value, "constant")
        self._values[node] = replace(given, span=node.meta[TABLE_SPAN]) if TABLE_SPAN in node.meta else given

    def _given(self, node: fx.Node, value: Any, kind: Literal["input", "constant"]) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(node.name, value, kind)
        return self._number(node, value, kind)

    def _tensor(self, name: str, meta: torch.Tensor, kind: Literal["input", "constant", "made"] = "made") -> Any:
        """A tensor that kernels do not compute: its buffer, and its value for lowerings."""
        refusal = _refusal(meta)
        sizes, strides = ((), ()) if refusal else (_sizes(meta.shape), _sizes(meta.stride()))
        buffer = Buffer(name, meta.dtype, sizes, strides, meta.device, kind)
        self._low.buffers[name] = buffer
        return whole(buffer) if refusal is None else Opaque(*refusal, (name,))

    # -- calls -------------------------------------------------------------------------------------------------------

    def _call_function(self, node: fx.Node) -> None:
        if node.target is operator.getitem and isinstance(self._values[node.args[0]], tuple):
            self._item(node)
        elif _is_size(node) or node.target is operator.getitem or node.target in _SEEDING:
            self._extern(node, "", "")
        elif node.name in self._keep:
            self._extern(node, "unsupported", self._keep[node.name])
        elif self._is_write_to_input(node):
            self._write(node)
        else:
            self._operator(node)

    def _call_module(self, node: fx.Node) -> None:
        self._extern(node, "opaque", f"{node.target} is a module")

    _call_method = _call_module

    def _item(self, node: fx.Node) -> None:
        value = self._values[node.args[0]][node.args[1]]
        self._values[node] = value
        self._note_views(node, value)

    def _operator(self, node: fx.Node) -> None:
        mark = self._low.mark()
        try:
            value = lower_call(self._low, node, self._values)
        except Unlowered as refusal:
            self._low.roll_back(mark)
            if self._strict and refusal.code == "metadata":
                raise AssertionError(str(refusal)) from refusal
            self._extern(node, refusal.code, str(refusal))
        except Exception as error:
            if self._strict:
                raise
            self._low.roll_back(mark)
            if self._faults is not None:
                what, outcome = f"lowering of {node.target}", "it stays a call of ATen's"
                self._faults.tell(what, outcome, error, stage="lowering", site=site_of(node))
            self._extern(node, "failed", f"{type(error).__name__}: {error}")
        else:
            self._adopt(node, value, mark)

    def _adopt(self, node: fx.Node, value: Any, mark: tuple[int, int]) -> None:
        """Name the buffers that a node created after the node, or after the `getitem` nodes that read them.

        A view of memory that the node itself allocated is copied, since no other node has that memory.
        """
        made = set(self._low.made_since(mark))
        parts = value if isinstance(value, tuple) else (value,)
        parts = tuple(self._owned(part, made) for part in parts)
        parts = tuple(map(self._as_told, parts, _told(node, len(parts)), [made] * len(parts)))
        wanted = [node.name] if not isinstance(value, tuple) else _item_names(node, len(parts))
        names: dict[str, str] = {}
        for part, name in zip(parts, wanted, strict=True):
            if name is not None and part is not None and part.buffer.name in self._low.made_since(mark):
                names.setdefault(part.buffer.name, name)
        self._low.rename(names, mark)
        parts = tuple(self._renamed(part, names) for part in parts)
        self._values[node] = parts if isinstance(value, tuple) else parts[0]
        self._note_views(node, self._values[node])

    def _owned(self, tensor: Tensor | None, made: set[str]) -> Tensor | None:
        if tensor is None or tensor.buffer.name not in made or tensor.is_whole:
            return tensor
        return self._low.pointwise(tensor.at, tensor.sizes, tensor.dtype)

    def _as_told(self, tensor: Tensor | None, told: Any, made: set[str]) -> Tensor | None:
        """A result in memory of its own with the strides of its metadata, on which other calls and views rely.

        Lowerings use the strides of the node, which has none if there are several results.
        """
        if tensor is None or tensor.buffer.name not in made or not isinstance(told, torch.Tensor):
            return tensor
        try:
            sizes, strides = (tuple(map(number, part)) for part in (told.shape, told.stride()))
        except Unlowered:
            return tensor  # kernels cannot take these sizes: nothing relies on such strides
        if sizes != tuple(tensor.buffer.sizes) or strides == tuple(tensor.buffer.strides):
            return tensor
        self._low.buffers[tensor.buffer.name] = replace(tensor.buffer, strides=strides)
        return whole(self._low.buffers[tensor.buffer.name])

    def _renamed(self, tensor: Tensor | None, names: dict[str, str]) -> Tensor | None:
        new = None if tensor is None else names.get(tensor.buffer.name)
        return tensor if new is None else whole(self._low.buffers[new])

    def _note_views(self, node: fx.Node, value: Any) -> None:
        if isinstance(value, Tensor) and value.buffer.name != node.name:
            self._lowered.views[node.name] = value.buffer.name

    # -- calls that stay ---------------------------------------------------------------------------------------------

    def _extern(self, node: fx.Node, code: str, message: str) -> None:
        args = node.all_input_nodes
        tokens = tuple(token for arg in args for token in (*self._tokens.get(arg, ()), *_tokens(arg)))
        reads = tuple(dict.fromkeys([b for arg in args for b in _bases(self._values[arg])] + list(tokens)))
        written = self._written_by(node)
        before = len(self._low.buffers)
        self._values[node] = value = self._results(node, reads)
        if _is_size(node):
            self._tokens[node] = tokens if _is_arithmetic(node) else reads
        elif node.users and not isinstance(value, (Tensor, tuple)) and node.name not in self._low.buffers:
            self._tokens[node] = (self._token(node),)
        self._note_known(node, "made")  # also sizes that the tensor's metadata knows by another symbol
        made = list(self._low.buffers)[before:]
        self._note_views(node, value)
        pure = not written and may_move(node)
        self._low.items.append(Extern(node.name, node, reads, (*made, *written), code, pure))
        if code:
            self._lowered.kept.append(Kept(node.name, str(node.target), code, message))

    def _number(
        self, node: fx.Node, value: Any, kind: Literal["input", "constant", "made"], bases: tuple[str, ...] = ()
    ) -> Any:
        """A result that is no tensor: an index if sizes determine it, else a number passed to kernels by value."""
        if not isinstance(value, SYMBOLIC):
            plain = value is None or isinstance(value, (bool, int, float))
            return value if plain else Opaque("opaque", f"a {type(value).__name__}", bases)
        if isinstance(value, torch.SymInt):
            try:
                return number(value)
            except Unlowered:
                pass  # known at run time
        dtype = torch.float64 if isinstance(value, torch.SymFloat) else torch.int64
        self._low.buffers[node.name] = Buffer(node.name, dtype, (1,), (1,), torch.device("cpu"), kind, scalar=True)
        given = Load(node.name, (0,), dtype)
        if isinstance(value, torch.SymBool):
            return Scalar(op("ne", given, 0))
        self._low.numbers.setdefault(value.node.expr, cast(given, torch.float64))
        return Scalar(given)

    def _note_known(self, node: fx.Node, kind: Literal["input", "made"]) -> None:
        """Add buffers without elements for symbols that a call is the first to define."""
        for name in _tokens(node):
            if name not in self._low.buffers:
                self._low.buffers[name] = Buffer(name, torch.bool, (0,), (1,), torch.device("cpu"), kind)

    def _token(self, node: fx.Node) -> str:
        """A buffer without elements, which makes readers of the node's other results depend on the node."""
        self._low.buffers[node.name] = Buffer(node.name, torch.bool, (0,), (1,), torch.device("cpu"))
        return node.name

    def _results(self, node: fx.Node, reads: tuple[str, ...]) -> Any:
        """The results of an extern call, with buffers for them."""
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            return self._aliased(node) or self._result(node, val, reads)
        if not isinstance(val, (tuple, list)):
            return self._number(node, val, "made", reads)
        if not all(v is None or isinstance(v, torch.Tensor) for v in val):
            return Opaque("opaque", "results that are not all tensors", reads)
        parts: list[Any] = [None] * len(val)
        for user in node.users:
            place = user.args[1] if user.target is operator.getitem else None
            if place is not None and val[place] is not None and parts[place] is None:
                parts[place] = self._result(user, val[place], reads)
        return tuple(parts)

    def _result(self, node: fx.Node, meta: torch.Tensor, reads: tuple[str, ...]) -> Any:
        """A tensor that a call returned; kernels must not read an alias of memory that is written to later."""
        source = node.args[0] if node.target is operator.getitem else node
        made = self._tensor(node.name, meta)
        late = [name for name in _aliases(source, self._values) if name in self._written]
        if not late:
            return made
        return Opaque("view", f"{node.name} looks at {late[0]}, which is written to", (node.name, *reads))

    def _aliased(self, node: fx.Node) -> Any:
        """The argument that an in-place call returns."""
        if not isinstance(node.target, OpOverload) or not is_mutable(node.target) or not node.args:
            return None
        value, val = self._values.get(node.args[0]), node.meta["val"]
        same = isinstance(value, Tensor) and value.sizes == _sizes(val.shape) and value.dtype == val.dtype
        return value if same and 0 in dict(aliasing_arguments(node.target)) else None

    def _written_by(self, node: fx.Node) -> tuple[str, ...]:
        """The buffers to which an in-place call writes."""
        if not isinstance(node.target, OpOverload):
            return ()
        if not is_mutable(node.target):
            return ()
        names = dict(aliasing_arguments(node.target))
        given = [a for i, a in enumerate(node.args) if i in names]
        given += [a for key, a in node.kwargs.items() if key in names.values()]
        return tuple(dict.fromkeys(b for arg in _nodes(given) for b in _bases(self._values[arg])))

    # -- writes to inputs, and the end -------------------------------------------------------------------------------

    def _is_write_to_input(self, node: fx.Node) -> bool:
        if node.target is not torch.ops.aten.copy_.default:
            return False
        into, value = (self._values[arg] for arg in node.args[:2])
        if not isinstance(into, Tensor) or not isinstance(value, Tensor):
            return False
        known = into.dtype in DTYPES and value.dtype in DTYPES
        return known and into.is_whole and into.buffer.device == value.buffer.device

    def _write(self, node: fx.Node) -> None:
        """``copy_(%input, %value)``: stores to the memory of the input."""
        into, value = (self._values[arg] for arg in node.args[:2])
        self._values[node] = into
        self._note_views(node, into)
        if into.buffer is value.buffer and value.is_whole:
            return
        self._low.device = into.buffer.device
        if into.buffer is value.buffer:
            value = self._low.pointwise(value.at, value.sizes, value.dtype)
        loops = self._low.loops(into.sizes)
        at = tuple(v.index() for v in loops)
        skipped = len(into.sizes) - len(value.sizes)
        source = tuple(0 if size == 1 else i for i, size in zip(at[skipped:], value.sizes, strict=True))
        self._low.store(into, loops, at, value.at(source))

    def _output(self, node: fx.Node) -> None:
        """Note what lives to the end: memory of results, and calls that make numbers known which are results."""
        args = node.all_input_nodes
        bases = [b for arg in args for b in _bases(self._values[arg])]
        tokens = [token for arg in args for token in (*self._tokens.get(arg, ()), *_tokens(arg))]
        self._lowered.program.outputs = tuple(dict.fromkeys((*bases, *tokens)))


def _sizes(sizes: Iterable[Any]) -> tuple[Any, ...]:
    """The sizes of a tensor that kernels do not compute; sizes that indices cannot express get names."""
    return tuple(map(_size, sizes))


def _size(size: Any) -> Any:
    try:
        return number(size)
    except Unlowered:
        return Size(str(size), 0, None).index()


def _refusal(meta: torch.Tensor) -> tuple[str, str] | None:
    """Why kernels cannot access a tensor at all."""
    if is_subclass(meta):
        return "layout", f"a {type(meta).__name__}"
    if meta.is_neg():
        return "layout", "numbers whose signs are turned where they are read"
    return ("layout", f"layout {meta.layout}") if meta.layout != torch.strided or meta.is_mkldnn else None


def _bases(value: Any) -> Iterator[str]:
    """The buffers that a value views."""
    if isinstance(value, Tensor):
        yield value.buffer.name
    elif isinstance(value, Scalar):
        yield from (v.buffer for v in walk([value.value]) if isinstance(v, Load))
    elif isinstance(value, Opaque):
        yield from value.bases
    elif isinstance(value, tuple):
        for part in value:
            yield from _bases(part)


def _aliases(node: fx.Node, values: dict[fx.Node, Any]) -> Iterator[str]:
    """The buffers of the arguments with which a call's results may share memory."""
    if not isinstance(node.target, OpOverload):
        return
    for position, _ in aliasing_arguments(node.target):
        for arg in _nodes(node.args[position : position + 1]):
            yield from _bases(values[arg])


def _nodes(args: Any) -> list[fx.Node]:
    return [leaf for leaf in tree_leaves(args) if isinstance(leaf, fx.Node)]


def _told(node: fx.Node, count: int) -> Sequence[Any]:
    """The metadata of each of a node's results."""
    known = node.meta.get("val")
    parts = known if isinstance(known, (tuple, list)) else (known,)
    return parts if len(parts) == count else [None] * count


def _item_names(node: fx.Node, count: int) -> list[str | None]:
    names: list[str | None] = [None] * count
    for user in node.users:
        if user.target is operator.getitem and names[user.args[1]] is None:
            names[user.args[1]] = user.name
    return names


def _tokens(node: fx.Node) -> list[str]:
    """The buffers that stand for symbols of a node's sizes, or of its value, that are known at run time only."""
    values = [v for v in tree_leaves(node.meta.get("val")) if v is not None]
    numbers = [v for v in values if isinstance(v, SYMBOLIC)]
    for value in values:
        if isinstance(value, torch.Tensor) and _refusal(value) is None:
            numbers += [n for n in (*value.shape, *value.stride()) if isinstance(n, torch.SymInt)]
    return [name for n in numbers for name in tokens_of(n.node.expr, n.node.shape_env)]


def _is_arithmetic(node: fx.Node) -> bool:
    """Whether a number is computed from numbers, rather than read from a tensor."""
    return not isinstance(node.target, OpOverload)


def _is_size(node: fx.Node) -> bool:
    """Whether a node computes numbers from sizes, not from data."""
    if not isinstance(node.meta.get("val"), (*SYMBOLIC, int, float, bool)):
        return False
    return all(not isinstance(arg.meta.get("val"), torch.Tensor) for arg in node.all_input_nodes) or (
        isinstance(node.target, OpOverload) and node.target.name().startswith("aten::sym_")
    )


def _written_inputs(graph: fx.Graph) -> frozenset[str]:
    """Placeholders that the graph writes to."""
    mutable = [n for n in graph.nodes if isinstance(n.target, OpOverload) and is_mutable(n.target)]
    return frozenset(a.name for n in mutable for a in n.all_input_nodes if a.op == "placeholder")

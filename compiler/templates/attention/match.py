"""Finds attention in a graph after autograd: two products, a softmax between them, and any pointwise operations.

    %s  = aten.bmm(%q, %k)          scores (or baddbmm, see `bmm`): used inside the attention only
    ...                             pointwise on scores: scale, bias, masks, softcap, sinks        ->  f
    %p  = aten._softmax(%x, -1)     probabilities: used by the product only
    %o  = aten.bmm(%p, %v)          then views, transposes and clones of it that merge heads

q, k, v and the operands of `f` are traced back through views and copies to the memory that they view.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ....rewrites.graph import CASTS
from ....rewrites.reason import Reason
from ...ir.index.index import Var
from ...ir.program import Buffer
from ...ir.value import Load, Rewriter, Value, walk
from ...lowering.core import cast
from ...lowering.positions import numel, raveled, unraveled
from ...lowering.sizes import Unlowered
from ..common.formula import Formulas, is_move, packet, plain_load, unrounded
from .bias_cost import worth_computing
from .bmm import PRODUCTS, computed, is_batched, is_product, operands, raw_name
from .description import SCORE, Attention, Operand, address, operand
from .dropout import DROPPING, Dropped, drawn, dropped
from .mask_fill import surely_hidden
from .shift_invariance import shiftable

SOFTMAXES = {"aten._softmax": False, "aten._safe_softmax": True}
_REDUCTIONS = ("aten.amax", "aten.max", "aten.sum", "aten.mean")
DTYPES = {
    "cpu": (torch.float32, torch.bfloat16),
    "cuda": (torch.float32, torch.bfloat16, torch.float16),
}  # by type of device
_HALVES = (torch.bfloat16, torch.float16)
_MAX_REGION = 200  # most nodes between softmax and product


@dataclass(frozen=True)
class FoundAttention:
    """An attention that was found in a graph.

    Args:
        attention: the description of the attention.
        inputs: the nodes that the kernel reads, in the order of `Attention.reads`.
        nodes: the nodes that the kernel replaces, in graph order.
        output: the last of them, whose value the kernel returns.
    """

    attention: Attention
    inputs: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    output: fx.Node


class _RefusedError(Exception):
    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.message)
        self.reason = reason


def match_attention(softmax: fx.Node, *, drops: bool = False) -> FoundAttention | Reason:
    """The attention around a softmax, or the reason why there is none.

    Args:
        softmax: a call of ``aten._softmax`` or ``aten._safe_softmax``.
        drops: whether to accept dropout of probabilities, by masks that are computed from seeds.
    """
    try:
        _check_softmax(softmax)
        down = _down(softmax, DROPPING if drops else ())
        return _first(softmax, down)
    except _RefusedError as refused:
        return refused.reason
    except Unlowered as refusal:
        return Reason(f"score-{refusal.code}", f"the score function has no formula: {refusal}", (softmax,))


def beside_product(softmax: fx.Node) -> bool:
    """Whether there is a batched product on both sides of the softmax, with no other mixing of elements in between."""
    above = _reached([softmax.args[0]], lambda node: node.all_input_nodes)  # type: ignore[list-item]
    return _is_batched(above) or _is_batched(_reached(softmax.users, lambda node: node.users))


def _reached(start: Iterable[fx.Node], further: Callable[[fx.Node], Iterable[fx.Node]]) -> Iterable[fx.Node]:
    """Nodes that can be reached from `start` through pointwise operations, moves and reductions."""
    found = dict.fromkeys(start)
    queue = list(found)
    for node in queue:
        if _is_light(node):
            queue.extend(new for new in further(node) if new not in found)
            found.update(dict.fromkeys(queue))
    return found


def _is_light(node: fx.Node) -> bool:
    if is_move(node) or packet(node) in (*CASTS, "aten.cat") or node.target is operator.getitem:
        return True
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags or packet(node) in _REDUCTIONS


def _is_batched(nodes: Iterable[fx.Node]) -> bool:
    return any(packet(node) in ("aten.bmm", "aten.baddbmm") for node in nodes)


def _first(softmax: fx.Node, down: list[fx.Node]) -> FoundAttention | Reason:
    """The first product above the softmax that makes it an attention."""
    first: Reason | None = None
    for product in _products_above(softmax):
        try:
            return _AttentionMatcher(softmax, down, product).run()
        except _RefusedError as refused:
            first = first or refused.reason
        except Unlowered as refusal:
            message = f"between product and softmax: {refusal}"
            first = first or Reason(f"score-{refusal.code}", message, (product, softmax))
    return first or Reason("no-product", "no matrix product above the softmax", (softmax,))


def _check_softmax(softmax: fx.Node) -> None:
    if packet(softmax) not in SOFTMAXES:
        raise _RefusedError(Reason("no-softmax", f"{softmax.name} is not a softmax", (softmax,)))
    val = softmax.meta["val"]
    if val.device.type not in DTYPES:
        raise _RefusedError(Reason("device", f"the template is for CPUs and GPUs, not {val.device}", (softmax,)))
    if not is_served(val):
        raise _RefusedError(Reason("dtype", f"the template does not support {val.dtype}", (softmax,)))
    if val.dim() < 2 or softmax.args[1] not in (-1, val.dim() - 1):
        found = f"dim {softmax.args[1]} of {val.dim()}"
        raise _RefusedError(
            Reason("softmax-dim", "the softmax is not along the keys", (softmax,), "the last dim", found)
        )
    if not all(isinstance(size, int) for size in val.shape) or 0 in val.shape:
        raise _RefusedError(Reason("symbolic", f"sizes {tuple(val.shape)}: static ones above 0 needed", (softmax,)))


def _down(softmax: fx.Node, dropping: Sequence[str]) -> list[fx.Node]:
    """The nodes between the softmax and the product with v: moves, casts and dropout."""
    chain, node = [], softmax
    while True:
        if len(node.users) != 1:
            raise _RefusedError(
                Reason("probabilities-escape", f"{node.name} has {len(node.users)} users", (node, softmax))
            )
        user = next(iter(node.users))
        chain.append(user)
        if packet(user) in PRODUCTS and user.args[0] is node and user.args[1] is not node:
            return chain
        if not is_move(user) and packet(user) not in (*CASTS, *dropping):
            message = f"the probabilities go to {user.target}, not into a product"
            raise _RefusedError(Reason("no-second-product", message, (user, softmax)))
        node = user


def _products_above(softmax: fx.Node) -> Iterator[fx.Node]:
    """The products on which the softmax's input depends, the nearest first."""
    queue, seen = [softmax.args[0]], {softmax.args[0]}
    for node in queue:
        multiplied = operands(node) if is_product(node) else ()  # type: ignore[arg-type]
        if multiplied:
            yield node  # type: ignore[misc]
        new = [x for x in node.all_input_nodes if x not in seen and x not in multiplied]  # type: ignore[union-attr]
        seen.update(new)
        queue.extend(new)
        if len(queue) > _MAX_REGION:
            return


class _Widening:
    """For `inside` of `Formulas`: sees through casts from 16 bits to single precision."""

    def __contains__(self, node: object) -> bool:
        if not isinstance(node, fx.Node) or packet(node) not in CASTS:
            return False
        made, given = node.meta["val"], node.args[0].meta["val"]  # type: ignore[union-attr]
        return made.dtype == torch.float32 and given.dtype in _HALVES and made.device == given.device


class _AttentionMatcher:
    def __init__(self, softmax: fx.Node, down: list[fx.Node], product: fx.Node) -> None:
        self._softmax, self._down, self._product = softmax, down, product
        self._inside = _between(product, softmax)
        beside = _beside([*computed(product), *self._inside], operands(product))
        maybe = worth_computing(beside)
        inside = {*computed(product), *self._inside}
        shifted = shiftable(softmax.args[0])
        self._formulas = Formulas(inside, through_copies=False, maybe=maybe, shiftable=shifted)
        self._source, self._narrow = Formulas(), Formulas(_Widening())
        self._weights = Formulas({*down[:-1], *drawn(down[:-1])})
        sizes = tuple(int(size) for size in softmax.meta["val"].shape)
        self._lead = tuple(Var(f"g{d}", size) for d, size in enumerate(sizes[:-2]))
        self._heads = tuple(map(at, self._lead))
        values = down[-1].args[1].meta["val"]  # type: ignore[union-attr]
        self._row, self._key = Var("i", sizes[-2]), Var("j", int(values.shape[-2]))
        self._left, self._right = operands(product)
        self._depth, self._width = int(self._left.meta["val"].shape[-1]), int(values.shape[-1])

    def run(self) -> FoundAttention:
        self._check_escapes()
        keep, kept = self._probabilities()
        score, sink = self._scores()
        row, key = self._row, self._key
        depth, column = Var("d", self._depth), Var("e", self._width)
        second = self._down[-1]
        q, k = self._factors(depth)
        v = self._operand(second.args[1], (key, column), key, column)
        output, out = self._out(second, column)
        values = [value for value in (score, sink, keep) if value is not None]
        buffers = tuple(dict.fromkeys(self._buffer(load) for value in values for load in loads(value)))
        attention = Attention(
            self._lead, row, key, self._depth, self._width, q, k, v, out, score, buffers, sink,
            SOFTMAXES[packet(self._softmax)], keep, kept,
        )  # fmt: skip
        leaves = self._formulas.leaves | self._source.leaves | self._narrow.leaves | self._weights.leaves
        inputs = tuple(leaves[buffer.name] for buffer in attention.reads)
        return FoundAttention(attention, inputs, nodes_between(inputs, output), output)

    def _check_escapes(self) -> None:
        for node in (self._product, *self._inside):
            outside = [user for user in node.users if user not in self._inside and user is not self._softmax]
            if outside:
                message = f"scores ({node.name}) are also used by {outside[0].name}"
                raise _RefusedError(Reason("scores-escape", message, (outside[0], node)))

    def _probabilities(self) -> Dropped:
        """The mask of probabilities that remain after dropout, and the factor that they are multiplied with."""
        wanted = (*self._heads, at(self._row), at(self._key))

        def is_weight(load: Load) -> bool:
            return load.buffer == self._softmax.name and load.indices == wanted

        places = self._flat((at(self._row), at(self._key)), self._down[-1])
        found = dropped(self._weights.value(self._down[-1].args[0]).at(places), is_weight)  # type: ignore[arg-type]
        if found is None:
            message = "the second product takes other than the softmax's weights, each at its place"
            raise _RefusedError(Reason("heads-moved", message, (self._down[-1],)))
        return found

    def _flat(self, inner: Sequence[Any], product: fx.Node) -> tuple[Any, ...]:
        """Indices of a product's operand, whose batch and heads are one dim."""
        batched = is_batched(product)
        sizes = [v.extent for v in self._lead]
        batch = int(product.meta["val"].shape[0]) if batched else 1
        if batch != numel(sizes):
            raise _RefusedError(
                Reason(
                    "heads-moved", "the product and the softmax have different batch sizes", (product, self._softmax)
                )
            )
        return (raveled(self._heads, sizes), *inner) if batched else tuple(inner)

    def _scores(self) -> tuple[Value, Value | None]:
        """The score function, and the sink if the softmax has one more column than there are keys."""
        x = self._formulas.value(self._softmax.args[0])  # type: ignore[arg-type]
        columns, keys = int(self._softmax.meta["val"].shape[-1]), self._key.extent
        if columns - keys not in (0, 1):
            raise _RefusedError(
                Reason("columns", f"each row has {columns} scores, but there are {keys} keys", (self._softmax,))
            )
        score = self._score(x.at((*self._heads, at(self._row), at(self._key))))
        if columns == keys:
            return score, None
        sink = unrounded(cast(x.at((*self._heads, at(self._row), keys)), torch.float32))
        if any(load.buffer == raw_name(self._product) for load in loads(sink)):
            raise _RefusedError(
                Reason("columns", f"each row has {columns} scores, but there are {keys} keys", (self._softmax,))
            )
        return score, sink

    def _score(self, value: Value) -> Value:
        wanted = self._flat((at(self._row), at(self._key)), self._product)

        def raw(part: Value) -> Value | None:
            if not isinstance(part, Load) or part.buffer != raw_name(self._product):
                return None
            if part.indices != wanted:
                raise _RefusedError(
                    Reason(
                        "scores-moved", "the scores are transposed or reordered before the softmax", (self._product,)
                    )
                )
            return SCORE

        return surely_hidden(Rewriter(raw)(unrounded(cast(value, torch.float32))), self._row, self._key)

    def _factors(self, depth: Var) -> tuple[Operand, Operand]:
        """Queries and keys, without a cast to single precision if kernels sum their products as precisely."""
        row, key, narrow = self._row, self._key, self._down[-1].args[1].meta["val"].dtype  # type: ignore[union-attr]
        wanted = (self._left, (row, depth), row, depth), (self._right, (depth, key), key, depth)
        if narrow != self._left.meta["val"].dtype:
            q, k = (self._placed(self._narrow, *one, dtype=narrow) for one in wanted)
            if q is not None and k is not None:
                return q, k
        return self._operand(*wanted[0]), self._operand(*wanted[1])

    def _operand(self, node: Any, inner: tuple[Var, Var], row: Var, column: Var) -> Operand:
        if not is_served(node.meta["val"]):
            raise _RefusedError(Reason("dtype", f"{node.name} is {node.meta['val'].dtype}", (node,)))
        found = self._placed(self._source, node, inner, row, column, dtype=node.meta["val"].dtype)
        if found is None:
            raise _RefusedError(Reason("operand", f"{node.name} cannot be read in place", (node,)))
        return found

    def _placed(
        self, formulas: Formulas, node: Any, inner: tuple[Var, Var], row: Var, column: Var, *, dtype: torch.dtype
    ) -> Operand | None:
        """The position of a product operand's matrices in memory of a dtype; None if they are not in memory."""
        product = self._down[-1] if node is self._down[-1].args[1] else self._product
        places = self._flat(tuple(map(at, inner)), product)
        for tensor in (formulas.value(node), formulas.leaf(node)):
            load = plain_load(tensor.at(places))
            source = None if load is None else formulas.leaves.get(load.buffer)
            if load is None or source is None or source.meta["val"].dtype != dtype:
                continue
            buffer = formulas.leaf(source).buffer
            found = operand(buffer, address(buffer, load.indices), row, column)
            if found is not None:
                return found
        return None

    def _buffer(self, load: Load) -> Buffer:
        leaves = self._weights.leaves | self._formulas.leaves
        return self._formulas.leaf(leaves[load.buffer]).buffer

    def _out(self, second: fx.Node, column: Var) -> tuple[fx.Node, Operand]:
        """The memory of the result: the product's own, or that of a copy that merges heads."""
        merged = _merged(second)
        sizes = [v.extent for v in self._lead]
        if merged is None:
            result = made(second)
            where = self._flat((at(self._row), at(column)), second)
            output = second
        else:
            output, shape, perm = merged
            result = made(output)
            where = (*unraveled(raveled(self._heads, sizes), shape[:-2]), at(self._row), at(column))
            result = replace(result, strides=tuple(result.strides[perm.index(d)] for d in range(len(shape))))
        if not is_served(output.meta["val"]):
            raise _RefusedError(Reason("dtype", f"{output.name} is {result.dtype}", (output,)))
        found = operand(result, address(result, where), self._row, column)
        if found is None:
            raise _RefusedError(Reason("operand", f"{output.name} cannot be written in place", (output,)))
        return output, replace(found, buffer=made(output))


def _merged(second: fx.Node) -> tuple[fx.Node, tuple[int, ...], list[int]] | None:
    """The copy after a product that merges heads: the node, the shape before it, and the permutation.

    %v = view(%o, [1, 12, 128, 64]); %t = transpose(%v, 1, 2); %c = clone(%t)   ->   %c, (1, 12, 128, 64), [0, 2, 1, 3]
    """
    node, shape = second, None
    for _ in range(8):
        if len(node.users) != 1:
            return None
        user = next(iter(node.users))
        if packet(user) in ("aten.view", "aten._unsafe_view"):
            node = user
            continue
        shape = tuple(int(size) for size in node.meta["val"].shape)
        perm = _permutation(user, len(shape))
        if perm is None or len(user.users) != 1 or len(shape) < 3:
            return None
        copy = next(iter(user.users))
        fits = shape[-2:] == tuple(second.meta["val"].shape[-2:])
        return (copy, shape, perm) if packet(copy) == "aten.clone" and fits else None
    return None


def _permutation(node: fx.Node, rank: int) -> list[int] | None:
    dims = list(range(rank))
    if packet(node) == "aten.permute":
        return [int(d) % rank for d in node.args[1]]  # type: ignore[union-attr, arg-type, call-overload]
    if packet(node) == "aten.transpose":
        a, b = (int(d) % rank for d in node.args[1:3])  # type: ignore[arg-type]
        dims[a], dims[b] = dims[b], dims[a]
        return dims
    return None


def is_served(val: torch.Tensor) -> bool:
    """Whether the template supports such an operand."""
    return val.dtype in DTYPES.get(val.device.type, ())


def _beside(inside: Iterable[fx.Node], multiplied: tuple[Any, Any]) -> list[fx.Node]:
    """The other operands of the nodes between product and softmax, besides the product's own operands."""
    known = {*inside, *multiplied}
    return [source for node in inside for source in node.all_input_nodes if source not in known]


def at(var: Var) -> Any:
    """A variable as an index: the index of a loop of one iteration is 0, as in views."""
    return 0 if var.extent == 1 else var.index()


def made(node: fx.Node) -> Buffer:
    """The memory of a node's value, as a buffer with its name."""
    val = node.meta["val"]
    return Buffer(node.name, val.dtype, tuple(map(int, val.shape)), tuple(map(int, val.stride())), val.device)


def loads(value: Value) -> list[Load]:
    """The loads of a score function, except for the score."""
    return [part for part in walk([value]) if isinstance(part, Load) and part is not SCORE]


def _between(product: fx.Node, softmax: fx.Node) -> dict[fx.Node, None]:
    """The nodes computed from the product that lead to the softmax."""
    below: set[fx.Node] = set()
    stack = [product]
    while stack and len(below) < 10 * _MAX_REGION:
        for user in stack.pop().users:
            if user not in below:
                below.add(user)
                stack.append(user)
    inside: dict[fx.Node, None] = {}
    queue = [softmax.args[0]]
    for node in queue:
        if node in below and node not in inside:
            inside[node] = None  # type: ignore[index]
            queue.extend(node.all_input_nodes)  # type: ignore[union-attr]
    return inside


def nodes_between(inputs: Sequence[fx.Node], output: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes between the inputs and the output, in graph order."""
    found, stack = set(), [output]
    while stack:
        node = stack.pop()
        if node not in found and node not in inputs:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return tuple(node for node in output.graph.nodes if node in found)

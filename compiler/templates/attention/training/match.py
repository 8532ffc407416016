"""Finds the backward of an attention that is spelled out, by the readers of the forward's softmax and products.

    %dv = bmm(%w^T, %grad)                        w: the weights that are multiplied with v
    %dp = bmm(%grad, %v^T);   %dm = %dp * keep / 0.9
    %ds = _softmax_backward_data(%dm, %p)         gradient of f's values: a bias's follows from it
    ...                                           pointwise: ds * f'(s)                                ->  %dx
    %dq = bmm(%dx, %k);   %dk = bmm(%dx^T, %q)    or transposed

Everything is compared as formulas of the loops' variables, through views, copies and casts; a match
computes the same values as the kernels, whoever wrote it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from .....rewrites.graph import CASTS
from ....ir.index.index import Var
from ....ir.value import Const, Load, Value
from ....lowering.positions import numel, raveled
from ....lowering.sizes import Unlowered
from ...common.formula import Formulas, is_move, packet, plain_load
from ..bmm import PRODUCTS, computed, factor, is_product, operands, raw_name
from ..description import SCORE, Operand
from ..dropout import DROPPING, drawn, dropped
from ..gradient import NoDerivativeError, times
from ..gradient_layout import Places
from ..match import SOFTMAXES, FoundAttention, at
from ..shift_invariance import shiftable
from .attention_sink import split_sink, without_sink
from .derivative_check import follows, mentions, renamed
from .forward_backward import (
    NoBackwardError,
    Pair,
    check_gone,
    check_order,
    dying,
    first_of,
    heads_of,
    read_operand,
    root,
    variables_of,
    written_operand,
)
from .layout import destination

_SOFTMAX_BACKWARD = "aten._softmax_backward_data"
_MOST = 400  # nodes on the way

_Place = tuple[str, tuple[Any, ...]]


class _Casts:
    """The `inside` of a `Formulas` that reads through casts."""

    def __contains__(self, node: object) -> bool:
        return isinstance(node, fx.Node) and packet(node) in CASTS


def pair_spelled_out(found: FoundAttention, backward: set[fx.Node]) -> Pair:
    """The backward of an attention that is spelled out.

    Args:
        found: its forward, in the joint graph.
        backward: the nodes of the joint graph's backward.

    Raises:
        NoBackwardError: it is not that of this attention, or something of it is used otherwise too.
        Unlowered: a part of it has no formula.
    """
    return _BackwardMatcher(found, backward).run()


class _BackwardMatcher:
    def __init__(self, found: FoundAttention, backward: set[fx.Node]) -> None:
        self._found, self._a, self._backward = found, found.attention, backward
        self._softmax = next(node for node in found.nodes if packet(node) in SOFTMAXES)
        products = list(filter(is_product, found.nodes))
        if len(products) != 2:
            raise NoBackwardError(
                "products", f"the attention has {len(products)} matrix products, not 2", self._softmax
            )
        self._first, self._second = products
        self._left, self._right = operands(self._first)
        # Masks that the kernels compute: the masks that the backward reads have the same formula.
        own = (self._first, self._softmax, self._second)
        self._beside = {node for node in found.nodes if node not in own and self._is_pointwise(node)}
        self._heads = heads_of(self._a)
        self._row, self._key, self._depth, self._width = variables_of(self._a)

    def run(self) -> Pair:
        whole = self._softmax_backward()
        ds, dsink = split_sink(whole, self._a)
        dp = self._weights_gradient(whole)
        above = self._above(dp)
        results: dict[str, tuple[fx.Node, tuple[Var, Var]]] = {}
        dv = self._values_gradient(above)
        if dv is not None:
            results["v"] = dv, (self._key, self._width)
        results |= self._products_gradients(ds)
        ends = {name: self._end(node, inner) for name, (node, inner) in results.items()}
        sinks = {} if dsink is None else {"sinks": dsink}
        replaced = [self._found.output, *(end for end, _ in ends.values()), *sinks.values()]
        # Several casts of the gradient may be there: the kernels run where the first is read.
        above = above if dv is None else first_of(above, dv.args[1])  # type: ignore[arg-type]
        gradient, out = read_operand(above, self._flat(above, self._row, self._width), self._row, self._width)
        graph, read = self._softmax.graph, [*self._found.inputs, gradient]
        dead = dying(graph, replaced, read)
        if ds not in dead:
            ends["scores"] = self._written(ds, self._flat(ds, self._row, self._key), (self._row, self._key))
            dead = dying(graph, [*replaced, ds], read)
        check_gone([self._first, self._softmax, self._second, dp, whole, ds], dead, "the scores")
        written = {name: place for name, (_, place) in ends.items()}
        nodes = {name: node for name, (node, _) in ends.items()} | sinks
        check_order(gradient, nodes.values())
        return Pair(self._found, gradient, Places(out=out, **written), nodes, tuple(reversed(dead)))

    def _softmax_backward(self) -> fx.Node:
        found = [
            node
            for node in self._below([self._softmax], lambda node: root(node) is not node or packet(node) in CASTS)
            if packet(node) == _SOFTMAX_BACKWARD and self._is(node.args[1], self._softmax)
        ]
        if len(found) != 1:
            raise NoBackwardError(
                "no-backward", f"{self._softmax.name} has {len(found)} backward calls, not 1", self._softmax
            )
        dim, rank = found[0].args[2], self._softmax.meta["val"].dim()
        if dim not in (-1, rank - 1) or found[0] not in self._backward:
            raise NoBackwardError("softmax-dim", f"{found[0].name} is along dim {dim} of {rank}", found[0])
        return found[0]

    def _is(self, node: Any, other: fx.Node) -> bool:
        """Whether a node is another one by name, or in another dtype."""
        while isinstance(node, fx.Node) and node is not other and (root(node) is not node or packet(node) in CASTS):
            node = node.args[0]
        return node is other

    def _weights_gradient(self, ds: fx.Node) -> fx.Node:
        """The product that gives the gradient of the weights: their dropout lies between the product and `ds`."""
        top = without_sink(ds.args[0], self._a)
        above, product = [top], None
        for node in above:
            if packet(node) in PRODUCTS:  # type: ignore[arg-type]
                product = node if product is None else product
            elif self._is_dropping(node):
                above.extend(source for source in node.all_input_nodes if source not in above)  # type: ignore[union-attr]
        if product is None or product not in self._backward:
            raise NoBackwardError("weights-gradient", f"{ds.name} does not read the result of a matrix product", ds)
        between = [node for node in above if node is not product and self._is_dropping(node)]
        formulas = Formulas({*between, *drawn(between)})  # type: ignore[type-var]
        wanted = self._flat(product, self._row, self._key)

        def is_product(load: Load) -> bool:
            return load.buffer == product.name and load.indices == wanted

        value = formulas.value(top).at((*self._heads, at(self._row), at(self._key)))  # type: ignore[arg-type]
        found = dropped(value, is_product)
        same = found is not None and found[0] is self._a.keep
        if not same or not math.isclose(found[1], self._a.kept, rel_tol=1e-6):  # type: ignore[index]
            raise NoBackwardError(
                "weights-gradient", f"{ds.name} reads a value other than the gradient of the weights", ds
            )
        return product  # type: ignore[return-value]

    def _is_dropping(self, node: Any) -> bool:
        return node in self._backward and (is_move(node) or packet(node) in (*CASTS, *DROPPING))

    def _above(self, dp: fx.Node) -> fx.Node:
        """The gradient of the second product's result: the operand that is multiplied with v transposed."""
        v = self._place(self._second.args[1], self._key, self._width)
        if v is None or self._place(dp.args[1], self._width, self._key) != v:
            raise NoBackwardError("weights-gradient", f"{dp.name} does not multiply with v", dp)
        return dp.args[0]  # type: ignore[return-value]

    def _values_gradient(self, above: fx.Node) -> fx.Node | None:
        """The product of the weights, transposed, and that gradient; None where nobody wants it."""
        weights: Any = self._second.args[0]
        place, grad = self._place(weights, self._row, self._key), self._place(above, self._row, self._width)
        for node in self._below([weights], self._is_passing):
            if packet(node) not in PRODUCTS or node not in self._backward or None in (place, grad):
                continue
            same = self._place(node.args[0], self._key, self._row) == place
            if same and self._place(node.args[1], self._row, self._width) == grad:
                return node
        return None

    def _products_gradients(self, ds: fx.Node) -> dict[str, tuple[fx.Node, tuple[Var, Var]]]:
        """The products that the gradient of the first one's result goes into."""
        chain = [ds, *filter(self._is_pointwise, self._below([ds], self._is_pointwise))]
        found: dict[str, tuple[fx.Node, tuple[Var, Var]]] = {}
        for product in dict.fromkeys(user for node in chain for user in node.users if packet(user) in PRODUCTS):
            made = self._product_gradient(product, ds, set(chain))
            if made is None:
                continue
            if made[0] in found:
                raise NoBackwardError("products-gradient", f"{product.name} is a second gradient of {made[0]}", product)
            found[made[0]] = self._multiplied(product), made[1]
        if not found:
            raise NoBackwardError("products-gradient", f"no matrix product multiplies {ds.name} with q or k", ds)
        return found

    def _multiplied(self, product: fx.Node) -> fx.Node:
        """The gradient with the factor of the first product's call, which the backward multiplies with last.

        baddbmm(%bias, %q, %k, alpha=0.125)   ->   mul(bmm(%dx, %k), 0.125)
        """
        alpha = factor(self._first)
        if alpha == 1:
            return product
        user = next(iter(product.users))
        if len(product.users) != 1 or packet(user) != "aten.mul" or user.args != (product, alpha):
            raise NoBackwardError("products-gradient", f"{product.name} is not multiplied with {alpha}", product)
        return user

    def _product_gradient(
        self, product: fx.Node, ds: fx.Node, chain: set[fx.Node]
    ) -> tuple[str, tuple[Var, Var]] | None:
        """The gradient that a product is, and the meaning of its rows and columns."""
        a, b = product.args[:2]
        row, key, depth = self._row, self._key, self._depth
        q, k = self._place(self._left, row, depth), self._place(self._right, depth, key)
        if b not in chain and k is not None and self._place(b, key, depth) == k and self._is_dx(a, row, key, ds, chain):
            return "q", (row, depth)
        if a not in chain and k is not None and self._place(a, depth, key) == k and self._is_dx(b, key, row, ds, chain):
            return "q", (depth, row)
        if b not in chain and q is not None and self._place(b, row, depth) == q and self._is_dx(a, key, row, ds, chain):
            return "k", (key, depth)
        if a not in chain and q is not None and self._place(a, depth, row) == q and self._is_dx(b, row, key, ds, chain):
            return "k", (depth, key)
        return None

    def _is_dx(self, node: Any, rows: Var, columns: Var, ds: fx.Node, chain: set[fx.Node]) -> bool:
        """Whether a product's operand is the gradient of the first product's result, a factor of its call left out."""
        value = self._chain_value(node, rows, columns, ds, chain)
        gradient = Load(ds.name, (*self._heads, at(self._row), at(self._key)), torch.float32)
        if value is None or not mentions(value, ds.name):
            return False
        try:
            return follows(times(value, Const(float(factor(self._first)), torch.float32)), gradient, self._a.score)
        except NoDerivativeError as error:
            raise NoBackwardError("no-derivative", str(error), self._softmax) from error

    def _chain_value(self, node: Any, rows: Var, columns: Var, ds: fx.Node, chain: set[fx.Node]) -> Value | None:
        """An operand in terms of the gradient of `f`'s values and `f`'s operands; None where these are elsewhere."""
        scores = set(filter(self._is_pointwise, self._below([self._first], self._is_pointwise)))
        inside = {*(chain - {ds}), *computed(self._first), *scores}
        formulas = Formulas(inside, maybe=self._beside, shiftable=shiftable(self._softmax.args[0]))
        places = self._flat(node, rows, columns)
        wanted = (*self._heads, at(self._row), at(self._key))
        raw = self._flat(self._first, self._row, self._key)
        elsewhere = []
        # Beside a sink's, the gradient is a slice of the result of the softmax's backward; the slice is read through.
        names = {ds.name, ds.args[0].name} if is_move(ds) else {ds.name}  # type: ignore[union-attr]

        def same(load: Load) -> Load | None:
            if load.buffer == raw_name(self._first):
                elsewhere.append(load.indices != raw)
                return SCORE
            given = load.buffer in names
            elsewhere.append(given and load.indices != wanted)
            return Load(ds.name, wanted, torch.float32) if given else None

        value = renamed(formulas.value(node).at(places), same)
        return None if any(elsewhere) else value

    # -- places ---------------------------------------------------------------------------------------------------

    def _end(self, product: fx.Node, inner: tuple[Var, Var]) -> tuple[fx.Node, Operand]:
        """The node that a gradient ends in, and where it is written: in a copy of the product that heads are in."""
        found = destination(product, self._a.lead, inner)
        if found is not None:
            with contextlib.suppress(NoBackwardError):
                return self._written(*found, inner)
        return self._written(product, self._flat(product, *inner), inner)

    def _written(self, node: fx.Node, places: tuple[Any, ...], inner: tuple[Var, Var]) -> tuple[fx.Node, Operand]:
        """Rows and columns as the kernels have them, whichever way the graph does."""
        rows, columns = inner
        turned = rows is self._depth
        return node, written_operand(node, places, *((columns, rows) if turned else (rows, columns)))

    def _place(self, node: Any, rows: Var, columns: Var) -> _Place | None:
        """The memory and element that a product's operand has at rows and columns, casts and copies left out."""
        try:
            load = plain_load(Formulas(_Casts()).value(node).at(self._flat(node, rows, columns)))
        except (Unlowered, NoBackwardError):
            return None
        return None if load is None else (load.buffer, load.indices)

    def _flat(self, node: Any, rows: Var, columns: Var) -> tuple[Any, ...]:
        """Indices of a product's operand or result: batch and heads as one; those of scores as the softmax has them."""
        sizes = tuple(int(size) for size in node.meta["val"].shape)
        inner = tuple(map(at, (rows, columns)))
        lead = [var.extent for var in self._a.lead]
        if sizes[-2:] != (rows.extent, columns.extent):
            raise NoBackwardError("sizes", f"{node.name} has sizes {sizes}", node)
        if list(sizes[:-2]) == lead:
            return (*self._heads, *inner)
        if len(sizes) == 3 and sizes[0] == numel(lead):
            return (raveled(self._heads, lead), *inner)
        if len(sizes) == 2 and numel(lead) == 1:
            return inner
        raise NoBackwardError("sizes", f"{node.name} has sizes {sizes}, but the attention has batch sizes {lead}", node)

    # -- ways -----------------------------------------------------------------------------------------------------

    def _is_passing(self, node: fx.Node) -> bool:
        return is_move(node) or packet(node) in CASTS

    def _is_pointwise(self, node: fx.Node) -> bool:
        return self._is_passing(node) or torch.Tag.pointwise in getattr(node.target, "tags", ())

    def _below(self, start: Iterable[fx.Node], passes: Any) -> Sequence[fx.Node]:
        """The readers of the nodes, directly or through nodes that `passes` accepts; these are among the readers."""
        return list(self._reached(start, passes))

    def _reached(self, start: Iterable[fx.Node], passes: Any) -> Iterator[fx.Node]:
        queue = list(start)
        seen = set(queue)
        for node in queue:
            for user in node.users:
                if user not in seen and len(seen) < _MOST:
                    seen.add(user)
                    yield user
                    if passes(user):
                        queue.append(user)

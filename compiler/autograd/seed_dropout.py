"""Seeding: random calls of a functional graph become functions of seeds, drawn together where the graph begins.

    d    = native_dropout(x, 0.1, True)              seeds  = regraft.seeds(2);  a, b = regraft.split(seeds)
    y, m = d[0], d[1]                         ->     m      = regraft.bernoulli([8, 64], 0.9, a)
    n    = rand_like(y)                              y      = x * m * (1 / 0.9)
    z    = y * (n > 0.3) / 0.7                       z      = y * regraft.bernoulli([8, 64], 0.7, b) / 0.7

    backward: native_dropout_backward(g, m, 1 / 0.9), m computed again from `a`: the seeds are all that is kept

Done on the joint graph, before it is split: there every spelling of dropout has become one of few operators, and what
the forward and the backward draw is one node. What follows from seeds alone by elementwise operators is marked to be
computed again. Calls that stay: those with a generator of the user's, of other dtypes and of devices that are neither
CPUs nor CUDA's, in the backward (a second backward draws anew), inside of higher-order operators, and of operators that
are not in `_MAKERS`.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, is_tensor, op_name, val
from ...rewrites.moves import ALIASES, VIEWS
from ..normal.analysis import is_literal, uniform
from ..prims import is_hashed, ops
from .joint_graph import backward_nodes, mark_recomputed

aten = torch.ops.aten

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def seed_calls(graph_module: fx.GraphModule, *, fast: bool = False) -> Counter[str]:
    """Seed the random calls of a graph, in place.

    Args:
        graph_module: an inference graph or a joint graph, with metadata. Seeds come from the generators of the devices.
        fast: draw uniform numbers from the hash rather than from Philox, as masks are.

    Returns:
        how many calls were seeded, by operator.
    """
    return _Seeding(graph_module.graph, fast).run()


class _Seeding:
    def __init__(self, graph: fx.Graph, fast: bool) -> None:
        self._graph, self._fast = graph, fast
        self._backward = backward_nodes(graph)
        self._made: list[fx.Node] = []
        self._editor = Editor(graph, listener=self._made.append)

    def run(self) -> Counter[str]:
        calls = [node for node in self._graph.nodes if node not in self._backward and _can_seed(node)]
        if not calls:
            return Counter()
        counts = Counter(op_name(node) for node in calls)
        for device in dict.fromkeys(map(_device, calls)):
            self._seed([node for node in calls if _device(node) == device], device)
        return counts

    def _seed(self, calls: list[fx.Node], device: torch.device) -> None:
        """Seed the calls of one device."""
        seeds, parts = self._seeds(calls[0], len(calls), device)
        for node, seed in zip(calls, parts, strict=True):
            with self._editor.at(node):
                self._replace(node, _Draw(self._editor, node, seed, self._fast))
        if self._backward:
            self._mark(seeds)

    def _seeds(self, first: fx.Node, count: int, device: torch.device) -> tuple[fx.Node, list[fx.Node]]:
        with self._editor.at(first):
            where = () if device.type == "cpu" else (device,)
            seeds = self._editor.call(ops.seeds.default, count, *where)
            split = self._editor.call(ops.split.default, seeds)
            return seeds, [self._editor.call(operator.getitem, split, k) for k in range(count)]

    def _replace(self, node: fx.Node, draw: _Draw) -> None:
        self._made.clear()
        results = _MAKERS[str(node.target)](draw, **arguments(node))
        kept = {key: value for key, value in node.meta.items() if key not in ("val", "tensor_meta", "eager_input_vals")}
        for made in self._made:
            made.meta = {**kept, "val": made.meta["val"]}
        node.meta["moved"] = True
        for old, new in results.items():
            new.meta["val"] = old.meta["val"]  # the layout that was promised
            self._editor.replace(old, new)
            self._editor.erase_dead(old)

    def _mark(self, seeds: fx.Node) -> None:
        """Have the backward draw again what follows from seeds alone, unless the graph returns it anyway."""
        mark_recomputed(seeds, False)
        drawn = {seeds}
        results = set(self._graph.output_node().all_input_nodes)
        for node in self._graph.nodes:
            given = [n for n in node.all_input_nodes if is_tensor(n) or n in drawn]
            if not given or not drawn.issuperset(given) or not _is_cheap(node) or node in self._backward:
                continue
            drawn.add(node)
            if node not in results:
                mark_recomputed(node, True)


def _is_cheap(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, compat.OpOverload):
        return False
    moves = op_name(node) in VIEWS or op_name(node) in ALIASES
    return moves or node.target.namespace == "regraft" or torch.Tag.pointwise in node.target.tags


def _can_seed(node: fx.Node) -> bool:
    if node.op != "call_function" or str(node.target) not in _MAKERS:
        return False
    given = arguments(node)
    if given.get("generator") is not None:
        return False
    values = [v for v in (val(node) if isinstance(val(node), tuple) else (val(node),)) if v is not None]
    if op_name(node) == "aten.native_dropout":
        probable = not is_literal(given["p"]) or 0 <= given["p"] <= 1  # NaN is not
        return probable and given["train"] is not False and _fits(values[0], _FLOATS)
    if "randint" in op_name(node):
        low, high = given.get("low", 0), given["high"]
        known = isinstance(low, int) and isinstance(high, int) and 0 < high - low < 2**62
        return known and _fits(values[0], (*_FLOATS, *_INTEGERS))
    if _is_refused(node, given):
        return False
    dtypes = (*_FLOATS, *_INTEGERS, torch.bool) if op_name(node) == "aten.bernoulli" else _FLOATS
    return _fits(values[0], dtypes)


def _is_refused(node: fx.Node, given: dict[str, Any]) -> bool:
    """Whether eager refuses the numbers of a call: a chance, a range, a deviation or a rate."""
    name, p, std, rate = op_name(node), given.get("p"), given.get("std"), given.get("lambd")
    if name == "aten.bernoulli" and is_literal(p):
        return not 0 <= p <= 1
    if name == "aten.uniform":
        least, most = given.get("from", 0.0), given.get("to", 1.0)
        return is_literal(least) and is_literal(most) and not least <= most
    return (is_literal(std) and not std >= 0) or (is_literal(rate) and not rate > 0)


def _fits(value: Any, dtypes: tuple[torch.dtype, ...]) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type in ("cpu", "cuda") and value.dtype in dtypes


def _device(node: fx.Node) -> torch.device:
    value = val(node)
    return (value[0] if isinstance(value, tuple) else value).device


@dataclass
class _Draw:
    """One random call in the making."""

    edit: Editor
    node: fx.Node
    seed: fx.Node
    fast: bool

    @property
    def value(self) -> torch.Tensor:
        """Metadata of the (first) result."""
        value = val(self.node)
        return value[0] if isinstance(value, tuple) else value

    @property
    def computed(self) -> torch.dtype:
        """The dtype that the result is computed in."""
        return torch.float64 if self.value.dtype == torch.float64 else torch.float32

    def bernoulli(self, p: float) -> fx.Node:
        size = list(self.value.shape)
        return self.edit.call(ops.bernoulli.default, size, float(p), self.seed, is_hashed(size))

    def uniform(self, dtype: torch.dtype, interior: bool = False) -> fx.Node:
        size = list(self.value.shape)
        return self.edit.call(ops.uniform.default, size, self.seed, dtype, interior, self.fast)

    def normal(self, dtype: torch.dtype) -> fx.Node:
        return self.edit.call(ops.normal.default, list(self.value.shape), self.seed, dtype)

    def integers(self, low: int, high: int) -> fx.Node:
        size = list(self.value.shape)
        return self.edit.call(ops.integers.default, size, low, high, self.seed, self.value.dtype)

    def cast(self, node: fx.Node, dtype: torch.dtype | None = None) -> fx.Node:
        return self.edit.cast(node, self.value.dtype if dtype is None else dtype)

    def affine(self, node: fx.Node, scale: Any, shift: Any) -> fx.Node:
        """``node * scale + shift``, in the result's dtype."""
        for target, operand, neutral in ((aten.mul, scale, 1.0), (aten.add, shift, 0.0)):
            if is_tensor(operand):
                node = self.edit.call(target.Tensor, node, operand)
            elif operand != neutral:
                node = self.edit.call(target.Scalar, node, operand)
        return self.cast(node)


# -- makers: what replaces a call's results, given a draw and the call's arguments -------------------------------------

_Results = dict[fx.Node, fx.Node]


def _native_dropout(draw: _Draw, input: fx.Node, p: float, **_given: Any) -> _Results:
    """Dropout as eager computes it: ``x * mask * scale``, so that infinity becomes NaN where it is dropped."""
    mask = draw.bernoulli(1.0 - p)
    kept = draw.cast(mask) if uniform(input) == 1 else draw.edit.call(aten.mul.Tensor, input, mask)
    results = draw.edit.call(aten.mul.Tensor, kept, 0.0 if p == 1 else 1.0 / (1.0 - p)), mask
    return {user: results[user.args[1]] for user in draw.node.users}


def _rand(draw: _Draw, **_given: Any) -> _Results:
    return _flags(draw) or {draw.node: draw.uniform(draw.value.dtype)}


def _flags(draw: _Draw) -> _Results | None:
    """``rand < p``, and ``floor(rand + p)`` of stochastic depth, where the number itself is not needed otherwise."""
    user = _only_user(draw.node)
    if user is None or draw.value.dtype not in (torch.float32, torch.float64):
        return None
    bound = uniform(user.args[1]) if len(user.args) > 1 and user.args[0] is draw.node else None
    if bound is None or not 0 <= bound <= 1:
        return None
    if op_name(user) in ("aten.lt", "aten.le"):
        return {user: draw.bernoulli(bound)}
    if op_name(user) in ("aten.gt", "aten.ge"):
        return {user: draw.bernoulli(1.0 - bound)}
    floor = _only_user(user)
    if op_name(user) != "aten.add" or arguments(user).get("alpha", 1) != 1 or op_name(floor) != "aten.floor":
        return None
    return None if floor is None else {floor: draw.cast(draw.bernoulli(bound))}


def _only_user(node: fx.Node) -> fx.Node | None:
    """The one user of a node, if it has that node's sizes."""
    user = next(iter(node.users), None)
    alone = user is not None and len(node.users) == 1 and is_tensor(user)
    return user if alone and val(user).shape == val(node).shape else None


def _uniform(draw: _Draw, to: float = 1.0, **given: Any) -> _Results:
    least = given.get("from", 0.0)
    if (least, to) == (0.0, 1.0):
        return _rand(draw)
    return {draw.node: draw.affine(draw.uniform(draw.computed), to - least, least)}


def _randint(draw: _Draw, high: int, low: int = 0, **_given: Any) -> _Results:
    return {draw.node: draw.integers(low, high)}


def _normal(draw: _Draw, mean: Any = 0.0, std: Any = 1.0, **_given: Any) -> _Results:
    return {draw.node: draw.affine(draw.normal(draw.computed), std, mean)}


def _randn(draw: _Draw, **_given: Any) -> _Results:
    return {draw.node: draw.normal(draw.value.dtype)}


def _exponential(draw: _Draw, lambd: float = 1.0, **_given: Any) -> _Results:
    logs = draw.edit.call(aten.log.default, draw.uniform(draw.computed, interior=True))
    return {draw.node: draw.affine(logs, -1.0 / lambd, 0.0)}


def _bernoulli(draw: _Draw, p: Any = None, **given: Any) -> _Results:
    chance = uniform(given["input"] if "input" in given else given["self"]) if p is None else p
    if is_literal(chance) and 0 <= chance <= 1:
        return {draw.node: draw.cast(draw.bernoulli(chance))}
    chances = given.get("input", given.get("self")) if p is None else p
    return {draw.node: draw.cast(draw.edit.call(aten.lt.Tensor, draw.uniform(draw.computed), chances))}


_MAKERS: dict[str, Callable[..., _Results]] = {
    "aten.native_dropout.default": _native_dropout,
    "aten.rand.default": _rand,
    "aten.rand_like.default": _rand,
    "aten.uniform.default": _uniform,
    "aten.randint.default": _randint,
    "aten.randint.low": _randint,
    "aten.randint_like.default": _randint,
    "aten.randint_like.low_dtype": _randint,
    "aten.randn.default": _randn,
    "aten.randn_like.default": _randn,
    "aten.normal_functional.default": _normal,
    "aten.normal.Tensor_float": _normal,
    "aten.normal.float_Tensor": _normal,
    "aten.normal.Tensor_Tensor": _normal,
    "aten.normal.float_float": _normal,
    "aten.exponential.default": _exponential,
    "aten.bernoulli.default": _bernoulli,
    "aten.bernoulli.p": _bernoulli,
    "aten.bernoulli.Tensor": _bernoulli,
}

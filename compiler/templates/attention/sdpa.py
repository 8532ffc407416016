"""Calls of PyTorch's own attention operators as attentions of the template.

_scaled_dot_product_flash_attention_for_cpu(%q, %k, %v, attn_mask=%m)          ->   f = s * scale + m[b, h, i, j]
_scaled_dot_product_efficient_attention(%q, %k, %v, add(%bias, %mask), ...)    ->   f = s * scale + bias + mask
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from ....rewrites.compat import argument
from ....rewrites.reason import Reason
from ...ir.index.index import Var
from ...ir.value import Const, Load, Number, Op, Value
from ...lowering.core import Tensor
from ...lowering.ops.elementwise import element
from ...lowering.sizes import Unlowered
from ..common.formula import Formulas, packet, plain_load, unrounded
from .bias_cost import worth_computing
from .description import SCORE, Attention, Operand, address, operand
from .mask_fill import surely_hidden
from .match import FoundAttention, at, is_served, loads, made, nodes_between
from .score import masked
from .shift_invariance import shiftable

# Operators, with the name of their mask argument, if they have one.
SDPA = {
    "aten._scaled_dot_product_flash_attention_for_cpu": "attn_mask",
    "aten._scaled_dot_product_flash_attention": "",
    "aten._scaled_dot_product_efficient_attention": "attn_bias",
    "aten._scaled_dot_product_cudnn_attention": "attn_bias",
}


def match_sdpa(call: fx.Node, *, keep: fx.Node | None = None) -> FoundAttention | Reason:
    """The attention that a call of the fused CPU operator computes, or the reason why the template cannot.

    Args:
        call: a call of one of `SDPA`, of whose results only the first may be used.
        keep: the mask of probabilities that dropout keeps, computed from a seed.
    """
    users = [user for user in call.users if user.users]
    if len(users) != 1 or users[0].target is not operator.getitem or users[0].args[1] != 0:
        return Reason("logsumexp-used", "the logarithms of the row sums are used: a training graph", (call,))
    q = call.args[0].meta["val"]  # type: ignore[union-attr]
    if not is_served(q) or (argument(call, "dropout_p") and keep is None):
        return Reason("dtype", f"{q.dtype}, dropout {argument(call, 'dropout_p')}", (call,))
    try:
        return _Sdpa(call, users[0], keep).run()
    except Unlowered as refusal:
        return Reason(f"score-{refusal.code}", str(refusal), (call,))


def given_mask(call: fx.Node) -> Any:
    """The mask or bias of a call of one of `SDPA`; None if there is none."""
    name = SDPA[packet(call)]
    return argument(call, name) if name else None


class _Sdpa:
    def __init__(self, call: fx.Node, output: fx.Node, keep: fx.Node | None) -> None:
        self._call, self._output, self._keep = call, output, keep
        self._drawn = Formulas({keep})
        q, k, v = call.args[:3]
        self._given = given_mask(call)
        maybe = () if self._given is None else worth_computing([self._given])
        shifted = set() if self._given is None else shiftable(self._given)
        self._formulas, self._mask = Formulas(), Formulas(through_copies=False, maybe=maybe, shiftable=shifted)
        if not all(isinstance(n, int) and n for x in (q, k, v) for n in x.meta["val"].shape):  # type: ignore[union-attr]
            raise Unlowered("symbolic", "sizes: static ones above 0 needed")
        self._q, self._k, self._v = q, k, v
        batch, heads, rows, depth = q.meta["val"].shape  # type: ignore[union-attr]
        self._lead = (Var("g0", batch), Var("g1", heads))
        self._row, self._key = Var("i", rows), Var("j", k.meta["val"].shape[2])  # type: ignore[union-attr]
        self._depth, self._column = Var("d", depth), Var("e", v.meta["val"].shape[3])  # type: ignore[union-attr]
        self._heads = tuple(map(at, self._lead))

    def run(self) -> FoundAttention:
        score = self._score()
        keep = None if self._keep is None else self._drawn.value(self._keep).at(self._places())
        kept = 1.0 if keep is None else 1.0 / (1.0 - argument(self._call, "dropout_p"))
        drawn = [] if keep is None else [(self._drawn, load) for load in loads(keep)]
        read = [(self._mask, load) for load in loads(score)] + drawn
        buffers = tuple(dict.fromkeys(formulas.leaf(formulas.leaves[load.buffer]).buffer for formulas, load in read))
        result = made(self._output)
        where = address(result, (*self._heads, at(self._row), at(self._column)))
        out = operand(result, where, self._row, self._column)
        assert out is not None, "affine by construction"
        attention = Attention(
            self._lead, self._row, self._key, self._depth.extent, self._column.extent,
            self._operand(self._q, self._row, self._depth), self._operand(self._k, self._key, self._depth),
            self._operand(self._v, self._key, self._column), out, score, buffers, None, True,
            keep, kept,
        )  # fmt: skip
        leaves = self._formulas.leaves | self._mask.leaves | self._drawn.leaves
        inputs = tuple(leaves[buffer.name] for buffer in attention.reads)
        return FoundAttention(attention, inputs, nodes_between(inputs, self._output), self._output)

    def _leaf(self, load: Load) -> Tensor:
        return self._formulas.leaf(self._formulas.leaves[load.buffer])

    def _operand(self, node: Any, row: Var, column: Var) -> Operand:
        batch, heads = (int(size) for size in node.meta["val"].shape[:2])
        if batch != self._lead[0].extent or not heads or self._lead[1].extent % heads:
            raise Unlowered("arguments", f"{node.name} has {batch} x {heads} heads")
        shared = self._lead[1].extent // heads  # number of consecutive query heads per KV head
        for tensor in (self._formulas.value(node), self._formulas.leaf(node)):
            load = plain_load(tensor.at((self._heads[0], self._heads[1] // shared, at(row), at(column))))
            if load is None or self._leaf(load).dtype != node.meta["val"].dtype:
                continue
            buffer = self._leaf(load).buffer
            found = operand(buffer, address(buffer, load.indices), row, column)
            if found is not None:
                return found
        raise Unlowered("arguments", f"{node.name} cannot be read in place")

    def _score(self) -> Value:
        scale = argument(self._call, "scale")
        scale = self._depth.extent**-0.5 if scale is None else scale
        score: Value = Op("mul", (SCORE, Const(float(scale), torch.float32)), torch.float32)
        lowest = Const(float("-inf"), torch.float32)
        if self._given is not None:
            value = unrounded(element(self._mask.value(self._given), self._places()))
            if value.dtype == torch.bool:
                score = Op("where", (value, score, lowest), torch.float32)
            else:
                score = masked(score, value)
        if argument(self._call, "is_causal"):
            i, j = (Number(at(var), torch.int64) for var in (self._row, self._key))
            score = Op("where", (Op("le", (j, i), torch.bool), score, lowest), torch.float32)
        return surely_hidden(score, self._row, self._key)

    def _places(self) -> tuple[Any, ...]:
        return (*self._heads, at(self._row), at(self._key))

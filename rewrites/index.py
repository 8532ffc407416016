"""Which rules may match where: rules by root operator, and early rejection by the operators of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import fx

from .graph import op_name
from .matcher import COMMUTATIVE
from .pattern import Call, Choice, root_ops
from .rule import Rule


class Index:
    """Rules by root operator, in order, without those that need an operator the graph does not have.

    Args:
        explaining: keep rules whose root's first operand does not fit, so that matching can say what it found there.
    """

    def __init__(self, rules: Iterable[Rule], graph: fx.Graph, *, explaining: bool = False) -> None:
        present = {op_name(n) for n in graph.nodes}
        self.rules = [r for r in rules if r.required <= present]
        self._by_root: dict[str, list[tuple[Rule, frozenset[str]]]] = {}
        for rule in self.rules:
            for op in rule.roots:
                self._by_root.setdefault(op, []).append((rule, frozenset() if explaining else _first_operand_ops(rule.outputs[0], op)))

    def candidates(self, node: fx.Node) -> Iterator[Rule]:
        """The rules whose root, and whose root's first operand, could be at `node`."""
        entries = self._by_root.get(op_name(node))
        if not entries:
            return
        first = op_name(node.args[0]) if node.args else ""
        for rule, wanted in entries:
            if not wanted or first in wanted:
                yield rule


def _first_operand_ops(term: object, op: str) -> frozenset[str]:
    """The operators that the first operand of the root `op` must have; empty where it may be anything."""
    if isinstance(term, Choice):
        inner = [_first_operand_ops(o, op) for _, o in term.options if op in root_ops(o)]
        return frozenset().union(*inner) if all(inner) else frozenset()
    if not isinstance(term, Call) or term.op in COMMUTATIVE or not term.args:
        return frozenset()
    return root_ops(term.args[0])


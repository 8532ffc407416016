"""The rules that may match at a node: by root operator, with early rejection by the operators of a graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from torch import fx

from .behind import VIEWED, behind
from .call_arguments import COMMUTATIVE
from .graph import is_tensor, op_name, val
from .pattern import Call, Choice, root_ops
from .rule import Rule


class RuleIndex:
    """Rules by root operator, in order, without those that need an operator or a dtype the graph does not have.

    Args:
        explained: names of rules to keep where they fail right after their root, and where only views or the dtypes
            that they need are missing: matching says what it found there.
    """

    def __init__(self, rules: Iterable[Rule], graph: fx.Graph, *, explained: Collection[str] = ()) -> None:
        present = {op_name(n) for n in graph.nodes}
        self.rules = [r for r in rules if r.required - (VIEWED if r.name in explained else frozenset()) <= present]
        if any(rule.dtypes for rule in self.rules):
            held = {val(n).dtype for n in graph.nodes if is_tensor(n)}
            self.rules = [r for r in self.rules if not (r.dtypes and held.isdisjoint(r.dtypes)) or r.name in explained]
        self._by_root: dict[str, list[tuple[Rule, _Ways]]] = {}
        for rule in self.rules:
            for op in rule.roots:
                ways = () if rule.name in explained else _ways(rule.outputs[0], op)
                self._by_root.setdefault(op, []).append((rule, ways))

    def candidates(self, node: fx.Node) -> Iterator[Rule]:
        """The rules whose root, and what it leads to first, could be at `node`."""
        entries = self._by_root.get(op_name(node))
        if not entries:
            return
        given = [(op_name(a), op_name(behind(a))) for a in node.args[:2]]
        for rule, ways in entries:
            if not ways or any(i < len(given) and not ops.isdisjoint(given[i]) for i, ops in ways):
                yield rule


_Ways = tuple[tuple[int, frozenset[str]], ...]


def _ways(term: object, op: str) -> _Ways:
    """The ways on from the root `op`: a position and the operators it must have; empty where anything goes.

    One way for each alternative, and for each order of operands where the root commutes. Views may be between. What
    this rejects would have failed right after the root, so that no near miss of two operators is lost.
    """
    if isinstance(term, Choice):
        inner = [_ways(option, op) for _, option in term.options if op in root_ops(option)]
        return tuple(way for ways in inner for way in ways) if all(inner) else ()
    if not isinstance(term, Call):
        return ()
    first = next(((i, ops) for i, a in enumerate(term.args[:2]) if (ops := root_ops(a))), None)
    if first is None:
        return ()
    position, ops = first
    return (first, (1 - position, ops)) if term.op in COMMUTATIVE else (first,)

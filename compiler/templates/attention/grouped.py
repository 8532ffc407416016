"""Heads that share keys and values, as rows of queries: what they share is then read once.

for h < 32, i < 1:   score[h, i, j] = f(h, i, j, q[h, i] . k[h // 4, j])
for h < 8,  r < 4:   score[h, r, j] = f(4*h + r, 0, j, q[4*h + r, 0] . k[h, j])
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...ir.index.index import Atom, Var, from_terms, substitute, terms
from ...ir.value import Value
from ...ir.value import substitute as substituted
from .description import Attention, Operand, mentions

MOST_ROWS = 64


def grouped(attention: Attention, most: int = MOST_ROWS) -> Attention:
    """The attention with as many heads as rows as share keys and values, or as it is.

    Args:
        attention: what to compute.
        most: rows that there may be.
    """
    for var in reversed(attention.lead):
        for size in range(min(most // attention.row.extent, var.extent), 1, -1):
            made = _with_group(attention, var, size) if var.extent % size == 0 else None
            if made is not None:
                return made
    return attention


def _with_group(attention: Attention, head: Var, size: int) -> Attention | None:
    """The attention with `size` heads that follow each other as rows; None where they differ in more than the rows."""
    outer, member = Var(head.name, head.extent // size), Var("<member>", size)
    by: dict[Atom, Any] = {head: outer.index() * size + (member.index() if size > 1 else 0)}
    bases = {name: substitute(getattr(attention, name).base, by) for name in ("q", "k", "v", "out")}
    if any(_mentioned(bases[name], member) for name in ("k", "v")):
        return None
    queries = attention.row.extent
    row = Var(attention.row.name, size * queries)
    places = {
        "heads": (row.index() // queries, row.index() % queries) if queries > 1 else (row.index(), 0),
        "queries": (row.index() % size, row.index() // size),
    }
    for order, (of_group, of_row) in places.items():
        q, out = (_rows(getattr(attention, name), bases[name], member, order, size, queries) for name in ("q", "out"))
        if q is not None and out is not None:
            scores = {head: outer.index() * size + of_group, attention.row: of_row}

            def moved(value: Value, scores: dict[Var, Any] = scores) -> Value:
                return substituted(value, scores)

            return replace(
                attention,
                lead=tuple(outer if var is head else var for var in attention.lead),
                row=row,
                q=q,
                k=replace(attention.k, base=bases["k"]),
                v=replace(attention.v, base=bases["v"]),
                out=out,
                score=moved(attention.score),
                sink=None if attention.sink is None else moved(attention.sink),
                keep=None if attention.keep is None else moved(attention.keep),
            )
    return None


def _rows(x: Operand, base: Any, member: Var, order: str, size: int, queries: int) -> Operand | None:
    """An operand whose rows are those of all heads of a group, where these are one step apart.

    Args:
        x: the operand.
        base: where it starts, for a `member` of the group.
        member: the variable that says which head of the group.
        order: ``"heads"`` where the rows of one head follow each other, ``"queries"`` where those of one query do.
        size: how many heads a group has.
        queries: how many rows a head has.
    """
    found = terms(base)
    apart = sum(factor for monomial, factor in found if monomial == (member,))
    rest = {monomial: factor for monomial, factor in found if monomial != (member,)}
    if any(mentions(monomial, member) for monomial in rest):
        return None
    fits = queries == 1 or (apart == queries * x.row if order == "heads" else x.row == size * apart)
    step = x.row if order == "heads" and queries > 1 else apart
    return replace(x, base=from_terms(rest), row=step) if fits else None


def _mentioned(number: Any, var: Var) -> bool:
    return any(mentions(monomial, var) for monomial, _ in terms(number))

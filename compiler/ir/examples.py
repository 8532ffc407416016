"""Statements over symbolic sizes as they are on the example for which they are compiled: what plans are made by.

    for i < s parallel: for j < t: ... x[t*i + j]   ->   for i < 512 parallel: for j < 64: ... x[64*i + j]

Nothing that is computed may depend on an example: later calls have other sizes. How large a block is, may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .index.index import Atom, Size, Var
from .kernel import Assign, Fold, Loop, Statement, Update
from .program import Reduction, Store
from .value import Rewriter


def on_examples(body: Sequence[Statement], examples: Mapping[str, int]) -> tuple[Statement, ...]:
    """A body whose sizes are numbers, by name; loops and their variables keep their names and their order."""
    return _OnExamples(examples).body(body)


class _OnExamples:
    def __init__(self, examples: Mapping[str, int]) -> None:
        self._examples, self._variables = examples, dict[Var, Var]()
        self._rewrite = Rewriter(atom=self._atom)

    def _atom(self, atom: Atom) -> Any:
        if isinstance(atom, Size):
            return self._examples.get(atom.name)
        return self._variable(atom).index() if isinstance(atom, Var) else None

    def _variable(self, var: Var) -> Var:
        if var not in self._variables:
            self._variables[var] = Var(var.name, self._rewrite.index(var.extent))
        return self._variables[var]

    def body(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        return tuple(map(self._statement, body))

    def _statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            return Loop(self._variable(statement.var), self.body(statement.body), statement.parallel)
        if isinstance(statement, Assign):
            store = statement.store
            return Assign(
                Store(
                    store.buffer, tuple(map(self._rewrite.index, store.indices)), self._rewrite(store.value), store.mode
                )
            )
        if isinstance(statement, Fold):
            return Fold(tuple(map(self._reduction, statement.reductions)), self.body(statement.body))
        assert isinstance(statement, Update), statement
        return Update(self._reduction(statement.reduction))

    def _reduction(self, reduction: Reduction) -> Reduction:
        return Reduction(reduction.name, reduction.reducer, tuple(map(self._rewrite, reduction.values)))

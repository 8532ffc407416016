"""Values that are the same for all lanes of a row, or for all blocks of a loop, are loaded before those that differ.

for blocks of j: y[i, j] = x[i, j] - m[i] if j < 30522 else 0    ->    t = m[i]; for blocks of j: ...

A load behind a condition is made ahead only where its element is certainly there: then it needs no mask of its own,
which would make it as many loads as there are lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...ir.accesses import roots
from ...ir.dependence import Dependence, Sources
from ...ir.index.bounds import known_lt, known_nonnegative
from ...ir.iteration_space import is_indirect
from ...ir.kernel import Statement
from ...ir.value import Guarded, Load, Value, operands, walk


def loaded_ahead(
    body: Sequence[Statement], changed: Sources, dependence: Dependence, sizes: Mapping[str, Any]
) -> Iterator[Value]:
    """The largest values of a body's own statements that load memory and that nothing `changed` has a part in.

    Args:
        body: statements; those inside of loops in it are not looked at.
        changed: loop variables, memory and results.
        dependence: of values.
        sizes: elements of each buffer.
    """
    todo = [(value, False) for statement in body for value in roots(statement)][::-1]
    while todo:
        value, guarded = todo.pop()
        sources = dependence.of(value)
        if sources & changed:
            always = value.condition if isinstance(value, Guarded) else None
            todo += [(v, guarded or always not in (None, v)) for v in operands(value)]
            continue
        loads = any(isinstance(s, tuple) and s[0] == "buffer" for s in sources)
        if loads and (not guarded or _is_there(value, sizes)):
            yield value


def _is_there(value: Value, sizes: Mapping[str, Any]) -> bool:
    """Whether all that a value loads certainly lies within its buffers."""
    found = [(v.buffer, v.indices[0] if v.indices else 0) for v in walk([value]) if isinstance(v, Load)]
    return all(
        name in sizes and not is_indirect(at) and known_nonnegative(at) and known_lt(at, sizes[name])
        for name, at in found
    )


__all__ = ["loaded_ahead"]

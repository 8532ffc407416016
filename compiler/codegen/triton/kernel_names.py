"""Names of generated functions, from operations and a hash of the text; and comments that name the source lines.

fold of welford, then (x - mean) * rsqrt(...)      welford_rsqrt_sub_mul_3fa9c1d2
                                                   # layer_norm_3: modeling_bert.py:312, x = self.norm(x)

Equal texts have equal names, whatever graph they come from, so that equal kernels share their machine code; comments
are for reading only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...ir.accesses import roots, statements
from ...ir.kernel import Assign, Fold, Kernel
from ...ir.value import Op, walk

_LONGEST = 60
_TERMS = {"hash": "random", "philox": "random", "softmax": "sumexp"}
# Left out where something more telling is there: the second where there are many.
_PLAIN = frozenset({"cast", "bitcast", "round", "where", "eq", "ne", "lt", "le", "gt", "ge"})
_COMMON = frozenset({"add", "sub", "mul", "neg", "sum"})
_NODES = 8  # that comments name


def kernel_name(kernel: Kernel, text: str) -> str:
    """The name of a kernel with this source: at most 60 characters of operations, in order, then 8 of a hash."""
    terms = list(dict.fromkeys(_terms(kernel)))
    telling = [t for t in terms if t not in _PLAIN] or terms
    if len("_".join(telling)) > _LONGEST:
        telling = [t for t in telling if t not in _COMMON] or telling
    return f"{_joined(telling) or 'copy'}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _joined(terms: Iterable[str]) -> str:
    """The first terms of a name, as many as fit."""
    found = ""
    for term in terms:
        longer = f"{found}_{term}" if found else term
        if len(longer) > _LONGEST:
            break
        found = longer
    return found


def _terms(kernel: Kernel) -> Iterator[str]:
    for statement in statements(kernel.body):
        if isinstance(statement, Fold):
            yield from (_term(r.reducer) for r in statement.reductions)
        yield from (_term(value.name) for value in walk(roots(statement)) if isinstance(value, Op))
        if isinstance(statement, Assign) and statement.store.mode is not None:
            yield f"scatter_{statement.store.mode}"


def _term(name: str) -> str:
    """An operation or reduction as a part of a name: without its dtype or its number of a word."""
    bare = re.sub(r"(_b?float16|_states|\d+)$", "", name)
    return _TERMS.get(bare, bare)


def provenance(nodes: Sequence[str], lines: Mapping[str, str]) -> str:
    """Comments that name the graph nodes that a kernel computes, with the user's lines that are known."""
    shown = [f"# {node}{': ' + lines[node] if node in lines else ''}\n" for node in nodes[:_NODES]]
    more = len(nodes) - _NODES
    return "".join([*shown, *([f"# and {more} more\n"] if more > 0 else [])])


__all__ = ["kernel_name", "provenance"]

"""Operators that only move elements, by what they do with them: the one list for rules, passes and templates.

RESIZES    other sizes, the elements in the same order and place     view(x, [6, 4])      unsqueeze(x, 0)
REORDERS   the dims in another order                                 permute(x, [1, 0])   t(x)
EXPANDS    dims of size 1 repeat their elements                      expand(x, [8, 4])
CUTS       a part of a dim                                           slice(x, 0, 2, 5)    select(x, 0, 1)
ALIASES    the same tensor                                           detach(x)
COPIES     the same tensor, perhaps in new memory                    clone(x)

The names are those of `op_name`. RESHAPES are RESIZES and the operators that copy where there is no view.
"""

from __future__ import annotations


def _named(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


RESIZES = _named("view _unsafe_view _reshape_alias unsqueeze squeeze unflatten view_as")
RESHAPES = RESIZES | _named("reshape reshape_as flatten")
REORDERS = _named("permute transpose t mT swapaxes swapdims movedim moveaxis")
EXPANDS = _named("expand expand_as broadcast_to")
CUTS = _named("slice select")
ALIASES = _named("alias detach")
COPIES = _named("clone contiguous")
VIEWS = RESIZES | REORDERS | EXPANDS | CUTS

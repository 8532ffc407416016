"""Declared inputs of a rule, from which its property test is derived.

Sample(q=T("B H S D"), k=T("B H T D"), scale=0.3, tags={"scale": "yes"})
Sample(x=T("N", dtype=torch.int64), refused="dtype-not-floating")      a near miss: the rule must say no, and why
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

DEFAULT_SIZES = {"B": 2, "H": 3, "S": 5, "T": 7, "D": 8, "E": 8, "N": 6, "M": 4, "K": 8}


@dataclass(frozen=True)
class T:
    """A tensor operand of a sample.

    Args:
        dims: names or fixed sizes, e.g. ``"B 1 S T"``; empty for a 0-d tensor.
        values: ``"normal"`` numbers; ``"mask"``: 0 and -inf; ``"bool"``: mostly True; ``"positive"`` numbers.
        dtype: fixed dtype, or None to follow the test's dtype.
        gradient: whether gradients flow to it in training checks.
        frozen: a weight, whose value candidates may take as known while compiling.
        below: for integers: what they stay below, a number or a named dim, e.g. ``"C"`` for labels of C classes.
        device: ``"meta"`` stands for any device that the rule does not know, in near misses: these never run.
    """

    dims: str
    values: Literal["normal", "mask", "bool", "positive"] = "normal"
    dtype: torch.dtype | None = None
    gradient: bool = True
    frozen: bool = False
    below: str = "4"
    device: str = "cpu"

    def __repr__(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in fields(self)[1:] if getattr(self, f.name) != f.default]
        return f"T({', '.join([repr(self.dims), *(f'{name}={value!r}' for name, value in given)])})".replace("'", '"')

    @property
    def names(self) -> frozenset[str]:
        """The named dims that its sizes and values depend on."""
        return frozenset(d for d in [*self.dims.split(), self.below] if not d.isdigit())

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape under these sizes of named dims."""
        return tuple(int(d) if d.isdigit() else sizes[d] for d in self.dims.split())

    def limit(self, sizes: Mapping[str, int]) -> int:
        """What integers stay below; at least 1."""
        return max(1, int(self.below) if self.below.isdigit() else sizes[self.below])


class Sample:
    """One set of operands (`T`s and numbers), and the alternatives of the pattern that they belong to.

    Args:
        tags: the alternatives taken, by name.
        sizes: of named dims, where they differ from `DEFAULT_SIZES`.
        refused: empty where the rule must match; else the code of the reason why it must not.
        operands: by parameter of the pattern; what is left out is None.
    """

    def __init__(
        self,
        *,
        tags: Mapping[str, str] | None = None,
        sizes: Mapping[str, int] | None = None,
        refused: str = "",
        **operands: Any,
    ):
        self.operands = operands
        self.tags = dict(tags or {})
        self.sizes = DEFAULT_SIZES | dict(sizes or {})
        self.refused = refused

    def __repr__(self) -> str:
        parts = [f"{k}={v!r}" for k, v in self.operands.items()]
        parts += [f"tags={self.tags}"] if self.tags else []
        parts += [f"refused={self.refused!r}"] if self.refused else []
        return f"Sample({', '.join(parts)})"

"""Declared inputs of a rule, from which its property test is derived.

Sample(q=T("B H S D"), k=T("B H T D"), scale=0.3, tags={"scale": "yes"})
Sample(x=T("... N"), sizes={"N": range(64, 513, 64)})                  any leading dims; N among these sizes
Sample(x=T("N", dtype=torch.int64), refused="dtype-not-floating")      a near miss: the rule must say no, and why

What is written wrongly is an error where it is written: a `PatternError` that says what would be right.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch

from .pattern import PatternError

LEADING = "..."
DEFAULT_SIZES: dict[str, Any] = {
    "B": 2, "H": 3, "S": 5, "T": 7, "D": 8, "E": 8, "N": 6, "M": 4, "K": 8, LEADING: (2,)
}  # fmt: skip
_PLAIN_BELOW = "4"
Values = Literal["normal", "moderate", "finite", "mask", "bool", "positive"]


@dataclass(frozen=True)
class T:
    """A tensor operand of a sample.

    Args:
        dims: names or fixed sizes, e.g. ``"B 1 S T"``; empty for a 0-d tensor. ``"... N"`` has any number of leading
            dims, the same for all operands of the sample that have them.
        values: ``"normal"`` numbers; ``"moderate"`` ones, whose products do not overflow;
            ``"finite"`` ones: moderate, and no NaN; ``"mask"``: 0 and -inf; ``"bool"``: mostly True;
            ``"positive"`` numbers.
        dtype: fixed dtype, or None to follow the test's dtype.
        gradient: whether gradients flow to it in training checks.
        frozen: a weight, whose value candidates may take as known while compiling.
        below: for integers that are counts or indices: they go from 0 to what they stay below, a number or a named dim,
            e.g. ``"C"`` for labels of C classes. Others may be any integers.
        device: ``"meta"`` stands for any device that the rule does not know, in near misses: these never run.

    Raises:
        PatternError: dims are no names and sizes, or values, a dtype or a device are none.
    """

    dims: str
    values: Values = "normal"
    dtype: torch.dtype | None = None
    gradient: bool = True
    frozen: bool = False
    below: str = ""
    device: str = "cpu"

    def __post_init__(self) -> None:
        _require_dims(self.dims)
        if self.values not in get_args(Values):
            raise PatternError(f"T({self.dims!r}): values={self.values!r} {_is_none_of(get_args(Values), self.values)}")
        if self.dtype is not None and not isinstance(self.dtype, torch.dtype):
            raise PatternError(f"T({self.dims!r}): dtype={self.dtype!r} is no torch.dtype, such as torch.int64")
        if not isinstance(self.below, str) or not (not self.below or self.below.isdigit() or self.below.isidentifier()):
            raise PatternError(f'T({self.dims!r}): below={self.below!r} is no number or named dim as text, e.g. "4"')
        try:
            torch.device(self.device)
        except (RuntimeError, TypeError) as error:
            raise PatternError(f'T({self.dims!r}): device={self.device!r} is none, such as "cpu"') from error

    def __repr__(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in fields(self)[1:] if getattr(self, f.name) != f.default]
        return f"T({', '.join([repr(self.dims), *(f'{name}={value!r}' for name, value in given)])})".replace("'", '"')

    @property
    def kind(self) -> str:
        """The kind of its dtype, see `kind_of`; floating where the test's dtype is followed."""
        if self.values == "bool" and self.dtype is None:
            return "bool"
        return "floating" if self.dtype is None else kind_of(self.dtype)

    @property
    def names(self) -> frozenset[str]:
        """The named dims that its sizes and values depend on."""
        return frozenset(d for d in [*self.dims.split(), self.below] if d and not d.isdigit())

    def shape(self, sizes: Mapping[str, Any]) -> tuple[int, ...]:
        """The shape under these sizes of named dims."""
        found: list[int] = []
        for dim in self.dims.split():
            if dim == LEADING:
                found.extend(sizes[dim])
            else:
                found.append(int(dim) if dim.isdigit() else sizes[dim])
        return tuple(found)

    def limit(self, sizes: Mapping[str, int]) -> int:
        """The bound that integers stay below, those that may be any where they are plain; at least 1."""
        below = self.below or _PLAIN_BELOW
        return max(1, int(below) if below.isdigit() else sizes[below])


_DICTS = {"tags": "tags={'spelling': 'where'}", "sizes": "sizes={'N': 64}"}


def kind_of(dtype: torch.dtype) -> str:
    """``"floating"``, ``"complex"``, ``"bool"`` or ``"integer"``."""
    if dtype.is_floating_point:
        return "floating"
    return "complex" if dtype.is_complex else "bool" if dtype == torch.bool else "integer"


def _require_dims(dims: Any) -> None:
    right = 'names and sizes separated by spaces, e.g. T("B 4 N"), with "..." in front for any leading dims'
    if not isinstance(dims, str):
        raise PatternError(f"T({dims!r}): dims are text: {right}")
    for place, dim in enumerate(dims.split()):
        if not (dim.isidentifier() or dim.isdigit() or (dim == LEADING and place == 0)):
            raise PatternError(f"T({dims!r}): {dim!r} is neither a name nor a size: dims are {right}")


def _is_none_of(known: Iterable[str], given: Any) -> str:
    close = difflib.get_close_matches(str(given), list(known), n=1)
    return f"is none of {', '.join(known)}" + (f"; did you mean {close[0]!r}?" if close else "")


class Sample:
    """One set of operands (`T`s and numbers), and the alternatives of the pattern that they belong to.

    Args:
        tags: the alternatives taken, by name.
        sizes: of named dims, where they differ from `DEFAULT_SIZES`: a number, which is an example of sizes that the
            rule takes, or a `range` of sizes, all of which it must match; of ``"..."``, a tuple of sizes.
        refused: empty where the rule must match; else the code of the reason why it must not.
        operands: by parameter of the pattern; what is left out is None.

    Attributes:
        made_from: the sample that was declared, where this is that one in other dims.

    Raises:
        PatternError: there are no operands, a size is not known or no operand has it, or a size is none.
    """

    def __init__(
        self,
        *,
        tags: Mapping[str, str] | None = None,
        sizes: Mapping[str, Any] | None = None,
        refused: str = "",
        **operands: Any,
    ):
        for what, value in (("tags", tags), ("sizes", sizes)):
            if value is not None and not isinstance(value, Mapping):
                raise PatternError(f"{what}={value!r} is no dict, such as {_DICTS[what]}")
        given = dict(sizes or {})
        self.operands = operands
        self.tags = dict(tags or {})
        self.ranges = {name: size for name, size in given.items() if isinstance(size, range)}
        self.given_sizes = {n: s.start if isinstance(s, range) else s for n, s in given.items()}
        self.sizes = DEFAULT_SIZES | self.given_sizes
        self.refused = refused
        self.made_from: Sample | None = None
        _require_sample(self)

    def __repr__(self) -> str:
        parts = [f"{k}={v!r}" for k, v in self.operands.items()]
        sizes = self.given_sizes | self.ranges
        parts += [f"sizes={sizes}"] if sizes else []
        parts += [f"tags={self.tags}"] if self.tags else []
        parts += [f"refused={self.refused!r}"] if self.refused else []
        return f"Sample({', '.join(parts)})"


def _require_sample(sample: Sample) -> None:
    if not any(value is not None for value in sample.operands.values()):
        raise PatternError('Sample() has no operands: give them by parameter of the pattern, e.g. Sample(x=T("B N"))')
    if not isinstance(sample.refused, str):
        raise PatternError(f'refused={sample.refused!r} is no code of a reason, such as "dtype-not-floating"')
    named = frozenset[str]().union(*(o.names for o in sample.operands.values() if isinstance(o, T)))
    for name in sorted(named - sample.sizes.keys()):
        usual = ", ".join(dim for dim in DEFAULT_SIZES if dim != LEADING)
        told = f"nobody knows the size of dim {name!r}: give one, e.g. sizes={{{name!r}: 4}}"
        raise PatternError(f"{told}; only {usual} have sizes of their own")
    for name, size in (sample.given_sizes | sample.ranges).items():
        if name not in named:
            known = ", ".join(sorted(named)) or "no named dims"
            raise PatternError(f"sizes has {name!r}, but the operands have {known}")
        if not _is_size(name, size):
            what = "a tuple of sizes" if name == LEADING else "a size, or a range of them that is not empty"
            raise PatternError(f"sizes={{{name!r}: {size!r}}}: {what} is wanted")


def _is_size(name: str, size: Any) -> bool:
    if name == LEADING:
        return isinstance(size, tuple) and all(_is_size("", one) for one in size)
    if isinstance(size, range):
        return len(size) > 0 and min(size) >= 0
    return isinstance(size, int) and not isinstance(size, bool) and size >= 0


def samples_of(rule: str, samples: Any) -> Sequence[Sample]:
    """The samples of a declaration.

    Raises:
        PatternError: they are not a sequence of samples.
    """
    if isinstance(samples, Sample) or not all(isinstance(sample, Sample) for sample in samples):
        raise PatternError(f"rule {rule!r}: samples={samples!r}: a list of samples is expected, samples=[Sample(...)]")
    return samples


def require_kinds(rule: str, **given: tuple[Any, type, str]) -> None:
    """Raise unless the arguments of a declaration have their types; each comes with its type and an example.

    Raises:
        PatternError: one has another type.
    """
    for name, (value, kind, example) in given.items():
        if not isinstance(value, kind):
            raise PatternError(f"rule {rule!r}: {name}={value!r} is not a {kind.__name__}, such as {example}")

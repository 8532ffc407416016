"""The scope of a check, and what lies outside of it: a property test shows what is wrong where it looked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from ....rewrites.rule import Rule
from ....rewrites.sample import LEADING, Sample
from .case import Case
from .drawn import DrawnExample
from .operands import dim_names, tensors

_SHORT = 2  # sizes that follow each other and are written one by one


@dataclass
class Scope:
    """The extent of a check.

    Args:
        samples: how many samples, and variants of them.
        dtypes: of the operands.
        ranks: of the operands.
        sizes: of their dims.
        of_dims: the sizes of each named dim of the samples.
        gradients: the operands to which gradients flowed and were compared.
        labels: the alternatives taken, as (tag, label).
        dynamic: whether sizes were symbolic.
        biases: how often many draws in low precision were held against each other.
    """

    samples: set[int] = field(default_factory=set)
    dtypes: set[torch.dtype] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)
    of_dims: dict[str, set[int]] = field(default_factory=dict)
    gradients: set[str] = field(default_factory=set)
    labels: set[tuple[str, str]] = field(default_factory=set)
    dynamic: set[bool] = field(default_factory=set)
    biases: int = 0

    def note(self, case: Case, sample: Sample, drawn: DrawnExample) -> None:
        """Remember a program that was compared."""
        self.samples.add(id(sample))
        self.dynamic.add(drawn.dynamic)
        for name, size in drawn.sizes:
            self.of_dims.setdefault(name, set()).update(size if isinstance(size, tuple) else (size,))
        self.labels |= {(tag, sample.tags.get(tag, labels[0])) for tag, labels in case.rule.tags.items()}
        for variable, operand in zip(case.rule.variables, case.operands, strict=True):
            if isinstance(operand, torch.Tensor):
                self.dtypes.add(operand.dtype)
                self.ranks.add(operand.dim())
                self.sizes.update(operand.shape)
                if operand.requires_grad and case.gradients == "compared":
                    self.gradients.add(variable.name)

    def __str__(self) -> str:
        if not self.sizes:
            return "nothing"
        dtypes = ", ".join(sorted(str(d).removeprefix("torch.") for d in self.dtypes))
        ranks, sizes = (f"{min(x)} to {max(x)}" for x in (self.ranks, self.sizes))
        gradients = f"; gradients of {', '.join(sorted(self.gradients))}" if self.gradients else ""
        return f"{dtypes}; ranks {ranks}; sizes {sizes}{gradients}"


def not_covered(
    rule: Rule, samples: Sequence[Sample], scope: Scope, unused: Sequence[str], device: str
) -> tuple[str, ...]:
    """Lines about the values that were not compared; the last ones hold for every rule."""
    return (*_parts(rule, scope, unused), *_values(rule, samples, scope), *_of_any(rule, samples, scope, device))


def _parts(rule: Rule, scope: Scope, unused: Sequence[str]) -> Iterator[str]:
    if unused:
        yield f"the candidates {', '.join(unused)}: no program here could use them"
    missing = [f"{t}={label}" for t, labels in rule.tags.items() for label in labels if (t, label) not in scope.labels]
    if missing:
        yield f"the alternatives {', '.join(missing)}: no sample takes them"
    if rule.numerics.random != "none":
        yield "a bias in low precision: it draws random numbers"
    elif not scope.biases and not rule.numerics.exact:
        yield "a bias in low precision: no such program was compared"
    if rule.escapes == "keep":
        yield "inner values that have other users, which escapes='keep' allows"
    if True not in scope.dynamic:
        yield "symbolic sizes: no such program was compared"


def _values(rule: Rule, samples: Sequence[Sample], scope: Scope) -> Iterator[str]:
    floating = {n for s in samples for n, t in tensors(s).items() if t.dtype is None or t.dtype.is_floating_point}
    plain = sorted(floating - scope.gradients)
    if plain and rule.stage == "forward":
        yield f"gradients of {', '.join(plain)}: no sample lets them flow, or no such program was compared"
    moderate = sorted({n for s in samples for n, t in tensors(s).items() if t.values == "moderate"})
    if moderate:
        yield f"huge values and inf in {', '.join(moderate)}, which the samples declare moderate"
    finite = sorted({n for s in samples for n, t in tensors(s).items() if t.values == "finite"})
    if finite:
        yield f"huge values, inf and NaN in {', '.join(finite)}, where samples declare them finite"
    limited = sorted({n for s in samples for n, t in tensors(s).items() if t.values in ("positive", "mask", "bool")})
    if limited:
        yield f"values of {', '.join(limited)} other than the samples declare"
    integers = sorted({n for s in samples for n, t in tensors(s).items() if t.kind == "integer" and t.below})
    if integers:
        yield f"values of {', '.join(integers)} other than from 0 to what the samples say they stay below"
    numbers = sorted(v.name for v in rule.variables if v.number)
    if numbers:
        yield f"values of {', '.join(numbers)} other than those of the samples and some beside them"


def _of_any(rule: Rule, samples: Sequence[Sample], scope: Scope, device: str) -> Iterator[str]:
    untried = sorted({"floating", "integer", "bool", "complex"} - frozenset().union(*rule.kinds.values()))
    if untried:
        yield f"dtypes that are {' or '.join(untried)}: no sample has them, so there the rule does not fire"
    yield f"sizes other than {_sizes(scope, samples)}; ranks above {max(scope.ranks, default=0)}"
    if scope.biases:
        yield "errors below about 1% in bfloat16 alone, or 0.1% in float16 alone: roundings are as large"
    if not rule.numerics.exact:
        yield "the sign of zeros in results, unless numerics is EXACT: -0.0 counts as 0.0"
    if rule.stage == "forward":
        yield "second derivatives; gradients at NaN, inf, huge values and kinks, where they are conventions"
    around = "autocast, inference mode, operands that share memory, one tensor given as two operands"
    yield f"the program around the pattern: {around}"
    yield "settings of the process, such as the default dtype and the number of threads"
    yield f"devices other than {device}; values and combinations of all this that were not drawn"


def _sizes(scope: Scope, samples: Sequence[Sample]) -> str:
    """The sizes that every dim had, and those that only some dims had."""
    free = {n for s in samples for n in dim_names(s) if n != LEADING and n not in s.ranges}
    of_free = [scope.of_dims.get(name, set()) for name in sorted(free)]
    common = set.intersection(*of_free) if of_free else scope.sizes
    some = scope.sizes - common
    return f"{_listed(common)} in each dim, and {_listed(some)} in some" if some else _listed(common)


def _listed(sizes: Iterable[int]) -> str:
    """Sizes as text, those that follow each other as a range: ``"0 to 3, 6, 16, 17"``."""
    ranges: list[list[int]] = []
    for size in sorted(sizes):
        if ranges and size == ranges[-1][-1] + 1:
            ranges[-1].append(size)
        else:
            ranges.append([size])
    told = (f"{r[0]} to {r[-1]}" if len(r) > _SHORT else ", ".join(map(str, r)) for r in ranges)
    return ", ".join(told) or "none"

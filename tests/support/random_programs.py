"""Random programs of tensor operations: data that runs, prints, shrinks, and is the same for the same seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from . import random_symbols
from .random_ops import DTYPES, EXACT, ROUNDED
from .random_symbols import NUMBERS

Tensor = torch.Tensor
SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 7, 16, 17, 33, 64, 100)
LAYOUTS = ("contiguous", "contiguous", "transposed", "stepped", "expanded", "offset")
FILLS = ("normal", "normal", "small", "special")
MOST_ELEMENTS = 4096
KEPT = "kept"  # a step that gives its first operand back: what shrinking leaves of it
SYMBOLIC = {**random_symbols.EXACT, **random_symbols.ROUNDED}


@dataclass(frozen=True)
class Given:
    """An input: its sizes, dtype, memory layout, and what it is filled with."""

    sizes: tuple[int, ...]
    dtype: torch.dtype
    layout: str
    fill: str


@dataclass(frozen=True)
class Step:
    """One operation on earlier values: inputs come first, then a value for each step."""

    operation: str
    operands: tuple[int, int, int]
    number: int


@dataclass(frozen=True)
class RandomProgram:
    """Inputs, steps and the values that come out; `exact` ones give the same bits in any order of evaluation.

    Args:
        device: where the inputs are made; their values are the same everywhere.
        numbers: ints and floats that it is given after its inputs; left out, they are constants.
    """

    given: tuple[Given, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    seed: int
    exact: bool
    device: str = "cpu"
    numbers: tuple[int | float, ...] = ()

    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Run on tensors, and on numbers, where they are given."""
        values = self._values(inputs)
        return tuple(values[k] for k in self.outputs)

    def _values(self, inputs: Sequence[Any]) -> list[Tensor]:
        values, numbers = list(inputs[: len(self.given)]), inputs[len(self.given) :] or self.numbers
        for step in self.steps:
            values.append(_run(step, [values[k] for k in step.operands], numbers))
        return values

    def arguments(self, symbolic: bool) -> list[Any]:
        """Its inputs, with its numbers where these are to be symbolic."""
        return [*self.inputs(), *(self.numbers if symbolic else ())]

    def dtypes(self) -> set[torch.dtype]:
        """The dtypes of all its values."""
        return {value.dtype for value in self._values(self.inputs())}

    def inputs(self) -> list[Tensor]:
        """Its inputs, in memory of their own."""
        generator = torch.Generator().manual_seed(self.seed)
        return [_tensor(given, generator, self.device) for given in self.given]

    def __str__(self) -> str:
        lines = [f"v{k} = {_text(given)}" for k, given in enumerate(self.given)]
        lines += [f"numbers = {self.numbers}"] if self.numbers else []
        for k, step in enumerate(self.steps, len(self.given)):
            operands = ", ".join(f"v{o}" for o in step.operands)
            lines.append(f"v{k} = {step.operation}({operands}, {step.number})")
        lines.append(f"return {', '.join(f'v{k}' for k in self.outputs)}    # seed {self.seed}")
        return "\n".join(lines)


def draw(source: random.Random, *, longest: int = 9) -> RandomProgram:
    """A program."""
    exact = source.random() < 0.5
    names = [*EXACT, *random_symbols.EXACT]
    names += [] if exact else [*ROUNDED, *ROUNDED, *random_symbols.ROUNDED, *random_symbols.ROUNDED]
    given = tuple(_given(source, exact) for _ in range(source.randint(1, 3)))
    steps: list[Step] = []
    for _ in range(source.randint(1, longest)):
        known = len(given) + len(steps)
        near = known - 1 if source.random() < 0.5 else source.randrange(known)
        operands = (near, source.randrange(known), source.randrange(known))
        steps.append(Step(source.choice(names), operands, source.randrange(10_000)))
    known = len(given) + len(steps)
    outputs = (known - 1, *(source.randrange(known) for _ in range(source.randint(0, 3))))
    seed, numbers = source.randrange(1 << 30), (source.choice(NUMBERS), source.choice(NUMBERS))
    return RandomProgram(given, tuple(steps), outputs, seed, exact, numbers=numbers)


def smaller(program: RandomProgram) -> Iterator[RandomProgram]:
    """Programs a little smaller: an output fewer, a step undone or ended at, operands alike, simpler inputs."""
    for k in range(len(program.steps) - 1, 0, -1):
        last = len(program.given) + k - 1
        kept = tuple(o for o in program.outputs if o <= last) or (last,)
        yield replace(program, steps=program.steps[:k], outputs=kept)
        yield replace(program, steps=program.steps[:k], outputs=(last,))
    for k in range(len(program.outputs)):
        if len(program.outputs) > 1:
            yield replace(program, outputs=program.outputs[:k] + program.outputs[k + 1 :])
    for k, step in enumerate(program.steps):
        for new in (replace(step, operation=KEPT), replace(step, operands=(step.operands[0],) * 3)):
            if new != step and step.operation != KEPT:
                yield replace(program, steps=(*program.steps[:k], new, *program.steps[k + 1 :]))
    for k, given in enumerate(program.given):
        for new in _simpler(given):
            yield replace(program, given=(*program.given[:k], new, *program.given[k + 1 :]))


def _simpler(given: Given) -> Iterator[Given]:
    for change in ({"layout": "contiguous"}, {"fill": "small"}, {"dtype": torch.float32}):
        new = replace(given, **change)  # type: ignore[arg-type]
        if new != given:
            yield new
    for d, size in enumerate(given.sizes):
        yield replace(given, sizes=given.sizes[:d] + given.sizes[d + 1 :])
        for less in (1, 2, 3):
            if less < size:
                yield replace(given, sizes=(*given.sizes[:d], less, *given.sizes[d + 1 :]))


def _run(step: Step, operands: list[Tensor], numbers: Sequence[Any]) -> Tensor:
    if step.operation == KEPT:
        return operands[0]
    if step.operation in SYMBOLIC:
        return SYMBOLIC[step.operation](*operands[:2], step.number // 2, numbers[step.number % len(numbers)])
    result = {**EXACT, **ROUNDED}[step.operation](*operands, step.number)
    return result[step.number % 2] if isinstance(result, tuple) else result


def _given(source: random.Random, exact: bool) -> Given:
    sizes = tuple(source.choice(SIZES) for _ in range(source.choice((0, 1, 2, 2, 3, 3, 4))))
    while math.prod(sizes) > MOST_ELEMENTS:
        sizes = sizes[1:]
    fill = "small" if exact else source.choice(FILLS)
    if exact and source.random() < 0.15:
        fill = "small, special"
    return Given(sizes, source.choice(DTYPES), source.choice(LAYOUTS), fill)


def _tensor(given: Given, generator: torch.Generator, device: str) -> Tensor:
    made = _filled(_shape_of_memory(given), given, generator).to(device)
    if given.layout == "transposed" and made.dim() > 1:
        return made.transpose(0, -1)
    if given.layout == "stepped" and made.dim():
        return made[..., ::2][..., : given.sizes[-1]]
    if given.layout == "offset" and made.dim():
        return made[1:]
    return made.expand(given.sizes) if given.layout == "expanded" and made.dim() else made


def _shape_of_memory(given: Given) -> tuple[int, ...]:
    sizes = given.sizes
    if not sizes:
        return sizes
    if given.layout == "transposed" and len(sizes) > 1:
        return (sizes[-1], *sizes[1:-1], sizes[0])
    if given.layout == "stepped":
        return (*sizes[:-1], 2 * sizes[-1])
    if given.layout == "offset":
        return (sizes[0] + 1, *sizes[1:])
    return (1, *sizes[1:]) if given.layout == "expanded" else sizes


def _filled(sizes: tuple[int, ...], given: Given, generator: torch.Generator) -> Tensor:
    if given.dtype == torch.bool:
        return torch.randint(0, 2, sizes, generator=generator).bool()
    if given.dtype == torch.int64 or given.fill == "small":
        return torch.randint(-3, 4, sizes, generator=generator).to(given.dtype)
    values = torch.randn(sizes, generator=generator, dtype=torch.float64)
    values = (2 * values).round() if "small" in given.fill else values
    if "special" in given.fill:
        special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0], dtype=torch.float64)
        at = torch.randint(0, len(special), sizes, generator=generator)
        values = torch.where(torch.rand(sizes, generator=generator) < 0.2, special[at], values)
    return values.to(given.dtype)


def _text(given: Given) -> str:
    dtype = str(given.dtype).removeprefix("torch.")
    return f"{dtype}{list(given.sizes)}, {given.layout}, {given.fill}"

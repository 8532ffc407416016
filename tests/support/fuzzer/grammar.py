"""Draws whole programs: statements are drawn as text, tried by eager on two sets of inputs, and kept where they run."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from . import operators, spellings, statements
from .fragments import FRAGMENTS
from .program import Program, source_of
from .values import FLOATS, Inputs

_HOLE = re.compile(r"\{([a-z])(\d?)\}")
_LARGEST = 4000
_TRIES = 12
_TRIED = 2  # sets of inputs that statements are tried on


def _lines(text: str) -> list[str]:
    return [line for line in text.strip().splitlines() if line]


# Expressions by group, with how often a group is drawn from.
GROUPS = [
    (_lines(text), weight)
    for text, weight in (
        (spellings.POINTWISE, 30), (spellings.REDUCTIONS, 16), (spellings.VIEWS, 22), (spellings.INDEXING, 12),
        (spellings.MADE, 6), (spellings.PRODUCTS, 5), (spellings.RANDOM, 2), (operators.NUMBERS, 9),
        (operators.REDUCED, 7), (operators.PLACED, 8), (operators.PRODUCTS, 5), (operators.WINDOWS, 5),
        (operators.COMPLEX, 3), (operators.FUNCTIONS, 4),
    )
]  # fmt: skip
INPLACE, INTS, FLOATS_OF, APART = map(
    _lines, (statements.INPLACE + operators.WRITTEN, spellings.INTS, spellings.FLOATS, statements.SEVERAL)
)
CHOICES, LOOPS, CONTEXTS, BREAKS, CHECKS = map(
    _lines, (statements.CHOICES, statements.LOOPS, statements.CONTEXTS, statements.BREAKS, statements.CHECKS)
)


class Writer:
    """Writes the statements of one program.

    Args:
        source: of random numbers.
        inputs: of the program; fragments add to them.
        module: whether it is a model, whose layers are `self`'s.
    """

    def __init__(self, source: random.Random, inputs: Inputs, *, module: bool) -> None:
        self.source, self.inputs, self.module = source, inputs, module
        self.layers: list[str] = []
        self.lines: list[str] = []
        self._count = 0
        self.environments = [self._environment() for _ in range(_TRIED)]

    def _environment(self) -> dict[str, Any]:
        return {"torch": torch, "F": F, "nn": nn, "math": math, "DEVICE": "cpu", "self": nn.Module()}

    def give(self, name: str) -> None:
        """Make an input known to the statements."""
        for call, environment in enumerate(self.environments):
            values = {**self.inputs.dims, **self.inputs.scalars}
            environment.update({known: of_calls[call] for known, of_calls in values.items()})
            if name in self.inputs.tensors:
                torch.manual_seed(call)
                exec(f"{name} = {self.inputs.tensors[name]}", environment)

    def layer(self, text: str) -> str:
        """The name of a new layer of the model."""
        name = f"self.l{len(self.layers)}"
        for environment in self.environments:
            exec(f"{name} = {text}", environment)
        self.layers.append(f"{name} = {text}")
        return name

    def new(self) -> str:
        """A name for a value."""
        self._count += 1
        return f"v{self._count - 1}"

    # -- values --------------------------------------------------------------------------------------------------------

    def named(self, wanted: Callable[[Any], bool]) -> list[str]:
        """Values of a kind in all calls, oldest first."""
        first = self.environments[0]
        found = [name for name in first if re.fullmatch(r"[vx]\d+|[nfk]\d+", name)]
        return [name for name in found if all(name in e and wanted(e[name]) for e in self.environments)]

    def _chosen(self, names: list[str]) -> str | None:
        if not names:
            return None
        late = names[-3:] if self.source.random() < 0.6 else names
        return self.source.choice(late)

    def _operand(self, kind: str, first: str | None) -> str | None:
        if kind in "xtibmcz":
            return self._chosen(self.named(KINDS[kind]))
        if kind == "y":
            return self._alike(first)
        if kind in "nfk":
            return self._scalar(kind)
        if kind == "p":
            return str(self.source.choice((1, 1, 2, 2, 3, 4, 5)))
        if kind == "d":
            return str(self.source.choice((0, -1, -1, 1, -2)))
        if kind == "s":
            return self._subscript()
        floats = ("torch.float32", "torch.float64", "torch.bfloat16", "torch.float16")
        if kind == "r":
            return self.source.choice(floats)
        return self.source.choice((*floats, "torch.int64", "torch.int32", "torch.uint8", "torch.bool", "torch.int16"))

    def _alike(self, first: str | None) -> str | None:
        """A tensor that broadcasts with another."""
        if first is None:
            return self._chosen(self.named(KINDS["x"]))
        names = [
            name
            for name in self.named(KINDS["x"])
            if all(_broadcasts(e[name], e[first]) for e in self.environments)
        ]  # fmt: skip
        return self._chosen(names)

    def _scalar(self, kind: str) -> str | None:
        types = {"n": int, "f": float, "k": bool}
        names = self.named(lambda value: type(value) is types[kind])
        if names and self.source.random() < 0.6:
            return self.source.choice(names)
        choices: dict[str, tuple[Any, ...]] = {"n": (-3, -2, -1, 0, 1, 2, 3, 5), "f": FLOATS, "k": (True, False)}
        return repr(self.source.choice(choices[kind]))

    def _subscript(self) -> str:
        simple = ("1:", ":-1", "::2", "0", "-1", ":1", "1::2", ":", "-2:", ":2", "...", "None")
        return self.source.choice(simple)

    def filled(self, template: str) -> str | None:
        """A template with values in its holes, None where there are none of a kind."""
        found: dict[str, str] = {}
        first: str | None = None
        for match in _HOLE.finditer(template):
            hole = match.group(0)
            if hole in found:
                continue
            value = self._operand(match.group(1), first)
            if value is None:
                return None
            found[hole] = value
            if match.group(1) in "xtibmcz":
                first = first or value
        text = _HOLE.sub(lambda match: found[match.group(0)], template)
        return text.replace("--", "") if "--" in text else text

    # -- statements ----------------------------------------------------------------------------------------------------

    def run(self, text: str) -> bool:
        """Whether eager runs a statement on all sets of inputs."""
        try:
            code = compile(text, "<statement>", "exec")
            for environment in self.environments:
                exec(code, environment)
        except Exception:
            return False
        return True

    def keep(self, text: str) -> bool:
        """Run a statement, and keep it where eager does."""
        if not self.run(text):
            return False
        self.lines.extend(text.splitlines())
        return True

    def assign(self, template: str) -> bool:
        """A new value from a template."""
        text, name = self.filled(template), self.new()
        if text is None or not self.run(f"{name} = {text}"):
            self.forget(name)
            return False
        if not all(_modest(e[name]) for e in self.environments):
            self.forget(name)
            return False
        self.lines.append(f"{name} = {text}")
        return True

    def forget(self, name: str) -> None:
        """Take back a value."""
        for environment in self.environments:
            environment.pop(name, None)

    def statement(self, depth: int = 0) -> None:
        """One statement of some kind."""
        kinds: list[tuple[Callable[[], bool], float]] = [
            (self._expression, 60), (self._inplace, 12), (lambda: self.assign(self.source.choice(INTS)), 5),
            (lambda: self.assign(self.source.choice(FLOATS_OF)), 3), (self._apart, 2), (self._alias, 2),
        ]  # fmt: skip
        if depth == 0:
            kinds += [
                (self._fragment, 6), (self._choice, 4), (self._loop, 3), (self._context, 3), (self._hook, 2),
                (self._break, 2), (self._check, 1),
            ]  # fmt: skip
        if self.module and depth == 0:
            kinds.append((self._layered, 14))
        for _ in range(_TRIES):
            (made,) = self.source.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
            if made():
                return

    def _expression(self) -> bool:
        (group,) = self.source.choices([lines for lines, _ in GROUPS], [weight for _, weight in GROUPS])
        return self.assign(self.source.choice(group))

    def _inplace(self) -> bool:
        text = self.filled(self.source.choice(INPLACE))
        return text is not None and self.keep(text)

    def _apart(self) -> bool:
        """Several values at once."""
        text, one, other = self.filled(self.source.choice(APART)), self.new(), self.new()
        return text is not None and self.keep(f"{one}, {other} = {text}")

    def _alias(self) -> bool:
        return self.assign("{t}")

    def _fragment(self) -> bool:
        kept, lines = self._count, len(self.lines)
        for text in self.source.choice(FRAGMENTS)(self):
            if not self.keep(text):
                self._count, self.lines[lines:] = max(kept, self._count), self.lines[lines:]
                return False
        return True

    def _layered(self) -> bool:
        from .fragments import layered

        return all(self.keep(text) for text in layered(self))

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _block(self, head: str, otherwise: str | None = None) -> bool:
        """Statements under a head; one of their values lives on."""
        before, kept = self.lines, [dict(e) for e in self.environments]
        start = self._chosen(self.named(KINDS["t"]))
        if start is None:
            return False
        name, self.lines = self.new(), []
        self.run(f"{name} = {start}")
        for _ in range(self.source.randint(1, 3)):
            self.statement(depth=1)
        made = [line.split(" = ")[0] for line in self.lines if re.match(r"v\d+ = ", line)]
        made = [value for value in made if value in self.named(KINDS["t"])]
        body = [*self.lines, f"{name} = {self.source.choice(made)}"] if made else self.lines
        self.lines, self.environments = before, kept
        if not body:
            return False
        text = "\n".join([f"{name} = {start}", head, *(f"    {line}" for line in body)])
        if otherwise is not None:
            text += f"\nelse:\n    {name} = {otherwise}"
        inner = {line.split(" = ")[0] for line in body if re.match(r"v\d+ = ", line)} - {name}
        done = self.keep(text)
        for value in inner:
            self.forget(value)
        return done

    def _choice(self) -> bool:
        head = self.filled(self.source.choice(CHOICES))
        other = self.filled(self.source.choice(("{x} * 2", "{t}", "{x}.neg()", "{x}.sum()")))
        return head is not None and other is not None and self._block(head, other)

    def _loop(self) -> bool:
        head = self.filled(self.source.choice(LOOPS))
        return head is not None and self._block(head)

    def _context(self) -> bool:
        head = self.filled(self.source.choice(CONTEXTS))
        return head is not None and self._block(head)

    def _hook(self) -> bool:
        name = self._chosen(self.named(lambda value: isinstance(value, torch.Tensor) and value.requires_grad))
        ways = ("g * 2", "g + 1", "g.clamp(-1, 1)", "None", "g * (g > 0)")
        return name is not None and self.keep(f"{name}.register_hook(lambda g: {self.source.choice(ways)})")

    def _break(self) -> bool:
        text = self.filled(self.source.choice(BREAKS))
        return text is not None and self.keep(text)

    def _check(self) -> bool:
        text = self.filled(self.source.choice(CHECKS))
        return text is not None and self.keep(text)


def _is(wanted: Callable[[torch.Tensor], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, torch.Tensor) and wanted(value)


KINDS = {
    "x": _is(lambda t: t.is_floating_point()),
    "t": _is(lambda t: True),
    "i": _is(lambda t: not t.is_floating_point() and t.dtype != torch.bool and not t.is_complex()),
    "b": _is(lambda t: t.dtype == torch.bool),
    "m": _is(lambda t: t.is_floating_point() and t.dim() > 1),
    "c": _is(lambda t: t.is_complex()),
    "z": _is(lambda t: t.dim() == 0),
}


def _broadcasts(one: torch.Tensor, other: torch.Tensor) -> bool:
    pairs = zip(reversed(one.shape), reversed(other.shape), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


def _modest(value: Any) -> bool:
    """Whether a value is small enough to go on with."""
    if isinstance(value, torch.Tensor):
        return value.numel() <= _LARGEST
    return not isinstance(value, int) or abs(value) < 2**40


# -- programs ----------------------------------------------------------------------------------------------------------


def draw(seed: int) -> str:
    """The source of program number `seed`."""
    source = random.Random(seed)
    how = _how(source) | {"views": seed % 4 == 0}
    inputs = Inputs(source, lively=source.random() < 0.8, training=how["grad"])
    writer = Writer(source, inputs, module=source.random() < 0.2)
    for name in [
        *(inputs.tensor() for _ in range(source.randint(1, 4))),
        *(inputs.scalar(source.choice("nnffk")) for _ in range(source.choice((0, 0, 1, 1, 2)))),
    ]:
        try:
            writer.give(name)
        except (RuntimeError, IndexError):
            inputs.tensors[name] = "torch.randn(3, 4)"
            writer.give(name)
    for _ in range(source.choice((1, 2, 3, 4, 5, 6, 8, 10, 14))):
        writer.statement()
    title = f"Program {seed}."
    return source_of(Program(title, how, inputs, writer.layers, writer.lines, _returned(writer), seed, writer.module))


def _returned(writer: Writer) -> str:
    pick = writer.source
    names = writer.named(lambda value: isinstance(value, (torch.Tensor, int, float)))
    tensors = writer.named(KINDS["t"]) or names
    chosen = list(dict.fromkeys([tensors[-1], *(pick.choice(names) for _ in range(pick.choice((0, 1, 1, 2, 3))))]))
    form = pick.random()
    if form < 0.1:
        return "{" + ", ".join(f'"{name}": {name}' for name in chosen) + "}"
    if form < 0.2:
        return "[" + ", ".join(chosen) + "]"
    return ", ".join(chosen)


def _how(pick: random.Random) -> dict[str, Any]:
    """How a program is compiled and called."""
    options: dict[str, Any] = {"rng": "eager", "profit": pick.choice(("always",) * 7 + ("never", "measured"))}
    how: dict[str, Any] = {
        "dynamic": pick.choice((None, None, True, True, True, False)),
        "grad": pick.random() < 0.45,
        "mode": pick.choice(("", "", "", "no_grad", "inference")),
        "autocast": pick.choice(("",) * 9 + ("bfloat16",)),
        "capture": pick.random() < 0.4,
        "options": options,
    }
    if how["grad"]:
        how["mode"] = ""
    elif how["mode"] and pick.random() < 0.3:
        options["freezing"] = True
    return how


def sources(seeds: range) -> Iterator[tuple[int, str]]:
    """Programs of many seeds."""
    for seed in seeds:
        yield seed, draw(seed)

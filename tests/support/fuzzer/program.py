"""Programs as sources that stand alone, and sources as modules.

HOW = {...}              how it is compiled and called
def given(call): ...     its inputs, another set for each call
TURNS = [...]            the calls of a program that is recalled (`twists`), if not drawn: [[(0,), (1, "frozen")], ...]
def program(...): ...    or `class Program(nn.Module)`
"""

from __future__ import annotations

import ast
import hashlib
import linecache
import re
import types
from dataclasses import dataclass, replace
from pprint import pformat
from typing import Any

import torch

from .twists import Call, calls_of
from .values import CALLS, Inputs

_HEAD = '''"""{title}"""

import math

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cpu"
HOW = {how}
'''


@dataclass
class Program:
    """What a source is written from."""

    title: str
    how: dict[str, Any]
    inputs: Inputs
    layers: list[str]
    lines: list[str]
    returned: str
    seed: int
    module: bool


def source_of(program: Program) -> str:
    """A program's source."""
    head = _HEAD.format(title=program.title, how=pformat(program.how, width=110, sort_dicts=False))
    return "\n".join([head, *_given(program.inputs, program.seed), "", "", *_body(program)]) + "\n"


def _given(inputs: Inputs, seed: int) -> list[str]:
    lines = ["def given(call):", f"    torch.manual_seed({seed % 10007} + call)"]
    for table in (inputs.dims, inputs.scalars):
        for name, values in table.items():
            same = len(set(map(repr, values))) == 1
            lines.append(f"    {name} = {values[0]!r}" if same else f"    {name} = {tuple(values)!r}[call]")
    lines += [f"    {name} = {text}" for name, text in inputs.tensors.items()]
    return [*lines, f"    return [{', '.join(inputs.names())}]"]


def _body(program: Program) -> list[str]:
    names = program.inputs.names()
    body = [*program.lines, f"return {program.returned}"]
    if not program.module:
        return [f"def program({', '.join(names)}):", *(f"    {line}" for line in body)]
    return [
        "class Program(nn.Module):", "    def __init__(self):", "        super().__init__()",
        *(f"        {line}" for line in program.layers), "",
        f"    def forward({', '.join(['self', *names])}):", *(f"        {line}" for line in body),
    ]  # fmt: skip


# -- sources as modules ------------------------------------------------------------------------------------------------


@dataclass
class Loaded:
    """A source that runs.

    Args:
        module: what it defines.
        text: the source.
        twists: what the calls of a program that is to be recalled are drawn from.
    """

    module: types.SimpleNamespace
    text: str
    twists: int | None = None

    @property
    def how(self) -> dict[str, Any]:
        return {
            "dynamic": None,
            "grad": False,
            "mode": "",
            "autocast": "",
            "capture": False,
            "views": False,
            "options": {},
        } | getattr(self.module, "HOW", {})

    @property
    def turns(self) -> list[list[Call]]:
        """The calls of the program as it is compiled, and those of when it is recalled, if it is to be."""
        if self.twists is not None:
            if hasattr(self.module, "TURNS"):
                return [[Call(number, names) for number, *names in calls] for calls in self.module.TURNS]
            is_module, trains = hasattr(self.module, "Program"), bool(self.how["grad"])
            return list(calls_of(self.twists, module=is_module, trains=trains))
        number = getattr(self.module, "CALLS", CALLS if self.how["dynamic"] is not False else 2)
        return [[Call(k) for k in range(number)]]

    def twisted(self, seed: int) -> Loaded:
        """The program as one that may be recalled: of known sizes, its weights no constants; with drawn calls."""
        kept = {name: value for name, value in self.how["options"].items() if name != "freezing"}
        self.module.HOW = self.how | {"dynamic": False, "options": kept}
        return replace(self, twists=seed)

    def make(self) -> Any:
        """A new instance of the program."""
        torch.manual_seed(0)
        made = self.module.Program() if hasattr(self.module, "Program") else self.module.program
        if isinstance(made, torch.nn.Module):
            made.train(self.how["grad"] or not self.how["options"].get("freezing"))
            if not self.how["grad"]:
                made.requires_grad_(False)
            made.to(self.module.DEVICE)
        return made

    def draws(self) -> bool:
        """Whether the program draws random numbers."""
        body = re.split(r"^(?:class|def) [pP]rogram", self.text, maxsplit=1, flags=re.MULTILINE)[-1]
        draws = r"rand|drop|bernoulli|normal_?\(|multinomial|uniform|rrelu|gumbel|exponential"
        return bool(re.search(draws, body, re.IGNORECASE))


def load(text: str, device: str = "cpu") -> Loaded:
    """Execute a source, whose lines Dynamo will look for."""
    name = f"<program {hashlib.sha256(text.encode()).hexdigest()[:16]}>"  # the same in other processes
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": "program"}
    exec(compile(text, name, "exec"), space)
    space["DEVICE"] = device
    module = types.SimpleNamespace(**space)
    module.__dict__["space"] = space
    return Loaded(module, text)


_NARROW = re.compile(r"torch\.(float32|float16|bfloat16)\b")
_CASTS = re.compile(r"\.(half|float|bfloat16)\(\)")


def widened(text: str) -> str:
    """The program in double precision: each dtype of its own is float64."""
    text = text.replace("torch.complex64", "torch.complex128")
    return _CASTS.sub(".double()", _NARROW.sub("torch.float64", text))


def is_source(text: str) -> bool:
    """Whether a text can be executed."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True

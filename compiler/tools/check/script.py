"""A counterexample as a program of its own: the operands, written out, and the rule that fails on them."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ....rewrites.rule import Rule
from ....rewrites.sample import Sample, T
from .case import Case, operand_seed
from .drawn import DrawnExample
from .operands import Look, tensors

_LITERAL = 64  # tensors with more entries are drawn again from their seed
_DIGITS = (3, 6, 9, 17)

_TEMPLATE = '''\
"""Counterexample to rule {rule}{candidate}.

{problem}

Exits with 1 as long as the rule fails on it.
"""

import sys{numbers}

import torch

from regraft.compiler.tools.check.replay import load, replay{makers}

{operands}

rule = load({rule!r}, {home!r})
sys.exit(replay(rule, {{{named}}}{settings}))
'''
_MAKERS = """
from regraft.compiler.tools.check.operands import Look, make
from regraft.rewrites.sample import T"""


def script_of(case: Case, sample: Sample, drawn: DrawnExample, candidate: str, problem: str) -> str:
    """The text of the program; see `replay` for what it prints."""
    specs = tensors(sample)
    names = [v.name for v in case.rule.variables]
    given = {name: operand for name, operand in zip(names, case.operands, strict=True) if operand is not None}
    written = {n: _operand(specs.get(n), operand, drawn, n, names.index(n)) for n, operand in given.items()}
    operands = "\n".join(f"{name} = {text}" for name, text in written.items())
    return _TEMPLATE.format(
        rule=case.rule.name,
        candidate=f", candidate {candidate}" if candidate else "",
        problem=problem.replace("\\", "\\\\").replace('"""', "'''"),
        numbers="\nfrom math import inf, nan" if re.search(r"\b(inf|nan)\b", operands) else "",
        makers=_MAKERS if " = make(" in operands else "",
        operands=operands,
        home=home(case.rule),
        named=", ".join(f'"{name}": {name}' for name in given),
        settings="".join(f", {name}={value!r}" for name, value in _settings(case, sample, candidate)),
    )


def _settings(case: Case, sample: Sample, candidate: str) -> Iterator[tuple[str, Any]]:
    """What `replay` is told beside the operands, where it differs from its defaults."""
    plain = Case(case.rule, ())
    if candidate:
        yield "candidate", candidate
    if sample.refused:
        yield "refused", sample.refused
    for name in ("tags", "frozen", "dynamic", "fixed", "nan", "seed", "gradients", "incoming"):
        if (value := getattr(case, name)) != getattr(plain, name):
            yield name, value


def _operand(spec: T | None, operand: Any, drawn: DrawnExample, name: str, place: int) -> str:
    if not isinstance(operand, torch.Tensor):
        return repr(operand)
    if operand.numel() <= _LITERAL and operand.device.type == "cpu":
        return literal(operand)
    look = drawn.looks.get(name, Look())
    sizes = {n: s for n, s in drawn.sizes if spec is not None and n in spec.names}
    return f"make({spec!r}, {sizes}, {drawn.dtype}, {look!r}, seed={operand_seed(drawn.seed, place)})"


def literal(x: torch.Tensor) -> str:
    """A tensor as an expression that makes it again: the same values in the same places of memory."""
    dtype = "" if x.dtype in (torch.float32, torch.int64, torch.bool) and x.numel() else f", dtype={x.dtype}"
    if x.is_contiguous() and not x.storage_offset():
        text = f"torch.tensor({_written(x.detach())}{dtype})" if x.numel() else f"torch.zeros({list(x.shape)}{dtype})"
    else:
        memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())  # type: ignore[call-overload]
        place = f"{list(x.shape)}, {list(x.stride())}" + (f", {x.storage_offset()}" if x.storage_offset() else "")
        text = f"torch.tensor({_written(memory)}{dtype}).as_strided({place})"
    return f"{text}.requires_grad_()" if x.requires_grad else text


def _written(x: torch.Tensor) -> str:
    if x.dim():
        return f"[{', '.join(map(_written, x))}]"
    value = x.item()
    if not isinstance(value, float):
        return repr(value)
    exact = (f"{value:.{digits}g}" for digits in _DIGITS)
    text = next((t for t in exact if torch.equal(torch.tensor(float(t), dtype=x.dtype), x)), repr(value))
    return text if value != value or "." in text or "e" in text or "inf" in text else f"{text}.0"


def home(rule: Rule) -> str:
    """The place of a rule's declaration, as `load` takes it: a module of a package, or else a file."""
    name = rule.pattern.__module__
    if "." in name and getattr(sys.modules.get(name), "__package__", None):
        return name
    try:
        return str(Path(inspect.getsourcefile(rule.pattern) or "").resolve())
    except TypeError:
        return name

"""Patterns made of torch's database of operators, each matched against its own source.

sample of nn.functional.softplus      def pattern(t0): return softplus(t0, beta=2)        matched
sample of nonzero                     refused: it depends on a value that only a run can tell
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from regraft import PatternError, Sample, T, register_pattern
from regraft.compiler.normal import FORMS
from regraft.rewrites import rule as rules
from regraft.rewrites.compat import capture_function
from regraft.rewrites.driver import Settings, rewrite
from regraft.rewrites.record import GraphRecord

Verdict = Literal["matched", "refused", "silent", "no program"]
NAME = "own_source"


@dataclass
class Outcome:
    """What became of one pattern on its own source, and why."""

    case: str
    verdict: Verdict
    why: str = ""


def outcome(case: str, pattern: Callable[..., Any], operands: Sequence[torch.Tensor]) -> Outcome:
    """Declare a pattern of tensors on a sample like these operands, and match it on its own source."""
    try:
        with torch.no_grad():
            pattern(*operands)
    except Exception as error:
        return Outcome(case, "no program", f"{type(error).__name__}: {error}"[:200])
    rules._declared.pop(NAME, None)
    try:
        made = register_pattern(NAME, replacement=pattern, samples=[sample_of(operands)])(pattern)
    except PatternError as reason:
        return Outcome(case, "refused", str(reason).removeprefix(f"rule {NAME!r}: "))
    return matched_by(case, made, pattern, operands)


def matched_by(case: str, made: Any, program: Callable[..., Any], operands: Sequence[Any]) -> Outcome:
    """Whether a rule matches a program, as the backend captures it."""
    module, _ = capture_function(program, list(operands), dynamic=False)
    record = GraphRecord(case)
    rewrite(module, [made], Settings(normal_form=FORMS["forward"], near_miss_depth=0, verify="structure"), record)
    if record.applied:
        return Outcome(case, "matched")
    return Outcome(case, "silent", "; ".join(m.message for m in record.near_misses)[:300])


def sample_of(operands: Sequence[torch.Tensor]) -> Sample:
    """A sample with the operands' sizes, equal ones one dim."""
    specs, sizes = {}, {}
    for i, tensor in enumerate(operands):
        names = [str(n) if n < 2 else f"d{n}" for n in tensor.shape]
        sizes |= {f"d{n}": n for n in tensor.shape if n > 1}
        specs[f"t{i}"] = T(" ".join(names), dtype=None if tensor.dtype == torch.float32 else tensor.dtype)
    return Sample(sizes=sizes, **specs)


def pattern_of(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """A call as a pattern of its tensors, `t0`, `t1`, ..., everything else constant; and the tensors."""
    leaves, tree = tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def run(*tensors: Any) -> Any:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        some, named = tree_unflatten(given, tree)
        out = function(*some, **named)
        return tuple(out) if isinstance(out, (list, tuple)) else out

    names = ", ".join(f"t{i}" for i in range(len(places)))
    scope: dict[str, Any] = {"run": run}
    exec(f"def pattern({names}):\n    return run({names})\n", scope)  # a pattern names its parameters
    return scope["pattern"], [leaves[i].detach() for i in places]


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings and logs of what samples do."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)

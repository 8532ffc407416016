"""Every operator with a Python spelling as a pattern on its own source: matched, refused with a reason, or silent.

    python benchmarks/patterns.py --out patterns.json
    python benchmarks/patterns.py --only 'nn.functional.*' --samples 3

Functions, methods (`x.relu()`) and samples are those of torch's database of operators. Exit code 1 where one is silent.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch
import typer
from support.opinfo import operators
from support.own_source import Outcome, outcome, pattern_of, quiet


def calls(op: Any, samples: int) -> Iterator[tuple[str, Any, Any, Any]]:
    """A name, function, arguments and keyword arguments for each spelling of an operator and each of its samples."""
    dtype = torch.float32 if torch.float32 in op.supported_dtypes("cpu") else next(iter(op.supported_dtypes("cpu")))
    kinds: dict[str, Any] = {}
    for sample in list(op.sample_inputs("cpu", dtype, requires_grad=False)):
        kind = repr((sorted(sample.kwargs), [type(a) for a in sample.args]))
        if len(kinds) < samples:
            kinds.setdefault(kind, sample)
    for number, sample in enumerate(kinds.values()):
        yield f"{op.formatted_name} {number}", op.op, (sample.input, *sample.args), sample.kwargs
        if op.method_variant is not None:
            yield f"{op.formatted_name} {number} method", op.method_variant, (sample.input, *sample.args), sample.kwargs


def outcomes(only: str, samples: int) -> Iterator[Outcome]:
    """The outcome of each program."""
    for name, op in operators().items():
        if not re.fullmatch(only, name):
            continue
        try:
            found = list(calls(op, samples))
        except Exception as error:  # the database wants what is not here
            yield Outcome(name, "no program", f"{type(error).__name__}: {error}"[:200])
            continue
        for case, function, args, kwargs in found:
            pattern, operands = pattern_of(function, args, kwargs)
            if not operands:
                continue
            try:
                yield outcome(case, pattern, operands)
            except Exception as error:
                yield Outcome(case, "silent", f"raises {type(error).__name__}: {error}"[:300])


def main(
    only: Annotated[str, typer.Option(help="Operators, as a regular expression.")] = ".*",
    samples: Annotated[int, typer.Option(help="Of each operator.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Outcomes as JSON.")] = None,
) -> None:
    """Print what is silent, and counts."""
    found: list[Outcome] = []
    with quiet():
        for one in outcomes(only, samples):
            found.append(one)
            if one.verdict == "silent":
                print(f"{one.case:40} {one.verdict} {one.why}", flush=True)
    reasons = Counter(re.sub(r"\bt\d+\b|'.*?'|\d+", "_", one.why)[:90] for one in found if one.verdict == "refused")
    for why, count in reasons.most_common():
        print(f"refused x {count:4}  {why}")
    print(dict(Counter(one.verdict for one in found)))
    if out is not None:
        out.write_text(json.dumps([asdict(one) for one in found], indent=1), encoding="utf-8")
    raise typer.Exit(1 if any(one.verdict == "silent" for one in found) else 0)


if __name__ == "__main__":
    typer.run(main)

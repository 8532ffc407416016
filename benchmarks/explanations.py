"""Programs around the library's rules: do `regraft.explain` and `torch.compile` agree on what matched?

    python benchmarks/explanations.py --count 200
    python benchmarks/explanations.py --count 200 --rule sdpa --changes 2

Exit code 1 where they do not, or where nothing is told of a rule.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import typer
from support.around_rules import agreement, programs
from support.own_source import quiet

import regraft


def main(
    count: Annotated[int, typer.Option(help="Programs.")] = 200,
    seed: Annotated[int, typer.Option(help="The same seed makes the same programs.")] = 0,
    rule: Annotated[list[str] | None, typer.Option(help="Rules or families. [default: all]")] = None,
    changes: Annotated[int, typer.Option(min=1, help="Most changes of a program.")] = 1,
) -> None:
    """Print where they differ, and counts."""
    found: Counter[str] = Counter()
    rules = [one for one in regraft.default_rules() if not rule or one.name in rule or one.family in rule]
    if rule and not rules:
        raise typer.BadParameter(f"there is no rule {', '.join(rule)}")
    with quiet():
        for number, program in enumerate(programs(random.Random(seed), count, rules if rule else None, changes)):
            try:
                differs = agreement(program)
            except Exception as error:
                differs = f"{program.rule.name}, {program.change}: raises {type(error).__name__}: {error}"[:300]
            found["agree" if differs is None else "differ"] += 1
            if differs is not None:
                print(f"{number}: {differs}", flush=True)
    print(dict(found))
    raise typer.Exit(1 if found["differ"] else 0)


if __name__ == "__main__":
    typer.run(main)

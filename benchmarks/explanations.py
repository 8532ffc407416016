"""Programs around each rule of the library: do `regraft.explain` and `torch.compile` agree on what matched?

    python benchmarks/explanations.py --count 200 --out around.jsonl      a second run goes on where the first one ended
    python benchmarks/explanations.py --rule sdpa --only 17               one program, with its code and explanation
    python benchmarks/explanations.py --table around.jsonl

For each rule, programs are made of its samples (`tests/support/around_rules.py`). Each is compiled, explained, and
compared with eager. Exit code 1 where compilation and explanation differ, where one of them fails, or where a result is
wrong.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import typer
from support.around_rules import Finding, Program, agreement, program, rules_named
from support.own_source import quiet

import regraft

_BAD = ("differ", "wrong", "raises")
_COLUMNS = ("matched", "near miss", "nothing alike", *_BAD)


def found_in(one: Program, number: int) -> Finding:
    """The finding of a program; every third one is explained for all rules at once."""
    try:
        with quiet():
            return agreement(one, all_rules=number % 3 == 0)
    except Exception as error:
        return Finding("raises", f"{type(error).__name__}: {error}"[:400])


def run(rules: list[Any], seed: int, count: int, out: Path | None, seconds: float) -> list[dict[str, Any]]:
    """Lines of all rules, those of an earlier run among them; rules take turns."""
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out and out.exists() else []
    seen = {(line["rule"], line["key"]) for line in lines}
    have = Counter(line["rule"] for line in lines)
    numbers = {rule.name: 1 + max((n["number"] for n in lines if n["rule"] == rule.name), default=-1) for rule in rules}
    end = time.monotonic() + seconds
    while (left := [rule for rule in rules if have[rule.name] < count]) and time.monotonic() < end:
        for rule in left:
            number = numbers[rule.name]
            numbers[rule.name] += 1
            with quiet():
                one = program(rule, seed, number)
            if one is None or (rule.name, one.key) in seen:
                continue
            seen.add((rule.name, one.key))
            have[rule.name] += 1
            found = found_in(one, number)
            lines.append(
                {"rule": rule.name, "number": number, "key": one.key, "change": one.change, "setting": one.setting}
                | {"verdict": found.verdict, "told": found.told, "matches": found.matches}
            )
            if found.verdict in _BAD:
                print(f"{rule.name} {number}, {one.setting}, {one.change}: {found.verdict}: {found.told}", flush=True)
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    return lines


def table(lines: list[dict[str, Any]]) -> str:
    """Counts by rule."""
    found = {name: Counter(n["verdict"] for n in lines if n["rule"] == name) for name in {n["rule"]: 0 for n in lines}}
    rows = [f"| rule | programs | {' | '.join(_COLUMNS)} |", f"|---|{'---|' * (len(_COLUMNS) + 1)}"]
    for name, counts in [*found.items(), ("all", Counter(n["verdict"] for n in lines))]:
        rows.append(f"| {name} | {counts.total()} | {' | '.join(str(counts[c]) for c in _COLUMNS)} |")
    return "\n".join(rows)


def show(one: Program) -> None:
    """One program, and what is told of it."""
    print(f"{one.rule.name}, {one.setting}, {one.change}\n{one.module.code}")
    print([f"{x.dtype} {tuple(x.shape)}" for x in one.inputs])
    print(found_in(one, 0))
    with quiet():
        print(regraft.explain(one.rule, one.module, *one.fresh(), options=one.options()).text(everything=True))


def main(
    count: Annotated[int, typer.Option(help="Programs of each rule.")] = 200,
    seed: Annotated[int, typer.Option(help="The same seed makes the same programs.")] = 0,
    rule: Annotated[
        list[str] | None, typer.Option(help="Rules, or families that no rule is named as. [default: all]")
    ] = None,
    only: Annotated[int | None, typer.Option(help="Show the program of this number.")] = None,
    out: Annotated[Path | None, typer.Option(help="Lines of JSON; a run goes on behind those that are there.")] = None,
    seconds: Annotated[float, typer.Option(help="Begin no program after so many.")] = 1e9,
    summary: Annotated[Path | None, typer.Option("--table", help="Only print the table of such a file.")] = None,
) -> None:
    """Print where they differ, and counts."""
    random.seed(seed)
    rules = rules_named(rule or ())
    if not rules:
        raise typer.BadParameter(f"there is no rule {', '.join(rule or ())}")
    if only is not None:
        for one in filter(None, (program(r, seed, only) for r in rules)):
            show(one)
        return
    if summary is not None:
        lines = [json.loads(line) for line in summary.read_text().splitlines()]
    else:
        lines = run(rules, seed, count, out, seconds)
    print(table(lines))
    raise typer.Exit(1 if any(line["verdict"] in _BAD for line in lines) else 0)


if __name__ == "__main__":
    typer.run(main)

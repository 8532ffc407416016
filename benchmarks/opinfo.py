"""torch's operator database through AOTAutograd and generated C++, against eager: values, dtypes, sizes, strides.

    python benchmarks/opinfo.py --shard 0/2 --out shard0.json
    python benchmarks/opinfo.py --only 'nn.functional.*pool.*'
    python benchmarks/opinfo.py --merge shard0.json,shard1.json --out benchmarks/opinfo.json

Float32 (forward, gradient, strided, dynamic, in place, Philox) and bfloat16, int64, bool. A worker process runs one
operator after the other; one that crashes or hangs is replaced, and the case at hand recorded as the culprit.
"""

from __future__ import annotations

import json
import logging
import os
import re
import selectors
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

BUILDING = "building the kernels"
OUTCOMES = ("ok", "wrong", "error", "crash", "skipped")


# -- the worker --------------------------------------------------------------------------------------------------------


def work(samples: int) -> None:
    """Operators' names in, one a line; JSON out: ``{"at": case}`` before each case, then ``{"done": outcomes}``."""
    os.environ.setdefault("REGRAFT_CACHE_DIR", tempfile.mkdtemp(prefix="regraft-opinfo-"))
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    import torch
    from support.opinfo import cases, check, operators

    torch.set_num_threads(1)
    known = operators()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # operators may print
    answers.write(json.dumps({"operators": list(known)}) + "\n")
    for line in sys.stdin:
        try:
            found = check(list(cases(known[line.strip()], samples)), lambda case: _tell(answers, {"at": case}))
        except Exception as error:
            found = []
            _tell(answers, {"failed": f"{type(error).__name__}: {error}"[:500]})
        _tell(answers, {"done": [asdict(outcome) for outcome in found]})


def _tell(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")


class Worker:
    """A process that runs operators, started anew when one brings it down."""

    def __init__(self, samples: int, limit: float) -> None:
        self._samples, self._limit = samples, limit
        self._process: subprocess.Popen[str] | None = None

    def operators(self) -> list[str]:
        return self._start()

    def _start(self) -> list[str]:
        command = [sys.executable, __file__, "--worker", "--samples", str(self._samples)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
        )
        answer = self._answer(time.monotonic() + 120)
        assert answer is not None, "the worker did not start"
        return list(answer["operators"])

    def run(self, name: str) -> list[dict[str, Any]]:
        """The outcomes of one operator."""
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(name + "\n")
        end, at = time.monotonic() + self._limit, f"{name} (samples)"
        extra: list[dict[str, Any]] = []
        while True:
            answer = self._answer(end)
            if answer is None:
                how = f"killed by signal {-code}" if (code := self.stop()) is not None and code < 0 else "hung"
                return [*extra, {"case": at, "outcome": "crash", "message": how, "kept": [], "kernels": 0}]
            if "done" in answer:
                return [*extra, *answer["done"]]
            if "failed" in answer:
                extra.append(
                    {
                        "case": at,
                        "outcome": "skipped",
                        "message": f"samples: {answer['failed']}",
                        "kept": [],
                        "kernels": 0,
                    }
                )
            at = answer.get("at", at) if answer.get("at") != BUILDING else f"{name} (kernels)"

    def _answer(self, end: float) -> dict[str, Any] | None:
        """The next message; None where the process is gone or too late."""
        assert self._process is not None and self._process.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._process.stdout, selectors.EVENT_READ)
            if not waiting.select(max(0.0, end - time.monotonic())):
                return None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def stop(self) -> int | None:
        """End the process; its exit code where it had ended by itself."""
        assert self._process is not None
        try:
            code: int | None = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            code = None
            self._process.kill()
            self._process.wait()
        self._process = None
        return code


# -- the summary -------------------------------------------------------------------------------------------------------


def merged(files: list[str]) -> list[dict[str, Any]]:
    """The outcomes of several runs; of an operator that several ran, the last counts."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        new: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for outcome in json.loads(Path(file).read_text(encoding="utf-8")):
            new[_parts(outcome["case"])[0]].append(outcome)
        found.update(new)
    return [outcome for outcomes in found.values() for outcome in outcomes]


def summary(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """What is committed: counts by way and outcome, all that is not right, the calls kept and why."""
    ways: dict[str, Counter[str]] = defaultdict(Counter)
    kept: dict[str, dict[str, Any]] = {}
    skipped: dict[str, set[str]] = defaultdict(set)
    operators: dict[str, str] = {}
    for found in outcomes:
        operator, way = _parts(found["case"])
        ways[way][found["outcome"]] += 1
        ways[way]["generated in full"] += found["outcome"] == "ok" and not found["kept"]
        ways[way]["kernels"] += found["kernels"]
        for name, code, message in found["kept"]:
            entry = kept.setdefault(f"{name} ({code})", {"why": message, "cases": 0})
            entry["cases"] += 1
        if found["outcome"] == "skipped":
            skipped[re.sub(r"[\d.]+", "N", found["message"])].add(operator)
        operators[operator] = _worse(operators.get(operator), found)
    return {
        "operators": dict(Counter(operators.values()).most_common()),
        "cases": {way: dict(counts) for way, counts in sorted(ways.items())},
        "not right": [f for f in outcomes if f["outcome"] in ("wrong", "error", "crash")],
        "kept": dict(sorted(kept.items())),
        "skipped": {reason: sorted(names) for reason, names in sorted(skipped.items())},
    }


def _parts(case: str) -> tuple[str, str]:
    """Operator, and dtype with way, of a case's name."""
    parts = case.split(" ")
    return parts[0], " ".join(parts[1:-1])


_RANK = ("wrong", "crash", "error", "with kept calls", "generated in full", "skipped")


def _worse(before: str | None, found: dict[str, Any]) -> str:
    now = found["outcome"]
    now = ("with kept calls" if found["kept"] else "generated in full") if now == "ok" else now
    return now if before is None else min(before, now, key=_RANK.index)


def show(made: dict[str, Any]) -> None:
    console = Console(width=140)
    table = Table("way", *OUTCOMES, "generated in full", "kernels", title="cases")
    for way, counts in made["cases"].items():
        table.add_row(way, *(str(counts.get(key, 0)) for key in (*OUTCOMES, "generated in full", "kernels")))
    total = Counter[str]()
    for counts in made["cases"].values():
        total.update(counts)
    table.add_row("all", *(str(total[key]) for key in (*OUTCOMES, "generated in full", "kernels")))
    console.print(table)
    console.print("operators:", made["operators"])
    for name, entry in made["kept"].items():
        console.print(
            f"kept {name}: {entry['cases']} cases; {entry['why']}", soft_wrap=True, highlight=False, markup=False
        )
    for found in made["not right"]:
        console.print(f"{found['outcome']} {found['case']}: {found['message'][:300]}", soft_wrap=True, markup=False)


def main(
    shard: str = "0/1",
    only: Annotated[str, typer.Option(help="A regular expression that operators' names match in full.")] = ".*",
    samples: Annotated[
        int, typer.Option(help="Samples of each operator forward and gradient; fewer of other ways.")
    ] = 4,
    limit: Annotated[float, typer.Option(help="Seconds that one operator may take.")] = 240.0,
    merge: Annotated[str, typer.Option(help="Summarize these files of outcomes instead of running.")] = "",
    out: Annotated[str, typer.Option(help="Write outcomes here; with --merge, the summary.")] = "",
    worker: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run the sweep, or one of its shards."""
    if worker:
        work(samples)
        return
    if merge:
        made = summary(merged(merge.split(",")))
        show(made)
        if out:
            Path(out).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        return
    part, parts = map(int, shard.split("/"))
    process = Worker(samples, limit)
    names = [name for name in process.operators() if re.fullmatch(only, name)][part::parts]
    outcomes = []
    for name in names:
        found = process.run(name)
        outcomes += found
        print(name, dict(Counter(o["outcome"] for o in found)), flush=True)
        for bad in found:
            if bad["outcome"] in ("wrong", "error", "crash"):
                print("   ", bad["outcome"], bad["case"], bad["message"][:400], flush=True)
        if out:
            Path(out).write_text(json.dumps(outcomes) + "\n", encoding="utf-8")
    show(summary(outcomes))


if __name__ == "__main__":
    typer.run(main)

"""Many programs over several processes: each program's outcome is a line of a file, from which a run goes on.

A worker runs program after program; one that crashes or hangs is replaced, and its program recorded as the culprit.
Workers are replaced after some programs anyway, and take their cache of compiled code with them.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from ..workers import Worker, answering

LIMIT = 150.0  # seconds that a program may take, being made smaller included
SMALLER = 60.0  # seconds of these for making it smaller
LIFE = 150  # programs of one worker
START = 120.0
STARTS = 3  # workers that do not start, one after the other, before a run ends
BAD = ("wrong", "crash", "hang", "error")


def work(device: str, small: bool, give_up: bool = False, recalled: bool = False) -> None:
    """Seeds in, one a line; JSON out: ``{"ready": true}``, then an outcome a seed.

    If `give_up`, a fault is planted in the compiler for each program. If `recalled`, each is also recalled from disk.
    """
    import torch

    from regraft.compiler.codegen.cpp import compiler

    from ..giving_up import drawn
    from ..light_code import LIGHT
    from ..triton_kernels import device_lost
    from .grammar import draw
    from .runner import check
    from .shrink import shrink

    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if recalled:  # it is not the code that is looked at
        compiler.FLAGS = LIGHT
    answers = answering()
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        made: dict[str, Any] = {"seed": int(line)}
        try:
            text, planted = draw(int(line)), drawn(int(line)) if give_up else nullcontext()
            run = partial(check, device=device, twisted=int(line) if recalled else None)
            with planted:
                verdict = run(text)
            made |= {"outcome": verdict.outcome, "counts": verdict.counts}
            if verdict.failure is not None:
                made |= {"failure": asdict(verdict.failure)}
            if verdict.outcome == "wrong" and verdict.failure is not None:
                made["source"] = text
                if small and not give_up and not device_lost(device):
                    made["source"] = shrink(text, verdict.failure.kind, run, SMALLER)
        except Exception as error:
            made |= {"outcome": "error", "failure": _failure("error", f"{type(error).__name__}: {error}")}
        lost = device_lost(device)
        if lost:
            made |= {"outcome": "crash", "failure": _failure("crash", lost)}
        answers.write(json.dumps(made) + "\n")
        if lost:
            return


def _failure(kind: str, message: str) -> dict[str, Any]:
    return {"kind": kind, "call": 0, "message": message[:1000]}


class Service:
    """Programs over several workers.

    Args:
        command: starts a worker.
        jobs: how many there are.
        deadline: by `time.monotonic`; after it no program is begun.
    """

    def __init__(self, command: Sequence[str], jobs: int, deadline: float) -> None:
        self._command, self._jobs, self._deadline = command, jobs, deadline
        self._seeds: Queue[int] = Queue()
        self._done: Queue[dict[str, Any] | None] = Queue()

    def run(self, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
        """The outcome of each program, as it comes."""
        for seed in seeds:
            self._seeds.put(seed)
        threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(self._jobs)]
        for thread in threads:
            thread.start()
        for _ in threads:
            while (found := self._done.get()) is not None:
                yield found

    def _serve(self) -> None:
        late = 0  # workers in a row that did not start in time, on a busy machine perhaps
        try:
            while not self._seeds.empty() and time.monotonic() < self._deadline and late < STARTS:
                late = 0 if self._life() else late + 1
        finally:
            self._done.put(None)

    def _life(self) -> bool:
        """What one worker does; whether it started."""
        folder = Path(tempfile.mkdtemp(prefix="regraft-fuzz-"))
        worker = Worker(self._command, folder / "worker.txt", {"REGRAFT_CACHE_DIR": str(folder / "cache")})
        try:
            worker.start()
            if worker.answer(time.monotonic() + START) is None:
                print(f"a worker did not start: {worker.end()}", file=sys.stderr, flush=True)
                return False
            for _ in range(LIFE):
                if time.monotonic() > self._deadline or not self._next(worker):
                    break
            return True
        finally:
            worker.stop()
            shutil.rmtree(folder, ignore_errors=True)

    def _next(self, worker: Worker) -> bool:
        """Run a program; whether the worker can go on."""
        try:
            seed = self._seeds.get_nowait()
        except Empty:
            return False
        worker.tell(str(seed))
        answer = worker.answer(time.monotonic() + LIMIT)
        if answer is None:
            how = worker.end()
            kind = "hang" if how.startswith("hung") else "crash"
            answer = {"seed": seed, "outcome": kind, "failure": _failure(kind, how)}
        self._done.put(answer)
        return answer["outcome"] not in ("hang", "crash")


# -- the state and its summary -----------------------------------------------------------------------------------------


def read(file: Path) -> dict[int, dict[str, Any]]:
    """The outcomes in a state file, by seed."""
    if not file.exists():
        return {}
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            made = json.loads(line)
        except ValueError:  # the half of a line, of a run that was cut off
            continue
        found[made["seed"]] = made
    return found


def signature(failure: dict[str, Any]) -> str:
    """What failures of one cause have in common."""
    words = re.sub(r"0x[0-9a-f]+|-?\d[\d.e+-]*|v\d+|\[[^]]*\]", "N", failure["message"])
    return f"{failure['kind']}: {words[:90]}"


def summary(outcomes: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Counts of outcomes, and what is not right by what it has in common."""
    counts, totals = Counter[str](), Counter[str]()
    groups: dict[str, dict[str, Any]] = {}
    for seed, made in sorted(outcomes.items()):
        counts[made["outcome"]] += 1
        totals.update(made.get("counts", {}))
        if made["outcome"] in BAD:
            group = groups.setdefault(signature(made["failure"]), {"programs": 0, "seeds": []})
            group["programs"] += 1
            group["seeds"] = [*group["seeds"], seed][:5]
            known = group.get("source")
            new = made.get("source")
            if new and (known is None or len(new) < len(known)):
                group |= {"source": new, "message": made["failure"]["message"]}
    return {
        "programs": len(outcomes),
        "outcomes": dict(counts.most_common()),
        "of them": dict(totals),
        "not right": dict(sorted(groups.items(), key=lambda item: -item[1]["programs"])),
    }

"""One run with some steps left out: in this process, or in a fork of it that may die.

limits {"rule": 3, "pass": 0}    ->    compile, run, compare    ->    a verdict, and the steps that asked
"""

from __future__ import annotations

import pickle
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import torch

from ....rewrites.coverage import Coverage
from ....rewrites.switches import Step, StepSearch, search
from ...backend import backend
from .subject import Subject, Verdict

SECONDS = 600.0
"""How long a run in a process of its own may take."""


@dataclass(frozen=True)
class Trial:
    """How a run went.

    Args:
        verdict: right or wrong.
        steps: those that asked, kind by kind, also those that were left out.
        faults: errors of the compiler's own that were contained.
    """

    verdict: Verdict
    steps: Mapping[str, list[Step]] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


class Runner(Protocol):
    """Runs a program with the first so many steps of some kinds, and all of the others."""

    def __call__(self, limits: Mapping[str, int], without: tuple[str, ...] = ()) -> Trial:
        """Run it; `without` is added to the option of that name."""
        ...

    def with_backend(self, name: str) -> Verdict:
        """Run it compiled by another backend."""
        ...


@dataclass(frozen=True)
class InProcess:
    """Runs in this process.

    Args:
        subject: the program.
        options: of the backend.
        dynamic: as for `torch.compile`.
        told: is told of each step as it asks.
    """

    subject: Subject
    options: Mapping[str, Any] = field(default_factory=dict)
    dynamic: bool | None = None
    told: Callable[[Step], None] | None = None

    def __call__(self, limits: Mapping[str, int], without: tuple[str, ...] = ()) -> Trial:
        """Run it."""
        given = self.options.get("without", ())
        options = {**self.options, "without": (*([given] if isinstance(given, str) else given), *without)}
        with search(StepSearch(dict(limits), self.told)) as found, Coverage() as coverage:
            verdict = self.subject.run(backend, options, self.dynamic)
        return Trial(verdict, found.steps, tuple(fault.message for fault in coverage.faults))

    def with_backend(self, name: str) -> Verdict:
        """Run it compiled by another backend."""
        return self.subject.run(name, None, self.dynamic)


@dataclass(frozen=True)
class Forked:
    """Runs in a fork of this process, which writes down each step before it is made.

    Args:
        subject: makes the program, in the fork.
        options: of the backend.
        dynamic: as for `torch.compile`.
        seconds: that a run may take.

    Raises:
        RuntimeError: CUDA is in use already.
    """

    subject: Callable[[], Subject]
    options: Mapping[str, Any] = field(default_factory=dict)
    dynamic: bool | None = None
    seconds: float = SECONDS

    def __post_init__(self) -> None:
        if torch.cuda.is_initialized():
            raise RuntimeError(
                "isolate=True forks this process, which CUDA does not survive: use the commands "
                "`regraft bisect TARGET` and `regraft repro TARGET`"
            )

    def __call__(self, limits: Mapping[str, int], without: tuple[str, ...] = ()) -> Trial:
        """Run it."""
        return self._forked(lambda run: run(limits, without))

    def with_backend(self, name: str) -> Verdict:
        """Run it compiled by another backend."""
        return self._forked(lambda run: Trial(run.with_backend(name))).verdict

    def _forked(self, work: Callable[[InProcess], Trial]) -> Trial:
        with tempfile.TemporaryDirectory() as folder:
            journal, result = Path(folder) / "steps", Path(folder) / "result"
            # It ends without what this process does at its end.
            child = get_context("fork").Process(target=self._child, args=(work, journal, result))
            child.start()
            died = _waited(child, self.seconds)
            trial = pickle.loads(result.read_bytes()) if result.exists() else Trial(died)
            if isinstance(trial, Exception):
                raise trial
            return trial if trial.steps else Trial(trial.verdict, _steps_in(journal))

    def _child(self, work: Callable[[InProcess], Trial], journal: Path, result: Path) -> None:
        """The work of the fork."""
        torch.set_num_threads(1)  # threads are not forked
        with journal.open("ab", buffering=0) as file:
            try:
                run = InProcess(self.subject(), self.options, self.dynamic, lambda step: pickle.dump(step, file))
                found: Any = work(run)
            except Exception as error:  # the target's or the program's own: the parent raises it
                found = error if isinstance(error, ValueError) else RuntimeError(f"{type(error).__name__}: {error}")
        aside = result.with_suffix(".part")
        aside.write_bytes(pickle.dumps(found))
        aside.rename(result)


def _waited(child: BaseProcess, seconds: float) -> Verdict:
    """The outcome of a process; it is ended where it takes too long."""
    child.join(seconds)
    if child.exitcode is None:
        child.kill()
        child.join()
        return Verdict("slow", f"it did not end within {seconds:.0f} s")
    if child.exitcode < 0:
        return Verdict("died", f"the process was ended by {signal.Signals(-child.exitcode).name}")
    return Verdict("died", f"the process ended with code {child.exitcode}")


def _steps_in(journal: Path) -> dict[str, list[Step]]:
    steps: dict[str, list[Step]] = {}
    with journal.open("rb") as file:
        while True:
            try:
                step = pickle.load(file)
            except (EOFError, pickle.UnpicklingError):  # the last may be half written
                return steps
            steps.setdefault(step.kind, []).append(step)

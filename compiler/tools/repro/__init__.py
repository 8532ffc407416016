"""`regraft.repro`: a script of its own that shows what fails in a compiled model, made small."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....rewrites.words import counted
from ..bisect import Forked, InProcess, Progress, Verdict, arguments, given_options
from .minimize import Minimizer
from .program import NotWritableError, ReproProgram, collect
from .script import write

SECONDS = 120.0


class NothingFailsError(ValueError):
    """Each graph of the model, compiled by itself, is right."""


@dataclass(frozen=True)
class Repro:
    """A script that was written.

    Attributes:
        path: of the script; tensors that it needs lie beside it, with suffix ``.pt``.
        verdict: how it fails.
        calls: how many calls it has; `before` how many the graph had that it was cut from.
        tried: how many programs were tried on the way.
    """

    path: Path
    verdict: Verdict
    calls: int
    before: int
    tried: int

    def __str__(self) -> str:
        told = counted(self.tried, "try", "tries")
        return f"{self.verdict}\nwritten: {self.path}, {self.calls} of {counted(self.before, 'call')}, {told}"


def repro(  # noqa: PLR0913 - all but the first three by keyword
    model: Callable[..., Any],
    inputs: Any,
    path: str | Path,
    *,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    train: bool = False,
    tolerance: float | None = None,
    isolate: bool = False,
    minimize: bool = True,
    seconds: float = SECONDS,
    progress: Progress = lambda _doing, _done: None,
) -> Repro:
    """Write a script that shows a fault of a compiled model without the model.

    The graphs of the model are compiled one by one, and the first that fails is cut down while it fails in the same
    way. The script has its ATen calls with the user's source lines, inputs drawn from seeds where it fails with such
    too, options and versions.

    Args:
        model: a module or function.
        inputs: as for `regraft.bisect`.
        path: of the script.
        options: as for `torch.compile(..., backend="regraft")`: those with which it fails.
        dynamic: as for `torch.compile`.
        train: forward and backward.
        tolerance: as for `regraft.bisect`.
        isolate: run in forks of this process, for what crashes; not once CUDA is in use.
        minimize: make it small.
        seconds: that making it small may take.
        progress: is told what is being done, and which part is behind.

    Raises:
        NothingFailsError: no graph fails by itself.
        RuntimeError: `isolate` where CUDA is in use already.
        NotWritableError: what fails can't be written as calls of ATen.
    """
    given = given_options(options, train)

    def verdict_of(program: ReproProgram) -> Verdict:
        subject = program.subject(train, tolerance)
        run = Forked(lambda: subject, given, dynamic) if isolate else InProcess(subject, given, dynamic)
        return run({}).verdict

    progress("running the model", 0.0)
    args, kwargs = arguments(inputs)
    program, verdict = _failing(collect(model, args, kwargs, train), verdict_of)
    before, outcome = len(program.calls), verdict.outcome
    minimizer = Minimizer(lambda one: verdict_of(one).outcome == outcome, seconds if minimize else 0.0)
    progress("making it small", 0.3)
    small = minimizer.run(program)
    verdict = verdict_of(small)
    path = Path(path)
    write(small, path, verdict, given, dynamic=dynamic, train=train, isolate=isolate)
    return Repro(path, verdict, len(small.calls), before, minimizer.tried)


def _failing(
    programs: list[ReproProgram], verdict_of: Callable[[ReproProgram], Verdict]
) -> tuple[ReproProgram, Verdict]:
    """The first program that fails, and how."""
    for program in programs:
        verdict = verdict_of(program)
        if not verdict.right:
            return program, verdict
    told = "its one graph" if len(programs) == 1 else f"each of its {len(programs)} graphs"
    raise NothingFailsError(f"nothing to show: {told} is right when compiled by itself")


__all__ = ["NotWritableError", "NothingFailsError", "Repro", "repro"]

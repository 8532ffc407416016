"""Backends held against eager on one target, in one process and by turns: the work behind `regraft bench`.

eager, then each backend in each mode: first call (cold), error against eager -> all take turns -> medians, ratios
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ....rewrites.coverage import Coverage
from ....rewrites.machine import environment
from ...autotune.benchmark import one_line
from ..errors import total_error, worst_error
from .contestants import EAGER, Contestant, Times
from .running import Step, of_its_own, seconds_of, step_of, tensors_in, undisturbed

if TYPE_CHECKING:
    from rich.console import RenderableType

SECONDS = 20.0  # for all timed calls
MIN_ROUNDS, MAX_ROUNDS = 5, 100

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Comparison(Times):
    """Times of one call.

    Attributes:
        note: what a reader of the numbers must know.
        empty_caches: whether first calls found nothing on disk.
    """

    schema = "regraft-bench"

    note: str
    empty_caches: bool = False

    def view(self) -> RenderableType:
        """The comparison for a terminal."""
        from .table import comparison_view

        return comparison_view(self, self.note, empty_caches=self.empty_caches)


def compare(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    chosen: Sequence[Contestant],
    *,
    name: str = "",
    progress: Progress = lambda doing, done: None,
    forget: Callable[[], None] | None = None,
) -> Comparison:
    """Time one call of `function` by each contestant: forward, and where gradients are on and wanted backward.

    Args:
        function: a module or function.
        args: its arguments.
        kwargs: its keyword arguments.
        chosen: eager first; see `contestants`.
        name: of the target, for the report.
        progress: told what is being done, and which part is behind.
        forget: empties caches on disk, before each one compiles; None to leave them as they are.
    """
    steps: dict[str, Step] = {}
    with undisturbed(function):
        leaves: list[torch.Tensor] = []  # what eager finds: gradients come in the same order from all
        eager = step_of(function, args, kwargs, leaves)
        expected, again = _results(eager, 0), _results(eager, 1)
        random = not _equal(expected, again)
        for number, one in enumerate(chosen):
            progress(f"{one.name}: compiling", 0.5 * number / len(chosen))
            if forget is not None:
                forget()
            step = eager if one.backend == EAGER else step_of(compiled(function, one), args, kwargs, leaves)
            if _started(one, step, None if random else expected, leaves):
                steps[one.name] = step
        timed = [one for one in chosen if one.name in steps]
        _take_turns(timed, steps, progress)
    note = "draws random numbers: values are not compared" if random else ""
    return Comparison(name, list(chosen), environment(), note, forget is not None)


def compiled(function: Callable[..., Any], one: Contestant) -> Callable[..., Any]:
    """`function` by a contestant that is not eager, with compiled code of its own."""
    backend: Any = one.backend
    if backend == "regraft":
        from ...backend import backend
    mode = None if one.mode in ("", "default") else one.mode
    options = dict(one.options) or None
    if options is not None and mode is not None:  # torch takes one of the two
        options.setdefault("mode", mode)
        mode = None
    return torch.compile(of_its_own(function), backend=backend, mode=mode, options=options, dynamic=one.dynamic)


def _started(one: Contestant, step: Step, expected: list[torch.Tensor] | None, leaves: Sequence[torch.Tensor]) -> bool:
    """Compile, compare with eager and warm up; a contestant that raises is out, and says why."""
    try:
        before = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        with Coverage() if one.options else contextlib.nullcontext() as coverage:
            one.cold_seconds = seconds_of(step)
        found = _results(step, 0)
        if expected is not None:
            one.error = _error(found, expected, len(leaves))
        del found
        one.peak_bytes = _peak(step, before)
        if coverage is not None:
            _note_options(one, coverage)
    except Exception as error:
        one.failed = one_line(error)
        return False
    return True


def _error(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], gradients: int) -> float:
    """The error as in reports: of the worst output, or of all gradients together; those are the last ones."""
    outputs = len(expected) - gradients
    of_gradients = total_error(found[outputs:], expected[outputs:]) if len(found) == len(expected) else float("inf")
    return max(worst_error(found[:outputs], expected[:outputs]), of_gradients)


def _note_options(one: Contestant, coverage: Coverage) -> None:
    for graph in coverage.graphs:
        one.values |= graph.details.get("configuration", {})
        why = (f.message for f in graph.fallbacks if f.stage in ("configuration", "cudagraphs") or f.fault)
        one.not_applied = list(dict.fromkeys([*one.not_applied, *why]))


def _peak(step: Step, before: int) -> int | None:
    """A further call to warm up, and the most memory that it had allocated."""
    if not torch.cuda.is_available():
        step()
        return None
    torch.cuda.reset_peak_memory_stats()
    seconds_of(step)
    return torch.cuda.max_memory_allocated() - before


def _results(step: Step, seed: int) -> list[torch.Tensor]:
    """Floating-point outputs and gradients of a call, copied: CUDA graphs write over theirs."""
    torch.manual_seed(seed)
    return [out.clone() for out in tensors_in(step()) if out.is_floating_point()]


def _equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.allclose(x, y, 1e-3, 1e-5, equal_nan=True) for x, y in zip(a, b, strict=True))


def _take_turns(timed: Sequence[Contestant], steps: Mapping[str, Step], progress: Progress) -> None:
    """Time all by turns, so that a machine that slows down slows all alike, in another order in each round.

    What comes right after one that fills the caches finds its own data gone: for small models that is half their time.
    """
    start = time.perf_counter()
    for turn in _rounds(start):
        progress(f"timing, round {turn + 1}", 0.5 + 0.5 * turn / MAX_ROUNDS)
        for one in random.Random(turn).sample(timed, len(timed)):
            one.samples.append(seconds_of(steps[one.name]))
    for one in timed:
        one.seconds = statistics.median(one.samples)


def _rounds(start: float) -> Iterator[int]:
    for turn in range(MAX_ROUNDS):
        if turn >= MIN_ROUNDS and time.perf_counter() - start > SECONDS:
            return
        yield turn

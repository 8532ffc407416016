"""The search: the first step, in the order of the kinds, with which a program fails.

    everything off: right   capture: right   + rules: right   + passes: wrong      the culprit is a pass
    + 0 passes: right   + 8: wrong   + 4: right   + 6: right   + 7: wrong          it is the 7th

Each kind is tried with all kinds before it on and all after it off, so that a rule is tried on ATen's own kernels, and
kernels on a program that is known to be right. Of two runs that differ by one step, one is right and the other is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ....rewrites.switches import KINDS, Step
from .finding import Cause
from .trial import Runner, Trial

Progress = Callable[[str, float], None]
_TORCH = "aot_eager"  # what torch does without a compiler behind it


def find(run: Runner, progress: Progress = lambda _doing, _done: None) -> Cause:
    """Search for the step that causes a failure.

    Args:
        run: runs the program with some steps left out.
        progress: is told what is being done, and which part is behind.
    """
    return _Hunt(run, progress).find()


class _Hunt:
    def __init__(self, run: Runner, progress: Progress) -> None:
        self._run, self._progress = run, progress
        self._known: dict[tuple[int, int | None], Trial] = {}
        self._kinds = list(KINDS)
        self._trials = 0

    def find(self) -> Cause:
        """All of the search."""
        whole = self._with(len(self._kinds))
        if whole.verdict.right:
            return Cause(whole.verdict, faults=whole.faults)
        if not self._with(0).verdict.right:
            return self._outside(whole)
        last = self._first_failing(len(self._kinds), self._with)
        kind = self._kinds[last - 1]
        total = len(self._with(last).steps.get(kind, ()))
        number = self._first_failing(total, lambda count: self._with(last - 1, count))
        failing, before = self._with(last - 1, number), self._with(last - 1, number - 1)
        culprit = failing.steps[kind][number - 1]
        workaround = self._workaround(culprit)
        return Cause(
            whole.verdict, culprit, number, total, failing.verdict, before.verdict, workaround, faults=whole.faults,
            trials=self._trials,
        )  # fmt: skip

    def _with(self, kinds: int, count: int | None = None) -> Trial:
        """The run with this many kinds on, and `count` steps of the next."""
        if (kinds, count) not in self._known:
            limits = dict.fromkeys(self._kinds[kinds:], 0)
            if count is not None:
                limits[self._kinds[kinds]] = count
            on = self._kinds[kinds - 1] if kinds else "nothing"
            doing = f"with steps up to {on}" if count is None else f"with {count} of kind {self._kinds[kinds]}"
            self._known[kinds, count] = self._do(limits, doing)
        return self._known[kinds, count]

    def _do(self, limits: Mapping[str, int], doing: str, without: tuple[str, ...] = ()) -> Trial:
        self._trials += 1
        self._progress(f"run {self._trials}: {doing}", min(0.95, self._trials / 16))
        return self._run(limits, without)

    def _first_failing(self, count: int, run: Callable[[int], Trial]) -> int:
        """The smallest number up to `count` that fails, where 0 is right and `count` fails."""
        right, wrong = 0, count
        while wrong - right > 1:
            middle = (right + wrong) // 2
            right, wrong = (middle, wrong) if run(middle).verdict.right else (right, middle)
        return wrong

    def _workaround(self, culprit: Step) -> tuple[str, ...]:
        """The name of the culprit where that can be left out, or else its kind; tried with everything else on."""
        tried = (culprit.kind,) if culprit.kind in ("capture", "fusion", "memory", "cudagraph") else (
            culprit.name, culprit.kind,
        )  # fmt: skip
        for name in tried:
            if self._do({}, f"without {name}", (name,)).verdict.right:
                return (name,)
        return ()

    def _outside(self, whole: Trial) -> Cause:
        """A failure that stays with everything off: torch's, or of what every compilation does."""
        self._trials += 1
        self._progress(f"run {self._trials}: by torch alone", 0.9)
        torchs = self._run.with_backend(_TORCH)
        where = "base" if torchs.right else "torch"
        return Cause(whole.verdict, where=where, first=torchs, faults=whole.faults, trials=self._trials)

"""The oracle that measures which of several equivalent programs is fastest on this machine with these shapes.

    question  ->  look up on disk  ->  real inputs from fake ones  ->  compare and time  ->  decision with its evidence

The key of a decision contains everything that it depends on (see `decision_key`), so that each machine measures each
shape once.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...rewrites import compat
from ...rewrites.compat import memory
from ...rewrites.machine import cpu_model
from ...rewrites.profit import Decision, Question
from ...rewrites.record import ORIGINAL, Evidence
from ..options import cache_dir
from .benchmark import TrialOutcome, one_line, run_trial
from .decision_cache import DecisionCache, decision_cache, digest, environment, gpu_model
from .inputs import TensorSpec, UnmeasurableError, describe, has_symbols, specs, synthesize

MIN_GAIN = 0.03  # smallest share of the original's time that a candidate must save
PROGRAM_SECONDS = 0.03
BUDGET_SECONDS = 10.0


@dataclass
class MeasureStats:
    """Counts of an oracle's questions and measurements.

    Args:
        measured: questions answered by measuring.
        cache_hits: questions answered from memory or disk.
        borrowed: questions answered by the nearest shape, after the budget was spent.
        failed: questions without an answer (the original stays).
        disagreements: candidates whose results differ from the original's.
        seconds: time spent on measuring, including failures.
    """

    measured: int = 0
    cache_hits: int = 0
    borrowed: int = 0
    failed: int = 0
    disagreements: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class _KnownDecision:
    """A decision with the facts needed to reuse it for another shape: `sizes` are comparable within one `family`."""

    family: tuple[Any, ...]
    sizes: tuple[int, ...]
    decision: Decision

    def distance(self, sizes: tuple[int, ...]) -> float:
        """The distance in the logarithms of sizes: twice as large is as far away as half as large."""
        return sum(abs(math.log2((a + 1) / (b + 1))) for a, b in zip(self.sizes, sizes, strict=True))


class Measured:
    """An `Oracle` for one compilation that answers questions by measuring.

    `decide` never raises and does not affect the program being compiled: it runs outside of tracing, restores random
    number generators and frees its tensors. Times are medians of interleaved runs over a few tens of milliseconds. On
    CUDA devices, events measure the time of the GPU.

    Args:
        budget_seconds: the time of all measurements together. Later questions get the decision for the nearest shape,
            or none. A running measurement ends with as few runs as possible.
        program_seconds: the time for which one program is timed, unless it needs more.
        cache: the store of decisions; None for the directory that the environment names at each question.
    """

    def __init__(
        self,
        budget_seconds: float = BUDGET_SECONDS,
        program_seconds: float = PROGRAM_SECONDS,
        cache: DecisionCache | None = None,
    ) -> None:
        self.stats = MeasureStats()
        self._budget = budget_seconds
        self._program_seconds = program_seconds
        self._cache = cache
        self._known: dict[str, _KnownDecision] = {}
        self._failures: dict[str, Decision] = {}

    def decide(self, question: Question) -> Decision:
        """The candidate that saves at least `MIN_GAIN` of the original's time, or none.

        If the original is excluded, the fastest candidate is chosen.
        """
        try:
            return compat.without_dynamo(self._decide)(question)
        except Exception as error:
            return self._failure(error, question)

    def _decide(self, question: Question) -> Decision:
        if not question.candidates:
            return Decision(None, Evidence(note="no candidate to choose from"))
        with compat.plain_eager():
            tensors = specs(question.inputs)
            key = decision_key(question)
            return self._recall(key, question, tensors) or self._find_out(key, question, tensors)

    def _recall(self, key: str, question: Question, tensors: list[TensorSpec]) -> Decision | None:
        decision = _decoded(self._store().get(key), question)
        if decision is None:
            return self._failures.get(key)
        self.stats.cache_hits += 1
        self._know(key, question, tensors, decision)
        return decision

    def _find_out(self, key: str, question: Question, tensors: list[TensorSpec]) -> Decision:
        if self.stats.seconds >= self._budget:
            return self._borrow(question, tensors)
        try:
            trial = self._measure(question)
        except Exception as error:
            # Stored for this compilation only: a later one may have more memory, or other kernels.
            self._failures[key] = decision = self._failure(error, question)
            return decision
        decision = choose(trial, question)
        self.stats.measured += 1
        self.stats.disagreements += sum("disagrees" in why for why in trial.dropped.values())
        self._know(key, question, tensors, decision)
        if not trial.out_of_memory:
            self._store().put(key, _encoded(question, decision))
        return decision

    def _measure(self, question: Question) -> TrialOutcome:
        if question.prepare is not None:
            question.prepare()
        start = time.perf_counter()
        deadline = start + self._budget - self.stats.seconds
        try:
            _refuse_capture()
            inputs = synthesize(question.inputs, question.training, question.arrange)
            original = None if question.excluded else question.original
            return run_trial(
                original, question.candidates, inputs, question.training, self._program_seconds, deadline,
                question.cold,
            )  # fmt: skip
        finally:
            self.stats.seconds += time.perf_counter() - start

    def _borrow(self, question: Question, tensors: list[TensorSpec]) -> Decision:
        """The decision for the nearest shape known for the same rule, kinds of inputs and candidates."""
        family, sizes = _family(question, tensors), _sizes(tensors)
        relatives = [known for known in self._known.values() if known.family == family]
        if not relatives:
            self.stats.failed += 1
            return _unmeasured(question, f"budget spent: {self._budget:g} s of measurements")
        nearest = min(relatives, key=lambda known: known.distance(sizes))
        self.stats.borrowed += 1
        # Times are left out, since they belong to another shape.
        note = f"budget spent: decided as for the nearest measured sizes, {list(nearest.sizes)}"
        return Decision(nearest.decision.chosen, Evidence(source="cache", note=note))

    def _know(self, key: str, question: Question, tensors: list[TensorSpec], decision: Decision) -> None:
        self._known[key] = _KnownDecision(_family(question, tensors), _sizes(tensors), decision)

    def _store(self) -> DecisionCache:
        # Looked up each time: benchmarks and tests switch the directory within one process.
        return self._cache if self._cache is not None else decision_cache(cache_dir())

    def _failure(self, error: Exception, question: Question) -> Decision:
        self.stats.failed += 1
        why = str(error) if isinstance(error, UnmeasurableError) else one_line(error)
        return _unmeasured(question, f"not measured: {why}")


def _unmeasured(question: Question, why: str) -> Decision:
    """The original, or the first candidate if the original is excluded."""
    if question.excluded and question.candidates:
        return Decision(next(iter(question.candidates)), Evidence(note=f"{question.excluded}; {why}"))
    return Decision(None, Evidence(note=why))


def choose(trial: TrialOutcome, question: Question) -> Decision:
    """The fastest candidate of a trial if it saves at least `MIN_GAIN` of the original's time; the first wins ties.

    For a trial without the original, the fastest candidate.
    """
    original = trial.times.get(ORIGINAL, math.inf)
    timed = [name for name in question.candidates if name in trial.times and not _is_coarse(trial, question, name)]
    fastest = min(timed, key=lambda name: trial.times[name], default=None)
    notes = [question.excluded] if question.excluded else []
    notes += [f"{name} {why}" for name, why in trial.dropped.items()] + trial.notes
    notes += [f"{name} is less precise" for name in question.candidates if _is_coarse(trial, question, name)]
    if has_symbols(question.inputs):
        notes.append("symbolic sizes: measured at their example values")
    if question.training and not any(spec.requires_grad for spec in specs(question.inputs)):
        notes.append("no input requires a gradient: measured forward only")
    chosen = fastest
    if fastest is not None and trial.times[fastest] > original * (1 - MIN_GAIN):
        notes.append(f"{fastest}, the fastest candidate, {_compared(trial.times[fastest], original)}")
        chosen = None
    return Decision(chosen, Evidence(trial.times, "measured", "; ".join(notes), trial.errors))


def _compared(seconds: float, original: float) -> str:
    """Why a candidate is not chosen: by how much it is slower, or how much too little it saves."""
    part = seconds / original
    if part >= 2:
        told = f"takes {part:.1f} times as long"
    else:
        told = f"is {part - 1:.1%} slower" if part > 1 else f"saves {1 - part:.1%}"
    return f"{told}; a rewrite must save at least {MIN_GAIN:.0%}"


def _is_coarse(trial: TrialOutcome, question: Question, name: str) -> bool:
    """Whether a candidate's results differ from the original's by more than the question allows."""
    return question.precision is not None and trial.errors.get(name, 0.0) > question.precision


def decision_key(question: Question) -> str:
    """The hash of everything that a decision depends on: question, metadata of inputs, machine, versions, settings.

    Raises:
        UnmeasurableError: an input has no concrete metadata.
    """
    devices = {spec.device for spec in specs(question.inputs) if spec.device.type == "cuda"}
    depends = {
        "rule": question.rule,
        "question": question.key,
        "candidates": list(question.candidates),
        "inputs": describe(question.inputs),
        "training": question.training,
        "arranged": question.arrange is not None,
        "cold": question.cold,
        "precision": question.precision,
        "alone": bool(question.excluded),
        "gpus": sorted(gpu_model(device.index) for device in devices),
        "cpu": cpu_model(),
        "threads": torch.get_num_threads(),
        "versions": [environment()["torch"], environment()["regraft"]],
        "settings": _settings(),
    }
    return digest(json.dumps(depends, sort_keys=True))


def _settings() -> list[Any]:
    """Settings of torch that select kernels."""
    cuda = torch.backends.cuda
    return [
        memory.float32_settings(),
        torch.are_deterministic_algorithms_enabled(),
        [cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()],
        [torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark],
    ]


def _refuse_capture() -> None:
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise UnmeasurableError("a CUDA graph is being captured")


def _family(question: Question, tensors: list[TensorSpec]) -> tuple[Any, ...]:
    kinds = tuple((spec.dtype, len(spec.shape), spec.device.type, spec.requires_grad) for spec in tensors)
    return (question.rule, question.training, bool(question.excluded), tuple(question.candidates), kinds)


def _sizes(tensors: list[TensorSpec]) -> tuple[int, ...]:
    return tuple(size for spec in tensors for size in spec.shape)


def _encoded(question: Question, decision: Decision) -> dict[str, Any]:
    """A decision as JSON, with enough of its question for people to read."""
    return {
        "rule": question.rule,
        "question": question.key,
        "inputs": describe(question.inputs),
        "training": question.training,
        "candidates": list(question.candidates),
        "chosen": decision.chosen,
        "evidence": {
            "times": decision.evidence.times,
            "note": decision.evidence.note,
            "errors": decision.evidence.errors,
        },
    }


def _decoded(value: Mapping[str, Any] | None, question: Question) -> Decision | None:
    """A stored decision; None if there is none or if it does not fit the question."""
    if value is None or value.get("chosen") not in (None, *question.candidates):
        return None
    evidence = value.get("evidence")
    if not isinstance(evidence, dict) or not isinstance(evidence.get("times"), dict):
        return None
    times, errors = evidence["times"], evidence.get("errors", {})  # earlier entries have no errors
    if not all(isinstance(number, (int, float)) for number in (*times.values(), *errors.values())):
        return None
    return Decision(value["chosen"], Evidence(times, "cache", str(evidence.get("note", "")), errors))

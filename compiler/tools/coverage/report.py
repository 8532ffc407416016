"""One target compiled, held against eager and timed: the work behind `regraft report`.

eager call -> first compiled call, under coverage -> same results? -> the two take turns, medians
"""

from __future__ import annotations

import json
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ....rewrites import compat
from ....rewrites.coverage import Coverage
from ....rewrites.report.entry import Entry, Outcome
from ....rewrites.report.timing import spread
from ..errors import total_error, worst_error
from ..profile.running import seconds_of
from ..targets.target import ModelWithInputs, TargetError

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""The largest relative error against eager in the same dtype that counts as right, by dtype of the model."""

_FLAGS = ("mode", "freezing", "profit", "verify", "rules", "debug")
"""Options that the command line has flags for; all others are given by its ``--config``."""

SECONDS = 20.0
MIN_ROUNDS, MAX_ROUNDS = 3, 25

Backend = Callable[..., Any]
Progress = Callable[[str, float], None]
"""Told what is being done, in words, and which part of the whole is behind (0 to 1)."""


def _silent(_doing: str, _done: float) -> None:
    pass


@dataclass(frozen=True)
class Examination:
    """How to examine a target.

    Args:
        options: for the backend, e.g. ``{"profit": "always"}``.
        dynamic: as for `torch.compile`.
        timed: time it against eager.
        backend: what compiles; by default regraft's.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    dynamic: bool | None = None
    timed: bool = True
    backend: Backend | None = None


@dataclass(frozen=True)
class CallResults:
    """The results of one call: floating-point outputs, and in training the gradients of all parameters."""

    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor]


def examine(target: ModelWithInputs, plan: Examination | None = None, progress: Progress = _silent) -> Entry:
    """Compile `target` with regraft, compare it with eager and time both.

    Raises:
        Whatever the model or the compiler raises: an error here is a finding, not to be hidden.
    """
    plan = plan or Examination()
    torch.compiler.reset()
    progress(f"{target.name}: running eager", 0.0)
    eager, reference = _step(target, target.model), _result(target, target.model)
    compiled = _compile(target, plan)
    progress(f"{target.name}: compiling", 0.1)
    dynamo, start = compat.dynamo_seconds(), time.perf_counter()
    with Coverage(name=target.name) as coverage:
        result = _result(target, compiled)
        first_call, dynamo = time.perf_counter() - start, compat.dynamo_seconds() - dynamo
        times = _timed(eager, _step(target, compiled), progress) if plan.timed else ([], [])
    if _draws_its_own(target, plan):
        result = _with_eagers_draws(target, plan)
    outcome = Outcome(
        error=worst_error(result.outputs, reference.outputs),
        tolerance=_tolerance(reference),
        compile_seconds=first_call,
        gradient_error=total_error(result.gradients, reference.gradients) if target.choices.train else None,
        eager_seconds=statistics.median(times[0]) if plan.timed else None,
        compiled_seconds=statistics.median(times[1]) if plan.timed else None,
        rounds=len(times[0]),
        eager_spread=spread(times[0]),
        compiled_spread=spread(times[1]),
        dynamo_seconds=dynamo,
    )
    return Entry(target.name, coverage.graphs, _choices(target, plan), outcome)


def _draws_its_own(target: ModelWithInputs, plan: Examination) -> bool:
    """Whether what was compiled may draw other random numbers than eager, so that values cannot be compared."""
    return target.choices.train and plan.backend is None and plan.options.get("rng") != "eager"


def _with_eagers_draws(target: ModelWithInputs, plan: Examination) -> CallResults:
    """The results of the target compiled once more, to draw eager's random numbers; nothing of that is reported."""
    exact = replace(plan, options={**plan.options, "rng": "eager"})
    torch.compiler.reset()
    return _result(target, _compile(target, exact))


def _compile(target: ModelWithInputs, plan: Examination) -> Callable[..., Any]:
    if plan.backend is None:
        from ...backend import backend
    else:
        backend = plan.backend
    return torch.compile(target.model, backend=backend, options=dict(plan.options) or None, dynamic=plan.dynamic)


def _choices(target: ModelWithInputs, plan: Examination) -> dict[str, str]:
    own = {name: _shown(value) for name, value in plan.options.items() if name in _FLAGS}
    rest = {name: value for name, value in plan.options.items() if name not in _FLAGS}
    config = {"config": shlex.quote(json.dumps(rest, default=str))} if rest else {}
    return target.choices.changed() | own | config | ({"dynamic": ""} if plan.dynamic else {})


def _shown(value: Any) -> str:
    """The value of an option as on the command line; rules by their names."""
    if value is True:
        return ""
    items = value if isinstance(value, (tuple, list)) else (value,)
    return ",".join(str(getattr(item, "name", item)) for item in items if item != "default")


def _step(target: ModelWithInputs, call: Callable[..., Any]) -> Callable[[], Any]:
    """One call with nothing kept: forward, and in training backward."""

    def infer() -> None:
        with torch.no_grad():
            call(*target.args, **target.kwargs)

    def train() -> None:
        _forget_gradients(target)
        _loss(call(*target.args, **target.kwargs)).backward()

    return train if target.choices.train else infer


def _result(target: ModelWithInputs, call: Callable[..., Any]) -> CallResults:
    torch.manual_seed(0)  # dropout draws the same numbers in both, where a rule promises eager's stream
    if not target.choices.train:
        with torch.no_grad():
            return CallResults(_copies(call(*target.args, **target.kwargs)), [])
    _forget_gradients(target)
    output = call(*target.args, **target.kwargs)
    _loss(output).backward()
    gradients = [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in _parameters(target)]
    _forget_gradients(target)
    return CallResults(_copies(output), gradients)


def _parameters(target: ModelWithInputs) -> list[torch.nn.Parameter]:
    return list(target.model.parameters()) if isinstance(target.model, torch.nn.Module) else []


def _forget_gradients(target: ModelWithInputs) -> None:
    for parameter in _parameters(target):
        parameter.grad = None


def _loss(output: Any) -> torch.Tensor:
    """A loss that every floating-point output feeds: the output itself if it is one number, else mean squares."""
    leaves = [leaf for leaf in _tensors(output) if leaf.requires_grad]
    if not leaves:
        raise TargetError("training needs an output that requires a gradient; this model has none")
    scalars = [leaf for leaf in leaves if leaf.ndim == 0]
    return scalars[0] if scalars else torch.stack([leaf.float().pow(2).mean() for leaf in leaves]).sum()


def _copies(output: Any) -> list[torch.Tensor]:
    return [leaf.detach().clone() for leaf in _tensors(output)]


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    """Floating-point tensors in nested mappings and sequences, in order."""
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from _tensors(value)


def _tolerance(result: CallResults) -> float:
    return max((TOLERANCE.get(leaf.dtype, 0.1) for leaf in result.outputs), default=0.0)


def _timed(
    eager: Callable[[], Any], compiled: Callable[[], Any], progress: Progress
) -> tuple[list[float], list[float]]:
    """Seconds of each call of both, taking turns, so that a machine that slows down slows both alike."""
    estimate = seconds_of(eager) + seconds_of(compiled)
    rounds = int(min(MAX_ROUNDS, max(MIN_ROUNDS, SECONDS / estimate)))
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        progress(f"timing, round {turn + 1} of {rounds}", 0.5 + 0.5 * turn / rounds)
        times[0].append(seconds_of(eager))
        times[1].append(seconds_of(compiled))
    return times

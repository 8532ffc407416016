"""Runs equivalent programs on the same inputs, compares their results, and times them.

Every program first runs once, to warm up and to compare its results with the original's; programs that fail or disagree
are dropped. The others then run in turns, so that changes in the machine's speed affect all of them, until each has had
its time:

    original  A  B   original  A  B   original  A  ...   ->   {"original": 1.2e-3, "A": 0.9e-3, "B": 2.0e-3}
"""

from __future__ import annotations

import contextlib
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...rewrites import compat
from ...rewrites.compat import memory
from ...rewrites.record import ORIGINAL
from .compare import ResultPart, disagreement, relative_error
from .inputs import Inputs, UnmeasurableError, made_up

MIN_RUNS = 3
MAX_RUNS = 100
HOPELESS = 3.0  # ratio to the original's fastest run from which on two runs are enough
CLEAR_RUNS, CLEAR = 5, 1.3  # number of runs after which programs that differ by this factor need no more
APART_RUNS = 9  # number of runs after which programs need no more if the middle halves of their times do not meet
_SEED = 2027

Program = Callable[..., Any]
Step = Callable[[], list[Any]]
Clock = Callable[[Step], float]
Cotangents = dict[int, dict[tuple[int, ...], torch.Tensor]]


@dataclass
class TrialOutcome:
    """The outcome of one trial.

    Args:
        times: median seconds by program; always contains ``"original"``.
        dropped: programs that were not timed to the end, and why.
        notes: further remarks on the times.
        errors: relative error of each candidate against the original, over all results, if values were compared.
        out_of_memory: whether a program ran out of memory, so that a later trial may have another outcome.
    """

    times: dict[str, float] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)
    out_of_memory: bool = False

    def drop(self, name: str, error: Exception) -> None:
        """Remove a program that raised an error from the trial."""
        self.out_of_memory |= _is_out_of_memory(error)
        self.dropped[name] = f"raised {one_line(error)}"


def _is_out_of_memory(error: Exception) -> bool:
    """Whether there was too little memory; torch's allocator for CPUs raises a plain error."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in str(error)


def run_trial(
    original: Program | None,
    candidates: Mapping[str, Program],
    inputs: Inputs,
    training: bool = False,
    seconds: float = 0.03,
    deadline: float = float("inf"),
    cold: bool = False,
) -> TrialOutcome:
    """Compare the candidates with the original and time all programs. Must run outside of every tracing mode.

    Args:
        original: the program to beat, a callable of ``inputs.values``; None to compare the others with the first
            of them that runs.
        candidates: the other programs, by name.
        inputs: the inputs of all programs.
        training: time forward and backward; otherwise the forward under ``no_grad``.
        seconds: the time for which each program is timed, unless `MIN_RUNS` runs take longer.
        deadline: the time (of ``time.perf_counter``) from which on two runs each are enough.
        cold: on a CUDA device, evict inputs from caches before each run.

    Raises:
        UnmeasurableError: the original can't be run.
    """
    trial = TrialOutcome()
    with _quiet(inputs.devices), torch.set_grad_enabled(training):
        cotangents: Cotangents | None = {} if training else None
        programs = candidates if original is None else {ORIGINAL: original, **candidates}
        steps = {name: _step(program, inputs, cotangents) for name, program in programs.items()}
        agreeing = _agreeing(steps, inputs, trial)
        trial.times = _time(agreeing, _clock(inputs.devices, cold), seconds, deadline, trial)
    if original is not None and ORIGINAL not in trial.times:
        raise UnmeasurableError(f"the original program {trial.dropped[ORIGINAL]}")
    return trial


def one_line(error: BaseException) -> str:
    """An error as one short line: its type and the first line of its message; the cause of errors that torch wraps."""
    error = getattr(error, "inner_exception", error)
    message = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {message[:200]}" if message else type(error).__name__


@contextlib.contextmanager
def _quiet(devices: Sequence[torch.device]) -> Iterator[None]:
    """Restore random number generators and the current device on exit.

    Warnings of GPU kernels are not shown.
    """
    cuda = [device.index for device in devices if device.type == "cuda"]
    current = torch.cuda.device(cuda[0]) if cuda else contextlib.nullcontext()
    with torch.random.fork_rng(devices=cuda, device_type="cuda"), current:
        if not cuda:
            yield
            return
        with warnings.catch_warnings():  # warnings of all threads
            warnings.simplefilter(
                "ignore"
            )  # kernels that cannot run raise warnings; the trial records them in `dropped`
            yield


def _step(program: Program, inputs: Inputs, cotangents: Cotangents | None) -> Step:
    """One run of a program as a callable.

    It returns the program's outputs. With `cotangents` (gradients of outputs by index, created when needed and shared
    by all programs) it also runs the backward, and returns the gradients of inputs after the outputs. Cotangents have
    the strides of their outputs, which library kernels expect.
    """
    leaves = [tensor for tensor in inputs.tensors if tensor.requires_grad]

    def forward() -> list[Any]:
        return compat.tree_leaves(program(*inputs.values))

    def forward_backward() -> list[Any]:
        outputs = forward()
        roots = [out for out in outputs if isinstance(out, torch.Tensor) and out.requires_grad]
        if not roots or cotangents is None:
            return outputs
        above = [_cotangent(cotangents, number, root) for number, root in enumerate(roots)]
        return outputs + list(torch.autograd.grad(roots, leaves, above, materialize_grads=True))

    return forward if cotangents is None or not leaves else forward_backward


def _cotangent(cotangents: Cotangents, number: int, root: torch.Tensor) -> torch.Tensor:
    """The gradient of an output, with the same numbers for any strides."""
    of_strides = cotangents.setdefault(number, {})
    strides = tuple(root.stride())
    if strides not in of_strides:
        of_strides[strides] = torch.empty_like(root, requires_grad=False).copy_(made_up(root))
    return of_strides[strides]


def _agreeing(steps: Mapping[str, Step], inputs: Inputs, trial: TrialOutcome) -> dict[str, Step]:
    """The programs that run and agree with the first one; if the original is among them, it is the first."""
    agreeing: dict[str, Step] = {}
    expected: _Result | None = None
    first = ""
    for name, step in steps.items():
        result: _Result | None = None  # its memory is freed before the next program runs
        try:
            result = _run_once(step, inputs)
            why = "" if expected is None else disagreement(result.leaves, expected.leaves, not expected.random)
        except Exception as error:
            trial.drop(name, error)
            if name == ORIGINAL:
                return {}
            inputs.refill()
            continue
        if expected is None:
            first, expected = name, result
        if why:
            trial.dropped[name] = f"disagrees with {'the original' if first == ORIGINAL else first}: {why}"
        else:
            agreeing[name] = step
            if result is not expected and not expected.random:
                trial.errors[name] = relative_error(result.leaves, expected.leaves)
    if expected is not None and expected.random:
        trial.notes.append("draws random numbers: values not compared")
    return agreeing


@dataclass(frozen=True)
class _Result:
    leaves: list[Any]
    random: bool


def _run_once(step: Step, inputs: Inputs) -> _Result:
    """Run on the first values of the inputs, with fixed seeds; notice writes and random numbers."""
    generators = _generators(inputs.devices)
    for generator in generators:
        generator.manual_seed(_SEED)
    before = [generator.get_state() for generator in generators]
    versions = inputs.versions()
    leaves = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in step()]
    random = any(not torch.equal(g.get_state(), state) for g, state in zip(generators, before, strict=True))
    if inputs.versions() != versions:
        leaves = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        inputs.refill()
    return _Result(list(map(ResultPart.of, leaves)), random)


def _generators(devices: Sequence[torch.device]) -> list[torch.Generator]:
    cuda = [torch.cuda.default_generators[device.index] for device in devices if device.type == "cuda"]
    return [torch.default_generator, *cuda]


def _time(
    steps: Mapping[str, Step], clock: Clock, seconds: float, deadline: float, trial: TrialOutcome
) -> dict[str, float]:
    """Median seconds of each program; a program that fails during timing is dropped."""
    samples: dict[str, list[float]] = {name: [] for name in steps}
    active = list(steps)
    while active:
        for name in active:
            try:
                samples[name].append(clock(steps[name]))
            except Exception as error:
                trial.drop(name, error)
                if name == ORIGINAL:
                    return {}
        late = time.perf_counter() > deadline
        active = [name for name in active if name not in trial.dropped and not _done(name, samples, seconds, late)]
    return {name: statistics.median(runs) for name, runs in samples.items() if name not in trial.dropped}


def _done(name: str, samples: Mapping[str, list[float]], seconds: float, late: bool) -> bool:
    runs = samples[name]
    if len(runs) < 2:
        return False
    original = samples.get(ORIGINAL)
    hopeless = bool(original) and min(runs) > HOPELESS * min(original or runs)
    # Long runs vary less than short ones: two of them are enough.
    enough = sum(runs) >= seconds and (len(runs) >= MIN_RUNS or min(runs) >= seconds)
    clear = len(runs) >= CLEAR_RUNS and (_is_clear(name, samples) or _is_apart(name, samples))
    return late or hopeless or enough or clear or len(runs) >= MAX_RUNS


def _is_clear(name: str, samples: Mapping[str, list[float]]) -> bool:
    """Whether a program is certainly slower than the fastest one, or faster than all others."""
    mine, others = min(samples[name]), [min(runs) for other, runs in samples.items() if runs and other != name]
    return bool(others) and (mine > CLEAR * min(others) or CLEAR * mine < min(others))


def _is_apart(name: str, samples: Mapping[str, list[float]]) -> bool:
    """Whether the middle half of a program's times lies beyond another's, or before all others'."""
    if len(samples[name]) % APART_RUNS:  # asked now and then
        return False
    halves = {one: _middle_half(runs) for one, runs in samples.items() if runs}
    low, high = halves.pop(name)
    return bool(halves) and (
        any(low > end for _, end in halves.values()) or all(high < at for at, _ in halves.values())
    )


def _middle_half(runs: list[float]) -> tuple[float, float]:
    """The start and end of the middle half of some times; of few, all of them."""
    if len(runs) < APART_RUNS:
        return min(runs), max(runs)
    low, _, high = statistics.quantiles(runs, n=4, method="inclusive")
    return low, high


def _clock(devices: Sequence[torch.device], cold: bool) -> Clock:
    cuda = any(device.type == "cuda" for device in devices)
    if cuda:
        return CudaClock(cold)
    return wall_clock if all(device.type == "cpu" for device in devices) else _synchronized_clock


def wall_clock(step: Step) -> float:
    """Seconds of a run on the CPU."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _synchronized_clock(step: Step) -> float:
    torch.accelerator.synchronize()
    start = time.perf_counter()
    step()
    torch.accelerator.synchronize()
    return time.perf_counter() - start


class CudaClock:
    """Seconds that a run occupies the GPU, measured by events on the current stream.

    The GPU first spins for as long as the CPU needs to launch the run: in a model, kernels are queued, and the cost of
    launching here (Python, autograd) is not the cost in generated code.

    Args:
        cold: evict data of earlier runs from the GPU's caches before each run, by reading other memory. Writing would
            leave dirty lines, which the caches would write back during the run.
    """

    LIMITS = (1e-4, 5e-3)  # seconds of spinning
    TRIES = 4  # most attempts if launching takes longer than spinning
    DISPLACED = 160 << 20  # bytes to read, more than the size of any cache

    def __init__(self, cold: bool = False) -> None:
        self._launch: dict[Step, float] = {}
        self._other = torch.zeros(self.DISPLACED // 4, device="cuda") if cold else None

    def __call__(self, step: Step) -> float:
        """Run `step` and wait for it; repeat with a longer spin if the GPU had to wait for the CPU."""
        low, high = self.LIMITS
        spun = min(max(1.5 * self._launch.get(step, high), low), high)
        for _ in range(self.TRIES):
            taken, launched = self._once(step, spun)
            if launched < spun or spun >= high:
                break
            spun = min(2 * launched, high)
        return taken

    def _once(self, step: Step, spun: float) -> tuple[float, float]:
        """Seconds of a run after spinning for this long, and seconds that the CPU took to launch it."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first = time.perf_counter()
        memory.cuda_spin(spun)
        if self._other is not None:
            self._other.sum()
        start.record()
        begin = time.perf_counter()
        step()
        last = time.perf_counter()
        end.record()
        end.synchronize()
        self._launch[step] = min(last - begin, self._launch.get(step, last - begin))
        return start.elapsed_time(end) * 1e-3, last - first

"""Runs programs that should mean the same on the same inputs: do they agree, and how long does each take?

First every program runs once, which warms it up and is compared with the original; those that fail or disagree are out.
Then the rest take turns, so that a machine that slows down slows all of them, until each has had its time:

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
from .compare import disagreement, relative_error
from .inputs import Inputs, UnmeasurableError, made_up

MIN_RUNS = 3
MAX_RUNS = 100
HOPELESS = 3.0  # times the original's fastest run: no further turns after the second
CLEAR_RUNS, CLEAR = 5, 1.3  # after so many runs, programs that are so many times apart need no more
_SEED = 2027

Program = Callable[..., Any]
Step = Callable[[], list[Any]]
Clock = Callable[[Step], float]
Cotangents = dict[int, dict[tuple[int, ...], torch.Tensor]]


@dataclass
class Trial:
    """The outcome of one trial.

    Args:
        times: median seconds by program; ``"original"`` is always there.
        dropped: programs that were not timed to the end, and why.
        notes: what else a reader of the times must know.
        errors: relative error of each candidate against the original, over all results, where values were compared.
        out_of_memory: a program failed for want of memory, so that a later trial may come out otherwise.
    """

    times: dict[str, float] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)
    out_of_memory: bool = False

    def drop(self, name: str, error: Exception) -> None:
        """Take a program that raised out of the trial."""
        self.out_of_memory |= isinstance(error, torch.OutOfMemoryError)
        self.dropped[name] = f"raised {one_line(error)}"


def run_trial(
    original: Program | None,
    candidates: Mapping[str, Program],
    inputs: Inputs,
    training: bool = False,
    seconds: float = 0.03,
    deadline: float = float("inf"),
    cold: bool = False,
) -> Trial:
    """Check the candidates against the original and time them all. Must run outside every tracing mode.

    Args:
        original: the program to beat, a callable of ``inputs.values``; None to compare the others with the first
            of them that runs.
        candidates: the other programs, by name.
        inputs: what they run on.
        training: time forward and backward; otherwise the forward under ``no_grad``.
        seconds: how long each program is timed, if it needs less than that for `MIN_RUNS` runs.
        deadline: when (by ``time.perf_counter``) to be content with two runs each.
        cold: on a CUDA device, have every run find its inputs in memory, none of them in caches.

    Raises:
        UnmeasurableError: the original can't be run.
    """
    trial = Trial()
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
    """An exception as one short line: its type and the first line of its message; of what torch wraps, the cause."""
    error = getattr(error, "inner_exception", error)
    message = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {message[:200]}" if message else type(error).__name__


@contextlib.contextmanager
def _quiet(devices: Sequence[torch.device]) -> Iterator[None]:
    """Leave no trace: random number generators and the current device are as before on exit.

    Warnings of GPU kernels are not shown.
    """
    cuda = [device.index for device in devices if device.type == "cuda"]
    current = torch.cuda.device(cuda[0]) if cuda else contextlib.nullcontext()
    with torch.random.fork_rng(devices=cuda, device_type="cuda"), current:
        if not cuda:
            yield
            return
        with warnings.catch_warnings():  # of all threads
            warnings.simplefilter("ignore")  # kernels that can't run say so in warnings; the trial says it in `dropped`
            yield


def _step(program: Program, inputs: Inputs, cotangents: Cotangents | None) -> Step:
    """One run of a program as a callable.

    It gives the program's outputs; with `cotangents` (the gradients from above by number of the output, made as needed
    and shared by all programs) it runs backward too and gives the gradients of the inputs after the outputs. Each comes
    in its output's strides: that is what kernels of libraries are used to.
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
    """The gradient of an output, the same numbers whatever its strides."""
    of_strides = cotangents.setdefault(number, {})
    strides = tuple(root.stride())
    if strides not in of_strides:
        of_strides[strides] = torch.empty_like(root, requires_grad=False).copy_(made_up(root))
    return of_strides[strides]


def _agreeing(steps: Mapping[str, Step], inputs: Inputs, trial: Trial) -> dict[str, Step]:
    """The programs that run and give what the first does: the original, or nothing agrees, if it is among them."""
    agreeing: dict[str, Step] = {}
    expected: _Result | None = None
    first = ""
    for name, step in steps.items():
        result: _Result | None = None  # its memory is free before the next program runs
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
    """Run on the first values of the inputs, with generators at one seed; notice writes and random numbers."""
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
    return _Result(leaves, random)


def _generators(devices: Sequence[torch.device]) -> list[torch.Generator]:
    cuda = [torch.cuda.default_generators[device.index] for device in devices if device.type == "cuda"]
    return [torch.default_generator, *cuda]


def _time(steps: Mapping[str, Step], clock: Clock, seconds: float, deadline: float, trial: Trial) -> dict[str, float]:
    """Median seconds of each program; a program that fails meanwhile is dropped."""
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
    # Long runs are steadier than short ones: two of them will do.
    enough = sum(runs) >= seconds and (len(runs) >= MIN_RUNS or min(runs) >= seconds)
    clear = len(runs) >= CLEAR_RUNS and _is_clear(name, samples)
    return late or hopeless or enough or clear or len(runs) >= MAX_RUNS


def _is_clear(name: str, samples: Mapping[str, list[float]]) -> bool:
    """Whether a program is certainly slower than the fastest one, or faster than all others."""
    mine, others = min(samples[name]), [min(runs) for other, runs in samples.items() if runs and other != name]
    return bool(others) and (mine > CLEAR * min(others) or CLEAR * mine < min(others))


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
    """Seconds that a run keeps the GPU busy, by events on the current stream.

    The GPU is first kept spinning for as long as the CPU needs to launch the run: in a model kernels queue up, and what
    launching costs here (Python, autograd) is not what it will cost in generated code.

    Args:
        cold: before each run, displace from the GPU's caches what earlier runs have left there. Other memory is read
            for that: written lines would have to leave the caches while the run is timed.
    """

    LIMITS = (1e-4, 5e-3)  # seconds of spinning
    TRIES = 4  # of a run for which the CPU took longer than that
    DISPLACED = 160 << 20  # bytes: more than any cache has

    def __init__(self, cold: bool = False) -> None:
        self._launch: dict[Step, float] = {}
        self._other = torch.zeros(self.DISPLACED // 4, device="cuda") if cold else None

    def __call__(self, step: Step) -> float:
        """Run `step` and wait for it; again, with more patience, where the GPU had to wait for the CPU to launch it."""
        low, high = self.LIMITS
        spun = min(max(1.5 * self._launch.get(step, high), low), high)
        for _ in range(self.TRIES):
            taken, launched = self._once(step, spun)
            if launched < spun or spun >= high:
                break
            spun = min(2 * launched, high)
        return taken

    def _once(self, step: Step, spun: float) -> tuple[float, float]:
        """Seconds that a run takes after so many of spinning, and that the CPU took to launch all of it."""
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

"""Runs a program by eager and compiled, call by call, and says where they differ."""

from __future__ import annotations

import contextlib
import io
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

import regraft
from regraft.compiler.options.environment import cache_dir

from ..giving_up import PLANTED
from .compare import Difference, difference
from .program import Loaded, load, widened
from .twists import Call

PERTURBED = 2  # runs of eager on inputs a little off, which say how much of a difference means nothing


@dataclass
class Seen:
    """What one call did.

    Args:
        outputs: leaves of the result; `form` its structure.
        inputs: given tensors after the call; `gradients` of inputs and parameters; `state` of a model after it.
        error: what it raised, None where it did not.
        eps: the coarsest rounding on the way, where it was looked at.
    """

    outputs: list[Any] = field(default_factory=list)
    form: Any = None
    inputs: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    state: list[Any] = field(default_factory=list)
    error: BaseException | None = None
    eps: float = 0.0


@dataclass(frozen=True)
class Failure:
    """What is wrong with a program: a kind (`values`, `strides`, `raises`, ...), in which call, and in words."""

    kind: str
    call: int
    message: str

    @property
    def place(self) -> tuple[str, int, str]:
        """Of what kind it is, and where: the result that is wrong, or the error."""
        return self.kind, self.call, self.message.split(":")[0]


@dataclass
class Verdict:
    """What became of a program: `agree`, `refused` (eager and ours raise), `unstable`, `torch` (AOTAutograd alone
    differs as well) or `wrong`; counts of what was rewritten and generated."""

    outcome: str
    failure: Failure | None = None
    counts: dict[str, int] = field(default_factory=dict)


def check(text: str, device: str = "cpu", twisted: int | None = None) -> Verdict:
    """Hold one source against eager.

    Args:
        text: the source.
        device: where it runs.
        twisted: what its calls are drawn from where it is compiled, forgotten, and recalled from disk; see `twists`.
    """
    loaded = load(text, device)
    if twisted is not None:
        loaded = loaded.twisted(twisted)
        shutil.rmtree(f"{cache_dir()}/graphs", ignore_errors=True)  # a smaller program may be one that was there
    if device != "cpu" and _reads_out_of_bounds(text):
        return Verdict("refused")
    with _quiet(loaded):
        failure, counts, outcome = _compared(loaded, "regraft")
        if failure is not None and failure.kind == "zeros" and counts["graphs"] > 1:
            return Verdict("torch", failure, counts)  # AOTAutograd's, for writes to what an earlier graph gave
        if failure is not None and not failure.kind.startswith("fallback"):
            for backend in ("aot_eager", "eager"):
                theirs, _, _ = _compared(loaded, backend)
                if theirs is not None and theirs.place == failure.place:
                    return Verdict("torch", failure, counts)
    return Verdict("wrong" if failure is not None else outcome, failure, counts)


def _reads_out_of_bounds(text: str) -> bool:
    """Whether eager refuses an index on a CPU. On a GPU it fails an assertion there, after which nothing runs."""
    loaded = load(text, "cpu")
    with _quiet(loaded):
        eager = loaded.make()
        errors = (_observed(loaded, eager, eager, call).error for call in loaded.turns[0])
        return any("out of" in str(error) for error in errors)


@contextlib.contextmanager
def _quiet(loaded: Loaded) -> Iterator[None]:
    """Nothing is printed, and Dynamo is as the program wants it."""
    capture = bool(loaded.how["capture"])
    changes = {"capture_scalar_outputs": capture, "capture_dynamic_output_shape_ops": capture}
    with (
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
        torch._dynamo.config.patch(**changes),
    ):
        warnings.simplefilter("ignore")
        yield


def _compared(loaded: Loaded, backend: str) -> tuple[Failure | None, dict[str, int], str]:
    counts: dict[str, int] = {}
    start, outcome = 0, "agree"
    for turn, calls in enumerate(loaded.turns):
        with regraft.coverage() as block:
            failure, made = _compared_calls(loaded, backend, calls, start)
        _count(counts, block, recalled=turn > 0)
        fault = _fault(block) if backend == "regraft" and failure is None else ""
        failure = Failure(f"fallback {fault.split(':')[0]}", start, fault) if fault else failure
        if failure is not None:
            return failure, counts, "wrong"
        outcome = made if outcome == "agree" else outcome
        if made in ("invalid", "unstable"):  # what follows may be anything
            break
        start += len(calls)
    return None, counts, outcome


def _count(counts: dict[str, int], block: Any, *, recalled: bool) -> None:
    found = {"graphs": len(block.graphs), "applied": len(block.applied)}
    found["kernels"] = sum(code.kernels for graph in block.graphs for code in graph.code)
    if recalled:
        found = {"recalled": sum("capture" not in graph.seconds for graph in block.graphs), "asked": found["graphs"]}
    for name, number in found.items():
        counts[name] = counts.get(name, 0) + number


def _compared_calls(loaded: Loaded, backend: str, calls: list[Call], start: int) -> tuple[Failure | None, str]:
    """What is wrong in some calls of a new instance of the program, and what became of them.

    After a call with a twist that eager refuses the others go on, with a new model.
    """
    torch._dynamo.reset()
    outcome, programs = "agree", _made(loaded, backend)
    for place, call in enumerate(calls, start):
        eager, compiled, run = programs
        theirs = _observed(loaded, eager, eager, call)
        if isinstance(theirs.error, NameError):  # what is left of a program that was made smaller too much
            return None, "invalid"
        ours = _observed(loaded, run, compiled, call)
        found = difference(ours, theirs, lambda one=call: _others(loaded, one))
        if isinstance(found, Difference) and found.kind != "unstable":
            return Failure(found.kind, place, f"{found.message}{_named(call)}"), "wrong"
        if isinstance(found, Difference) or theirs.error is not None:
            outcome = "refused" if found is None else "unstable"
            if not call.twists:
                break
            programs = _made(loaded, backend) if isinstance(compiled, torch.nn.Module) else programs
    return None, outcome


def _made(loaded: Loaded, backend: str) -> tuple[Any, Any, Any]:
    """The program for eager, the one that is compiled, and what runs it."""
    eager, compiled, how = loaded.make(), loaded.make(), loaded.how
    options = {"options": how["options"]} if backend == "regraft" else {}
    return eager, compiled, torch.compile(compiled, backend=backend, dynamic=how["dynamic"], **options)


def _named(call: Call) -> str:
    return f" [{', '.join(call.twists)}]" if call.twists else ""


def _fault(block: Any) -> str:
    """What a compilation gave up for a fault of ours."""
    for graph in block.graphs:
        for fallback in graph.fallbacks:
            if fallback.fault and PLANTED not in fallback.message:
                return f"{fallback.code}: {fallback.message}"
        for code in graph.code:
            for kept in code.kept:
                if kept.code.endswith("failed") and PLANTED not in kept.message:
                    return f"kept-failed: {kept.operator}: {kept.message}"
    return ""


def _others(loaded: Loaded, call: Call) -> Iterator[tuple[str, Seen]]:
    """The same call in double precision, and on inputs a little off; its state is that of a new model.

    Runs on inputs that are off find NaN in memory that nothing has written: what eager reads of it (after
    `resize_as_`, of `empty`) means nothing.
    """
    if not loaded.draws():
        wide = load(widened(loaded.text), loaded.module.DEVICE)
        before = torch.get_default_dtype()
        model = loaded.make()
        if isinstance(model, torch.nn.Module):
            wide_model = wide.make().double()
            wide_model.load_state_dict(model.state_dict())
        else:
            wide_model = wide.module.program
        torch.set_default_dtype(torch.float64)
        try:
            with _limits(_limits_of(loaded, call)):
                yield "double", _observed(loaded, wide_model, wide_model, call, torch.float64)
        finally:
            torch.set_default_dtype(before)
    step = 0.0  # in the last run inputs move as far as the roundings on the way
    for turn in range(1, PERTURBED + 1):
        eager = loaded.make()
        with _filled(), _Rounded(turn) as coarsest:
            seen = _observed(loaded, eager, eager, call, turn=turn, step=step)
        step = seen.eps = coarsest.eps
        yield "perturbed", seen


def _limits_of(loaded: Loaded, call: Call) -> list[torch.dtype]:
    """The dtypes of which a program asks what their limits are, call by call."""
    asked: list[torch.dtype] = []
    if "finfo" in loaded.text:
        plain, eager = torch.finfo, loaded.make()
        with mock.patch.object(torch, "finfo", lambda dtype: (asked.append(dtype), plain(dtype))[1]):
            _observed(loaded, eager, eager, call)
    return asked


@contextlib.contextmanager
def _limits(dtypes: list[torch.dtype]) -> Iterator[None]:
    """In double precision, masks are filled with the numbers that the program itself fills them with."""
    plain, left = torch.finfo, iter(dtypes)
    with mock.patch.object(torch, "finfo", lambda dtype: plain(next(left, dtype))):
        yield


# Functions of which libraries give one of two neighbours.
_FUNCTIONS = (
    "pow exp exp2 expm1 log log1p log2 log10 sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh "
    "erf erfc lgamma sigmoid rsqrt"
)


class _Rounded(TorchDispatchMode):
    """The coarsest rounding of any value that is computed; functions are rounded to their results' neighbours."""

    eps = 0.0

    def __init__(self, turn: int) -> None:
        super().__init__()
        self._turn = turn

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
                self.eps = max(self.eps, torch.finfo(value.dtype).eps)
        name = func.__name__.split(".")[0]
        wide = isinstance(result, torch.Tensor) and result.dtype in (torch.float32, torch.float64)
        return _neighbours(result, self._turn) if wide and name in _FUNCTIONS.split() else result


def _neighbours(x: torch.Tensor, turn: int) -> torch.Tensor:
    """Numbers one unit off in the last place, every other one upwards; whole numbers are exact."""
    up = (torch.arange(x.numel(), device=x.device) + turn).reshape(x.shape) % 2 == 0
    moved = torch.where(up, x.nextafter(x + x.abs() + 1), x.nextafter(x - x.abs() - 1))
    return torch.where((x == x.round()) | ~x.isfinite(), x, moved)


@contextlib.contextmanager
def _filled() -> Iterator[None]:
    """New memory holds NaN, or the largest integer: torch fills it among deterministic algorithms."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _observed(
    loaded: Loaded,
    program: Any,
    model: Any,
    call: Call,
    dtype: torch.dtype | None = None,
    turn: int = 0,
    step: float = 0.0,
) -> Seen:
    how, seen = loaded.how, Seen()
    given = _narrowed if dtype is None else _doubled
    before = torch.get_default_dtype()
    try:
        inputs = call.inputs(given(loaded, call.number))
    except Exception as error:  # for some sizes there are no such inputs
        seen.error = error
        return seen
    finally:
        torch.set_default_dtype(before)
    inputs = placed(inputs, loaded.module.DEVICE, dtype, turn, step, views=bool(how["views"]))
    if isinstance(model, torch.nn.Module):
        model.zero_grad(set_to_none=True)
    torch.manual_seed(99)
    with call.around(model):
        return _run(loaded, program, model, call, inputs, dtype)


def _run(loaded: Loaded, program: Any, model: Any, call: Call, inputs: list[Any], dtype: torch.dtype | None) -> Seen:
    how, seen = loaded.how, Seen()
    try:
        with _mode(how | {"mode": call.mode(how["mode"])}, loaded.module.DEVICE, dtype):
            result = program(*inputs)
        seen.outputs, seen.form = tree_flatten(result)
        if how["grad"]:
            _backward(seen.outputs)
    except Exception as error:
        seen.error = error
        return seen
    seen.inputs = [x for x in inputs if isinstance(x, torch.Tensor)]
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen.gradients = [
            x.grad for x in (*seen.inputs, *parameters) if x.requires_grad and (x.is_leaf or x.retains_grad)
        ]
    seen.state = [x.clone() for x in model.buffers()] if isinstance(model, torch.nn.Module) else []
    return seen


def _narrowed(loaded: Loaded, number: int) -> list[Any]:
    return loaded.module.given(number)


def _doubled(loaded: Loaded, number: int) -> list[Any]:
    """Inputs as they are made by default; they are widened later."""
    torch.set_default_dtype(torch.float32)
    return loaded.module.given(number)


@contextlib.contextmanager
def _mode(how: dict[str, Any], device: str, dtype: torch.dtype | None) -> Iterator[None]:
    modes = {"no_grad": torch.no_grad, "inference": torch.inference_mode}
    with contextlib.ExitStack() as stack:
        if how["mode"]:
            stack.enter_context(modes[how["mode"]]())
        if how["autocast"] and dtype is None:
            stack.enter_context(torch.autocast(device, dtype=getattr(torch, how["autocast"])))
        yield


def _backward(outputs: list[Any]) -> None:
    """The backward of a combination of all outputs, by numbers that every dtype holds exactly."""
    roots = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
    if roots:
        whole = [torch.linspace(0.5, 1.5, x.numel(), device=x.device).to(torch.bfloat16) for x in roots]
        seeds = [seed.reshape(x.shape).to(x.dtype) for seed, x in zip(whole, roots, strict=True)]
        torch.autograd.backward(roots, seeds)


def placed(
    inputs: list[Any],
    device: str,
    dtype: torch.dtype | None = None,
    turn: int = 0,
    step: float = 0.0,
    views: bool = False,
) -> list[Any]:
    """Inputs elsewhere: their strides, what they share, and what wants a gradient are kept.

    Args:
        inputs: tensors and numbers.
        device: where they go.
        dtype: of those that are floating-point; None leaves it.
        turn: not 0: values are a little off, differently for each number.
        step: how far they are at least, for each unit.
        views: whether they become views of flat memory on CPUs, too, one tensor given twice two of them.
    """
    if device == "cpu" and dtype is None and not turn and not views:
        return inputs
    memories: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    made = []
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            made.append(value)
            continue
        key = (value.untyped_storage()._cdata, value.dtype)
        if key not in memories:
            count = value.untyped_storage().nbytes() // value.itemsize
            whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage(), 0, (count,), (1,))
            memories[key] = _changed(whole.clone(), dtype, turn, step).to(device)
        with torch.no_grad():
            view = memories[key].as_strided(value.shape, value.stride(), value.storage_offset())
        made.append(view.requires_grad_(value.requires_grad))
    return made


def _changed(memory: torch.Tensor, dtype: torch.dtype | None, turn: int, step: float) -> torch.Tensor:
    if memory.is_complex():
        changed = _changed(torch.view_as_real(memory), dtype, turn, step)
        return torch.view_as_complex(changed.contiguous())
    if not memory.is_floating_point():
        return memory
    if turn:
        generator = torch.Generator().manual_seed(turn)
        moved = 2 * torch.rand(memory.shape, generator=generator, dtype=torch.float64) - 1
        eps = max(torch.finfo(memory.dtype).eps, 1e-15, step)
        memory = (memory.double() * (1 + 2 * eps * moved)).to(memory.dtype)
    return memory if dtype is None else memory.to(dtype)

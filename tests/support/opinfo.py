"""torch's own database of operators and samples, held against eager through AOTAutograd and generated kernels.

    Case (operator, dtype, how, sample)   ->   first pass: AOTAutograd's graphs as they are
                                          ->   kernels of all cases built together
                                          ->   second pass: generated code       ->   Outcome

What the first pass already has differently from eager is tracing's doing, and skipped as such.

On a GPU samples, eager and kernels are all there, and graphs get their kernels one by one. What breaks the device ends
the check: nothing runs in that process any more. "interpreter" is no device: a GPU's kernels, run by Triton's
interpreter on samples of the CPU.
"""

from __future__ import annotations

import copy
import re
import sys
import types
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import aot_function, default_partition, make_boxed_func
from torch import fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from regraft.compiler.autograd.seed_dropout import seed_calls
from regraft.compiler.codegen import cpp
from regraft.compiler.codegen.assemble import assemble
from regraft.compiler.codegen.generate import NotGeneratedError, generate_kernels
from regraft.compiler.codegen.wrapper.wrapper import generate
from regraft.compiler.ir.kernel import Kernel
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import CPU, GPU, Target, check_schedule, overwrites, schedule
from regraft.rewrites.record import KeptCall

from .triton_kernels import device_lost, interpreted, unsupported

Tensors = list[torch.Tensor]
try:
    import expecttest  # noqa: F401
except ModuleNotFoundError:  # what torch's test classes derive from; nothing here is one of them
    sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)  # type: ignore[assignment]
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.opinfo import core  # noqa: E402
from torch.testing._internal.opinfo.core import OpInfo, SampleInput  # noqa: E402

core.extract_test_fn = lambda: None  # a walk up the stack for each sample, for torch's own test classes

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
CUDA_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool)
ROUNDED = (torch.float32, torch.bfloat16, torch.float16)
UNINITIALIZED = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted")
# Results that differ by more than rounding between two right answers, so that only metadata is compared.
UNLIKE = {**dict.fromkeys(UNINITIALIZED, "memory as it is"), "svd_lowrank": "random", "pca_lowrank": "random"}
# Ways to run a sample; "philox" draws random numbers in kernels, all others from eager's stream.
HOWS = (
    "plain", "strided", "dynamic", "dynamic strided", "gradient", "strided gradient", "dynamic gradient",
    "in place", "dynamic in place", "philox",
)  # fmt: skip
ONCE = ("strided gradient", "in place", "dynamic in place", "philox")  # ways that take one sample
OTHERS = ("plain", "strided", "dynamic")  # of dtypes other than float32
# A GPU's kernels are compiled one by one: what a sweep of minutes can afford.
CUDA_HOWS = ("plain", "strided", "dynamic", "gradient", "dynamic gradient", "in place", "philox")
CUDA_OTHERS = ("plain", "strided", "dynamic")


@dataclass
class Case:
    """One sample of one operator, in one dtype and one way."""

    op: OpInfo
    dtype: torch.dtype
    how: str
    number: int
    sample: SampleInput
    device: str = "cpu"

    @property
    def name(self) -> str:
        return f"{op_name(self.op)} {str(self.dtype).removeprefix('torch.')} {self.how} {self.number}"


@dataclass
class Outcome:
    """What became of a case: `ok`, `wrong`, `error` (of ours) or `skipped`; the calls kept, by operator and code."""

    case: str
    outcome: str
    message: str = ""
    kept: list[tuple[str, str, str]] = field(default_factory=list)
    kernels: int = 0


class Skipped(Exception):
    """Nothing to hold against eager; says why. Empty: not even a case."""


def op_name(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def operators() -> dict[str, OpInfo]:
    """The database, by name."""
    return {op_name(op): op for op in op_db}


def cases(
    op: OpInfo,
    samples: int,
    dtypes: Sequence[torch.dtype] = DTYPES,
    hows: Sequence[str] = HOWS,
    others: Sequence[str] = OTHERS,
    device: str = "cpu",
) -> Iterator[Case]:
    """Cases of one operator: `samples` of each way in float32, half as many, and only `others`, in other dtypes."""
    for dtype in dtypes:
        if dtype not in op.supported_dtypes(_place(device)):
            continue
        first = dtype == torch.float32
        drawn: dict[bool, list[SampleInput]] = {}
        for how in hows if first else [how for how in hows if how in others]:
            gradient = "gradient" in how
            if (gradient and not op.supports_autograd) or ("in place" in how and op.inplace_variant is None):
                continue
            if gradient not in drawn:
                drawn[gradient] = list(_samples(op, dtype, gradient, device))
            many = samples if first and how in ("plain", "gradient") else max(1, samples // 2)
            many = 1 if how in ONCE else many
            # Where few are taken, every way and dtype has others.
            shift = 0.0 if device == "cpu" else 0.37 * (dtypes.index(dtype) + hows.index(how)) % 1
            for number, sample in _some(drawn[gradient], many, shift):
                yield Case(op, dtype, how, number, sample, device)


def _samples(op: OpInfo, dtype: torch.dtype, gradient: bool, device: str) -> Iterator[SampleInput]:
    torch.manual_seed(0)
    return op.sample_inputs(_place(device), dtype, requires_grad=gradient)


def _place(device: str) -> str:
    """The devices of tensors."""
    return "cuda" if device == "cuda" else "cpu"


def _some(samples: list[SampleInput], count: int, shift: float = 0.0) -> list[tuple[int, SampleInput]]:
    """So many, spread evenly, the first after a part of a step."""
    step = max(1.0, len(samples) / count)
    places = dict.fromkeys(int((k + shift) * step) for k in range(count))
    return [(k, samples[k]) for k in places if k < len(samples)]


# -- functions of tensors ----------------------------------------------------------------------------------------------


@dataclass
class Function:
    """A case as a function of tensors that gives tensors; `inputs` has fresh ones."""

    case: Case
    leaves: list[Any]
    spec: Any
    places: list[int]

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            given[place] = tensor
        value, args, kwargs = tree_unflatten(given, self.spec)
        op = self.case.op.inplace_variant if "in place" in self.case.how else self.case.op.op
        result = op(value, *args, **kwargs)
        return tuple(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))

    def inputs(self, dtype: torch.dtype | None = None) -> Tensors:
        tensors = [self.leaves[place] for place in self.places]
        with torch.no_grad():
            made = [_copied(t, dtype) for t in tensors]
        gradient = "gradient" in self.case.how
        return [m.requires_grad_(gradient and t.requires_grad) for m, t in zip(made, tensors, strict=True)]


def _copied(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    made = copy.deepcopy(tensor.detach())
    return made.to(dtype) if dtype is not None and made.dtype in ROUNDED else made


def function_of(case: Case) -> Function:
    sample = case.sample.noncontiguous() if "strided" in case.how else case.sample
    leaves, spec = tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    return Function(case, leaves, spec, places)


def results(function: Callable[..., Any], inputs: Tensors, gradient: bool) -> list[torch.Tensor | None]:
    """Outputs, inputs after the call, and gradients where asked for."""
    torch.manual_seed(7)
    if not gradient:
        with torch.no_grad():
            outputs = list(function(*inputs))
        return [*outputs, *inputs]
    outputs = list(function(*inputs))
    wanted = [t for t in inputs if t.requires_grad]
    roots = [t for t in outputs if t.requires_grad]
    if not roots or not wanted:
        raise Skipped("nothing to differentiate")
    seeds = [torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape).to(t.device, t.dtype) for t in roots]
    return [*(t.detach() for t in outputs), *torch.autograd.grad(roots, wanted, seeds, allow_unused=True)]


# -- two passes --------------------------------------------------------------------------------------------------------


@dataclass
class _Graph:
    """One graph of AOTAutograd: run as it is until its kernels are there."""

    module: fx.GraphModule
    run: Any = None
    kept: Sequence[Any] = ()
    written: Mapping[str, str] = field(default_factory=dict)
    plan: Any = None
    kernels: int = 0
    error: str = ""

    def plan_kernels(self, target: Target = CPU, keep: Mapping[str, str] | None = None) -> list[Any]:
        try:
            made = lower(self.module, keep=keep or {})
            self.kept, self.written = made.kept, made.written
            self.plan = schedule(made.program, target=target)
            self.kernels = len(self.plan.kernels)
            findings = check_schedule(made.program, self.plan)
            self.error = f"schedule: {findings[0]}" if findings else ""
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        return [] if self.error else list(self.plan.kernels)

    def adopt(self, compiled: dict[str, Any]) -> None:
        if self.error:
            return
        try:
            graph = assemble(self.module.graph, self.plan, compiled, overwrites, self.written)
            self.run = generate(fx.GraphModule(self.module, graph), name="sample").call
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def interpret(self) -> None:
        """Have a GPU's kernels interpreted: those that have no Triton stay calls."""
        refused: dict[str, str] = {}
        while True:
            kernels = self.plan_kernels(GPU, refused)
            more = {node: why for k in kernels if (why := unsupported(k)) for node in k.nodes}
            if not more.keys() - refused.keys():
                return self.adopt({kernel.name: interpreted(kernel) for kernel in kernels})
            refused |= more

    def generate(self) -> None:
        """Have the compiler make what it makes for a GPU: what it refuses stays calls."""
        try:
            made = generate_kernels(self.module, "inference", verify=True)
            self.kept, self.kernels = made.code.kept, sum(_on_gpu(kernel) for kernel in made.schedule.kernels)
            self.run = generate(fx.GraphModule(self.module, made.graph), name="sample").call
        except NotGeneratedError as refusal:
            self.kept = [KeptCall("the graph", 1, refusal.reason.code, refusal.reason.message)]
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def __call__(self, args: list[Any]) -> Any:
        return self.module(*args) if self.run is None else self.run(args)


def _on_gpu(kernel: Kernel) -> bool:
    return any(param.buffer.device.type == "cuda" for param in kernel.params)


class _Compiled:
    """A function through AOTAutograd."""

    def __init__(self, function: Function) -> None:
        self.graphs: list[_Graph] = []
        self._philox = function.case.how == "philox"
        self.seeded = 0
        self.call = aot_function(
            function, self._compile, self._compile, partition_fn=default_partition, decompositions={},
            dynamic="dynamic" in function.case.how,
        )  # fmt: skip

    def _compile(self, module: fx.GraphModule, inputs: Any) -> Any:
        graph = _Graph(module)
        if self._philox:
            self.seeded += seed_calls(module).total()
            module.recompile()
        self.graphs.append(graph)
        return make_boxed_func(lambda *args: graph(list(args)))


@dataclass
class _Checked:
    """A case between the passes."""

    case: Case
    function: Function
    eager: list[torch.Tensor | None]
    traced: list[torch.Tensor | None]
    compiled: _Compiled


def check(all_cases: Sequence[Case], note: Callable[[str], None] = lambda case: None) -> list[Outcome]:
    """Hold cases against eager; `note` is told the case at hand, for the process may crash.

    Where one breaks the device, it is the last (see `device_lost`).
    """
    outcomes: list[Outcome] = []
    ready: list[_Checked] = []
    for case in all_cases:
        note(case.name)
        try:
            ready.append(_first_pass(case))
        except Skipped as reason:
            if str(reason):
                outcomes.append(Outcome(case.name, "skipped", str(reason)))
        if lost := device_lost(case.device):
            return [*outcomes, Outcome(case.name, "skipped", f"eager breaks the device: {lost}")]
    note("building the kernels")
    _build([graph for item in ready for graph in item.compiled.graphs], all_cases[0].device if all_cases else "cpu")
    for item in ready:
        note(item.case.name)
        outcomes.append(_second_pass(item))
        if lost := device_lost(item.case.device):
            outcomes[-1].outcome, outcomes[-1].message = "crash", lost
            return outcomes
    return outcomes


def _first_pass(case: Case) -> _Checked:
    gradient = "gradient" in case.how
    try:
        function = function_of(case)
        eager = results(function, function.inputs(), gradient)
    except Exception as error:
        if isinstance(error, Skipped):
            raise
        raise Skipped(f"eager raises {type(error).__name__}") from error
    if not eager or not all(t is None or t.layout == torch.strided for t in eager):
        raise Skipped("no dense tensors come out")
    compiled = _Compiled(function)
    try:
        traced = results(compiled.call, function.inputs(), gradient)
    except Exception as error:
        raise Skipped(f"AOTAutograd raises {type(error).__name__}: {str(error)[:80]}") from error
    if case.how == "philox" and not compiled.seeded:
        raise Skipped("")
    return _Checked(case, function, eager, traced, compiled)


def _build(graphs: Sequence[_Graph], device: str) -> None:
    if device != "cpu":
        for graph in graphs:
            graph.generate() if device == "cuda" else graph.interpret()
        return
    planned = [(graph, graph.plan_kernels()) for graph in graphs]
    try:
        functions = iter(cpp.build([kernel for _, kernels in planned for kernel in kernels]))
        found = [{kernel.name: next(functions) for kernel in kernels} for _, kernels in planned]
    except Exception:
        found = [_built_alone(graph, kernels) for graph, kernels in planned]
    for (graph, _), compiled in zip(planned, found, strict=True):
        graph.adopt(compiled)


def _built_alone(graph: _Graph, kernels: list[Any]) -> dict[str, Any]:
    try:
        return {k.name: function for k, function in zip(kernels, cpp.build(kernels), strict=True)}
    except Exception as error:
        graph.error = f"{type(error).__name__}: {str(error)[:1500]}"
        return {}


def _second_pass(item: _Checked) -> Outcome:
    graphs = item.compiled.graphs
    kept = sorted({(k.operator, k.code, k.message) for g in graphs for k in g.kept})
    kernels = sum(g.kernels for g in graphs)
    made = Outcome(item.case.name, "ok", kept=kept, kernels=kernels)
    errors = [g.error for g in graphs if g.error] + [m for _, code, m in kept if code == "failed"]
    if errors:
        made.outcome, made.message = "error", errors[0]
        return made
    try:
        ours = results(item.compiled.call, item.function.inputs(), "gradient" in item.case.how)
    except Exception as error:
        made.outcome, made.message = "error", _told(error)
        return made
    message = _difference(item, ours)
    if message is not None:
        made.outcome, made.message = ("skipped" if message.startswith("AOTAutograd") else "wrong"), message
    return made


def _told(error: Exception) -> str:
    """An error in words: of one with another process's traceback, that one's."""
    told = re.findall(r"^\w[\w.]*(?:Error|Exception)\b.*", str(error), re.MULTILINE)
    return told[-1] if "Traceback" in str(error) and told else f"{type(error).__name__}: {error}"


# -- agreement ---------------------------------------------------------------------------------------------------------


def _difference(item: _Checked, ours: list[torch.Tensor | None]) -> str | None:
    """What is wrong with a result."""
    if len(ours) != len(item.traced):
        return f"{len(ours)} results instead of {len(item.traced)}"
    for k, (mine, traced, eager) in enumerate(zip(ours, item.traced, item.eager, strict=True)):
        message = _metadata(mine, traced, item.compiled.graphs) or _values(item, k, mine, traced, eager)
        if message is not None:
            return message if message.startswith("AOTAutograd") else f"result {k}: {message}"
    return None


def _metadata(mine: torch.Tensor | None, traced: torch.Tensor | None, graphs: Sequence[_Graph]) -> str | None:
    if mine is None or traced is None:
        return None if mine is traced else "a gradient is missing, or should be"
    if (mine.dtype, mine.shape) != (traced.dtype, traced.shape):
        return f"{mine.dtype}{list(mine.shape)} instead of {traced.dtype}{list(traced.shape)}"
    if mine.numel() < 2 or _strides(mine) == _strides(traced):
        return None
    if mine.stride() in {strides for graph in graphs for strides in _promised(graph.module)}:
        return None  # torch's metadata of the operator says so, and what follows was traced with it
    return f"strides {mine.stride()} instead of {traced.stride()} of {list(mine.shape)}"


def _promised(module: fx.GraphModule) -> Iterator[tuple[int, ...]]:
    """The strides of a graph's results by their metadata."""
    for node in next(n for n in module.graph.nodes if n.op == "output").all_input_nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            yield tuple(s if isinstance(s, int) else s.node.hint for s in value.stride())


def _strides(tensor: torch.Tensor) -> list[int]:
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _values(item: _Checked, k: int, mine: Any, traced: Any, eager: Any) -> str | None:
    if mine is None or item.case.op.name in UNLIKE:
        return None
    if item.case.how == "philox":
        return _like(mine, eager)
    message = _apart(mine, eager)
    if message is None:
        return None
    if eager is None or eager.shape != traced.shape or _apart(traced, eager) is not None:
        message = _apart(mine, traced)
        return None if message is None else "AOTAutograd's own graph differs from eager"
    return None if _as_good(item, k, mine, eager) else message


def _apart(mine: torch.Tensor, eager: torch.Tensor) -> str | None:
    loose = {"rtol": 3e-2, "atol": 3e-2} if eager.dtype in (torch.bfloat16, torch.float16) else {}
    if eager.dtype in (torch.float32, torch.complex64):
        loose = {"rtol": 1e-4, "atol": 1e-5}
    try:
        torch.testing.assert_close(mine, eager, equal_nan=True, **loose)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return None


def _as_good(item: _Checked, k: int, mine: torch.Tensor, eager: torch.Tensor) -> bool:
    """Whether a result is as near to float64's as eager's is."""
    try:
        best = results(item.function, item.function.inputs(torch.float64), "gradient" in item.case.how)[k]
    except Exception:
        return False
    if best is None or best.shape != mine.shape or not best.dtype.is_floating_point:
        return False
    overflown = best.isfinite() & ~eager.isfinite()  # in eager's narrow steps; what is near the truth is better
    narrow = mine.dtype in (torch.bfloat16, torch.float16)
    if narrow and mine[overflown].double().isclose(best[overflown], 3e-2, 3e-2).all():
        eager = torch.where(overflown, mine, eager)
    here = best.isfinite() & eager.isfinite()
    same = eager.isclose(best.to(eager.dtype), 0.0, 0.0, equal_nan=True) & ~here  # NaN or infinite, and rightly so
    if not torch.equal(mine.isfinite() & here, here) or not here.any():
        return False
    if not mine[same].isclose(eager[same], 0.0, 0.0, equal_nan=True).all():
        return False
    apart, theirs = ((t.double() - best)[here].abs() for t in (mine, eager))
    return bool((apart.amax() <= 2 * theirs.amax() + torch.finfo(mine.dtype).eps * best[here].abs().amax()).item())


def _like(mine: torch.Tensor, eager: torch.Tensor) -> str | None:
    """Numbers drawn anew: alike in range, and in mean where there are many."""
    if not mine.dtype.is_floating_point or mine.numel() < 100:
        return None
    if bool(mine.isnan().any()) != bool(eager.isnan().any()):
        return "NaN where eager draws numbers"
    spread = eager.double().std().item()
    apart = abs(mine.double().median().item() - eager.double().median().item())
    return None if apart <= spread else f"median off by {apart:.3g}, spread {spread:.3g}"

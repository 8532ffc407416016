"""Samples of torch's operator database in other memory layouts: results and gradients have eager's strides.

    sample, laid out anew   ->   eager                                  ->  strides
                            ->   capture, AOTAutograd (no kernels)      ->  strides that its graphs promise

What the graphs promise is what generated kernels write. Strides of dims of size 1 say nothing, and are not compared.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map

from regraft.compiler.autograd.differentiate import differentiate
from regraft.compiler.capture import capture
from regraft.compiler.runtime.calls import as_calls
from regraft.rewrites.compat import new_fake_mode
from regraft.rewrites.symbolic import hint

from .layouts import LAYOUTS, laid_out
from .opinfo import Case, Outcome, _samples

WAY = "layouts"


def layout_cases(op: OpInfo, samples: int = 2, layouts: Sequence[str] = LAYOUTS) -> Iterator[Case]:
    """Samples of one operator in every layout that makes a difference: one of the highest rank, and the first."""
    dtype = next((d for d in (torch.float32, torch.int64, torch.bool) if d in op.supported_dtypes("cpu")), None)
    if dtype is None:
        return
    gradient = op.supports_autograd and dtype == torch.float32
    drawn = list(_samples(op, dtype, gradient, "cpu"))
    for number, sample in enumerate([*sorted(drawn, key=_rank, reverse=True)[: samples - 1], *drawn[:1]]):
        seen = [_strides(sample)]
        for layout in layouts:
            laid = _laid_out(sample, layout)
            if _strides(laid) not in seen:
                seen.append(_strides(laid))
                yield Case(op, dtype, WAY, number, laid)


def _tensors(sample: SampleInput) -> list[torch.Tensor]:
    leaves = tree_leaves((sample.input, tuple(sample.args), dict(sample.kwargs)))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _rank(sample: SampleInput) -> int:
    return max((t.dim() for t in _tensors(sample) if t.numel()), default=0)


def _strides(sample: SampleInput) -> list[Any]:
    return [t.stride() if t.layout == torch.strided else None for t in _tensors(sample)]


def _laid_out(sample: SampleInput, layout: str) -> SampleInput:
    count = iter(range(1000))

    def lay(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return laid_out(value, layout, next(count)).requires_grad_(value.requires_grad)

    value, args, kwargs = tree_map(lay, (sample.input, tuple(sample.args), dict(sample.kwargs)))
    return SampleInput(value, args=args, kwargs=kwargs)


def check_layouts(cases: Sequence[Case], note: Callable[[str], None] = lambda case: None) -> list[Outcome]:
    """Hold them against eager; `note` is told the case at hand, for the process may crash."""
    outcomes = []
    for case in cases:
        note(case.name)
        outcomes.append(_checked(case))
    return outcomes


def _checked(case: Case) -> Outcome:
    inputs = _tensors(case.sample)
    try:
        outputs = case.op.op(case.sample.input, *case.sample.args, **case.sample.kwargs)
        places = [k for k, x in enumerate(_several(outputs)) if isinstance(x, torch.Tensor)]
        eager = _layouts([_several(outputs)[k] for k in places], inputs)
    except Exception as error:
        return Outcome(case.name, "skipped", f"eager raises {type(error).__name__}")
    try:
        compiled = _traced(case, inputs, None if isinstance(outputs, torch.Tensor) else places)
        ours = _layouts(compiled(*inputs), inputs)
    except Exception as error:
        return Outcome(case.name, "skipped", f"AOTAutograd raises {type(error).__name__}: {str(error)[:80]}")
    for k, (mine, theirs) in enumerate(zip(ours, eager, strict=True)):
        if mine != theirs:
            given = [(list(t.shape), t.stride()) for t in inputs]
            return Outcome(case.name, "wrong", f"result {k}: strides {mine} instead of {theirs}, of {given}")
    return Outcome(case.name, "ok")


def _several(outputs: Any) -> Sequence[Any]:
    return outputs if isinstance(outputs, (tuple, list)) else [outputs]


def _layouts(outputs: Sequence[Any], inputs: Sequence[torch.Tensor]) -> list[Any]:
    """Strides of outputs and of gradients, of dims of more than one element; gradients come in as outputs lie."""
    roots, wanted = ([t for t in tensors if t.requires_grad] for tensors in (outputs, inputs))
    found = list(outputs)
    if roots and wanted:
        seeds = [torch.ones_like(root.detach()) for root in roots]
        found += torch.autograd.grad(roots, wanted, seeds, allow_unused=True)
    return [
        [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1]
        for t in found
        if t is not None and t.layout == torch.strided and t.numel() > 1
    ]


def _traced(case: Case, inputs: Sequence[torch.Tensor], places: Sequence[int] | None) -> Callable[..., Any]:
    """The call through capture and AOTAutograd, its results laid out as the graphs promise."""
    graph, sample = fx.Graph(), case.sample
    nodes = iter([graph.placeholder(f"x{k}") for k in range(len(inputs))])
    arguments = (sample.input, tuple(sample.args), dict(sample.kwargs))
    value, args, kwargs = tree_map(lambda x: next(nodes) if isinstance(x, torch.Tensor) else x, arguments)
    call = graph.call_function(case.op.op, (value, *args), kwargs)
    graph.output((call,) if places is None else tuple(graph.call_function(operator.getitem, (call, k)) for k in places))
    with tracing(TracingContext(new_fake_mode(None))):
        captured = capture(fx.GraphModule({}, graph), inputs)
        return differentiate(captured.graph_module, captured.example_inputs, _as_promised)


def _as_promised(module: fx.GraphModule, _: Any, kind: str) -> Callable[[list[Any]], list[Any]]:
    nodes = module.graph.output_node().args[0]
    promised = [node.meta.get("val") if isinstance(node, fx.Node) else None for node in nodes]  # type: ignore[union-attr]
    call = as_calls(module)

    def run(args: list[Any]) -> list[Any]:
        return [_lying(result, told) for result, told in zip(call(args), promised, strict=True)]

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _lying(result: Any, told: Any) -> Any:
    if not isinstance(result, torch.Tensor) or not isinstance(told, torch.Tensor) or told.layout != torch.strided:
        return result
    strides = tuple(map(hint, told.stride()))
    return result if result.stride() == strides else result.new_empty_strided(result.shape, strides)

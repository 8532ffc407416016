"""The pass on CPUs: convolutions become calls of the direct kernel, where that was measured to be faster.

%convolution = aten.convolution(%x, %weight, ...)                     ->   convolution_3f2a(%x, %weight)
%grads = aten.convolution_backward(%g, %x, %weight, ..., [True, ...])  ->   convolution_3f2a(%g, %weight) and the rest

A library converts images and weights to layouts of its own at every call, which pays for large convolutions only. The
kernel reads both as they are. It is one for all sizes of a dtype, so that asking about a convolution compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ....patterns.packing import dense, is_frozen, packed_convolution_weight
from ....rewrites.graph import arguments, op_name
from ....rewrites.profit import Always, Never, Oracle, Question
from ....rewrites.record import GraphRecord
from ....rewrites.switches import allowed
from ....rewrites.walk import recompiles
from ...autotune.autotuner import MIN_GAIN
from ..common.cpp_call import TemplateKernel, compiles
from ..common.records import decided
from .direct import direct_kernel, gradient_kernel

RULE, FAMILY, CANDIDATE = "convolution-template", "convolution-kernel", "direct"
_LIBRARY = "onednn"  # called without ATen, which takes other libraries for small convolutions
_GEOMETRY = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")

aten = torch.ops.aten


def direct_rivals(node: fx.Node) -> Mapping[str, Callable[..., Any]]:
    """The programs that may compute a convolution in its present layout, besides ATen: of image, weight and bias."""
    kernel = direct_kernel(node)
    if kernel is None:
        return {}
    values = arguments(node)
    rivals: dict[str, Callable[..., Any]] = {CANDIDATE: _Direct(kernel)}
    if not values["transposed"] and node.meta["val"].dim() > 3 and torch.backends.mkldnn.is_available():
        rivals[_LIBRARY] = _library(values)
    return rivals


@recompiles
def fuse_direct_convolutions(
    graph_module: fx.GraphModule,
    oracle: Oracle,
    record: GraphRecord,
    layout_question: Callable[[fx.Node], Question | None] = lambda _: None,
) -> int:
    """Replace convolutions and their gradients for images by calls of the direct kernel, as the oracle decides.

    Args:
        graph_module: a graph after autograd, on a CPU; changed in place.
        oracle: measures.
        record: receives applied and declined matches.
        layout_question: the question that was asked about a convolution to choose its layout, if any: it is not
            measured twice.

    Returns:
        The number of convolutions and gradients replaced.
    """
    replaced = 0
    for node in list(graph_module.graph.nodes):
        if op_name(node) == "aten.convolution":
            kernel = direct_kernel(node)
            if kernel is not None and _wins(node, kernel, layout_question(node) or _question(node), oracle, record):
                _replace(graph_module.graph, node, kernel)
                replaced += 1
        elif op_name(node) == "aten.convolution_backward":
            kernel = gradient_kernel(node)
            if kernel is not None and _wins(node, kernel, _gradient_question(node, kernel), oracle, record):
                _replace_gradient(graph_module.graph, node, kernel)
                replaced += 1
    return replaced


def _wins(node: fx.Node, kernel: TemplateKernel, question: Question, oracle: Oracle, record: GraphRecord) -> bool:
    """Whether the kernel is faster than all other programs in the present layout."""
    decision = oracle.decide(question)
    times = decision.evidence.times
    if CANDIDATE in times:
        others = [seconds for name, seconds in times.items() if name not in (CANDIDATE, "channels_last")]
        chosen = times[CANDIDATE] <= (1 - MIN_GAIN) * min(others)
    else:
        chosen = decision.chosen == CANDIDATE or isinstance(oracle, Always)
    chosen = chosen and not isinstance(oracle, Never) and allowed("template", RULE, [node]) and compiles(kernel)
    told = type(decision)(CANDIDATE if chosen else None, decision.evidence)
    (record.applied if chosen else record.declined).append(decided(RULE, FAMILY, [node], node, told))
    return chosen


def _replace(graph: fx.Graph, node: fx.Node, kernel: TemplateKernel) -> None:
    values = arguments(node)
    given = [values[name] for name in ("input", "weight", "bias") if values[name] is not None]
    with graph.inserting_before(node):
        call = graph.call_function(kernel, tuple(given))
    call.meta = {**node.meta, "regraft_rule": RULE}
    node.replace_all_uses_with(call)
    graph.erase_node(node)


def _replace_gradient(graph: fx.Graph, node: fx.Node, kernel: TemplateKernel) -> None:
    values = arguments(node)
    with graph.inserting_before(node):
        call = graph.call_function(kernel, (values["grad_output"], values["weight"]))
    call.meta = {**node.meta, "val": node.meta["val"][0], "regraft_rule": RULE}
    for user in list(node.users):
        if user.args[1] == 0:
            user.replace_all_uses_with(call)
            graph.erase_node(user)
    wanted = [False, *values["output_mask"][1:]]
    node.args, node.kwargs = (*list(values.values())[:-1], wanted), {}
    node.meta["val"] = (None, *node.meta["val"][1:])
    if not node.users:
        graph.erase_node(node)


# -- questions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Direct:
    """The kernel as a program of image, weight and a bias that may be missing."""

    kernel: TemplateKernel

    @property
    def name(self) -> str:
        """The kernel's."""
        return self.kernel.name

    def __call__(self, *given: Any) -> torch.Tensor:
        """The convolution."""
        return self.kernel(*(x for x in given if x is not None))


def _library(values: Mapping[str, Any]) -> Callable[..., Any]:
    stride, padding, dilation, _, _, groups = (values[name] for name in _GEOMETRY)
    frozen = is_frozen(values["weight"])

    def run(x: Any, weight: Any, bias: Any) -> Any:
        if frozen:
            weight = packed_convolution_weight(weight, padding, stride, dilation, groups, list(x.shape))
        given: tuple[Any, ...] = x, weight, dense(bias), padding, stride, dilation, groups, "none", [], ""
        return torch.ops.mkldnn._convolution_pointwise(*given)

    return run


def _question(node: fx.Node) -> Question:
    values, rivals = arguments(node), direct_rivals(node)
    geometry = [values[name] for name in _GEOMETRY]
    inputs = [None if values[name] is None else values[name].meta["val"] for name in ("input", "weight", "bias")]
    return Question(
        rule=RULE,
        key=f"{rivals[CANDIDATE].name} {geometry} frozen={is_frozen(values['weight'])}",  # type: ignore[attr-defined]
        inputs=inputs,
        original=lambda x, weight, bias: aten.convolution.default(x, weight, bias, *geometry),
        candidates=rivals,
    )


def _gradient_question(node: fx.Node, kernel: TemplateKernel) -> Question:
    values = arguments(node)
    geometry = [values[name] for name in _GEOMETRY]

    def original(above: Any, x: Any, weight: Any) -> Any:
        return aten.convolution_backward.default(above, x, weight, None, *geometry, [True, False, False])[0]

    return Question(
        rule=RULE,
        key=f"{kernel.name} gradient {geometry}",
        inputs=[values[name].meta["val"] for name in ("grad_output", "input", "weight")],
        original=original,
        candidates={CANDIDATE: lambda above, _x, weight: kernel(above, weight)},
    )

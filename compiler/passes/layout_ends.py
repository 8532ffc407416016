"""The cost of converting to and from channels-last at the ends of a network of convolutions, on a CPU.

    before    x  ->  conv  ->  relu  ->  conv  ->  flatten
    after     x  ->  convert  ->  conv  ->  relu  ->  conv  ->  convert  ->  flatten

Each end is a copy that changes the order of elements. If a generated kernel computes the tensor anyway, it writes in
the new order; the cost is then the difference between such a copy and a plain copy. The largest copies are measured,
and the others are estimated from their number of elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

from ...rewrites.graph import is_tensor, op_name, rank, val
from ...rewrites.profit import Oracle, Question
from ...rewrites.symbolic import hint
from .conv_layout_cost import elements

_MEASURED = 3  # number of ends whose copies are measured
_MERGING = frozenset({"aten.view", "aten.reshape", "aten._unsafe_view", "aten.flatten"})
_REORDERING = frozenset({"aten.permute", "aten.transpose"})  # readers may work with either layout
_NORMS = frozenset({"aten._native_batch_norm_legit_no_training", "aten.native_batch_norm"})  # give several results
_LIBRARY = frozenset({"aten.convolution"})  # results that no generated kernel writes


def seconds_of_ends(
    found: Sequence[fx.Node], oracle: Oracle, rule: str, convert: Callable[[torch.Tensor], torch.Tensor]
) -> float:
    """The seconds that conversions before, between and after these convolutions take; 0.0 if nothing is measured.

    Args:
        found: the convolutions that are to run in channels-last, in graph order.
        oracle: measures copies.
        rule: the name of the rule in questions to the oracle.
        convert: converts a tensor to channels-last.
    """
    ends = sorted(_ends(found), key=elements, reverse=True)
    total = rate = 0.0
    for k, node in enumerate(ends):
        if k < _MEASURED:
            rate = _seconds(node, oracle, rule, convert) / max(elements(node), 1)
        total += rate * elements(node)
    return total


def _ends(found: Sequence[fx.Node]) -> list[fx.Node]:
    """The tensors that are converted."""
    flow = _reached(found)
    entries = {node.args[0]: None for node in found if node.args[0] not in flow}
    laid_out = [x for x in entries if isinstance(x, fx.Node) and not has_channels_last(x)]
    return [*laid_out, *(node for node in flow if is_tensor(node) and _leaves(node))]


def _reached(found: Sequence[fx.Node]) -> dict[fx.Node, None]:
    """The convolutions and all images computed from their results, which have their layout."""
    flow: dict[fx.Node, None] = {}
    convolutions = set(found)
    for node in found[0].graph.nodes if found else ():
        if node in convolutions or (any(x in flow for x in node.all_input_nodes) and _keeps_layout(node)):
            flow[node] = None
    return flow


def _keeps_layout(node: fx.Node) -> bool:
    if op_name(node) in _NORMS:
        return True
    return is_tensor(node) and rank(node) in (4, 5) and op_name(node) not in _MERGING | _REORDERING


def _leaves(node: fx.Node) -> bool:
    """Whether a reader needs eager's strides: the program's results, or a view that merges dims."""
    is_read = any(user.op == "output" or op_name(user) in _MERGING for user in node.users)
    return is_read and not has_channels_last(node)


def has_channels_last(node: fx.Node) -> bool:
    """Whether the channels of a tensor are contiguous; also true if both layouts are the same."""
    value = val(node)
    order = (0, *range(2, value.dim()), 1)
    strides = [hint(value.stride(d)) for d in order if hint(value.shape[d]) != 1]
    return strides == sorted(strides, key=lambda s: -(s or 0))


def _seconds(node: fx.Node, oracle: Oracle, rule: str, convert: Callable[[torch.Tensor], torch.Tensor]) -> float:
    question = Question(
        rule=rule, key="end", inputs=[val(node)], original=torch.clone, candidates={"converted": convert}
    )
    times = oracle.decide(question).evidence.times
    if "original" not in times or "converted" not in times:
        return 0.0
    spared = times["original"] if _is_written_by_a_kernel(node) else 0.0
    return max(times["converted"] - spared, 0.0)


def _is_written_by_a_kernel(node: fx.Node) -> bool:
    return node.op == "call_function" and op_name(node) not in _LIBRARY

"""Channels-last for networks of convolutions on a CPU, decided once for all of them.

    conv(conv(x))   ->   conv(conv(clone(x, channels_last)))       and what follows keeps that layout, to the outputs

One convolution alone would pay for converting its input and its result; in a network only the ends convert. So each
kind of convolution is measured with both layouts, inputs ready made, and what counts is the sum over the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...patterns.packing import channels_last, is_frozen, packed_convolution_weight
from ...rewrites.editor import Editor, infer
from ...rewrites.graph import arguments, dtype, op_name, rank, val
from ...rewrites.layout import adapt_users
from ...rewrites.profit import Oracle, Question
from ...rewrites.reason import site_of
from ...rewrites.record import Evidence, GraphRecord, Match
from ...rewrites.sizes import SizeTable
from ...rewrites.symbolic import hint

aten = torch.ops.aten

RULE, FAMILY, CANDIDATE = "channels_last", "layout", "channels_last"
MIN_SAVED = 0.03  # of the time of all convolutions: what their ends may cost to convert, and more
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_DTYPES = (torch.float32, torch.bfloat16)
_GEOMETRY = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")


@dataclass(frozen=True)
class Spread:
    """What came of it.

    Args:
        convolutions: in the graph, that can be laid out either way.
        chosen: whether they now run on channels-last.
        conversions: copies put in for that.
        seconds: of all convolutions as they were, and on channels-last; zeros where nothing was measured.
    """

    convolutions: int
    chosen: bool = False
    conversions: int = 0
    seconds: tuple[float, float] = (0.0, 0.0)


def spread_channels_last(graph_module: fx.GraphModule, oracle: Oracle, record: GraphRecord) -> Spread:
    """Let the convolutions of a functional graph run on channels-last where that is faster, in place.

    Outputs keep their strides. The decision is one match of `RULE` in `record`, with the summed times as its evidence.
    """
    found = [node for node in graph_module.graph.nodes if _is_candidate(node)]
    if not found or all(_is_laid_out(_input(node)) for node in found):
        return Spread(len(found))
    chosen, seconds, evidence = _decide(found, oracle)
    (record.applied if chosen else record.declined).append(_match(found, chosen, evidence))
    if not chosen:
        return Spread(len(found), seconds=seconds)
    conversions = _convert(graph_module.graph, found)
    graph_module.recompile()
    return Spread(len(found), True, conversions, seconds)


def _is_candidate(node: fx.Node) -> bool:
    if op_name(node) != "aten.convolution" or rank(node) not in _FORMATS:
        return False
    x = val(_input(node))
    plain = x.device.type == "cpu" and dtype(node) in _DTYPES and x.dim() == rank(node)
    return plain and arguments(node)["transposed"] is False and torch.backends.mkldnn.is_available()


def _input(node: fx.Node) -> fx.Node:
    return node.args[0]  # type: ignore[return-value]


def _is_laid_out(node: fx.Node) -> bool:
    """Whether a tensor has its channels side by side; where both layouts are one, it has."""
    value = val(node)
    order = (0, *range(2, value.dim()), 1)
    strides = [hint(value.stride(d)) for d in order if hint(value.shape[d]) != 1]
    return strides == sorted(strides, key=lambda s: -(s or 0))


def _decide(found: Sequence[fx.Node], oracle: Oracle) -> tuple[bool, tuple[float, float], Evidence]:
    """Ask for each kind of convolution once, and sum up."""
    kinds = {_kind(node): node for node in found}
    count = Counter(map(_kind, found))
    before = after = 0.0
    votes, told = [], {}
    for kind, node in kinds.items():
        decision = oracle.decide(_question(node))
        votes += [decision.chosen is not None]
        times = decision.evidence.times
        told[decision.evidence.note] = decision.evidence
        if "original" in times and CANDIDATE in times:
            before += count[kind] * times["original"]
            after += count[kind] * times[CANDIDATE]
    if not before:
        return all(votes), (before, after), next(iter(told.values()))
    source = "measured" if any(e.source == "measured" for e in told.values()) else "cache"
    note = f"the sum over {len(found)} convolutions of {len(kinds)} kinds, inputs laid out already"
    evidence = Evidence({"original": before, CANDIDATE: after}, source, note)
    return after < before * (1 - MIN_SAVED), (before, after), evidence


def _match(found: Sequence[fx.Node], chosen: bool, evidence: Evidence) -> Match:
    nodes = tuple(node.name for node in found)
    return Match(RULE, FAMILY, "lowered", CANDIDATE if chosen else "", (), nodes, site_of(found[0]), evidence=evidence)


def _kind(node: fx.Node) -> str:
    """What the time of a convolution depends on."""
    values = arguments(node)
    x, weight = (val(values[n]) for n in ("input", "weight"))
    facts = [tuple(x.shape), tuple(weight.shape), x.dtype, is_frozen(values["weight"]), values["bias"] is None]
    return str(facts + [values[n] for n in _GEOMETRY])


def _question(node: fx.Node) -> Question:
    values = arguments(node)
    geometry = [values[n] for n in _GEOMETRY]
    inputs = [val(values["input"]), val(values["weight"]), val(values["bias"])]
    frozen = is_frozen(values["weight"])
    return Question(
        rule=RULE,
        key=f"{geometry} frozen={frozen}",
        inputs=inputs,
        original=_original(geometry),
        candidates={CANDIDATE: _packed(geometry) if frozen else _plain(geometry)},
    )


def _original(geometry: Sequence[Any]) -> Callable[..., Any]:
    return lambda x, weight, bias: aten.convolution.default(x, weight, bias, *geometry)


def _plain(geometry: Sequence[Any]) -> Callable[..., Any]:
    """The convolution on inputs that are converted at the first run, and kept."""
    ready: dict[int, torch.Tensor] = {}

    def run(x: Any, weight: Any, bias: Any) -> Any:
        laid_out = ready.setdefault(id(x), channels_last(x))
        return aten.convolution.default(laid_out, weight, bias, *geometry)

    return run


def _packed(geometry: Sequence[Any]) -> Callable[..., Any]:
    ready: dict[int, torch.Tensor] = {}
    stride, padding, dilation, _, _, groups = geometry

    def run(x: Any, weight: Any, bias: Any) -> Any:
        laid_out = ready.setdefault(id(x), channels_last(x))
        packed = packed_convolution_weight(weight, padding, stride, dilation, groups, list(x.shape))
        return torch.ops.mkldnn._convolution_pointwise(
            laid_out, packed, bias, padding, stride, dilation, groups, "none", [], ""
        )

    return run


def _convert(graph: fx.Graph, found: Sequence[fx.Node]) -> int:
    """Convert what the first convolutions read, and let the layout spread from there; returns the number of copies."""
    editor = Editor(graph, SizeTable(graph))
    converted: dict[fx.Node, fx.Node] = {}
    for node in found:
        source = _input(node)
        if _is_laid_out(source):
            continue
        with editor.at(node):
            if source not in converted:
                converted[source] = editor.call(aten.clone.default, source, memory_format=_FORMATS[rank(source)])
        old = val(node)
        node.replace_input_with(source, converted[source])
        node.meta["val"] = infer(node)
        node.meta.setdefault("regraft_layout", old)
        adapt_users(graph, [node])
    return len(converted)

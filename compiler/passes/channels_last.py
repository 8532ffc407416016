"""Decides once for all convolutions of a graph whether they run in channels-last.

    conv(conv(x))   ->   conv(conv(clone(x, channels_last)))       later nodes keep that layout, up to the outputs

A single convolution would have to convert its input and its result; in a network only the two ends convert. Each kind
of convolution is therefore measured in both layouts, on inputs that are already converted, in training together with
its gradients. The decision compares the sums over the network, including the conversions at its ends (`layout_ends`).
On GPUs most kinds need no measurement (`seconds_saved`), and weights are converted together with the inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...patterns.packing import channels_last, is_frozen, packed_convolution_weight
from ...rewrites.editor import Editor, infer
from ...rewrites.graph import arguments, dtype, op_name, rank, val
from ...rewrites.layout import adapt_users, same_layout
from ...rewrites.profit import Always, Never, Oracle, Question
from ...rewrites.reason import site_of
from ...rewrites.record import ORIGINAL, Evidence, GraphRecord, Match
from ...rewrites.walk import recompiles
from ...rewrites.words import counted
from .conv_layout_cost import MOST_ASKED, is_on_cuda, seconds_saved, work
from .layout_ends import has_channels_last, seconds_of_ends

aten = torch.ops.aten

RULE, FAMILY, CANDIDATE = "channels_last", "layout", "channels_last"
MIN_SAVED = 0.03  # smallest share of the time of all convolutions to save: less is noise
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_DTYPES = (torch.float32, torch.bfloat16)
_BACKWARD = "aten.convolution_backward"
Rivals = Callable[[fx.Node], Mapping[str, Callable[..., Any]]]
_GEOMETRY = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")


@dataclass(frozen=True)
class Spread:
    """The outcome of the pass.

    Args:
        convolutions: the number of convolutions in the graph that can run in either layout.
        chosen: whether they now run in channels-last.
        conversions: the number of copies that were inserted.
        seconds: the time of all convolutions as they were, and in channels-last; zeros if nothing was measured.
    """

    convolutions: int
    chosen: bool = False
    conversions: int = 0
    seconds: tuple[float, float] = (0.0, 0.0)


def spread_channels_last(
    graph_module: fx.GraphModule,
    oracle: Oracle,
    record: GraphRecord,
    *,
    training: bool = False,
    keep_stream: bool = False,
    rivals: Rivals = lambda _: {},
) -> Spread:
    """Let the convolutions of a functional graph run in channels-last if that is faster, in place.

    In a graph of forward and backward (`training`, on GPUs only), their gradients run in channels-last too. Outputs
    keep their strides. The decision is one match of `RULE` in `record`, with the summed times as its evidence. With
    `keep_stream`, random numbers must be the same as eager's. `rivals` are other programs that may compute a
    convolution in its present layout; the fastest one counts, unless images are resampled:
    kernels that resample take longer where pixels lie side by side than these programs save.
    """
    found = [node for node in graph_module.graph.nodes if _is_candidate(node, training)]
    backward = _gradients(graph_module.graph, found)
    if all(has_channels_last(_input(node)) for node in found) and all(
        has_channels_last(x) for call in backward for x in _laid_out_with(call)
    ):
        return Spread(len(found))
    resampled = any("upsample" in op_name(node) for node in graph_module.graph.nodes if node.op == "call_function")
    gradients = {node: call for call in backward for node in found if _is_of(call, node)}
    chosen, seconds, evidence = _decide(found, gradients, oracle, _no_rivals if resampled else rivals)
    (record.applied if chosen else record.declined).append(_match(found, chosen, evidence))
    if not chosen:
        return Spread(len(found), seconds=seconds)
    conversions = _convert(graph_module, found, keep_stream)
    return Spread(len(found), True, conversions, seconds)


def _no_rivals(_: fx.Node) -> Mapping[str, Callable[..., Any]]:
    return {}


def _is_candidate(node: fx.Node, training: bool) -> bool:
    if op_name(node) != "aten.convolution" or rank(node) not in _FORMATS or rank(_input(node)) != rank(node):
        return False
    return is_on_cuda(node) or (not training and _is_on_cpu(node))


def _is_on_cpu(node: fx.Node) -> bool:
    plain = val(_input(node)).device.type == "cpu" and dtype(node) in _DTYPES
    return plain and torch.backends.mkldnn.is_available()


def _input(node: fx.Node) -> fx.Node:
    return node.args[0]  # type: ignore[return-value]


def _decide(
    found: Sequence[fx.Node], gradients: Mapping[fx.Node, fx.Node], oracle: Oracle, rivals: Rivals
) -> tuple[bool, tuple[float, float], Evidence]:
    """Ask the oracle once for each kind of convolution, and add up the times, those of their gradients with them."""
    kinds = {_kind(node, gradients.get(node)): node for node in found}
    count = Counter(_kind(node, gradients.get(node)) for node in found)
    certain = {} if isinstance(oracle, (Always, Never)) else _certain(kinds)
    saved = sum(count[kind] * seconds for kind, seconds in certain.items())
    before = after = 0.0
    votes, told = [], {}
    for kind in _asked(kinds, certain, count):
        decision = oracle.decide(layout_question(kinds[kind], rivals, gradients.get(kinds[kind])))
        votes += [decision.chosen is not None]
        times = decision.evidence.times
        told[decision.evidence.note] = decision.evidence
        if ORIGINAL in times and CANDIDATE in times:
            before += count[kind] * min(seconds for name, seconds in times.items() if name != CANDIDATE)
            after += count[kind] * times[CANDIDATE]
    if not before:
        by_rule = Evidence(note="half precision on tensor cores, which read channels-last: not measured")
        return bool(certain) or all(votes), (before, after), by_rule if certain else next(iter(told.values()))
    ends = 0.0 if any(map(is_on_cuda, found)) else seconds_of_ends(found, oracle, RULE, channels_last)
    after += ends
    source = "measured" if any(e.source == "measured" for e in told.values()) else "cache"
    kinds_told = f"{counted(len(found), 'convolution')} of {counted(len(kinds), 'kind')}"
    note = f"the sum over {kinds_told}, and {1e3 * ends:.3g} ms of conversions"
    evidence = Evidence({"original": before, CANDIDATE: after}, source, note)
    return after - saved < before * (1 - MIN_SAVED), (before, after), evidence


def _certain(kinds: Mapping[str, fx.Node]) -> dict[str, float]:
    """The kinds that need no measurement, with the seconds that channels-last saves for one convolution of each."""
    told = {kind: seconds_saved(node) for kind, node in kinds.items()}
    return {kind: seconds for kind, seconds in told.items() if seconds is not None}


def _asked(kinds: Mapping[str, fx.Node], certain: Mapping[str, float], count: Mapping[str, int]) -> list[str]:
    """The kinds to measure: on a CPU all of them, since layouts differ most there; on GPUs the largest."""
    open_kinds = [kind for kind in kinds if kind not in certain]
    if not any(is_on_cuda(kinds[kind]) for kind in open_kinds):
        return open_kinds
    return sorted(open_kinds, key=lambda kind: -count[kind] * work(kinds[kind]))[:MOST_ASKED]


def _match(found: Sequence[fx.Node], chosen: bool, evidence: Evidence) -> Match:
    nodes = tuple(node.name for node in found)
    return Match(RULE, FAMILY, "lowered", CANDIDATE if chosen else "", (), nodes, site_of(found[0]), evidence=evidence)


def _kind(node: fx.Node, gradient: fx.Node | None) -> str:
    """The properties of a convolution, and of its gradient, that determine their time."""
    values = arguments(node)
    x, weight = (val(values[n]) for n in ("input", "weight"))
    facts = [tuple(x.shape), tuple(weight.shape), x.dtype, is_frozen(values["weight"]), values["bias"] is None]
    mask = [] if gradient is None else [arguments(gradient)["output_mask"]]
    return str(facts + [values[n] for n in _GEOMETRY] + mask)


def layout_question(node: fx.Node, rivals: Rivals, gradient: fx.Node | None = None) -> Question:
    """How a convolution should run: as it is, in channels-last, or by one of its rivals in the present layout.

    With its `gradient`, both are timed together: libraries may be fast at one of them and slow at the other.
    """
    values = arguments(node)
    geometry = [values[n] for n in _GEOMETRY]
    if gradient is not None:
        return _question_of_both(node, gradient, geometry)
    inputs = [val(values["input"]), val(values["weight"]), val(values["bias"])]
    frozen = is_frozen(values["weight"])
    others = rivals(node)
    return Question(
        rule=RULE,
        key=" ".join([f"{geometry} frozen={frozen}", *(getattr(run, "name", name) for name, run in others.items())]),
        inputs=inputs,
        original=_original(geometry),
        candidates={CANDIDATE: _packed(geometry) if frozen else _plain(geometry), **others},
    )


def _question_of_both(node: fx.Node, gradient: fx.Node, geometry: Sequence[Any]) -> Question:
    values, others = arguments(node), arguments(gradient)
    mask = list(others["output_mask"])
    ready = _Ready()

    def as_it_is(x: Any, weight: Any, bias: Any, grad: Any) -> Any:
        made = aten.convolution.default(x, weight, bias, *geometry)
        found = aten.convolution_backward.default(grad, x, weight, others["bias_sizes"], *geometry, mask)
        return [made, *(gradient for gradient in found if gradient is not None)]

    def laid_out(x: Any, weight: Any, bias: Any, grad: Any) -> Any:
        return as_it_is(ready(x), ready(weight), bias, ready(grad))

    return Question(
        rule=RULE,
        key=f"{geometry} with gradients {mask}",
        inputs=[*(val(values[n]) for n in ("input", "weight", "bias")), val(others["grad_output"])],
        original=as_it_is,
        candidates={CANDIDATE: laid_out},
    )


def _original(geometry: Sequence[Any]) -> Callable[..., Any]:
    return lambda x, weight, bias: aten.convolution.default(x, weight, bias, *geometry)


def _plain(geometry: Sequence[Any]) -> Callable[..., Any]:
    """The convolution on an input that is converted at the first run and then reused; on GPUs its weight likewise."""
    ready = _Ready()

    def run(x: Any, weight: Any, bias: Any) -> Any:
        laid_out = ready(weight) if weight.is_cuda else weight
        return aten.convolution.default(ready(x), laid_out, bias, *geometry)

    return run


def _packed(geometry: Sequence[Any]) -> Callable[..., Any]:
    ready = _Ready()
    stride, padding, dilation, transposed, _, groups = geometry

    def run(x: Any, weight: Any, bias: Any) -> Any:
        if weight.is_cuda or transposed:
            return aten.convolution.default(ready(x), ready(weight), bias, *geometry)
        packed = packed_convolution_weight(weight, padding, stride, dilation, groups, list(x.shape))
        return torch.ops.mkldnn._convolution_pointwise(
            ready(x), packed, bias, padding, stride, dilation, groups, "none", [], ""
        )

    return run


class _Ready:
    """Converts each tensor to channels-last once."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, torch.Tensor]] = {}

    def __call__(self, x: Any) -> torch.Tensor:
        source, made = self._made.get(id(x), (None, None))
        if source is not x or made is None:
            made = channels_last(x)
            self._made[id(x)] = x, made
        return made


@recompiles
def _convert(graph_module: fx.GraphModule, found: Sequence[fx.Node], keep_stream: bool) -> int:
    """Convert the inputs of the first convolutions and let the layout spread; returns the number of copies."""
    graph = graph_module.graph
    editor = Editor(graph)
    converted: dict[fx.Node, fx.Node] = {}
    for node in (*found, *_gradients(graph, found)):
        sources = [n for n in _laid_out_with(node) if not has_channels_last(n)]
        for source in sources:
            with editor.at(node):
                if source not in converted:
                    converted[source] = editor.call(aten.clone.default, source, memory_format=_FORMATS[rank(source)])
            node.replace_input_with(source, converted[source])
        if sources:
            _infer_again(graph, node, keep_stream)
    return len(converted)


def _gradients(graph: fx.Graph, found: Sequence[fx.Node]) -> list[fx.Node]:
    """The gradients that belong to the converted nodes, in a graph of forward and backward."""
    weights = {node.args[1] for node in found}
    calls = graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    return [node for node in calls if node.args[2] in weights]


def _is_of(gradient: fx.Node, node: fx.Node) -> bool:
    """Whether a call computes the gradients of this convolution."""
    return gradient.args[1:3] == node.args[:2]


def _laid_out_with(node: fx.Node) -> list[Any]:
    """The operands that a convolution reads in channels-last: oneDNN lays out weights in its own format."""
    if op_name(node) == _BACKWARD:
        return list(node.args[:3])
    return list(node.args[:2]) if is_on_cuda(node) else [_input(node)]


def _infer_again(graph: fx.Graph, node: fx.Node, keep_stream: bool) -> None:
    """Update the strides recorded for everything that follows a converted convolution."""
    old, new = val(node), infer(node)
    node.meta["val"] = new
    if same_layout(old, new):
        return
    node.meta.setdefault("regraft_layout", old)
    adapt_users(graph, [node], keep_stream=keep_stream)

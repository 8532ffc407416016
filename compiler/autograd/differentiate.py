"""Derivatives: AOTAutograd turns one captured graph into functional ATen graphs, forward and backward.

    captured graph  ->  inference graph                          where no gradient is asked for
                    ->  joint graph  ->  forward graph, backward graph

The forward hands what the backward needs to it as extra outputs: by default all of it, as eager does, for as calls of
their own recomputed ops only cost time. What the user marked by activation checkpointing is recomputed as asked, and
what follows from a seed alone is drawn again (`seed_dropout`), so that no random mask is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat import autograd
from ...rewrites.walk import recompiles
from .as_eager import compute_as_eager, shrunk_of_symbolic_sizes
from .branch_gradients import lay_out_branch_gradients
from .changing_numbers import by_tensors
from .checked_draws import draw_as_eager
from .circular_padding import spell_circular_padding
from .eager_strides import corrected
from .fused import fused
from .late_numbers import ask_nothing
from .plain_calls import PlainCall
from .returned_inputs import without_returned_inputs
from .whole_resampling import keep_whole, of_symbolic_sizes
from .written_layouts import write_as_it_lies

GraphKind = Literal["inference", "forward", "backward"]
CompileGraph = Callable[[fx.GraphModule, Sequence[Any], GraphKind], Callable[[list[Any]], Any]]

ChangeBefore = Callable[[fx.GraphModule, Sequence[Any]], None]

RULE = "regraft_rule"


def differentiate(  # noqa: PLR0913 - what compiles, and what the program wants
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_graph: CompileGraph,
    *,
    prepare: Callable[[fx.GraphModule, Literal["inference", "joint"]], None] = lambda graph, kind: None,
    recompute: bool = False,
    memory_budget: float = 1.0,
    continued: bool = False,
    exact_draws: bool = False,
    before: ChangeBefore | None = None,
) -> Callable[..., Any]:
    """Compile a graph with its derivatives; gives a callable of its inputs, for Dynamo.

    Args:
        graph_module: what Dynamo or capture made; its nodes' stack traces and rule names reach the final graphs.
        example_inputs: its inputs, fake or real.
        compile_graph: called as ``compile_graph(graph, example_inputs, kind)`` once for an inference graph, or for the
            forward and then the backward graph, which may be as late as at its first run. It returns a boxed callable:
            a list of inputs in, which it empties, a tuple out. Writes to inputs are `copy_` nodes at the graph's end.
        prepare: may change an inference graph, or a joint graph before it is split, in place.
        recompute: let the backward compute pointwise results again if less is kept then (minimum cut).
        memory_budget: with `recompute`, the share of that which may be kept.
        continued: whether the program goes on with the results after a graph break, and may write to them.
        exact_draws: whether random numbers are eager's, bit for bit.
        before: makes the changes of `BEFORE` to the graph, by default one after the other.
    """
    (before or _change_before)(graph_module, example_inputs)
    _pack_rules(graph_module)
    mode, plain = _corrected_mode(example_inputs), PlainCall(graph_module, example_inputs)

    def compile_kind(kind: GraphKind, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
        _unpack_rules(graph)
        if kind == "inference":
            prepare(graph, "inference")
        return plain.noted(compile_graph(graph, inputs, kind), graph.graph, kind)

    def joint(graph: fx.GraphModule) -> None:
        _unpack_rules(graph)
        prepare(graph, "joint")

    # The derivative of ``x[mask] = y`` reads ``grad[mask]``, also in a graph whose program has no such reading.
    sizes = nullcontext() if mode is None else compat.sizes_from_data(mode)
    with sizes, without_returned_inputs(graph_module, example_inputs) as returning_inputs:
        compiled = autograd.aot_compile(
            graph_module,
            example_inputs,
            inference=partial(compile_kind, "inference"),
            forward=partial(compile_kind, "forward"),
            backward=partial(compile_kind, "backward"),
            joint=joint,
            recompute=memory_budget if recompute else None,
            fused=fused(),
            decompositions={**by_tensors(), **_around_products()},
            continued=continued,
            exact_draws=exact_draws,
        )
        return returning_inputs(plain.instead_of(compiled))


def _change_before(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    for change in BEFORE.values():
        change(graph_module, example_inputs)


def _corrected_mode(example_inputs: Sequence[Any]) -> Any:
    """The fake tensor mode of the inputs, whose metadata will be eager's; None without one."""
    mode = compat.fake_mode_of(example_inputs)
    if mode is not None:
        compat.correct_fakes(mode, corrected, _of_symbolic_sizes)
    return mode


def _of_symbolic_sizes(func: Any, args: Sequence[Any]) -> Any:
    """What a call gives on fake tensors where torch's metadata raises for symbolic sizes; None for others."""
    shrunk = shrunk_of_symbolic_sizes(func, args)
    return of_symbolic_sizes(func, args) if shrunk is None else shrunk


def _around_products() -> dict[Any, Callable[..., Any]]:
    """Operators that are matrix products and other operations, which lowering could not tell apart."""
    distance = torch.ops.aten._euclidean_dist.default
    found = compat.decomposition(distance)
    return {} if found is None else {distance: found}


@recompiles
def drop_everything(graph_module: fx.GraphModule) -> int:
    """``dropout(x, 1.0, True)  ->  x * 0.0``, which draws nothing, as in eager; AOTAutograd would draw."""
    calls = graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.dropout.default)
    everything = [node for node in calls if node.args[1:] == (1.0, True)]
    for node in everything:
        node.target, node.args = torch.ops.aten.mul.Tensor, (node.args[0], 0.0)
    return len(everything)


def _ask_nothing(graph_module: fx.GraphModule, _: Sequence[Any]) -> int:
    return ask_nothing(graph_module) if torch.is_grad_enabled() else 0


BEFORE: dict[str, Callable[[fx.GraphModule, Sequence[Any]], int]] = {
    "drop_everything": lambda graph, _: drop_everything(graph),
    "whole_resampling": lambda graph, _: keep_whole(graph),
    "circular_padding": lambda graph, _: spell_circular_padding(graph),
    "branch_gradients": lay_out_branch_gradients,
    "as_eager": lambda graph, _: compute_as_eager(graph),
    "checked_draws": lambda graph, _: draw_as_eager(graph),
    "written_layouts": lambda graph, _: write_as_it_lies(graph),
    "late_numbers": _ask_nothing,
}
"""What is changed in a program so that AOTAutograd traces it as eager computes it, in order; each returns a number."""


def _pack_rules(graph_module: fx.GraphModule) -> None:
    """Put rule names where tracing copies them from node to node, backward included."""
    for node in graph_module.graph.nodes:
        if RULE in node.meta:
            node.meta["custom"] = {**node.meta.get("custom", {}), RULE: node.meta[RULE]}


def _unpack_rules(graph_module: fx.GraphModule) -> None:
    for node in graph_module.graph.nodes:
        rule = (node.meta.get("custom") or {}).get(RULE)
        if rule is not None:
            node.meta.setdefault(RULE, rule)

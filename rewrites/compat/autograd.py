"""All uses of AOTAutograd's internals, so that a torch release changes few files (torch 2.11 to 2.15)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from .kept import keep_copies_of_results, keep_old_values, keep_readings_of_written, looks_into, read_by_backward
from .min_cut import Fused, knowing


def places() -> tuple[frozenset[int], int | None]:
    """The positions of inputs of AOTAutograd's graph whose addresses stay (parameters, buffers).

    And how many outputs of a forward go to the program, effect tokens before them; None if that is not known. The
    backward keeps the others.
    """
    metadata = _metadata()
    static = frozenset(getattr(metadata, "static_input_indices", None) or ())
    return static, None if metadata is None else len(metadata.tokens) + metadata.num_forward


def tell_strides(strides: Sequence[tuple[int, ...] | None]) -> None:
    """Tell AOTAutograd the strides of a forward's outputs, which it gives the backward's compiler; None is unknown.

    AOTAutograd counts outputs without the effect tokens that the graph returns before them.
    """
    told, metadata = getattr(torch._guards.TracingContext.try_get(), "output_strides", None), _metadata()
    if told is not None and metadata is not None:
        told.extend(strides[len(metadata.tokens) :])


def keep_saved() -> None:
    """Tell AOTAutograd that the backward writes over nothing that it is given, so that it may run again."""
    promised = getattr(_metadata(), "bw_donated_idxs", None)
    if promised:
        promised.clear()  # in place: with subclasses two records share the list


def aot_compile(  # noqa: PLR0913 - a compiler for each kind of graph, and how they are split
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    inference: Callable[..., Any],
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    joint: Callable[[fx.GraphModule], None],
    recompute: float | None,
    fused: Fused,
    decompositions: Mapping[Any, Callable[..., Any]],
    continued: bool,
    exact_draws: bool,
) -> Callable[..., Any]:
    """Functionalize and differentiate by AOTAutograd, and compile each graph with the compiler of its kind.

    `joint` may change the graph of forward and backward before it is split; `recompute` splits it by minimum cut,
    and keeps that share, between 0 and 1, of what such a cut keeps; None: as eager would split it. Such a cut knows
    that kernels fuse `fused`. `continued` says that the program goes on with the results, which it may write to;
    `exact_draws`, that checkpoints on GPUs draw from torch's generator, not from a copy of their own.
    """
    from torch._functorch import config
    from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition

    _keep_checks()
    split = default_partition if recompute is None else min_cut_rematerialization_partition

    def partition(joint_module: fx.GraphModule, inputs: Any, **more: Any) -> Any:
        joint(joint_module)
        if recompute is not None:
            keep_readings_of_written(joint_module.graph)
        _keep_draws_apart(joint_module.graph)
        _drop_detached(joint_module.graph)
        read = read_by_backward(joint_module.graph)
        settings = {"activation_memory_budget": 1.0 if recompute is None else recompute}
        if exact_draws:
            settings["graphsafe_rng_functionalization"] = False
        with config.patch(settings), knowing(fused):
            graphs = split(joint_module, inputs, **more)
        _tell_what_is_drawn_again(graphs[1].graph)
        keep_old_values(graphs[0].graph, more["num_fwd_outputs"], _written(graphs[0].graph))
        if continued and recompute is not None:
            keep_copies_of_results(graphs[0].graph, more["num_fwd_outputs"], read)
        return graphs

    # Gradients of results whose elements share memory cannot lie as these do: each would overwrite its neighbours.
    apart = {"guess_tangent_strides_as_outputs": False} if _have_shared_elements(graph_module) else {}
    with config.patch(apart):
        return _by_aot_autograd(
            graph_module,
            example_inputs,
            fw_compiler=forward,
            bw_compiler=backward,
            inference_compiler=inference,
            partition_fn=partition,
            keep_inference_input_mutations=True,
            decompositions=dict(decompositions),
        )


def differentiated() -> int:
    """How many graphs AOTAutograd has been given, as it counts them."""
    from torch._dynamo.utils import counters

    return counters["aot_autograd"]["total"]


def forget_differentiated(count: int) -> None:
    """Say that AOTAutograd was given as many graphs as before, since one runs as it was written after all.

    Dynamo's splitting for DDP asks whether the number has grown, and reads what AOTAutograd has found out if so.
    """
    from torch._dynamo.utils import counters

    counters["aot_autograd"]["total"] = count


def has_saved_tensor_hooks() -> bool:
    """Whether what autograd saves now goes through hooks of the user's."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _by_aot_autograd(graph_module: fx.GraphModule, inputs: Sequence[Any], **asked: Any) -> Callable[..., Any]:
    """As `torch._dynamo.backends.common.aot_autograd` calls it, which imports Inductor for a log (65 ms, 8 MiB).

    That function still takes inputs apart that are lists.
    """
    from torch import _dynamo
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import aot_module_simplified

    if any(isinstance(x, (list, tuple, dict)) for x in inputs):
        return aot_autograd(**asked)(graph_module, inputs)
    backward, counted = asked["bw_compiler"], _dynamo.utils.counters["aot_autograd"]

    def compile_backward(*args: Any, **kwargs: Any) -> Any:
        return _dynamo.disable(_dynamo.disable(backward)(*args, **kwargs))

    counted["total"] += 1
    compiled = aot_module_simplified(graph_module, inputs, **asked | {"bw_compiler": compile_backward})
    counted["ok"] += 1
    return _dynamo.disable(compiled)


def _tell_what_is_drawn_again(graph: fx.Graph) -> None:
    """Give metadata to calls that draw with a generator's old state, as checkpoints do: the partition gives none."""
    from torch._guards import detect_fake_mode

    for node in graph.nodes:
        if node.op != "call_function" or "val" in node.meta or "run_with_rng_state" not in str(node.target):
            continue
        target = next((x for x in node.args if callable(x) and not isinstance(x, fx.Node)), None)
        if target is None:
            continue
        given = (node.args[node.args.index(target) + 1 :], {k: v for k, v in node.kwargs.items() if k != "rng_state"})
        args, kwargs = fx.map_arg(given, lambda arg: arg.meta["val"])
        mode = detect_fake_mode(tree_leaves((args, kwargs)))
        if mode is not None:
            with mode:
                node.meta["val"] = target(*args, **kwargs)


def _keep_draws_apart(graph: fx.Graph) -> None:
    """Have equal calls that draw random numbers stay several: torch makes one call of those that it does not list."""
    from torch._functorch.compile_utils import rand_ops

    for node in graph.nodes:
        drawn = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if drawn and node.target.overloadpacket not in rand_ops:
            rand_ops.append(node.target.overloadpacket)


def _drop_detached(graph: fx.Graph) -> None:
    """``detach(x)  ->  x``: nothing is differentiated any more, and a cut may keep both.

    Left alone is what results look into: a view of a result that has a gradient would have one, too. So is the memory
    that an input gets: that of another input, which may get other memory itself.
    """
    kept: set[fx.Node] = set()
    moves = graph.find_nodes(op="call_function", target=torch.ops.aten.set_.source_Tensor)
    waiting = [read for node in (graph.output_node(), *moves) for read in node.all_input_nodes]
    while waiting:
        node = waiting.pop()
        kept.add(node)
        if node.op == "call_function" and looks_into(node):
            waiting += node.all_input_nodes
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        if node not in kept and "recompute" not in node.meta:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _written(forward: fx.Graph) -> frozenset[fx.Node]:
    """The inputs that AOTAutograd writes to; all of them if it does not say which."""
    metadata = _metadata()
    inputs = forward.find_nodes(op="placeholder")[0 if metadata is None else len(metadata.tokens) :]
    if metadata is None or len(metadata.input_info) != len(inputs):  # subclasses are several inputs
        return frozenset(inputs)
    return frozenset(node for node, info in zip(inputs, metadata.input_info, strict=True) if info.mutates_data)


def _have_shared_elements(graph_module: fx.GraphModule) -> bool:
    """Whether elements of a result are in one place in memory, as those of `x.unfold(0, 3, 1)`."""
    results = graph_module.graph.output_node().all_input_nodes
    values = [node.meta.get("val", node.meta.get("example_value")) for node in results]
    return any(isinstance(x, torch.Tensor) and x.layout == torch.strided and _shares_elements(x) for x in values)


def _shares_elements(tensor: torch.Tensor) -> bool:
    strides = [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)]
    if not all(type(number) is int for pair in strides for number in pair):
        return False  # of symbolic sizes torch takes the gradient for contiguous
    end = 1
    for stride, size in sorted(pair for pair in strides if pair[1] > 1):
        if stride < end:
            return True
        end += stride * (size - 1)
    return False


@functools.cache
def _keep_checks() -> None:
    """Let torch keep, as an effect, what raises where a factorization has failed; torch 2.11 takes it for dead."""
    from torch._higher_order_ops import effects

    check = torch.ops.aten._linalg_check_errors.default
    if effects._get_effect(check) is None:
        fx.node.has_side_effect(check)


def calls_plainly(in_training: bool = False) -> bool:
    """Whether the graph being compiled by AOTAutograd is called with the program's inputs as they are.

    And gives its outputs as they are: no input is written but by the graph itself (see `versions_written`), no output
    is a view of an input or another output, or marked for sizes that change, grad mode stays, and there are no
    subclasses, effect tokens or generator states to carry. `in_training`, an output may be the only view of what it is
    made from: AOTAutograd makes it a tensor of its own. In inference an output may be an input: see `returned_inputs`.
    """
    metadata = _metadata()
    if metadata is None:
        return False
    written = metadata.grad_enabled_mutation is not None or any(map(_is_written_outside, metadata.input_info))
    own = ("non_alias", "unsafe_view_alias") if in_training else ("non_alias", "is_input")
    views = any(o.output_type.name not in own for o in metadata.output_info)
    kinds = {type(meta).__name__ for meta in metadata.subclass_inp_meta}
    plain = kinds <= {"PlainTensorMeta", "int"}
    extra = metadata.num_intermediate_bases or metadata.tokens or metadata.num_graphsafe_rng_states
    return plain and not written and not views and not extra and not metadata.dynamic_outputs


def _is_written_outside(info: Any) -> bool:
    """Whether AOTAutograd itself writes to an input after the graph has run, or gives it other sizes or memory."""
    moved = info.mutates_metadata or info.mutates_storage_metadata or info.mutation_inductor_storage_resize
    return bool(moved) or info.mutation_type.name == "MUTATED_OUT_GRAPH"


def versions_written() -> tuple[int, ...]:
    """Positions of inputs that the graph being compiled writes to and whose versions AOTAutograd counts for that.

    It counts them before the graph runs; writes that are hidden from autograd are not counted.
    """
    metadata = _metadata()
    return () if metadata is None else tuple(metadata.mutated_graph_handled_indices_seen_by_autograd)


def returned_inputs() -> tuple[tuple[int, int], ...]:
    """Positions of results of the graph being compiled that are inputs, and of these: AOTAutograd gives the inputs."""
    metadata = _metadata()
    infos = () if metadata is None else metadata.output_info
    return tuple((k, int(info.base_idx)) for k, info in enumerate(infos) if info.output_type.name == "is_input")


def writes_inputs() -> bool:
    """Whether the graph being compiled writes to inputs."""
    metadata = _metadata()
    return metadata is not None and bool(metadata.mutated_graph_handled_indices)


switch_gradients = torch._C._set_grad_enabled
"""Switch gradients on or off: a seventh of the time that `torch.no_grad` takes."""


def count_writes(tensors: Sequence[torch.Tensor]) -> None:
    """Tell autograd that tensors are written to by code that does not say so itself."""
    torch.autograd.graph.increment_version(tensors)


def results_of_inputs() -> tuple[int, ...]:
    """Positions of the program's results that are an input, or a view of one: AOTAutograd makes those itself."""
    metadata = _metadata()
    kinds = ("alias_of_input", "is_input")
    infos = () if metadata is None else metadata.output_info
    return tuple(k for k, info in enumerate(infos) if info.output_type.name in kinds)


def views_of_inputs() -> tuple[tuple[int, int], ...]:
    """Positions, in the outputs and the inputs of the graph being compiled, of views that AOTAutograd makes of inputs.

    It takes sizes, strides and the place in memory from the output, where sizes are symbolic.
    """
    metadata = _metadata()
    if metadata is None:
        return ()
    before, tokens = len(metadata.mutated_inp_runtime_indices), len(metadata.tokens)
    return tuple(
        (tokens + before + k, tokens + info.base_idx)
        for k, info in enumerate(metadata.output_info)
        if info.output_type.name == "alias_of_input" and info.base_idx is not None
    )


def needs_wrapping() -> str:
    """The steps of AOTAutograd around an inference graph besides the call, inputs as results apart; empty for none."""
    metadata = _metadata()
    if metadata is None:
        return ""
    found = {
        "it changes sizes or strides of an input": any(i.mutates_metadata for i in metadata.input_info),
        "it has inputs of tensor subclasses": any(
            type(m).__name__ not in ("PlainTensorMeta", "int") for m in metadata.subclass_inp_meta
        ),
        "its effects have an order that tokens keep": bool(metadata.tokens),
        "its results are views of each other": bool(metadata.num_intermediate_bases),
        "it draws from generators of its own": bool(metadata.num_graphsafe_rng_states),
    }
    return ", ".join(reason for reason, so in found.items() if so)


@dataclass(frozen=True)
class StepFacts:
    """AOTAutograd's facts on a training graph that it calls with the program's inputs and outputs as they are.

    Args:
        outputs: of the program, the first results of the forward; `saved` follow them, for the backward.
        differentiable: of each output, whether the backward takes its gradient.
        single_views: positions of outputs that are the only view of what they are made from.
        written: positions of inputs that the forward writes to; see `versions_written`.
    """

    outputs: int
    saved: int
    differentiable: tuple[bool, ...]
    single_views: tuple[int, ...] = ()
    written: tuple[int, ...] = ()


def step_facts(results: int) -> StepFacts | None:
    """The facts on the forward that AOTAutograd compiles, of so many results; None where it does more itself.

    That is where `calls_plainly` does not hold, where a backward keeps anything but tensors, or where somebody else
    looks at what it keeps or at how it runs.
    """
    metadata = _metadata()
    if metadata is None or not calls_plainly(in_training=True) or _is_watched():
        return None
    counts = ("num_symints_saved_for_bw", "num_tensors_saved_with_no_vc_check", "num_opaque_objects_saved_for_bw")
    others = ("num_backward_tokens", "dynamic_saved_tensors_idxs", "is_rng_op_functionalized")
    if any(getattr(metadata, name, None) for name in (*counts, *others)) or metadata.num_forward_returns < 1:
        return None
    outputs = len(metadata.output_info)
    if metadata.num_forward_returns != outputs or results < outputs:
        return None
    grads = tuple(bool(o.requires_grad) and issubclass(o.raw_type, torch.Tensor) for o in metadata.output_info)
    views = [k for k, o in enumerate(metadata.output_info) if o.output_type.name == "unsafe_view_alias"]
    return StepFacts(outputs, results - outputs, grads, tuple(views), versions_written())


def _is_watched() -> bool:
    """Whether hooks see what is kept for the backward, or compiled autograd traces it."""
    from torch._dynamo import compiled_autograd, config

    hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    watched = hooks is not None and hooks(True) is not None
    compiled = getattr(compiled_autograd, "compiled_autograd_enabled", False)
    return watched or bool(compiled or getattr(config, "compiled_autograd", False))


def is_view(value: torch.Tensor) -> bool:
    """Whether autograd sees a tensor as a view of another."""
    return value._is_view()


def own_tensor(value: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor that autograd sees as no view."""
    return torch.ops.aten._unsafe_view(value, value.shape)


def clear_saved(ctx: Any) -> None:
    """Let go of what a node of autograd has kept, unless its graph will run again."""
    clear = getattr(ctx, "maybe_clear_saved_tensors", None)
    if clear is not None:
        clear()


def keeps_no_zeros(ctx: Any) -> None:
    """Make no gradients of zeros for outputs that have none."""
    ctx._materialize_non_diff_grads = False


def input_origin(placeholder: fx.Node) -> int | str | None:
    """What an input of AOTAutograd's graph is of the graph it was given.

    The position of an input, the qualified name of a parameter or buffer, or None for what it has made of them.
    """
    origin = placeholder.meta.get("desc")
    if type(origin).__name__ == "PlainAOTInput":
        return origin.idx
    return origin.target if type(origin).__name__ in ("ParamAOTInput", "BufferAOTInput") else None


def gradients_of_results(graph: fx.Graph) -> list[tuple[fx.Node, fx.Node]]:
    """The gradients that come into AOTAutograd's joint graph, each with the result that it is the gradient of."""
    output = graph.output_node()
    given = zip(output.meta.get("desc") or (), tree_leaves(output.args), strict=False)
    results = {origin: node for origin, node in given if isinstance(node, fx.Node)}
    origins = ((node, node.meta.get("desc")) for node in graph.find_nodes(op="placeholder"))
    tangents = [(node, results.get(origin.output)) for node, origin in origins if _is_tangent(origin)]
    return [(node, result) for node, result in tangents if result is not None]


def _is_tangent(origin: Any) -> bool:
    return type(origin).__name__ == "TangentAOTInput"


def _metadata() -> Any:
    """AOTAutograd's metadata of the graph that it compiles; None outside of AOTAutograd."""
    return getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)

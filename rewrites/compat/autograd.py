"""What touches the internals of AOTAutograd, so that a torch release changes few files (torch 2.11 to 2.15)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx


def places() -> tuple[frozenset[int], int | None]:
    """Of the graph that AOTAutograd compiles: positions of inputs whose addresses stay (parameters, buffers).

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


def aot_compile(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    inference: Callable[..., Any],
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    joint: Callable[[fx.GraphModule], None],
    recompute: bool,
) -> Callable[..., Any]:
    """Functionalize and differentiate by AOTAutograd, and compile each graph with the compiler of its kind.

    `joint` may change the graph of forward and backward before it is split; `recompute` splits it by minimum cut,
    rather than as eager would.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition

    split = min_cut_rematerialization_partition if recompute else default_partition

    def partition(joint_module: fx.GraphModule, inputs: Any, **more: Any) -> Any:
        joint(joint_module)
        return split(joint_module, inputs, **more)

    compiler = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )
    return compiler(graph_module, example_inputs)


def calls_plainly() -> bool:
    """Whether the graph being compiled by AOTAutograd is called with the program's inputs as they are.

    And gives its outputs as they are: no input is written, no output is a view of an input or another output, and there
    are no subclasses, effect tokens or generator states to carry.
    """
    metadata = _metadata()
    if metadata is None:
        return False
    written = any(i.mutates_data or i.mutates_metadata for i in metadata.input_info)
    views = any(o.output_type.name != "non_alias" for o in metadata.output_info)
    kinds = {type(meta).__name__ for meta in metadata.subclass_inp_meta}
    plain = kinds <= {"PlainTensorMeta", "int"}
    extra = metadata.num_intermediate_bases or metadata.tokens or metadata.num_graphsafe_rng_states
    return plain and not written and not views and not extra


def input_origin(placeholder: fx.Node) -> int | str | None:
    """What an input of AOTAutograd's graph is of the graph it was given.

    The position of an input, the qualified name of a parameter or buffer, or None for what it has made of them.
    """
    origin = placeholder.meta.get("desc")
    if type(origin).__name__ == "PlainAOTInput":
        return origin.idx
    return origin.target if type(origin).__name__ in ("ParamAOTInput", "BufferAOTInput") else None


def _metadata() -> Any:
    """What AOTAutograd knows of the graph that it compiles; None outside of AOTAutograd."""
    return getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)

"""The pipeline: every pass over whole graphs between capture and kernels, in order.

    CAPTURED    the program as it was captured, before autograd; then PROGRAM_RULES, on the bodies of checkpoints too
    BEFORE      the program as AOTAutograd will trace it: what it would compute otherwise than eager
    DESUGARED   the same for programs that were not captured, below autograd
    JOINT       forward and backward in one graph, or an inference graph, before they are split and lowered
    LOWERED     each graph after autograd, before kernels are generated
    BODY        graphs that control flow calls

`stages` runs them. `regraft rules` lists them with the rules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from torch import fx

from ..patterns import default_rules
from ..rewrites.graph import rank
from ..rewrites.profit import Question
from ..rewrites.rule import Rule
from ..rewrites.switches import KINDS
from ..rewrites.views import renew_written_views
from .autograd.differentiate import BEFORE as CHANGES_BEFORE
from .autograd.seed_dropout import seed_calls
from .capture.checkpoints import inline_bodies
from .codegen.generate import begin_kernels
from .freezing.fold import fold
from .lowering.agreement import hold_sizes
from .options.checks import check_name
from .passes.align_rows import align_rows
from .passes.bags_as_sums import write_bags_as_sums
from .passes.channels_last import Spread, layout_question, spread_channels_last
from .passes.conjugate_gradients import conjugate_gradients
from .passes.constant_sdpa_masks import simplify_sdpa_masks
from .passes.constants_on_device import keep_constants_on_device
from .passes.conv_as_mm import byte_images_as_rows, convolutions_as_matmuls, images_as_rows
from .passes.convert_on_device import convert_on_device
from .passes.cse import eliminate_common_subexpressions, equate_sizes
from .passes.decompose_composites import decompose_composites
from .passes.float8_bits import convert_float8_bits
from .passes.fold_constant_tables import fold_constant_tables
from .passes.fold_uniform import fold_uniform
from .passes.gathered_products import transpose_gathered_products
from .passes.grouped_conv_gradients import compute_grouped_conv_gradients
from .passes.host_scalars import copy_host_scalars
from .passes.indices_to_device import move_indices_to_device
from .passes.join_products import join_products
from .passes.lines_as_images import lines_as_images
from .passes.loss_in_blocks import loss_in_blocks
from .passes.max_pool_offsets import save_max_pool_offsets
from .passes.mm_out_dtype import use_mm_out_dtype
from .passes.numbers_to_device import numbers_to_device
from .passes.pad_conv_channels import pad_conv_channels
from .passes.pad_counted_scatters import pad_counted_scatters
from .passes.periodic_order import order_within_groups
from .passes.picked_rows import check_picked_rows
from .passes.recompute_casts import recompute_casts
from .passes.recompute_norms import recompute_norms
from .passes.recompute_softmax import recompute_log_softmax, recompute_softmax
from .passes.registry import Condition, Context, Pass
from .passes.relu_masks import keep_relu_masks
from .passes.results_apart import keep_results_apart
from .passes.save_copies import save_copies
from .passes.scalars_to_device import move_scalars_to_device
from .passes.sdpa_backward_layout import lay_out_sdpa_gradients
from .passes.sdpa_four_dims import sdpa_in_four_dims
from .passes.split_conv_bias import split_conv_biases, sum_conv_bias_gradients
from .passes.sum_by_diagonal import sum_by_diagonal
from .passes.sum_by_mask import sum_by_mask
from .passes.sum_few_rows import sum_few_rows
from .passes.tables_to_device import make_tables_on_device
from .passes.written_in_parts import join_written_parts
from .templates import (
    direct_rivals,
    fuse_attention,
    fuse_attention_training,
    fuse_direct_convolutions,
    fuse_gemm,
    fuse_on_gpu,
    gpu_passes,
)
from .templates.common.task import Task, task_of

_DIFFER = "error as eager's kernels differ"

# -- conditions -------------------------------------------------------------------------------------------------------

INFERENCE = Condition("inference graphs", lambda c: c.kind == "inference")
FORWARD = Condition("forward graphs", lambda c: c.kind == "forward")
WITHOUT_GRADIENTS = Condition("inference", lambda c: not c.training)
TRAINING = Condition("training", lambda c: c.training)
FROZEN = Condition("freezing", lambda c: c.freezer is not None)
LAYOUTS = Condition("layouts may change", lambda c: c.layouts)
MEASURED = Condition("profit is not 'never'", lambda c: c.measured)
CONVOLUTIONS = Condition("convolutions", lambda c: c.convolutions > 0)
ON_CUDA = Condition("CUDA", lambda c: "cuda" in c.devices)
NOT_ON_CUDA = Condition("CPU", lambda c: "cuda" not in c.devices)
REPLAYED = Condition("triton.cudagraphs", lambda c: c.options.triton.cudagraphs)
SEEDED = Condition("rng is not 'eager'", lambda c: c.options.rng != "eager")
ATTENTION = Condition("kernels.attention is not 'library'", lambda c: c.options.kernels.attention != "library")
PRODUCTS = Condition("kernels.products is not 'library'", lambda c: c.options.kernels.products != "library")


# -- passes -----------------------------------------------------------------------------------------------------------


def _simple(name: str, function: Callable[[fx.GraphModule], Any], *when: Condition, **more: Any) -> Pass:
    """A pass that needs nothing but the graph."""
    return Pass(name, lambda graph, _: function(graph), when, source=function, **more)


def _rules(stage: str) -> Pass:
    """The rules of a stage; `regraft rules` lists them."""
    doc = f"The rules of stage {stage!r}, each applied if it is legal and profitable."
    return Pass(f"rewrite-{stage}", lambda graph, c: c.rewrite(graph, stage), doc=doc, seconds="")


def _attention(run: Callable[[fx.GraphModule, Context], Any], *when: Condition, drawn: bool = False) -> Pass:
    doc = "softmax(f(q @ k.T)) @ v, or its fused kernel  ->  one generated kernel, f any pointwise function."
    return Pass(
        "attention-template", run, (*when, ATTENTION), doc, seconds="templates", drawn=drawn, family="attention",
        candidates=("generated",), numerics=_DIFFER,
    )  # fmt: skip


def _mark_weights(graph: fx.GraphModule, context: Context) -> None:
    context.freezer.mark(graph)


def _begin_freezing(graph: fx.GraphModule, context: Context) -> None:
    context.freezer.begin(graph)


def _finish_freezing(graph: fx.GraphModule, context: Context) -> int:
    return int(context.freezer.finish(graph))


def _simplify_sdpa_masks(graph: fx.GraphModule, context: Context) -> dict[str, int]:
    return simplify_sdpa_masks(graph, keep_stream=context.options.rng == "eager")


def _sdpa_in_four_dims(graph: fx.GraphModule, context: Context) -> int:
    return sdpa_in_four_dims(graph, keep_stream=context.options.rng == "eager")


def _channels_last(graph: fx.GraphModule, context: Context) -> int:
    spread: Spread = spread_channels_last(
        graph,
        context.oracle,
        context.record,
        training=context.kind != "inference",
        keep_stream=context.options.rng == "eager",
        rivals=direct_rivals if _computes_convolutions(context) else lambda _: {},
    )
    context.convolutions = spread.convolutions
    if spread.convolutions or context.kind == "inference":
        context.record.details["channels_last"] = asdict(spread)
    return spread.convolutions if spread.chosen else 0


def _lines_as_images(graph: fx.GraphModule, context: Context) -> int:
    return lines_as_images(graph, keep_stream=context.options.rng == "eager")


def _grouped_conv_gradients(graph: fx.GraphModule, context: Context) -> int:
    return compute_grouped_conv_gradients(graph, keep_stream=context.options.rng == "eager")


def _computes_convolutions(context: Context) -> bool:
    """Whether kernels of our own may compute convolutions on a CPU."""
    return "cuda" not in context.devices and context.options.kernels.products != "library"


def _direct_convolutions(graph: fx.GraphModule, context: Context) -> int:
    asked = context.kind == "inference" and context.layouts

    def question(node: fx.Node) -> Question | None:
        return layout_question(node, direct_rivals) if asked and rank(node) > 3 else None

    return fuse_direct_convolutions(graph, context.oracle, context.record, question)


def _seed(graph: fx.GraphModule, context: Context) -> dict[str, int]:
    return dict(seed_calls(graph, fast=context.options.rng == "fast"))


def _fuse_attention(graph: fx.GraphModule, context: Context) -> int:
    return fuse_attention(graph, context.oracle, context.record)


def _fuse_attention_training(graph: fx.GraphModule, context: Context) -> int:
    task, rng = _task(graph, context, training=True), context.options.rng
    task = task and task.of(context.options.kernels.attention)
    return 0 if task is None else fuse_attention_training(task, seeds=rng != "eager")


def _fuse_on_gpu(graph: fx.GraphModule, context: Context) -> None:
    _fuse(graph, context, training=context.kind != "inference")


def _fuse_body_on_gpu(graph: fx.GraphModule, context: Context) -> None:
    _fuse(graph, context, training=False)


def _fuse(graph: fx.GraphModule, context: Context, training: bool) -> None:
    task = _task(graph, context, training=training, while_compiling=_begun_ahead(graph))
    if task is not None:
        fuse_on_gpu(task, context.do, context.options.kernels)


def _fuse_gemm(graph: fx.GraphModule, context: Context) -> int:
    frozen = context.freezer is not None
    # For weights that are not frozen, kernels gain too little over torch's libraries to justify compile time.
    few_rows = not frozen and not context.max_autotune
    return fuse_gemm(graph, context.oracle, context.record, packed=frozen, few_rows=few_rows)


def _task(graph: fx.GraphModule, context: Context, **how: Any) -> Task | None:
    how |= {"thorough": context.max_autotune, "tma": context.options.triton.tma}
    return task_of(graph.graph, context.oracle, context.record, **how)


def _begun_ahead(graph: fx.GraphModule) -> Callable[[], None]:
    """A function that starts compiling a graph's kernels, once; most kernels stay the same after templates."""

    @functools.cache
    def begin() -> None:
        with suppress(Exception):  # the error is raised again when kernels are generated
            begin_kernels(graph)

    return begin


# -- the list ---------------------------------------------------------------------------------------------------------

_ON_GPUS = (
    "f(softmax(g(q @ k.T)) @ v), f(x @ w), f(convolution(x, w))  ->  one generated kernel each, where it was measured "
    "faster than the library's call with the kernels around it."
)
_ON_CPUS = (
    "f(x @ weight.T + bias)  ->  one generated kernel, f any pointwise function: where few rows meet large weights or "
    "such of few bits; with option 'freezing' or mode 'max-autotune' of any sizes."
)
_CONSTANTS = (
    _simple("fold_uniform", fold_uniform),
    _simple("fold_constant_tables", fold_constant_tables),
    _simple("scalars_to_device", move_scalars_to_device),
)
_LINES = (LAYOUTS, MEASURED)
_IMAGES = (INFERENCE, LAYOUTS, CONVOLUTIONS, MEASURED)

CAPTURED = (
    _simple(
        "inline_checkpoints", inline_bodies, WITHOUT_GRADIENTS,
        doc="checkpoint(f, x)  ->  f(x), where nothing is kept for a backward.",
    ),
    Pass("mark_weights", _mark_weights, (FROZEN,), doc="Tell the rules which inputs are weights."),
    _simple("bags_as_sums", write_bags_as_sums, ON_CUDA, numerics=_DIFFER),
    Pass("constant_sdpa_masks", _simplify_sdpa_masks, source=simplify_sdpa_masks, seconds="masks"),
    Pass(
        "sdpa_four_dims", _sdpa_in_four_dims, (ON_CUDA,), source=sdpa_in_four_dims, seconds="masks", numerics=_DIFFER
    ),
    # What the others have replaced is what views look at.
    Pass(
        "written_views", lambda graph, _: renew_written_views(graph.graph), source=renew_written_views, required=True
    ),
)  # fmt: skip
PROGRAM_RULES = (_rules("forward"),)

_BEFORE = {
    "drop_everything": "dropout(x, 1.0, True)  ->  x * 0.0, which draws nothing, as in eager.",
    "whole_resampling": "upsample_bilinear2d(x)  ->  one operator, which has one derivative, as in eager.",
    "circular_padding": "pad(x, (2, 1), 'circular')  ->  a slice of a repetition.",
    "branch_gradients": "cond(p, sum, sin, (x,))  ->  the same of copies, whose gradients lie alike.",
    "as_eager": "binary_cross_entropy(x, y)  ->  the same after the check that eager makes, and other such operators.",
    "checked_draws": "bernoulli(p)  ->  the same after the check that eager makes, in the order of memory.",
    "written_layouts": "masked_fill_(x, mask, 0), x not contiguous  ->  copy_(x, masked_fill(x, mask, 0)).",
    "late_numbers": "cumsum(x[mask])  ->  the same, whose derivative asks for no number that only the data says.",
}


def _before(name: str) -> Pass:
    change = CHANGES_BEFORE[name]
    return Pass(name, lambda graph, c: change(graph, c.inputs), doc=_BEFORE[name], required=True)


BEFORE = tuple(map(_before, CHANGES_BEFORE))

DESUGARED = (
    *PROGRAM_RULES,
    _simple("decompose_composites", decompose_composites),
)

JOINT = (
    _simple("equate_sizes", equate_sizes),
    _simple("indices_to_device", move_indices_to_device, TRAINING, ON_CUDA),
    _simple("tables_to_device", make_tables_on_device, TRAINING, ON_CUDA),
    # Before the graph is split, so that the backward computes known numbers again instead of saving them.
    _simple("fold_uniform", fold_uniform, TRAINING),
    _simple("scalars_to_device", move_scalars_to_device, TRAINING),
    _simple("pad_counted_scatters", pad_counted_scatters, TRAINING, numerics=_DIFFER),
    _simple("sum_by_mask", sum_by_mask, numerics=_DIFFER),
    _simple("sum_by_diagonal", sum_by_diagonal, TRAINING, ON_CUDA, numerics=_DIFFER),
    _simple("sum_few_rows", sum_few_rows, TRAINING, ON_CUDA, numerics=_DIFFER),
    _simple("join_products", join_products, TRAINING, NOT_ON_CUDA, numerics=_DIFFER),
    _simple("loss_in_blocks", loss_in_blocks, TRAINING, numerics=_DIFFER),
    _simple("recompute_log_softmax", recompute_log_softmax, TRAINING),
    _simple("recompute_norms", recompute_norms, TRAINING),
    _simple("recompute_casts", recompute_casts, TRAINING),
    Pass("lines_as_images", _lines_as_images, (TRAINING, *_LINES), source=lines_as_images, seconds="layout"),
    Pass(
        "channels_last", _channels_last, (TRAINING,), source=spread_channels_last, family="layout",
        candidates=("channels_last",), numerics=_DIFFER, seconds="layout",
    ),
    Pass(
        "grouped_conv_gradients", _grouped_conv_gradients, (TRAINING, LAYOUTS, MEASURED),
        source=compute_grouped_conv_gradients, numerics=_DIFFER,
    ),
    _simple("split_conv_bias", split_conv_biases, TRAINING, MEASURED),
    _simple("sum_conv_bias_gradients", sum_conv_bias_gradients, TRAINING, MEASURED),
    _simple("max_pool_offsets", save_max_pool_offsets, TRAINING),
    _simple("relu_masks", keep_relu_masks, TRAINING, ON_CUDA),  # what pooling left
    Pass("seed_dropout", _seed, (SEEDED,), source=seed_calls),
    _attention(_fuse_attention_training, TRAINING, ON_CUDA),
    # What an attention's kernel has replaced is gone by now.
    _simple("recompute_softmax", recompute_softmax, TRAINING),
    # Last, since others compute tables from what they are made of.
    _simple("constants_on_device", keep_constants_on_device, TRAINING, ON_CUDA),
    _simple("save_copies", save_copies, TRAINING, ON_CUDA),
    _simple("results_apart", keep_results_apart, TRAINING),
    _simple("conjugate_gradients", conjugate_gradients, TRAINING, required=True),
)  # fmt: skip

_SIZES = _simple(
    "hold_sizes", hold_sizes, doc="index_add(x, 0, i, y)  ->  the same; a guard: y is as long as i, as on the example."
)

LOWERED = (
    _SIZES,
    _simple("indices_to_device", move_indices_to_device, INFERENCE, ON_CUDA),
    _simple("tables_to_device", make_tables_on_device, INFERENCE, ON_CUDA),
    _simple("constants_on_device", keep_constants_on_device, ON_CUDA),
    *_CONSTANTS,
    _simple("periodic_order", order_within_groups, INFERENCE),
    _simple("convert_on_device", convert_on_device, ON_CUDA),
    _simple("numbers_to_device", numbers_to_device, ON_CUDA, REPLAYED),
    _simple("host_scalars", copy_host_scalars, ON_CUDA),
    _simple("loss_in_blocks", loss_in_blocks, INFERENCE, numerics=_DIFFER),
    _simple("written_in_parts", join_written_parts),
    _simple("cse", eliminate_common_subexpressions, INFERENCE),  # autograd's partition does this for joint graphs
    _simple("float8_bits", convert_float8_bits, NOT_ON_CUDA),
    _rules("simplify"),
    Pass(
        "freeze", _begin_freezing, (INFERENCE, FROZEN), doc="Tell the rules which values are weights.",
        seconds="freeze",
    ),
    _rules("bytes"),
    _simple("byte_images_as_rows", byte_images_as_rows, INFERENCE, NOT_ON_CUDA, LAYOUTS, seconds="layout"),
    Pass("lines_as_images", _lines_as_images, (INFERENCE, *_LINES), source=lines_as_images, seconds="layout"),
    Pass(
        "channels_last", _channels_last, (INFERENCE, LAYOUTS), source=spread_channels_last, family="layout",
        candidates=("channels_last",), numerics=_DIFFER, seconds="layout",
    ),
    Pass(
        "convolution-template", _direct_convolutions, (NOT_ON_CUDA, PRODUCTS), seconds="templates",
        source=fuse_direct_convolutions, family="convolution-kernel", candidates=("direct",), numerics=_DIFFER,
        drawn=True,
    ),
    _simple("conv_as_mm", convolutions_as_matmuls, *_IMAGES, seconds="layout"),
    _simple("split_conv_bias", split_conv_biases, INFERENCE, LAYOUTS, MEASURED, seconds="layout"),
    _simple("images_as_rows", images_as_rows, *_IMAGES, seconds="layout"),
    _simple("pad_conv_channels", pad_conv_channels, *_IMAGES, seconds="layout"),
    _simple("pad_conv_channels", pad_conv_channels, FORWARD, LAYOUTS, MEASURED),
    _simple("align_rows", align_rows, LAYOUTS),
    # Before rules pad single products of an attention.
    _attention(_fuse_attention, INFERENCE, drawn=True),
    _rules("lowered"),
    _simple("cse", eliminate_common_subexpressions, INFERENCE),  # rules copy and convert one operand in the same way
    _simple("sdpa_backward_layout", lay_out_sdpa_gradients),
    _simple("mm_out_dtype", use_mm_out_dtype, LAYOUTS),
    _simple("gathered_products", transpose_gathered_products, INFERENCE, ON_CUDA, numerics=_DIFFER),
    _simple("picked_rows", check_picked_rows, INFERENCE, NOT_ON_CUDA, PRODUCTS),
    Pass(
        "gpu-templates", _fuse_on_gpu, (ON_CUDA,), seconds="templates", drawn=True, family="linear-kernel",
        candidates=("generated",), numerics=_DIFFER, doc=_ON_GPUS,
    ),
    Pass(
        "linear-template", _fuse_gemm, (INFERENCE, NOT_ON_CUDA, PRODUCTS), seconds="templates", doc=_ON_CPUS,
        family="linear-kernel", candidates=("generated", "generated_few_rows"), numerics=_DIFFER, drawn=True,
    ),
    Pass("fold_weights", _finish_freezing, (INFERENCE, FROZEN), source=fold, seconds="freeze"),
)  # fmt: skip

BODY = (
    _SIZES,
    *_CONSTANTS,
    _simple("cse", eliminate_common_subexpressions),
    _rules("simplify"),
    _attention(_fuse_attention),
    _rules("lowered"),
    Pass("gpu-templates", _fuse_body_on_gpu, (ON_CUDA,), seconds="templates", doc=_ON_GPUS),
)

PIPELINE = {
    "captured": (*CAPTURED, *PROGRAM_RULES),
    "before": BEFORE,
    "desugared": DESUGARED,
    "joint": JOINT,
    "lowered": LOWERED,
    "body": BODY,
}


def names_of_steps() -> list[str]:
    """The names of all passes and templates."""
    every = [one for listed in PIPELINE.values() for one in listed if not one.required]
    passes = {one.name for one in every} - {"gpu-templates"}
    return sorted({*passes, *(template.rule for template in gpu_passes.TEMPLATES)})


def refuse_unknown(names: Iterable[str], rules: Iterable[Rule]) -> None:
    """Check the names in option ``without``: rules, passes, templates, kinds, or (with a dot) operators.

    Raises:
        OptionError: a name is unknown; the message suggests the nearest name.
    """
    for name in names:
        if "." not in name:
            known = [*KINDS, *names_of_steps(), *sorted({rule.name for rule in [*rules, *default_rules()]})]
            check_name(name, known, "name in option 'without'")


def pass_facts() -> list[dict[str, Any]]:
    """All passes as plain data, once per stage; bodies use the passes of whole graphs."""
    stages = [(stage, one) for stage, passes in PIPELINE.items() if stage != "body" for one in passes]
    known = {(stage, one.name): one.facts(stage) for stage, one in reversed(stages)}
    return [fact for name, fact in reversed(known.items()) if not name[1].startswith("rewrite-")]

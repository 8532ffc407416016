"""Normal form: one spelling per meaning, by small named respellings on a mirror of the graph.

Scores of an attention come out as

    matmul(q, kT); [mul(_, scale)]; [add(_, bias)] [where.ScalarOther(keep, _, fill)]; softmax.int(_, -1);
    [to(_, dtype)]; [dropout(_, p, True)]; matmul(_, v)

`scale` is a number or a 0-d tensor. Each part occurs at most once if possible. A product is `matmul`, with
probabilities on the left; a reordering is `permute`, a regrouping `reshape`, a broadcast `expand`.

`NORMAL_FORM` is for graphs captured before autograd, `LOWERED_FORM` for graphs after it. The order of respellings
matters only for the same operator: the first one that applies is used.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...rewrites.respell import Respelling
from . import (
    call_forms,
    casts,
    composed,
    curves,
    dropout,
    einsum,
    exponent_sums,
    fixed_norms,
    gates,
    head_layout,
    learned_scores,
    linear,
    logic,
    masked_exponents,
    masked_rows,
    masks,
    matmul,
    norm_dims,
    picked,
    pointwise,
    scale,
    slices,
    softmax,
    softmax_parts,
    split_attention,
    statistics,
    turns,
    view_order,
    views,
    weight_sums,
)

VIEWS: tuple[Respelling, ...] = (
    views.identity,
    views.repeated,
    views.permutation,
    views.regrouping,
    views.only_entry,
    views.broadcast,
    views.neutral,
    views.lone_part,
    view_order.broadcast_above_permute,
    view_order.broadcast_above_ones,
    view_order.split_below_permute,
    view_order.merge_above_permute,
)

LOGIC: tuple[Respelling, ...] = (
    logic.unequal_to_itself,
    logic.negation,
    logic.connective,
    logic.conjunction,
    logic.known_operand,
    logic.comparison_of_flags,
    logic.flag_cast,
    logic.complement,
)

SCORES: tuple[Respelling, ...] = (
    casts.cast_name,
    casts.cast_there_and_back,
    casts.softmax_in_own_type,
    casts.sum_in_own_type,
    casts.choice_in_own_type,
    casts.cast_below_views,
    softmax.softmax_name,
    softmax.safe_softmax,
    softmax.shifted_softmax,
    softmax.exponent_of_log_softmax,
    softmax.exponent_over_logsumexp,
    softmax.exponents_over_sum,
    softmax.product_over_sum,
    *exponent_sums.SUMS,
    *masked_exponents.MASKED_EXPONENTS,
    *softmax_parts.SOFTMAX_PARTS,
    dropout.inactive_dropout,
    dropout.native_dropout,
    dropout.handwritten_dropout,
    dropout.dropped_ones,
    scale.division_as_product,
    scale.factor_last,
    scale.scale_of_scaled,
    scale.scale_beside_rows,
    scale.scale_of_sum,
    scale.scale_of_choice,
    scale.division_by_rows,
    scale.negation_as_product,
    masks.fill_as_where,
    masks.written_entries,
    masks.fill_on_the_right,
    masks.choice_of_constants,
    masks.two_masks,
    masks.whole_mask,
    masks.added_nothing,
    masks.multiplied_mask,
    masks.difference_as_sum,
    masks.scores_first,
    masks.one_bias,
    masks.clamp_of_bias,
    pointwise.number_added,
    pointwise.number_minus,
    pointwise.lower_bound,
    pointwise.square,
    view_order.implied_broadcast,
    view_order.broadcast_above_elementwise,
)

PRODUCTS: tuple[Respelling, ...] = (
    einsum.einsum_result,
    einsum.einsum_as_product,
    einsum.einsum_as_permute,
    einsum.einsum_as_elementwise,
    matmul.product,
    matmul.product_of_several,
    matmul.product_with_bias,
    matmul.equal_ranks,
    learned_scores.scores_of_weights,
    learned_scores.values_of_weights,
    learned_scores.column_as_row,
    scale.scale_after_product,
    view_order.implied_batch,
    matmul.probabilities_left,
    matmul.transposed_product,
    head_layout.repeated_heads,
    head_layout.repeated_whole,
    head_layout.regrouped_and_back,
    head_layout.regrouped_around_numbers,
    head_layout.split_above_product,
    head_layout.rows_split_above_product,
    head_layout.split_above_elementwise,
    head_layout.merge_below_product,
    head_layout.rows_merged_below_product,
    head_layout.permute_below_product,
    head_layout.merge_below_elementwise,
    head_layout.permute_below_elementwise,
    head_layout.transpose_above_elementwise,
    head_layout.column_above_elementwise,
)

NORMAL_FORM: tuple[Respelling, ...] = (
    *VIEWS, *composed.COMPOSED, *call_forms.CALL_FORMS, *picked.PICKED, *LOGIC, *split_attention.JOINS,
    *weight_sums.SUMS_OF_WEIGHTS, *SCORES, *masked_rows.ROWS, *slices.SLICES, *turns.TURNS, *statistics.STATISTICS,
    *norm_dims.NORM_DIMS, *fixed_norms.FIXED_NORMS, *curves.CURVES, *gates.GATES, *PRODUCTS,
)  # fmt: skip

LOWERED_FORM: tuple[Respelling, ...] = (
    *VIEWS, linear.addmm_as_linear, linear.mm_as_linear, linear.products_with_one_matrix, linear.linear_of_rows
)  # fmt: skip

FORMS: Mapping[str, tuple[Respelling, ...]] = {
    "forward": NORMAL_FORM, "simplify": (), "bytes": LOWERED_FORM, "lowered": LOWERED_FORM
}  # fmt: skip
"""The form that a graph's mirror is kept in, by the stage of the rules."""

__all__ = ["FORMS", "LOWERED_FORM", "NORMAL_FORM"]

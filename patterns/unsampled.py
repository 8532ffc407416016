"""Conditions of the default rules that the operands of samples cannot violate, and the test that violates each.

`regraft check --guards` drops the conditions of a rule one by one, and reports which near miss notices. Some conditions
cannot be violated by operands alone: they concern other readers of a value, arguments that a graph may have and a
program on tensors may not, or a place in the program. They are listed here by the names of rule and condition.
"""

from __future__ import annotations

UNSAMPLED: dict[tuple[str, str], str] = {
    # On tensors, the casts of a pattern keep the values; in a graph, they may be casts to any type.
    ("sdpa", "guard casts_stay_floating"): "test_attention_silent_wrong.py::test_right_or_refused",
    ("sdpa_with_weights", "guard casts_stay_floating"): "test_attention_silent_wrong.py::test_right_or_refused",
    ("sdpa", "guard casts_keep_precision"): "test_attention_silent_wrong.py::test_right_or_refused",
    ("sdpa_with_weights", "guard casts_keep_precision"): "test_attention_silent_wrong.py::test_right_or_refused",
    ("rms_norm", "guard casts_keep_values"): "test_normalization.py::test_statistics_of_rounded_values",
    ("layer_norm", "guard casts_keep_values"): "test_normalization.py::test_cast_to_integers",
    # Sizes of samples are numbers.
    ("rms_norm", "guard row_is_known"): "test_normalization.py::test_rms_norm",
    ("layer_norm", "guard row_is_known"): "test_normalization.py::test_layer_norm",
    # A weight or bias that is not a row is not part of the match.
    ("rms_norm", "dims x"): "test_normalization.py::test_weight_that_is_no_row",
    ("rms_norm", "dims weight"): "test_normalization.py::test_weight_that_is_no_row",
    ("layer_norm", "dims x"): "test_normalization.py::test_weight_that_is_no_row",
    ("layer_norm", "dims weight"): "test_normalization.py::test_weight_that_is_no_row",
    ("layer_norm", "dims bias"): "test_normalization.py::test_weight_that_is_no_row",
    # On tensors, a pattern merges pairs in one way.
    ("rotary", "guard pairs_are_whole"): "test_rotary.py::test_regrouped_pairs",
    # Weights that were set to 0, and a softmax by hand, are spelled as any other, and only remember what they were.
    ("sdpa", "applies math"): "../compiler/normal/test_masked_rows.py::test_cleared_rows_in_training",
    ("sdpa_with_weights", "applies math"): "test_attention_silent_wrong.py::test_kept_weights_of_infinite_scores",
    # A sample is a whole program: its values have no other readers.
    ("sdpa_with_weights", "guard weights_are_used"): "test_attention_refusals.py::test_nobody_wants_the_weights",
    # Arguments that a pattern does not compare have one value on tensors, and a sample returns one result.
    ("batch_norm", "guard running_statistics"): "test_batch_norm.py::test_near_miss_batch_statistics",
    ("batch_norm", "guard forward_layer"): "test_batch_norm.py::test_near_miss_transposed",
    ("convolution", "guard forward_convolution"): "test_convolution.py::test_refused",
    ("byte_convolution", "guard forward_convolution"): "test_byte_convolutions.py::test_what_is_left",
    ("identity", "guard fixed_sizes"): "test_algebra.py::test_symbolic_sizes",
    ("identity", "guard one_result"): "test_algebra.py::test_results_are_tensors_of_their_own",
    ("identity", "guard nothing_subtracted"): "test_algebra.py::test_what_only_looks_like_one",
    ("identity", "guard widened"): "test_algebra.py::test_integers_through_floats",
    # Eager refuses operands of different dtypes too, so that there is no such program.
    ("batch_norm", "guard floating"): "test_batch_norm.py::test_near_miss_dtype",
    ("convolution", "guard one_dtype"): "test_convolution.py::test_operands_of_other_dtypes_are_refused",
    # Samples of rules after autograd have no gradients, and a pattern has no other products in between.
    ("merged_linear", "guard trained_apart"): "test_merging.py::test_trained_weights_stay_apart",
    ("token_mixing", "guard not_trained"): "test_token_mixing.py::test_trained_weights_are_left",
    ("merged_linear", "guard nearby"): "test_merging.py::test_products_far_apart",
}

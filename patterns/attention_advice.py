"""Advice for near misses of attention, by the reason, or by the operator that was found."""

from __future__ import annotations

_REARRANGED = "rearrange before the first operator of the rule or after the last; a band or chunks: mask whole rows"
_REARRANGING = (
    "reshape", "permute", "expand", "slice", "select", "pad", "constant_pad_nd", "cat", "as_strided", "index", "gather",
    "roll", "flip", "unfold", "new_zeros", "slice_scatter", "select_scatter", "diagonal", "diagonal_copy", "copy_",
)  # fmt: skip

ADVICE = {
    "inner-value-escapes": "return or keep it only where it is needed (attention weights: output_attentions=False)",
    "inner-value-escapes: logsumexp": "write a sink as one more column, softmax(cat([scores, sink], -1))[..., :-1], "
    "not as a gate, sigmoid(logsumexp(scores) - sink)",
    "inner-value-escapes: amax": "subtract no maximum from scores whose exponents are divided by their sum and a "
    "number, or divide by the sum alone (softmax)",
    "weights-differ": "change scores before the softmax, or the result after the product",
    "fill-not-a-mask": "fill with -inf or torch.finfo(dtype).min, and add a bias before the fill",
    "mask-shape": "give the mask the rows and columns of the scores, or 1",
    "bias-not-floating": "make it a floating tensor before it is added; a mask of flags belongs into masked_fill",
    "scale-varies-along-keys": "scale key before the product",
    "cast-not-floating": "keep the floating type from the first operator to the last",
    **dict.fromkeys(_REARRANGING, _REARRANGED),
}

"""What a person can change about a near miss, by its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....rewrites.record import NearMiss

_BY_CODE = {
    "inner-value-escapes": "return or keep it only where it is needed (attention weights: output_attentions=False)",
    "fill-not-a-mask": "fill with -inf or torch.finfo(dtype).min, and add a bias before the fill",
    "mask-shape": "give the mask the rows and columns of the scores, or 1",
    "bias-not-floating": "make it a floating tensor before it is added; a mask of flags belongs into masked_fill",
    "scale-varies-along-keys": "scale key before the product",
    "cast-not-floating": "keep the floating type from the first operator to the last",
}
_REARRANGED = "rearrange before the first operator of the rule or after the last; a band or chunks: mask whole rows"
_REARRANGING = frozenset({
    "reshape", "permute", "expand", "slice", "select", "pad", "constant_pad_nd", "cat", "as_strided", "index", "gather",
    "roll", "flip", "unfold", "new_zeros", "slice_scatter", "select_scatter", "diagonal", "diagonal_copy", "copy_",
})  # fmt: skip
_PART_OF_IT = 2  # operators that matched, below which a root may be no such program at all


def advice(miss: NearMiss) -> str:
    """What to change, as one line, or "" where nothing general can be said."""
    if miss.code != "pattern-differs":
        return _BY_CODE.get(miss.code, "")
    operator = miss.found.partition(":")[0]
    return _REARRANGED if miss.depth >= _PART_OF_IT and operator in _REARRANGING else ""

"""The pattern library. Importing it enables nothing: `default_rules` is the explicit, ordered list."""

from __future__ import annotations

from ..rewrites.ruleset import RuleSet


def default_rules() -> RuleSet:
    """The rules that run unless `options={"rules": ...}` names others, in the order in which they are tried."""
    from .activations import gelu, gelu_tanh, mish, silu
    from .algebra import idempotent, identity, reordered_twice
    from .attention import sdpa, sdpa_with_weights
    from .batch_norm import batch_norm
    from .byte_convolutions import byte_convolution
    from .byte_products import byte_product
    from .convolution import convolution
    from .cross_entropy import picked_log_softmax
    from .linear import linear
    from .merging import merged_linear
    from .normalization import layer_norm, rms_norm
    from .packed_weights import int4_weight, int8_weight
    from .padding import padded_product
    from .rotary import rotary
    from .shifted_bytes import shifted_bytes
    from .token_mixing import token_mixing

    return RuleSet([
        sdpa, sdpa_with_weights, rms_norm, layer_norm, gelu, gelu_tanh, silu, mish, rotary, batch_norm,
        picked_log_softmax, token_mixing, merged_linear, identity, idempotent, reordered_twice, padded_product,
        byte_convolution, byte_product, shifted_bytes, int8_weight, int4_weight, linear, convolution,
    ])  # fmt: skip

"""Tiny models of `transformers`: a configuration with the widths, vocabularies and pictures made small.

    BertConfig(hidden_size=768, num_attention_heads=12, vocab_size=30522, ...)
        ->  {hidden_size: 64, num_attention_heads: 4, vocab_size: 1000, ...}

What a model computes stays the same, node by node, so that a whole corpus can be compiled in minutes. Names are those
that configurations use in common; what a model type calls otherwise stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WIDTH, HEADS, VOCABULARY, PICTURE, PATCH, POSITIONS = 64, 4, 1000, 64, 8, 2048

STEPS_AHEAD = 8
"""Steps that a time series is forecast for, where the configuration does not say."""

_LIMITS: dict[str, int] = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "hidden_dim", "width", "embedding_size",
         "encoder_hidden_size", "decoder_hidden_size", "text_hidden_size", "vision_hidden_size", "word_embed_proj_dim",
         "out_hidden_size", "output_dim", "projection_dim"), WIDTH),
    **dict.fromkeys(("input_embedding_size", "output_embedding_size", "q_lora_rank"), WIDTH // 2),
    **dict.fromkeys(
        ("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads",
         "encoder_num_attention_heads", "decoder_num_attention_heads", "attention_heads"), HEADS),
    **dict.fromkeys(
        ("num_key_value_heads", "n_kv_heads", "num_kv_heads", "encoder_num_key_value_heads",
         "decoder_num_key_value_heads", "multi_query_group_num"), HEADS // 2),
    **dict.fromkeys(
        ("head_dim", "d_kv", "attention_head_size", "global_head_dim", "qk_nope_head_dim", "qk_rope_head_dim",
         "v_head_dim", "kv_lora_rank", "hidden_size_per_layer_input"), WIDTH // HEADS),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "mlp_dim",
         "ffn_hidden_size", "dim_feedforward", "feed_forward_size", "encoder_intermediate_size"), 2 * WIDTH),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), WIDTH),
    **dict.fromkeys(
        ("vocab_size", "src_vocab_size", "tgt_vocab_size", "vocab_size_per_layer_input", "text_vocab_size",
         "audio_vocab_size"), VOCABULARY),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    "image_size": PICTURE, "patch_size": PATCH, "max_position_embeddings": POSITIONS,
}  # fmt: skip
"""The largest value of each setting."""

_KEY_HEADS = ("num_key_value_heads", "n_kv_heads", "num_kv_heads")
_HEADS = ("num_attention_heads", "num_heads", "n_heads")


def tiny_settings(own: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that make a configuration tiny, given its `own`; configurations in it are not entered."""
    limited = {name: _limited(value, _LIMITS[name]) for name, value in own.items() if name in _LIMITS}
    settings = {name: value for name, value in limited.items() if value != own[name]}
    for name in _KEY_HEADS:  # every head its own key, where it was so
        if name in settings and own[name] in [own.get(heads) for heads in _HEADS]:
            settings[name] = HEADS
    return settings | _tokens(own)


def tiny_rotations(config: Any) -> dict[str, Any]:
    """The setting that makes the parts of a head which turn with time, rows and columns fit a tiny head.

    Models have a default of their own for the parts, which their configuration does not show.
    """
    own, given = vars(config), getattr(config, "rope_parameters", None)
    if "mrope_section" not in getattr(config, "ignore_keys_at_rope_validation", ()) or not isinstance(given, dict):
        return {}
    width = min(own.get("head_dim") or WIDTH // HEADS, WIDTH // HEADS)
    pairs = int(width * given.get("partial_rotary_factor", 1.0)) // 2
    time, rows = pairs // 4, (pairs - pairs // 4) // 2
    return {"rope_parameters": {**given, "mrope_section": [time, rows, pairs - time - rows]}}


def _limited(value: Any, limit: int) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return min(value, limit)
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, int) for v in value):
        return type(value)(min(v, limit) for v in value)
    return value


def left_open(own: Mapping[str, Any]) -> dict[str, int]:
    """The fields that a configuration leaves open, and models cannot be built without.

    The vocabulary, until a tokenizer is there; how far a forecast reaches; how many heads keys have, where that is as
    many as queries have.
    """
    settings: dict[str, int] = {}
    if own.get("vocab_size", 0) is None:
        settings |= {"vocab_size": VOCABULARY}
        settings |= {n: 3 for n in ("pad_token_id", "mask_token_id") if own.get(n, 0) is None}
    if own.get("prediction_length", 0) is None:
        settings |= {"prediction_length": STEPS_AHEAD}
    if own.get("num_key_value_heads", 0) is None and isinstance(own.get("num_attention_heads"), int):
        settings |= {"num_key_value_heads": own["num_attention_heads"]}
    return settings


def _tokens(own: Mapping[str, Any]) -> dict[str, int]:
    """Special tokens that lie beyond a vocabulary that was made smaller."""
    if not isinstance(own.get("vocab_size"), int) or own["vocab_size"] <= VOCABULARY:
        return {}
    return {k: 3 for k, v in own.items() if k.endswith("token_id") and isinstance(v, int) and v >= VOCABULARY}

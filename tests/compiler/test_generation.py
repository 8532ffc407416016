"""Text generation with the forward compiled: eager's tokens, and a graph for the prompt and one for all tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.thorough import thorough
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import regraft

STEPS = 24


def llama() -> Any:
    config = LlamaConfig(
        hidden_size=64, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=50, max_position_embeddings=64, attn_implementation="eager",
    )  # fmt: skip
    return LlamaForCausalLM(config)


def gpt2() -> Any:
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=50, n_positions=64))


@pytest.mark.parametrize(
    ("make", "cache", "graphs"),
    # A cache that grows is in `test_text_generation.py` too, and in `test_attention_decoding.py`.
    [(llama, {"cache_implementation": "static", "disable_compile": True}, 2), thorough(gpt2, {}, 3)],
    ids=["static", "dynamic"],
)
def test_greedy_tokens_are_eagers(make: Callable[[], Any], cache: dict[str, Any], graphs: int) -> None:
    """With padding before one prompt; a cache that grows has symbolic sizes from its second length on."""
    torch.manual_seed(0)
    model = make().eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    prompt = torch.randint(1, 50, (2, 7))
    mask = torch.ones_like(prompt)
    mask[1, :3] = 0
    generate = functools.partial(model.generate, prompt, attention_mask=mask, max_new_tokens=STEPS, do_sample=False)
    expected = generate(**cache)
    model.forward = functools.wraps(model.forward)(
        torch.compile(model.forward, backend="regraft", options={"profit": "always"})
    )
    with regraft.coverage() as cov:
        assert torch.equal(generate(**cache), expected)
    assert len(cov.graphs) <= graphs  # torch 2.11 needs fewer
    assert not cov.faults

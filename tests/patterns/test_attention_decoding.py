"""Decoding with a cache: one query beside all keys so far, as `generate` runs it step by step."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest
import torch
from support.thorough import takes_turns

import regraft
from regraft.compiler.tools.generation.decoding import CACHE_NAMES

transformers = pytest.importorskip("transformers")

LAYERS, PROMPT, STEPS = 1, 6, 3


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation="eager",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=99, n_embd=64, n_layer=LAYERS, n_head=4, n_positions=64, attn_implementation="eager"
    )
    return transformers.GPT2LMHeadModel(config).eval()


def growing(model: Any) -> Any:
    return transformers.DynamicCache(config=model.config)


def fixed(model: Any) -> Any:
    return transformers.StaticCache(config=model.config, max_cache_len=16)


def cache_name(model: Any) -> str:
    return next(name for name in CACHE_NAMES if name in inspect.signature(model.forward).parameters)


def decoded(forward: Any, model: Any, cache: Any) -> list[torch.Tensor]:
    """Logits of the prompt, left-padded in one row, and of a few tokens after it."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 99, (2, PROMPT))
    mask = torch.ones(2, PROMPT, dtype=torch.long)
    mask[0, :2] = 0
    logits = []
    for _ in range(STEPS + 1):
        out = forward(input_ids=tokens, attention_mask=mask, use_cache=True, **{cache_name(model): cache})
        logits.append(out.logits)
        tokens = out.logits[:, -1:].argmax(-1)
        mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], -1)
    return logits


@takes_turns("make_cache")
@pytest.mark.parametrize("make_cache", [growing, fixed], ids=["dynamic", "static"])
@pytest.mark.parametrize("make_model", [llama, gpt2])
def test_step(make_model: Any, make_cache: Any) -> None:
    torch.manual_seed(0)
    model = make_model()
    torch._dynamo.reset()
    chosen = functools.partial(regraft.backend, options={"profit": "always"})
    compiled = torch.compile(model, backend=chosen)
    with torch.no_grad(), regraft.coverage() as coverage:
        eager = decoded(model, model, make_cache(model))
        ours = decoded(compiled, model, make_cache(model))
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    steps = [g for g in coverage.graphs if any(m.family == "attention" for m in g.applied)]
    assert len(steps) >= 2, "the prompt and the steps after it are compiled apart"
    assert coverage.count("attention") == LAYERS * len(steps)
    assert not [m for m in coverage.near_misses if m.rule == "sdpa"]

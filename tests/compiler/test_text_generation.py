"""`model.generate` with a compiled forward: eager's tokens, and nothing compiled again for a token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf

from regraft.compiler.backend import backend

from ..support.thorough import thorough

TOKENS = 6


def llama(**given: Any) -> Any:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "vocab_size": 60}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": None, "pad_token_id": 0}
    return tf.LlamaForCausalLM(tf.LlamaConfig(**{**sizes, **given}))


def t5() -> Any:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "vocab_size": 60}
    config = tf.T5Config(**sizes, eos_token_id=None, pad_token_id=0, decoder_start_token_id=0)
    return tf.T5ForConditionalGeneration(config)


# What is generated, and how many graphs are compiled for it at most: the prompt's, a token's; without a fixed cache a
# token's with symbolic length, too.
GENERATED: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "static cache": (llama, 2, {"cache_implementation": "static"}),
    "dynamic cache, beams": (llama, 3, {"num_beams": 2}),
    "static cache, sampling": (llama, 2, {"cache_implementation": "static", "do_sample": True, "top_k": 20}),
    "an encoder, static cache": (t5, 2, {"cache_implementation": "static"}),
}


@pytest.mark.parametrize(
    "name",
    [
        thorough("static cache"), "dynamic cache, beams", thorough("static cache, sampling"),
        thorough("an encoder, static cache"),
    ],
)  # fmt: skip
def test_tokens_are_eagers(name: str) -> None:
    create, graphs, how = GENERATED[name]
    torch.manual_seed(0)
    model = create().eval()
    prompt = torch.randint(3, 60, (2, 7))
    compiled: list[Any] = []

    def counting(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return backend(graph, inputs)

    def generated() -> torch.Tensor:
        torch.manual_seed(7)
        with torch.no_grad():
            return model.generate(prompt, max_new_tokens=TOKENS, min_new_tokens=TOKENS, **how)  # type: ignore[no-any-return]

    expected = generated()
    model.forward = torch.compile(model.forward, backend=counting)
    assert torch.equal(generated(), expected)
    made = len(compiled)
    assert 1 < made <= graphs
    assert torch.equal(generated(), expected)
    assert len(compiled) == made, "a second text compiles nothing"

"""Attentions of models as transformers writes them, read where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.thorough import one_row_in
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.templates import fuse_attention
from regraft.rewrites.profit import Always
from regraft.rewrites.record import GraphRecord

transformers = pytest.importorskip("transformers")

_EAGER = {"attn_implementation": "eager"}
_TINY = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32, "vocab_size": 50,
    **_EAGER,
}  # fmt: skip
_TOKENS = torch.arange(20).view(2, 10)
_MASK = torch.tensor([[1] * 10, [1] * 6 + [0] * 4])
_IMAGE = torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)


def bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(**_TINY)), (_TOKENS, _MASK)


def gpt2() -> Any:
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=50, use_cache=False, **_EAGER)
    return transformers.GPT2Model(config), (_TOKENS,)


def t5() -> Any:
    config = transformers.T5Config(d_model=32, d_kv=8, num_layers=1, num_heads=4, d_ff=32, vocab_size=50, **_EAGER)
    return transformers.T5EncoderModel(config), (_TOKENS, _MASK)


def gemma2() -> Any:
    config = transformers.Gemma2Config(num_key_value_heads=2, head_dim=8, use_cache=False, **_TINY)
    return transformers.Gemma2Model(config), (_TOKENS,)


def swin() -> Any:
    sizes = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": 4}
    return transformers.SwinModel(transformers.SwinConfig(**sizes, **_EAGER)), (_IMAGE,)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """Nothing compiled before, nothing left behind."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@one_row_in(2)
@pytest.mark.parametrize(("make", "count"), [(bert, 1), (gpt2, 1), (t5, 1), (gemma2, 1), (swin, 2)])
def test_models(make: Callable[[], Any], count: int) -> None:
    torch.manual_seed(0)
    model, inputs = make()
    model.eval()
    record, fused = GraphRecord("test"), []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        traced = make_fx(graph_module, tracing_mode="real")(*example_inputs)
        traced.graph.eliminate_dead_code()
        fused.append(fuse_attention(traced, Always(), record))
        traced.recompile()
        return traced

    with torch.no_grad():
        expected = model(*inputs)[0]
        found = torch.compile(model, backend=backend)(*inputs)[0]
    assert sum(fused) == count, record.near_misses
    torch.testing.assert_close(found, expected)


def test_a_replaced_kernel_call_is_gone() -> None:
    """The flash kernel's operator may draw random numbers, so nothing else would take it out."""
    import regraft

    torch.compiler.reset()
    q, k, v = (torch.randn(1, 2, 32, 16) for _ in range(3))
    program = torch.nn.functional.scaled_dot_product_attention
    with torch.no_grad(), regraft.coverage() as found:
        compiled = torch.compile(lambda *qkv: program(*qkv), backend="regraft", options={"profit": "always"})
        torch.testing.assert_close(compiled(q, k, v), program(q, k, v))
    (code,) = found.graphs[0].code
    assert code.templates == {"attention": 1} and code.kept == ()

"""Small models of `transformers`: one graph, nothing falls back, every value and gradient as in eager."""

from __future__ import annotations

import pytest
import torch
from support.capturing import same_as_eager, target_name
from support.thorough import thorough
from torch import nn

transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
MASK = torch.ones(2, 6, dtype=torch.long).index_put((torch.tensor([1]), torch.tensor([5])), torch.tensor(0))


class Model(nn.Module):
    """A model of tokens and their padding mask, with eager attention."""

    def __init__(self, name: str, **options: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**SMALL, **options)
        self.model = getattr(transformers, f"{name}Model")._from_config(config, attn_implementation="eager")

    def forward(self, tokens, mask):
        return self.model(input_ids=tokens, attention_mask=mask)[0]


def operators(backend):
    return [target_name(n) for n in backend.captured[-1].graph_module.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize(("training", "dynamic"), [thorough(False, None), (True, None), thorough(True, True)])
def test_bert(training, dynamic):
    model = Model("Bert", max_position_embeddings=16).train(training)
    backend = same_as_eager(model, torch.arange(12).reshape(2, 6), MASK, dynamic=dynamic)
    calls = operators(backend)
    assert backend.codes == []
    assert calls.count("aten.matmul.default") == 2 and calls.count("aten.softmax.int") == 1
    assert calls.count("aten.layer_norm.default") == 3 and calls.count("aten.gelu.default") == 1


@pytest.mark.parametrize("dynamic", [thorough(None), True])
def test_llama(dynamic):
    model = Model("Llama", num_key_value_heads=2, use_cache=False, pad_token_id=0).eval()
    backend = same_as_eager(
        model, torch.arange(12).reshape(2, 6), MASK, context=torch.no_grad, backward=False, dynamic=dynamic
    )
    calls = operators(backend)
    assert backend.codes == []
    # Two of the layer; some versions of transformers compute the rotary angles by a product too.
    assert calls.count("aten.matmul.default") in (2, 3) and calls.count("aten.silu.default") == 1

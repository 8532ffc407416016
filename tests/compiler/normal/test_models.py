"""Real models: normal form is a fixpoint, terminates, adds no guard, and every attention reads alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.normal import normalized
from support.thorough import one_row_in, takes_turns
from torch import fx

from regraft.compiler.capture import capture
from regraft.rewrites.functional import functionalize_temporaries
from regraft.rewrites.graph import is_tensor, op_name

transformers = pytest.importorskip("transformers")

HIDDEN = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "vocab_size": 99,
}
GPT_NEO = {"hidden_size": 32, "num_heads": 4, "num_layers": 2, "attention_types": [[["global", "local"], 1]]}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": HIDDEN,
    "llama": HIDDEN | {"num_key_value_heads": 2},
    "gpt_neo": GPT_NEO | {"window_size": 4, "vocab_size": 99},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "vocab_size": 99},
    "flaubert": {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_words": 99},
}
AFTER_SCORES = {"aten.mul", "aten.add", "aten.where", "aten.to", "aten.softmax", "aten.dropout"}


def _forms(family: str, *, train: bool, dynamic: bool) -> list[fx.Graph]:
    config = transformers.AutoConfig.for_model(family, **FAMILIES[family])
    config._attn_implementation = "eager"
    model = transformers.AutoModel.from_config(config).train(train)
    found: list[fx.Graph] = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> fx.GraphModule:
        captured = capture(gm, inputs).graph_module
        functionalize_temporaries(captured.graph)
        env = torch._guards.TracingContext.get().fake_mode.shape_env
        guards = len(env.guards)
        found.append(normalized(captured).graph)
        assert len(env.guards) == guards
        return gm

    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    with torch.set_grad_enabled(train):
        compiled = torch.compile(model, backend=backend, dynamic=dynamic)
        compiled(input_ids=torch.randint(3, 90, (2, 12)), attention_mask=mask, use_cache=False)
    return found


def _scores_of(softmax: fx.Node) -> list[fx.Node]:
    """The products that a softmax's input is made of, through what may follow scores."""
    todo, products = [softmax.args[0]], []
    while todo:
        node = todo.pop()
        if op_name(node) == "aten.matmul":
            products.append(node)
        elif op_name(node) in AFTER_SCORES:
            todo.extend(n for n in node.all_input_nodes if is_tensor(n))
    return products


def _is_weighted_sum(softmax: fx.Node) -> bool:
    """Whether softmax is the left operand of a product, but for casts and dropout."""
    (user,) = softmax.users
    while op_name(user) in ("aten.to", "aten.dropout"):
        softmax, (user,) = user, user.users
    return op_name(user) == "aten.matmul" and user.args[0] is softmax


@one_row_in(2)
@pytest.mark.slow
@takes_turns("train", "dynamic")
@pytest.mark.parametrize(("train", "dynamic"), [(True, False), (False, True)])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_attention_reads_alike(family: str, train: bool, dynamic: bool) -> None:
    torch._dynamo.reset()
    softmaxes = [
        n for g in _forms(family, train=train, dynamic=dynamic) for n in g.nodes if op_name(n) == "aten.softmax"
    ]
    assert len(softmaxes) == 2
    for softmax in softmaxes:
        assert len(_scores_of(softmax)) == 1
        assert _is_weighted_sum(softmax)

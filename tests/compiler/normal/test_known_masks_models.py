"""Real models without a padding mask: what they build instead of one is known, also where sizes are symbolic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.rewriting import compiled
from support.thorough import takes_turns, thorough
from torch import fx

from regraft.compiler.capture import capture
from regraft.compiler.normal import NORMAL_FORM
from regraft.patterns.attention import sdpa
from regraft.rewrites.driver import Settings, rewrite
from regraft.rewrites.effects import mark_gradients
from regraft.rewrites.record import GraphRecord

transformers = pytest.importorskip("transformers")

TINY = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 64, "vocab_size": 99}
WINDOW = {"num_key_value_heads": 2, "sliding_window": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": TINY,
    "vit": TINY | {"image_size": 32, "patch_size": 8},
    "llama": TINY | {"num_key_value_heads": 2},
    "mistral": TINY | WINDOW,
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 1, "vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2},
}


def model_and_inputs(family: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **FAMILIES[family])
    config._attn_implementation = "eager"
    model = transformers.AutoModel.from_config(config)
    if family == "vit":
        return model, {"pixel_values": torch.randn(2, 3, 32, 32)}
    ids = {"input_ids": torch.randint(3, 90, (2, 12))}
    return model, ids if family == "bert" else ids | {"use_cache": False}


def attentions(model: torch.nn.Module, inputs: dict[str, Any], *, train: bool, dynamic: bool) -> list[tuple[str, bool]]:
    """For each attention that was replaced, the tag of its mask, and whether its kernel is told that it is causal."""
    found: list[tuple[str, bool]] = []

    def backend(gm: fx.GraphModule, example: list[Any]) -> fx.GraphModule:
        graph_module = capture(gm, example).graph_module
        wants = [train and isinstance(x, torch.Tensor) and x.requires_grad for x in example]
        mark_gradients(graph_module.graph, wants)
        record = GraphRecord("test")
        settings = Settings(normal_form=NORMAL_FORM, training=train, keep_stream=False, verify="structure")
        rewrite(graph_module, [sdpa], settings, record)
        calls = [n for n in graph_module.graph.nodes if "scaled_dot_product" in str(n.target)]
        told = [len(n.args) > 4 and n.args[4] is True for n in calls] or [False] * len(record.applied)
        tags = [next(t for t in match.tags if t.startswith("mask")) for match in record.applied]
        found.extend(zip(tags, told, strict=True))
        return gm

    torch._dynamo.reset()
    with torch.set_grad_enabled(train):
        torch.compile(model.train(train), backend=backend, dynamic=dynamic)(**inputs)
    return found


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("family", ["bert", "vit"])
def test_no_mask(family: str, dynamic: bool) -> None:
    model, inputs = model_and_inputs(family)
    assert attentions(model, inputs, train=False, dynamic=dynamic) == [("mask:none", False)]
    if not dynamic:
        assert {tag for tag, _ in attentions(model, inputs, train=True, dynamic=dynamic)} == {"mask:none"}


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_causal(family: str, dynamic: bool) -> None:
    """Cache positions, packed sequences and all: the mask is the lower triangle, and nothing else."""
    model, inputs = model_and_inputs(family)
    assert [told for _, told in attentions(model, inputs, train=False, dynamic=dynamic)] == [True]


def test_a_window_is_no_triangle() -> None:
    model, inputs = model_and_inputs("mistral")
    assert [told for _, told in attentions(model, inputs, train=False, dynamic=True)] == [False]


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_mask_that_is_given_stays(family: str) -> None:
    model, inputs = model_and_inputs(family)
    inputs["attention_mask"] = torch.ones(2, 12, dtype=torch.long)
    found = attentions(model, inputs, train=False, dynamic=False)
    assert len(found) == 1 and all(tag != "mask:none" and not told for tag, told in found)


class Unpadded(torch.nn.Module):
    """BERT whose caller makes the mask of ones: a constant of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.bert, _ = model_and_inputs("bert")

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(input_ids.shape, dtype=torch.long)
        return self.bert(input_ids=input_ids, attention_mask=mask).last_hidden_state


@pytest.mark.parametrize(("dynamic", "lengths"), [thorough(False, (12,)), (True, (12, 9))], ids=["static", "symbolic"])
def test_a_mask_of_ones_that_the_program_makes(dynamic: bool, lengths: tuple[int, ...]) -> None:
    model = Unpadded().eval()
    run, cov = compiled(model, dynamic=dynamic)
    with torch.no_grad():
        for length in lengths:
            ids = torch.randint(3, 90, (2, length))
            with cov:
                torch.testing.assert_close(run(ids), model(ids), rtol=1e-4, atol=1e-5)
    tags = {t for match in cov.applied if match.rule == "sdpa" for t in match.tags if t.startswith("mask")}
    assert tags == {"mask:none"}

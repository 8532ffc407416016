"""Small models, inference and training: all kernels that a GPU would run have machine code, on Hopper and Ampere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("triton")

import torch

from ....support.caches import cache_in
from ....support.offline_gpu import OfflineGpu
from ....support.thorough import one_row_in, takes_turns, thorough
from ...templates.test_models import _IMAGE, _TINY, _TOKENS, bert, gpt2, t5

transformers = pytest.importorskip("transformers")


def vit() -> Any:
    sizes = {name: value for name, value in _TINY.items() if name != "vocab_size"}
    return transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **sizes)), (_IMAGE,)


def llama() -> Any:
    config = transformers.LlamaConfig(num_key_value_heads=2, use_cache=False, **_TINY)
    return transformers.LlamaModel(config), (_TOKENS,)


def resnet() -> Any:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[16], depths=[1])
    return transformers.ResNetModel(config), (_IMAGE.expand(2, -1, -1, -1),)


MODELS = [bert, gpt2, thorough(t5), thorough(vit), llama, resnet]


@pytest.fixture(autouse=True)
def fresh_dynamo(tmp_path_factory: Any) -> Iterator[None]:
    """Nothing compiled before, but machine code of equal kernels."""
    torch._dynamo.reset()
    with cache_in(tmp_path_factory.getbasetemp() / "offline"):
        yield
    torch._dynamo.reset()


@one_row_in(2)
@takes_turns("training")
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("make", MODELS)
def test_all_kernels_have_machine_code(make: Callable[[], Any], training: bool, monkeypatch: Any) -> None:
    torch.manual_seed(0)
    model, inputs = make()
    offline = OfflineGpu(monkeypatch)
    with torch.set_grad_enabled(training):
        out = torch.compile(model.train(training), backend=offline)(*inputs)[0]
        if training:
            out.square().mean().backward()
    kinds = {code.kind for code in offline.code}
    assert kinds == ({"forward", "backward"} if training else {"inference"})
    assert not {call.code for code in offline.code for call in code.kept} & {"failed", "unsupported"}
    assert len(offline.kernels) >= 3
    offline.build_for(80)

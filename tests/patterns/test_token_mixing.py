"""Linear layers over the second to last dim: products with the tokens as they lie in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch.nn.functional as F
from support.attentions import normal
from support.rewriting import assert_agrees, rewritten, trained

from regraft.patterns.token_mixing import token_mixing

X, W1, B1, W2, B2 = normal(2, 6, 8), normal(5, 6), normal(5), normal(6, 5), normal(6)


def mixed(function: Any, *inputs: Any, **settings: Any) -> Any:
    found = rewritten(function, inputs, rules=[token_mixing], **settings)
    assert_agrees(function, found.run, inputs)
    return found


def reorderings(found: Any) -> int:
    return sum("permute" in str(n.target) for n in found.graph.nodes)


LAYERS = {
    "mixer": lambda x, w, b, v, c: x + F.linear(F.gelu(F.linear(x.mT, w, b)), v, c).transpose(1, 2),
    "gate": lambda x, w, b, v, c: x * F.linear(x.transpose(-1, -2), v @ w, c).permute(0, 2, 1),
    "without bias": lambda x, w, b, v, c: x + F.linear(x.swapaxes(1, 2), v @ w).mT,
    "without biases": lambda x, w, b, v, c: x * F.linear(F.silu(F.linear(x.mT, w)), v).mT,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_nothing_is_reordered(name, dynamic):
    found = mixed(LAYERS[name], X, W1, B1, W2, B2, dynamic=dynamic)
    assert found.count("token_mixing") == 1 and reorderings(found) == 0


def test_more_dims_of_batches():
    found = mixed(lambda x, w: F.linear(x.mT, w).mT, normal(3, 2, 6, 8), W1)
    assert found.count("token_mixing") == 1


UNLIKE = {
    "the result stays in that order": lambda x, w: F.linear(x.mT, w),
    "the tokens are rows already": lambda x, w: F.linear(x.transpose(0, 1)[..., :6], w).transpose(0, 1),
    "other dims are exchanged back": lambda x, w: F.linear(x.mT, w).transpose(0, 1),
    "the first layer's result is read elsewhere": lambda x, w: (
        (y := F.gelu(F.linear(x.mT, w))).sum() + F.linear(y, w.t()).mT
    ),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_is_left(name):
    found = rewritten(UNLIKE[name], (X, W1), rules=[token_mixing])
    assert found.count("token_mixing") == 0


def test_trained_weights_are_left():
    """Their gradients would be kept for each batch, and summed afterwards."""
    found = rewritten(lambda x, w: F.linear(x.mT, w).mT, trained((X, W1), 2), rules=[token_mixing], near_miss_depth=0)
    assert found.count("token_mixing") == 0 and "weight-trained" in found.codes


def test_gradients_of_tokens():
    found = mixed(LAYERS["mixer"], *trained((X,), 1), W1, B1, W2, B2)
    assert found.count("token_mixing") == 1

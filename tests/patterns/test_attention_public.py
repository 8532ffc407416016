"""Attention as public code spells it is one attention, with eager's values and gradients."""

from __future__ import annotations

import pytest
import torch
from support.public_attentions import PUBLIC
from support.rewriting import assert_agrees, rewritten, trained
from support.thorough import takes_turns, thorough


@takes_turns("training")
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dynamic", [False, thorough(True)], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PUBLIC)
def test_is_found(name: str, training: bool, dynamic: bool) -> None:
    function, inputs = PUBLIC[name]
    given = trained(inputs) if training else list(inputs)
    found = rewritten(function, given, dynamic=dynamic)
    assert found.count() == 1, found.record.near_misses
    assert_agrees(function, found.run, given)


@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["ChatGLM", "Transformer-XL", "addcmul", "gpt-oss", "Swin 2"])
def test_is_found_in_half_precision(name: str, dtype: torch.dtype) -> None:
    """Casts up and back around scales and masks are no reason to miss it."""
    if (name, dtype) == ("addcmul", torch.float16):
        pytest.skip("its mask is too low for the type")
    function, inputs = PUBLIC[name]
    given = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    found = rewritten(function, given)
    assert found.count() == 1, found.record.near_misses
    assert_agrees(function, found.run, given)

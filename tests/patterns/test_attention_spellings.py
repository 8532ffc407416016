"""Every spelling of attention is one attention: matched once, static and dynamic, with eager's values and gradients."""

from __future__ import annotations

import pytest
import torch
from support.attentions import SPELLINGS
from support.rewriting import assert_agrees, compiled, rewritten, trained


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("training", [False, True], ids=["infer", "train"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_matches(name: str, training: bool, dynamic: bool) -> None:
    function, inputs = SPELLINGS[name]
    given = trained(inputs) if training else list(inputs)
    found = rewritten(function, given, dynamic=dynamic)
    assert found.count() == 1, found.record.near_misses
    assert not found.ops & {"softmax", "bmm"} or "math" in found.kernels
    assert_agrees(function, found.run, given)

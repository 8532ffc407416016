"""Every default rule passes its property test on a GPU, all candidates of GPUs among what it may put in."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regraft.compiler.tools.check import check

from .test_rules_check import every_rule

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@every_rule
def test_default_rules_hold(rule: Any) -> None:
    result = check(rule, examples=4, device="cuda")
    assert not result.failures, str(result)
    if not result.runs:
        pytest.skip("nothing that it puts in is for GPUs")

"""Innermost axes that are divided become rows: what kernels compute stays, and quotients go."""

import pytest
import torch
import torch.nn.functional as F
from support.kernels import compiled_agrees
from support.schedules import body_text
from support.thorough import one_row_in

PROGRAMS = {
    "windows": (lambda x: F.unfold(x, 3, padding=1), torch.randn(2, 3, 18, 20)),
    "windows with steps": (lambda x: F.unfold(x, 2, stride=2), torch.randn(2, 3, 34, 40)),
    "repeated": (lambda x: x.repeat_interleave(32, 0) * 2, torch.randn(40)),
    "then a sum": (lambda x: F.unfold(x, 3, padding=1).sum(1), torch.randn(2, 3, 18, 20)),
    "short rows": (lambda x: F.unfold(x, 3, padding=1), torch.randn(2, 3, 5, 7)),
}


@one_row_in(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_stay(name):
    kernels = compiled_agrees(*PROGRAMS[name])
    row = {"windows": 20, "windows with steps": 20, "repeated": 32, "then a sum": 20, "short rows": 7}[name]
    divided = any(f"//{row}" in body_text(kernel) or f"%{row}" in body_text(kernel) for kernel in kernels)
    assert divided is (name == "short rows")

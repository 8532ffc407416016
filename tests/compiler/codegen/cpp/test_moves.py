"""Floats of 16 bits that are moved alone are moved as bits: no conversion is written, and every bit arrives."""

import pytest
import torch
import torch.nn.functional as F
from support.kernels import compiled_agrees, run_compiled
from support.lowering import trace
from support.thorough import one_row_in

from regraft.compiler.codegen import cpp
from regraft.compiler.codegen.cpp.kernel_text import kernel_text
from regraft.compiler.codegen.cpp.moves import move_bits
from regraft.compiler.codegen.flatten import flatten
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import CPU, schedule

HALVES = [torch.bfloat16, torch.float16]
MOVES = {
    "rows by index": lambda x: x[torch.arange(9) * 7 % 20],
    "transposition": lambda x: x.t().contiguous(),
    "concatenation": lambda x: torch.cat([x, x.flip(0)], -1),
    "padding": lambda x: F.pad(x, (3, 4, 1, 2), value=1.5),
    "triangle": lambda x: x.tril(),
    "every second": lambda x: x[:, ::2].clone(),
    "rolled": lambda x: x.roll(3, 1),
}
COMPUTED = {
    "sum": lambda x: x + 1,
    "choice by its value": lambda x: torch.where(x > 0, x, 0),
    "rounded to another dtype": lambda x: x.to(torch.float32),
    "moved and computed with": lambda x: (x.t().contiguous(), x * 2),
    "largest": lambda x: x.amax(-1),
}


def texts(function, x):
    kernels = schedule(lower(trace(function, x), strict=True).program, target=CPU).kernels
    return [kernel_text(kernel, cpp.host_target()) for kernel in kernels]


@one_row_in(2)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_moved_as_bits(name, dtype):
    x = torch.randn(20, 39).to(dtype)
    compiled_agrees(MOVES[name], x, rtol=0, atol=0)
    assert not any("Bf16*" in text or "F16*" in text for text in texts(MOVES[name], x))


@pytest.mark.parametrize("name", COMPUTED)
def test_what_is_computed_with_is_converted(name):
    x = torch.randn(20, 39).bfloat16()
    compiled_agrees(COMPUTED[name], x)
    assert any("Bf16*" in text for text in texts(COMPUTED[name], x))


def test_every_bit_arrives():
    """Of NaN too."""
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).view(256, 256)
    (kernel,) = schedule(lower(trace(lambda x: x.t().contiguous(), x), strict=True).program, target=CPU).kernels
    given, made = (p.buffer.name for p in kernel.params)
    found = run_compiled(kernel, {given: x}, target=cpp.host_target())[made]
    assert torch.equal(found.view(torch.int16).flatten(), x.t().contiguous().view(torch.int16).flatten())


def test_kernels_without_16_bit_floats_stay():
    (kernel,) = schedule(lower(trace(lambda x: x * 2, torch.randn(4, 4)), strict=True).program, target=CPU).kernels
    flat = flatten(kernel)
    assert move_bits(flat) is flat

"""Calls of `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` for inference are decomposed into operators."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from support.thorough import one_row_in, takes_turns
from support.versions import not_in_old_torch

import regraft

B, S, WIDTH, HEADS = 2, 6, 16, 2


def layer(**choices: Any) -> torch.nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    return torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True, **choices).eval()


def padding() -> torch.Tensor:
    return torch.arange(S).expand(B, S) >= torch.tensor([[S], [S - 2]])


def squares() -> torch.Tensor:
    return torch.ones(S, S).triu(1).bool()


def compiled(function: Any, *inputs: Any, dynamic: bool = False, autocast: bool = False) -> tuple[Any, Any, Any]:
    """Eager's result, the compiled one, and the coverage of compiling."""
    torch.compiler.reset()
    scope = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
    made = torch.compile(function, backend="regraft", dynamic=dynamic, options={"profit": "always", "strict": True})
    with torch.no_grad(), scope, regraft.coverage() as found:
        return function(*inputs), made(*inputs), found


@one_row_in(2)
@takes_turns("norm_first", "activation", "dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masks", [{}, {"src_key_padding_mask": padding()}, {"src_mask": squares()}])
def test_encoder_layers(masks: Any, norm_first: bool, activation: str, dynamic: bool) -> None:
    one = layer(activation=activation, norm_first=norm_first)
    eager, made, found = compiled(lambda x: one(x, **masks), torch.randn(B, S, WIDTH), dynamic=dynamic)
    torch.testing.assert_close(made, eager)
    assert found.count("attention") == 1


@takes_turns("dtype")
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=not_in_old_torch("refuses such layers in Dynamo"))]
)
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layers_under_autocast(norm_first: bool, dtype: torch.dtype) -> None:
    one = layer(norm_first=norm_first)
    eager, made, found = compiled(one, torch.randn(B, S, WIDTH, dtype=dtype), autocast=True)
    torch.testing.assert_close(made, eager, atol=3e-2, rtol=3e-2)
    assert found.count("attention") == 1


@one_row_in(2)
@takes_turns("choices")
@pytest.mark.parametrize("choices", [{}, {"need_weights": False}, {"average_attn_weights": False}])
@pytest.mark.parametrize("mask", [None, padding(), torch.zeros(B, S).masked_fill(padding(), -torch.inf)])
def test_multihead_attention(mask: Any, choices: Any) -> None:
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    x = torch.randn(B, S, WIDTH)
    eager, made, found = compiled(lambda x: attention(x, x, x, key_padding_mask=mask, **choices), x)
    torch.testing.assert_close(made, eager)
    assert found.count("attention") == 1


def test_the_operator_itself() -> None:
    """Keys and values of other tensors, and rows that see no key."""
    torch.manual_seed(0)
    x, weight, bias, out = torch.randn(B, S, 8), torch.randn(24, 8), torch.randn(24), torch.randn(8, 8)
    everywhere = torch.ones(B, HEADS, S, S, dtype=torch.bool)
    for mask, kind in ((None, None), (everywhere, 2), (everywhere[0, 0], 0)):

        def attend(x: Any, y: Any, mask: Any = mask, kind: Any = kind) -> Any:
            given = (8, HEADS, weight, bias, out, bias[:8], mask, True, False, kind)
            return torch._native_multi_head_attention(x, x, y, *given)

        eager, made, _ = compiled(attend, x, x + 1)
        torch.testing.assert_close(made, eager, equal_nan=True)

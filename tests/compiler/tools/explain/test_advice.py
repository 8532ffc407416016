"""Near misses that a person can act on: what was expected, what was found, what to change."""

import pytest
import torch
import torch.nn.functional as F
from support.attentions import qkv

import regraft


def explained(function, *inputs):
    return str(regraft.explain("sdpa", function, *inputs))


def banded(q, k, v):
    """Attention over a window of four keys, whose weights are laid out along the diagonal to meet value."""
    b, h, s, _ = q.shape
    chunk = F.pad(k, (0, 0, 2, 1)).unfold(2, 4, 1)
    weights = torch.softmax(torch.einsum("bhsd,bhsdw->bhsw", q, chunk), -1)
    along = F.pad(weights, (0, s)).reshape(b, h, -1)[:, :, : s * (s + 3)].reshape(b, h, s, s + 3)
    return along @ F.pad(v, (0, 0, 2, 1))


def test_a_band_is_told_where_the_weights_are_rearranged():
    q, _, v = (torch.randn(2, 2, 8, 4) for _ in range(3))
    text = explained(banded, q, q, v)
    assert "sdpa: 0 matched" in text and "expected  _safe_softmax, softmax, slice, to or dropout" in text
    assert "found     reshape" in text and ".reshape(b, h, s, s + 3)" in text


def test_rearranged_under_dropout():
    def function(q, k, v):
        weights = F.dropout(torch.softmax(q @ k.mT, -1).flip(-1), 0.1, True)
        return weights @ v

    text = explained(function, *qkv())
    assert "expected  _safe_softmax, softmax, slice or to" in text
    assert "found     flip" in text and "try       rearrange" in text


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda q, k, v: ((q @ k.mT).masked_fill(q @ k.mT > 1, -5.0)).softmax(-1) @ v, "fill with -inf"),
        (lambda q, k, v: (q @ k.mT + (k.mean(-1) > 0).long().unsqueeze(-2)).softmax(-1) @ v, "masked_fill"),
        (lambda q, k, v: (q @ k.mT * k.mean(-1).unsqueeze(-2)).softmax(-1) @ v, "scale key"),
    ],
)
def test_what_to_change(function, told):
    text = explained(function, *qkv())
    (line,) = {line for line in text.splitlines() if line.startswith("    try")}
    assert told in line


def test_weights_that_are_returned():
    def function(q, k, v):
        weights = torch.softmax(q @ k.mT, -1)
        return weights @ v, weights

    assert "try       return or keep it only where it is needed" in explained(function, *qkv())


def test_another_program_gets_no_advice():
    text = explained(lambda q, k, v: (q @ k.mT).relu() @ v, *qkv())
    assert not [line for line in text.splitlines() if line.startswith("    try")]

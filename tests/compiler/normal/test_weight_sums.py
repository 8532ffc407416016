"""Sums of the weights of several attentions, and heads taken from weights: one product for each attention."""

from __future__ import annotations

import pytest
import torch
from support.rewriting import assert_agrees, rewritten, trained
from support.thorough import one_row_in

Q, R, K, L, V = (torch.randn(2, 3, n, 8) for n in (5, 5, 7, 7, 7))
WIDE_Q, WIDE_K = torch.randn(2, 6, 5, 8), torch.randn(2, 6, 7, 8)
SHARE, SHARES = torch.tensor(0.3), torch.rand(3, 1, 1)


def soft(scores):
    return torch.softmax(scores, -1)


PROGRAMS = {
    "difference": (lambda q, k, r, j, v, c: (soft(q @ k.mT) - c * soft(r @ j.mT)) @ v, (Q, K, R, L, V, SHARES), 2),
    "mixture": (
        lambda q, k, r, j, v, g: (g * soft(q @ k.mT) + (1 - g) * soft(r @ j.mT)) @ v, (Q, K, R, L, V, SHARE), 2,
    ),
    "mean": (lambda q, k, r, j, v: ((soft(q @ k.mT) + soft(r @ j.mT)) / 2) @ v, (Q, K, R, L, V), 2),
    "three": (lambda q, k, r, j, v: (soft(q @ k.mT) - soft(r @ j.mT) + soft(q @ j.mT)) @ v, (Q, K, R, L, V), 3),
    "every other head": (
        lambda q, k, v, c: ((w := soft(q @ k.mT).view(2, 3, 2, 5, 7))[:, :, 0] - c * w[:, :, 1]) @ v,
        (WIDE_Q, WIDE_K, V, SHARE), 2,
    ),
    "every other head, masked": (
        lambda q, k, v, m: ((w := soft((q @ k.mT + m) * 0.3))[:, ::2] - 0.5 * w[:, 1::2]) @ v,
        (WIDE_Q, WIDE_K, V, torch.randn(1, 6, 1, 7)), 2,
    ),
    "halves of the heads": (
        lambda q, k, v, m: ((w := soft(torch.where(m, q @ k.mT, -1e9)).chunk(2, 1))[0] - 0.5 * w[1]) @ v,
        (WIDE_Q, WIDE_K, V, torch.rand(5, 7) > 0.3), 2,
    ),
    "split heads": (
        lambda q, k, v: ((w := soft(q @ k.mT).split([3, 3], 1))[0] - 0.5 * w[1]) @ v, (WIDE_Q, WIDE_K, V), 2,
    ),
    "some heads alone": (lambda q, k, v: soft(q @ k.mT)[:, 1:4] @ v, (WIDE_Q, WIDE_K, V), 1),
    "one head of the batch": (lambda q, k, v: soft(q @ k.mT)[:, 2] @ v[:, 0], (WIDE_Q, WIDE_K, V), 1),
    "heads that share keys": (
        lambda q, k, v: ((w := soft(q @ k.mT))[:, :3] - w[:, 3:]) @ v, (WIDE_Q, WIDE_K[:, :1], V), 2,
    ),
}  # fmt: skip


@one_row_in(2)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_each_attention_is_replaced(name, training):
    function, inputs, count = PROGRAMS[name]
    given = trained(inputs) if training else list(inputs)
    found = rewritten(function, given)
    assert found.count() == count, found.record.near_misses
    assert_agrees(function, found.run, given)


OTHERS = {
    "weights and a table": (lambda q, k, v, t: (soft(q @ k.mT) + t) @ v, (Q, K, V, torch.randn(5, 7))),
    "a product of weights": (lambda q, k, r, j, v: (soft(q @ k.mT) * soft(r @ j.mT)) @ v, (Q, K, R, L, V)),
    "a factor for each key": (
        lambda q, k, r, j, v, c: (soft(q @ k.mT) - c * soft(r @ j.mT)) @ v, (Q, K, R, L, V, torch.rand(7)),
    ),
    "weights of another shape": (
        lambda q, k, r, j, v: (soft(q @ k.mT) + soft(r[:, :1] @ j[:, :1].mT)) @ v, (Q, K, R, L, V),
    ),
    "alpha": (lambda q, k, r, j, v: torch.sub(soft(q @ k.mT), soft(r @ j.mT), alpha=0.5) @ v, (Q, K, R, L, V)),
    "heads whose weights are returned": (
        lambda q, k, v: ((w := soft(q @ k.mT))[:, 1:4] @ v, w), (WIDE_Q, WIDE_K, V),
    ),
    "rows": (lambda q, k, v: soft(q @ k.mT)[:, :, 1:] @ v, (Q, K, V)),
    "columns": (lambda q, k, v: soft(q @ k.mT)[..., 1:] @ v[:, :, 1:], (Q, K, V)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_sums_and_parts_stay(name):
    function, inputs = OTHERS[name]
    found = rewritten(function, list(inputs))
    assert found.count("sdpa") == 0
    assert_agrees(function, found.run, list(inputs))

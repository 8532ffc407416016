"""Attention in parts: keys side by side, weights of which parts are used, sums of products, sinks, head masks."""

from __future__ import annotations

import math

import pytest
import torch

from ...support.normal import form

Q, K, V = (torch.randn(2, 3, n, 8) for n in (5, 7, 7))
SINK = torch.randn(2, 3, 5, 1)


def weights(q, k):
    return torch.softmax(q @ k.mT, -1)


WHOLE = form(
    lambda q, a, b, v, w: torch.softmax(q @ torch.cat([a.mT, b.mT], -1), -1) @ torch.cat([v, w], -2), Q, K, K, V, V
)
SUNK = form(lambda q, k, v, s: torch.softmax(torch.cat([q @ k.mT, s], -1), -1)[..., :-1] @ v, Q, K, V, SINK)


def in_parts(q, a, b, v, w):
    p = torch.softmax(torch.cat([q @ a.mT, q @ b.mT], 3), -1)
    return p[..., :7] @ v + p[..., 7:] @ w


def split_in_another_order(q, a, b, v, w):
    x, y = torch.softmax(torch.concat([q @ a.mT, q @ b.mT], -1), -1).split([7, 7], -1)
    return y @ w + x @ v


@pytest.mark.parametrize("function", [in_parts, split_in_another_order])
def test_keys_side_by_side(function):
    assert form(function, Q, K, K, V, V) == WHOLE


def first(q, k, v, s):
    return torch.softmax(torch.cat([s, q @ k.mT], -1), -1)[..., 1:] @ v


def by_number(q, k, v, s):
    return torch.softmax(torch.cat([q @ k.mT, s], 3), 3)[:, :, :, 0:7] @ v


def divided_by_it(q, k, v, s):
    scores = q @ k.mT
    largest = torch.maximum(scores.amax(-1, keepdim=True), s)
    e = torch.exp(scores - largest)
    return (e / (e.sum(-1, keepdim=True) + torch.exp(s - largest))) @ v


def divided_late(q, k, v, s):
    scores = q @ k.mT
    largest = scores.amax(-1, keepdim=True).detach()
    e = torch.exp(scores - largest)
    return (e @ v) / (torch.exp(s - largest) + e.sum(-1, keepdim=True))


@pytest.mark.parametrize("function", [first, by_number, divided_by_it, divided_late])
def test_sink(function):
    assert form(function, Q, K, V, SINK) == SUNK


def test_one_more_in_the_sum_is_a_sink_of_zero():
    """As "softmax one" has it: a row may attend to nothing."""

    def off_by_one(q, k, v):
        scores = q @ k.mT
        largest = scores.amax(-1, keepdim=True).clamp(min=0)
        e = torch.exp(scores - largest)
        return (e / (e.sum(-1, keepdim=True) + torch.exp(-largest))) @ v

    def padded(q, k, v):
        return torch.softmax(torch.nn.functional.pad(q @ k.mT, (0, 1)), -1)[..., :-1] @ v

    assert form(off_by_one, Q, K, V) == form(padded, Q, K, V)


@pytest.mark.parametrize("eps", [1e-6, 1e-2, 2.0])
def test_a_number_in_the_sum_is_a_sink_of_its_logarithm(eps):
    def divided(q, k, v):
        e = torch.exp(q @ k.mT)
        return (e / (e.sum(-1, keepdim=True) + eps)) @ v

    def padded(q, k, v):
        columns = torch.nn.functional.pad(q @ k.mT, (0, 1), value=math.log(eps))
        return torch.softmax(columns, -1)[..., :-1] @ v

    assert form(divided, Q, K, V) == form(padded, Q, K, V)


def test_sum_of_products():
    narrow = (Q[..., :4], K[..., :4])
    summed = form(lambda q, k, r, s: torch.softmax(q @ k.mT * 0.5 + r @ s.mT * 0.25, -1), Q, K, *narrow)
    joined = form(
        lambda q, k, r, s: torch.softmax(torch.cat([q * 0.5, r * 0.25], -1) @ torch.cat([k.mT, s.mT], -2), -1),
        Q, K, *narrow,
    )  # fmt: skip
    assert summed == joined


def test_head_mask():
    heads = torch.randn(3, 1, 1)
    before = form(lambda q, k, v, h: (weights(q, k) * h) @ v, Q, K, V, heads)
    assert before == form(lambda q, k, v, h: (weights(q, k) @ v) * h, Q, K, V, heads)


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: weights(q, k)[..., :4] @ v[..., :4, :] + weights(q, k)[..., 5:] @ v[..., 5:, :],
        lambda q, k, v: torch.cat([q @ k.mT, (q + 1) @ k.mT], -1),
        lambda q, k, v: torch.cat([q @ k.mT * 2.0, q @ k.mT * 3.0], -1),
    ],
    ids=["a column left out", "other queries", "other scales"],
)
def test_other_parts_stay_parts(function):
    assert form(function, Q, K, V).count("matmul") >= 2

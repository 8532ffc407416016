"""Dropout has one normal form, however it is written, and a factor that is left over says so."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.dropouts import ALPHA, BROADCAST, ELEMENTS
from support.normal import form, normalized, traced

from regraft.rewrites.graph import op_name

X = torch.randn(2, 4, 6, 6)


@pytest.mark.parametrize("name", ELEMENTS)
def test_every_spelling_is_one_dropout(name):
    assert form(lambda x: ELEMENTS[name](x, 0.25), X) == "dropout(%0, 0.25, True)"


@pytest.mark.parametrize("name", [*BROADCAST, *ALPHA])
def test_what_drops_other_things_than_elements_is_none(name):
    graph = normalized(traced(lambda x: (BROADCAST | ALPHA)[name](x, 0.25), X)).graph
    assert not [node for node in graph.nodes if op_name(node) == "aten.dropout"]


def test_other_scales_stay_as_a_factor():
    assert form(lambda x: x * (torch.rand_like(x) > 0.25), X) == "mul(dropout(%0, 0.25, True), 0.75)"
    assert form(lambda x: x * 3 * (torch.rand_like(x) > 0.25), X) == "mul(dropout(%0, 0.25, True), 2.25)"
    assert form(lambda x: x.masked_fill(torch.rand_like(x) < 0.5, 0.0), X) == "mul(dropout(%0, 0.5, True), 0.5)"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.masked_fill(torch.rand_like(x) < 0.5, 1.0) * 2,  # not 0 is what is put in
        lambda x: x * (torch.randn_like(x) > 0.5) * 2,  # not uniform
        lambda x: x * (torch.empty_like(x).uniform_(-1, 1) > 0.5) * 2,
        lambda x: x * (torch.rand_like(x) > torch.rand_like(x)) * 2,
        lambda x: x * torch.bernoulli(x.sigmoid()) * 2,
        lambda x: x * (torch.rand_like(x, dtype=torch.bfloat16) > 0.5) * 2,  # few numbers: ends matter
        lambda x: x * (torch.rand(6) > 0.5) * 2,  # one number for many elements
    ],
)
def test_what_is_no_dropout_is_left_alone(function):
    graph = normalized(traced(function, X)).graph
    assert not [node for node in graph.nodes if op_name(node) == "aten.dropout"]


def test_a_mask_or_a_draw_that_others_see_is_not_drawn_anew():
    def twice(x):
        mask = torch.rand_like(x) > 0.25
        return x * mask / 0.75, mask

    def number(x):
        drawn = torch.rand_like(x)
        return x * (drawn > 0.25) / 0.75, drawn

    for function in (twice, number):
        assert "dropout" not in form(function, X)


def test_native_dropout_of_nothing_draws_all_the_same():
    assert "native_dropout" in form(lambda x: torch.native_dropout(x, 0.0, True)[0], X)
    assert form(lambda x: F.dropout(x, 0.0, True), X) == "%0"

"""Every spelling of attention is one attention: matched once, static and dynamic, with eager's values and gradients."""

from __future__ import annotations

import pytest
import torch
from support.attentions import SPELLINGS
from support.rewriting import assert_agrees, compiled, outcome, rewritten, trained
from support.thorough import one_row_in, takes_turns


@takes_turns("training", "dynamic")
@pytest.mark.parametrize(
    ("training", "dynamic"),
    [(False, False), (True, False), (True, True)],
    ids=["inference-static", "training-static", "training-dynamic"],
)
@one_row_in(2)
@pytest.mark.parametrize("name", SPELLINGS)
def test_matches(name: str, training: bool, dynamic: bool) -> None:
    function, inputs = SPELLINGS[name]
    given = trained(inputs) if training else list(inputs)
    found = rewritten(function, given, dynamic=dynamic)
    assert found.count() == 1, found.record.near_misses
    assert not found.record.fallbacks
    assert found.kernels == ["math"] or not found.ops & {"softmax", "matmul", "bmm"}
    assert_agrees(function, found.run, given)


THROUGH_DYNAMO = (
    "scale on query", "scale on key", "no scale", "einsum", "log_softmax and exp", "exp and sum by hand",
    "additive mask after scale", "masked_fill (S, T)", "where (S, T)", "ALiBi", "3-D bmm", "baddbmm with mask",
    "0-d tensor", "0-d tensor given", "GQA repeat_interleave", "projections",
)  # fmt: skip


@one_row_in(4)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", THROUGH_DYNAMO)
def test_compiled(name: str, dynamic: bool) -> None:
    """The same through torch.compile, trained."""
    function, inputs = SPELLINGS[name]
    given = trained(inputs)
    run, coverage = compiled(function, dynamic=dynamic)
    with coverage:
        outcome(run, given)
    assert coverage.count("attention") == 1, coverage.near_misses
    assert_agrees(function, run, given)


def test_many_layers_and_one_shape_after_another() -> None:
    """Six attentions in one graph, compiled once for all lengths."""

    def layers(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = torch.softmax((x * 0.5) @ x.mT, -1) @ x
        return x

    run, coverage = compiled(layers, dynamic=True)
    with coverage:
        for length in (5, 9, 17):
            assert_agrees(layers, run, [torch.randn(2, 2, length, 8)])
    assert coverage.count("sdpa") == 6
    assert len(coverage.graphs) == 1

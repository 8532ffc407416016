"""Patterns traced on their samples: what leading dims of a sample stand for."""

import pytest
import torch

import regraft
from regraft import Sample, T, register_pattern


def centred(x, weight):
    """Written otherwise than normal form has it: a quotient of a root."""
    middle = x - x.mean(-1, keepdim=True)
    return middle / torch.sqrt(middle.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


RULE = register_pattern(
    "centred_and_scaled",
    replacement=lambda x, weight: torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, None, 1e-5),
    dims={"x": "... N", "weight": "N"},
    samples=[Sample(x=T("... N"), weight=T("N"))],
)(centred)


@pytest.mark.parametrize("shape", [(6,), (2, 6), (2, 3, 6)])
def test_any_number_of_leading_dims_matches_also_where_normal_form_is_another(shape):
    explanation = regraft.explain(RULE, centred, torch.randn(*shape), torch.ones(6))
    assert len(explanation.matches) == 1, explanation


def test_operands_without_leading_dims_keep_their_number():
    explanation = regraft.explain(RULE, centred, torch.randn(2, 6), torch.ones(2, 6))
    assert not explanation.matches and explanation.near_misses[0].code == "dims-differ"

"""Tensors in which elements share places: all are found, and none among dense ones."""

from __future__ import annotations

from itertools import permutations, product

import pytest
import torch

from regraft.rewrites.reach import overlaps_itself


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (1, 3), (2, 3, 2)])
def test_shared_places_are_found(sizes):
    shared = 0
    for strides in product(range(7), repeat=len(sizes)):
        places = [sum(i * s for i, s in zip(index, strides, strict=True)) for index in product(*map(range, sizes))]
        if len(set(places)) < len(places):
            shared += 1
            assert overlaps_itself(sizes, strides)
    assert shared


@pytest.mark.parametrize("sizes", [(2, 3, 4), (1, 3, 1), (5, 0, 2), ()])
def test_dense_tensors_share_none(sizes):
    for order in permutations(range(len(sizes))):
        x = torch.empty(sizes).permute(order)
        assert not overlaps_itself(tuple(x.shape), x.stride())

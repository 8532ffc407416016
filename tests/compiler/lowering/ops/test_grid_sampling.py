"""Sampling at computed places against eager: modes, borders, sizes, and places that are no numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lowering import agree, lower, run, trace
from support.thorough import examples
from support.triton_kernels import compiles, interpreted_agrees

from regraft.compiler.lowering.ops import grid_sampling

aten = torch.ops.aten
ODD = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30, -3e9, 0.0, 1.0, -1.0])


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    """As on devices whose library takes longer, too."""
    monkeypatch.setattr(grid_sampling, "_LIBRARY", frozenset())


def given_for(sizes, outs, dtype=torch.float64, reach=1.6):
    draw = torch.Generator().manual_seed(0)
    image = torch.randn(2, 3, *sizes, generator=draw, dtype=dtype)
    return image, (torch.rand(2, *outs, len(sizes), generator=draw, dtype=dtype) * 2 - 1) * reach


@settings(max_examples=examples(6, 40), deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    outs=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    mode=st.sampled_from([0, 1, 2]),
    padding=st.sampled_from([0, 1, 2]),
    corners=st.booleans(),
    dynamic=st.booleans(),
)
def test_images(sizes, outs, mode, padding, corners, dynamic):
    x, grid = given_for(sizes, outs)
    agree(lambda x, g: aten.grid_sampler_2d(x, g, mode, padding, corners), x, grid, dynamic=dynamic)


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("mode", [0, 1])
def test_volumes(mode, padding, corners):
    x, grid = given_for((3, 4, 5), (2, 3, 2))
    agree(lambda x, g: aten.grid_sampler_3d(x, g, mode, padding, corners), x, grid)


@pytest.mark.parametrize("mode", [0, 1])
def test_places_that_are_no_numbers_lie_outside(mode):
    """As in eager's kernels on GPUs: no place of memory is read for them."""
    x = torch.randn(1, 1, 4, 4)
    grid = torch.stack([ODD, torch.zeros_like(ODD)], -1)[None, None]

    def sampled(x, grid):
        return aten.grid_sampler_2d(x, grid, mode, 0, False)

    module = trace(sampled, x, grid)
    made = run(module, lower(module, strict=True), [x, grid])
    assert torch.allclose(made, sampled(x, torch.nan_to_num(grid, -100.0, -100.0, -100.0)))


@pytest.mark.parametrize(("mode", "kernels"), [(0, 1), (1, 1), (2, 2)])
def test_kernels_include_what_is_around(mode, kernels):
    """Sixteen elements are too many to compute each of them again."""
    x, grid = given_for((6, 7), (8, 8), torch.float32)

    def function(x, g):
        return torch.relu(aten.grid_sampler_2d(x + 1, g * 0.5, mode, 1, False))

    sources = interpreted_agrees(function, x, grid, rtol=1e-4, atol=1e-5)
    assert len(sources) == kernels
    assert all(map(compiles, sources))


def test_stays_the_librarys_on_cpus(monkeypatch):
    monkeypatch.undo()
    x, grid = given_for((4, 4), (2, 2))
    made = lower(trace(lambda x, g: aten.grid_sampler_2d(x, g, 0, 0, False), x, grid))
    assert [item.reason for item in made.program.items] == ["library"]

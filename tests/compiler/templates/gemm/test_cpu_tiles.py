"""Sizes of the product's tiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regraft.compiler.templates.gemm.cpu_tiles import gemm_tiling

SIZE = st.integers(1, 5000)


@given(SIZE, SIZE, st.integers(1, 20000), st.sampled_from([4, 8, 16]))
def test_tiles_fit_registers_and_cover_everything(rows: int, columns: int, depth: int, lanes: int) -> None:
    t = gemm_tiling(rows, columns, depth, lanes)
    assert t.strip * t.panel <= (24 if lanes == 16 else 12)
    assert 1 <= t.strip <= rows
    assert t.block % t.strip == 0
    assert (t.panels - 1) * t.panel < t.vectors <= t.panels * t.panel
    assert (t.vectors - 1) * lanes < columns <= t.vectors * lanes
    assert 1 <= t.step <= depth


@pytest.mark.parametrize(
    ("rows", "depth", "strip", "panel", "step"), [(128, 768, 8, 3, 768), (1, 768, 1, 8, 768), (197, 3072, 8, 3, 1024)]
)
def test_common_sizes(rows: int, depth: int, strip: int, panel: int, step: int) -> None:
    t = gemm_tiling(rows, 768, depth, 16)
    assert (t.strip, t.panel, t.step) == (strip, panel, step)

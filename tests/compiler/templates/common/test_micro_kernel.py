"""Plans of the micro-kernel, and its packing."""

from __future__ import annotations

import ctypes
import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.thorough import one_row_in

from regraft.compiler.codegen.cpp.build import source_of
from regraft.compiler.codegen.cpp.compiler import compile_all
from regraft.compiler.codegen.cpp.target import target
from regraft.compiler.templates.common.micro_kernel import PANEL, PRELUDE, panels, strip_rows


@given(st.integers(1, 5000), st.sampled_from([4, 8, 16]))
def test_strips_fit_the_registers_and_waste_little(rows: int, lanes: int) -> None:
    strip = strip_rows(rows, lanes)
    assert 1 <= strip <= {16: 12, 8: 6, 4: 6}[lanes]
    assert strip <= rows
    assert -(-rows // strip) * strip - rows < strip


@pytest.mark.parametrize(("rows", "strip"), [(128, 8), (197, 11), (3, 3), (512, 8)])
def test_strips_of_common_sizes(rows: int, strip: int) -> None:
    assert strip_rows(rows, 16) == strip


@given(st.integers(1, 3000), st.integers(1, 12), st.sampled_from([4, 8, 16]))
def test_panels_cover_a_width_once(width: int, rows: int, lanes: int) -> None:
    found = panels(width, rows, lanes)
    assert found.vectors == -(-width // lanes)
    assert found.last <= PANEL + 1


_PACK = """
extern "C" void pack(const f32* from, i64 row, i64 step, i64 width, i64 depth, f32* to) {
  gemm::pack_transposed<LANES_HERE, 2>(to, from, row, step, width, depth);
}
"""


@functools.cache
def library(lanes: int) -> ctypes.CDLL:
    source = source_of([PRELUDE, _PACK.replace("LANES_HERE", str(lanes))], target("generic"))
    return compile_all([source])[0][0]


@one_row_in(3)
@pytest.mark.parametrize(("width", "depth"), [(32, 64), (5, 3), (17, 33), (1, 1), (32, 15)])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_packing_transposes_and_fills_with_zeros(width: int, depth: int, step: int, lanes: int) -> None:
    width = min(width, 2 * lanes)
    source = torch.randn(width, depth * step)
    packed = torch.full((depth, 2 * lanes), float("nan"))
    numbers = [ctypes.c_longlong(n) for n in (source.stride(0), step, width, depth)]
    library(lanes).pack(ctypes.c_void_p(source.data_ptr()), *numbers, ctypes.c_void_p(packed.data_ptr()))
    assert torch.equal(packed[:, :width], source[:, ::step].T)
    assert not packed[:, width:].any()

"""Products of bytes on a CPU: exact sums, whatever the sizes and layouts, with epilogues in the same kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.thorough import one_row_in
from support.versions import not_in_old_torch

from regraft.compiler.codegen.cpp.target import host_target
from regraft.compiler.templates.common.cpp_call import lanes
from regraft.compiler.templates.gemm.cpp_bytes import LANES, has_byte_dots

from .test_fuse import fuse, kernels

aten = torch.ops.aten
needs_instruction = pytest.mark.skipif(not has_byte_dots(lanes()), reason="this processor has no AVX512-VNNI")


def bytes_of(*sizes: int) -> torch.Tensor:
    """The whole range, the lowest byte included."""
    found = torch.randint(-128, 128, sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(torch.int8)
    found.flatten()[:3] = torch.tensor([-128, -128, 127], dtype=torch.int8)
    return found


def exact(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x.long() @ weight.long()).int()


SIZES = [(1, 1, 4), (3, 17, 8), (8, 16, 64), (9, 48, 40), (33, 50, 12), (17, 3, 8192), (130, 100, 2052)]
LAYOUTS = {
    "columns along the depth": lambda n, k: bytes_of(n, k).t(),
    "columns side by side": lambda n, k: bytes_of(k, n),
    "columns apart": lambda n, k: bytes_of(n, k + 4)[:, :k].t(),
}


@needs_instruction
@one_row_in(3)
@pytest.mark.parametrize("frozen", [(), (1,)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", SIZES)
def test_sums_are_exact(sizes: tuple[int, int, int], layout: str, frozen: tuple[int, ...]) -> None:
    m, n, k = sizes
    x, weight = bytes_of(m, k), LAYOUTS[layout](n, k)
    fused = fuse(aten._int_mm, [x, weight], frozen=frozen)
    assert len(kernels(fused)) == 1, fused.record.near_misses
    found = fused.graph_module(x, weight)
    assert found.dtype == torch.int32
    assert found.stride() == (n, 1)
    assert torch.equal(found, exact(x, weight))


@needs_instruction
@pytest.mark.parametrize("strides", ["rows apart", "depth apart"])
def test_rows_that_lie_apart(strides: str) -> None:
    x = bytes_of(9, 48)[:, :40] if strides == "rows apart" else bytes_of(40, 9).t()
    weight = bytes_of(20, 40).t()
    assert torch.equal(fuse(aten._int_mm, [x, weight]).graph_module(x, weight), exact(x, weight))


@needs_instruction
def test_what_follows_is_one_kernel() -> None:
    """Sums become numbers, are scaled by rows and columns, pass an activation, and become bytes again."""

    def layer(x: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        scaled = torch.ops.aten._to_copy(aten._int_mm(x, weight), dtype=torch.float32) * rows * columns
        return torch.ops.aten._to_copy(aten.relu(scaled).round().clamp(0, 127), dtype=torch.int8)

    inputs = [bytes_of(19, 64), bytes_of(50, 64).t(), torch.rand(19, 1) * 1e-2, torch.rand(50) * 1e-2]
    after = bytes_of(8, 50).t().contiguous()
    fused = fuse(lambda *given: aten._int_mm(layer(*given[:4]), given[4]), [*inputs, after])
    first, *_ = kernels(fused)
    assert first.output.dtype == torch.int8
    assert [name for name in fused.operators if name.startswith("gemm_")]
    (eager, found) = layer(*inputs), fused.graph_module(*inputs, after)
    assert torch.equal(found, exact(eager, after))


@needs_instruction
@not_in_old_torch("multiplies signed bytes only")
@one_row_in(2)
@pytest.mark.parametrize("frozen", [(), (1,)])
@pytest.mark.parametrize("sizes", [(1, 17, 8), (9, 48, 40), (17, 3, 8192)])
def test_unsigned_bytes_on_the_left(sizes: tuple[int, int, int], frozen: tuple[int, ...]) -> None:
    """`_int_mm` takes them on CPUs; what follows reads the sums of the weight's columns, as torchao has it."""
    m, n, k = sizes
    x, weight = bytes_of(m, k).view(torch.uint8), bytes_of(n, k).t()
    inputs = (x, weight, torch.rand(n))
    fused = fuse(lambda x, w, s: torch.ops.aten._to_copy(aten._int_mm(x, w), dtype=torch.float32) * s, inputs,
                 frozen=frozen)  # fmt: skip
    assert len(kernels(fused)) == 1, fused.record.near_misses
    assert torch.equal(fused.graph_module(*inputs), exact(x, weight).float() * inputs[2])


WINDOWS = {
    "lines of a window": (2, 9, 8, 4, lambda x: x.unfold(1, 3, 1).unfold(2, 3, 1).permute(0, 1, 2, 4, 5, 3)),
    "strided": (1, 9, 8, 12, lambda x: x.unfold(1, 3, 2).unfold(2, 2, 3).permute(0, 1, 2, 4, 5, 3)),
    "dilated": (2, 8, 7, 4, lambda x: x.unfold(1, 5, 1)[..., ::2].unfold(2, 3, 1)[..., ::2].permute(0, 1, 2, 4, 5, 3)),
    "every other pixel": (3, 9, 8, 16, lambda x: x.unfold(1, 1, 2).unfold(2, 1, 2).permute(0, 1, 2, 4, 5, 3)),
    "deep": (1, 5, 5, 1024, lambda x: x.unfold(1, 3, 1).unfold(2, 3, 1).permute(0, 1, 2, 4, 5, 3)),
}


@needs_instruction
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_read_where_they_lie(name: str) -> None:
    """No copy of them is written, and what becomes bytes again is one kernel."""
    *sizes, view = WINDOWS[name]
    x = bytes_of(*sizes)
    depth = view(x).shape[3:].numel()
    weight = bytes_of(20, depth).t()

    def rows(x: torch.Tensor) -> torch.Tensor:
        return view(x).reshape(-1, depth)

    def convolved(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        sums = torch.ops.aten._to_copy(aten._int_mm(rows(x), weight), dtype=torch.float32)
        return torch.ops.aten._to_copy((sums * 1e-4).round().clamp(-128, 127), dtype=torch.int8) + 1

    fused = fuse(convolved, [x, weight])
    (kernel,) = kernels(fused)
    assert kernel.output.dtype == torch.int8
    assert not any(name.startswith(("clone", "reshape")) for name in fused.operators)
    wanted = (exact(rows(x), weight).float() * 1e-4).round().clamp(-128, 127).to(torch.int8) + 1
    assert torch.equal(fused.graph_module(x, weight), wanted)


@needs_instruction
@pytest.mark.parametrize(("depth", "apart", "code"), [(6, 6, "depth"), (8, 9, "layout")])
def test_what_the_kernel_does_not_read_stays_a_call(depth: int, apart: int, code: str) -> None:
    weight = bytes_of(16, apart)[:, :depth].t()
    fused = fuse(aten._int_mm, [bytes_of(5, depth), weight])
    assert not fused.count
    assert {miss.code for miss in fused.record.near_misses} == {code}


def test_processors_without_the_instruction_keep_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.compiler.templates.gemm.fuse.has_byte_dots", lambda lanes: False)
    fused = fuse(aten._int_mm, [bytes_of(5, 8), bytes_of(16, 8).t()])
    assert not fused.count
    assert {miss.code for miss in fused.record.near_misses} == {"instructions"}


@pytest.mark.skipif(lanes() != LANES, reason="vectors are narrower here")
def test_kernels_that_are_compiled_again_elsewhere_need_no_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Artifacts hold sources."""
    plain = replace(host_target(), flags=(*host_target().flags, "-mno-avx512vnni"))
    monkeypatch.setattr("regraft.compiler.templates.common.cpp_call.host_target", lambda: plain)
    monkeypatch.setattr("regraft.compiler.templates.gemm.fuse.has_byte_dots", lambda lanes: True)
    x, weight = bytes_of(9, 40), bytes_of(20, 40).t()
    fused = fuse(aten._int_mm, [x, weight])
    assert len(kernels(fused)) == 1
    assert torch.equal(fused.graph_module(x, weight), exact(x, weight))

"""Products whose depth is split among programs: interpreted against eager, compiled, launched, decided on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.template_oracle import Fastest, run_pass, with_fake_hopper
from support.thorough import one_row_in, takes_turns
from support.triton_gemm import agrees, found_in, near, on_gpu, run
from support.triton_kernels import compiled, spilled
from support.versions import OLD_TRITON
from torch.nn import functional as F

from regraft.compiler.gpu import AMPERE, HOPPER, Gpu
from regraft.compiler.templates import TritonTemplateKernel
from regraft.compiler.templates.common import triton_call
from regraft.compiler.templates.gemm.triton_candidates import gemm_tiles
from regraft.compiler.templates.gemm.triton_cost import estimate, is_skinny, library
from regraft.compiler.templates.gemm.triton_fuse import ProductTemplate, gemm_kernel, renamed
from regraft.compiler.templates.gemm.triton_source import gemm_triton
from regraft.compiler.templates.gemm.triton_split_k import workspaces
from regraft.compiler.templates.gemm.triton_tiles import GemmTile, fits
from regraft.rewrites.record import GraphRecord

BF16, F16 = torch.bfloat16, torch.float16
SPLIT = GemmTile(16, 32, 32, 4, 2, splits=4)
DESCRIBED = GemmTile(16, 32, 32, 4, 2, descriptors=True, splits=4)
EITHER = pytest.mark.parametrize("tile", [SPLIT, DESCRIBED], ids=["pointers", "descriptors"])


def random(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(dtype)


# -- results ----------------------------------------------------------------------------------------------------------


@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(
    "sizes", [(1, 40, 170), (1, 1, 130), (5, 33, 97), (16, 64, 256), (33, 65, 300), (17, 200, 129), (300, 7, 128)]
)
def test_sizes(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, n, k = sizes
    agrees(F.linear, random(m, k, dtype=dtype), random(n, k, dtype=dtype), tile=SPLIT)


@pytest.mark.parametrize("splits", [2, 3, 5, 8])
def test_parts_of_any_number(splits: int) -> None:
    _, source = agrees(F.linear, random(8, 300), random(40, 300), tile=replace(SPLIT, splits=splits))
    assert source.launches[0].programs == 2 * splits


@one_row_in(2)
@EITHER
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
def test_turned_operands(turned: tuple[bool, bool], tile: GemmTile) -> None:
    m, n, k = 24, 72, 232
    x = random(k, m).t() if turned[0] else random(m, k)
    w = random(n, k).t() if turned[1] else random(k, n)
    agrees(lambda x, w: F.gelu(x @ w), x, w, tile=tile)


def test_batches() -> None:
    agrees(lambda x, w: torch.bmm(x, w) * 2, random(3, 20, 133), random(3, 133, 35), tile=SPLIT)
    agrees(torch.bmm, random(3, 133, 20).transpose(1, 2), random(133, 35).expand(3, 133, 35), tile=SPLIT)


@EITHER
def test_epilogues(tile: GemmTile) -> None:
    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return F.silu(F.linear(x, w, b)) * r

    agrees(layer, random(2, 5, 160), random(72, 160), random(72), random(2, 5, 72), tile=tile)
    agrees(lambda x, w: (x @ w).float() * 2, random(10, 160), random(160, 72), tile=tile)


@EITHER
def test_several_results(tile: GemmTile) -> None:
    def function(b: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.addmm(b, x, w)
        return F.gelu(y.view(4, 10, 72)), y

    inputs = [random(72), random(40, 160), random(160, 72)]
    results, found, source = run(function, inputs, tile)
    assert found.kept is not None
    for place in range(2):
        near(results[place], lambda *x, place=place: function(*x)[place], inputs, 1.5, source)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_nan_and_infinities_spread_as_in_eager(number: float) -> None:
    for place in range(3):
        inputs = [random(20, 148), random(148, 72), random(72)]
        inputs[place].view(-1)[5] = number
        agrees(lambda x, w, b: torch.relu(torch.addmm(b, x, w)), *inputs, tile=SPLIT)


def test_the_epilogue_sees_sums_that_are_not_rounded() -> None:
    x, w = torch.full((16, 128), 1 + 2.0**-7, dtype=BF16), torch.zeros(128, 16, dtype=BF16)
    w[:16] = torch.eye(16, dtype=BF16)
    w[100, :] = 2.0**-9  # sums need more digits than 16-bit floats have
    (result,), _, _ = run(lambda x, w: ((x @ w).float() - 1.0078125) * 256, [x, w], SPLIT)
    assert float(result.abs().max()) > 0


# -- which are legal, and which are chosen ----------------------------------------------------------------------------


def described(m: int, n: int, k: int) -> Any:
    module = on_gpu(lambda x, w: x @ w.t(), torch.empty(m, k, dtype=BF16), torch.empty(n, k, dtype=BF16))
    return renamed(found_in(module).product)


def test_no_part_is_empty() -> None:
    product = described(16, 64, 5 * 32)
    assert fits(product, replace(SPLIT, splits=5), HOPPER)
    assert not fits(product, replace(SPLIT, splits=4), HOPPER)  # of two steps each: the last would have none
    assert not fits(product, replace(SPLIT, splits=8), HOPPER)
    assert not fits(product, replace(SPLIT, splits=32), HOPPER)


def test_memory_for_sums_is_limited() -> None:
    tile = GemmTile(128, 128, 64, 8, 3, splits=8)
    assert fits(described(768, 768, 65536), tile, HOPPER)
    assert not fits(described(4096, 4096, 65536), tile, HOPPER)
    (sums,) = workspaces(described(10, 71, 4096), SPLIT)
    assert (sums.sizes, sums.dtype) == ((4, 10, 72), torch.float32)


@pytest.mark.parametrize("gpu", [HOPPER, AMPERE])
def test_few_tiles_with_much_depth_are_split(gpu: Gpu) -> None:
    for sizes in ((768, 768, 65536), (16, 256, 32768), (64, 512, 32768)):
        product = described(*sizes)
        best = gemm_tiles(product, gpu, 1)[0]
        assert best.splits > 1
        assert estimate(product, best, gpu) < estimate(product, replace(best, splits=1), gpu)
    for sizes in ((8192, 3072, 768), (4096, 4096, 4096)):
        assert all(tile.splits == 1 for tile in gemm_tiles(described(*sizes), gpu, 4))


def test_products_that_memory_bounds() -> None:
    assert is_skinny(described(16, 4096, 4096))
    assert is_skinny(described(4096, 16, 4096))
    assert not is_skinny(described(64, 768, 768))
    assert is_skinny(described(16, 768, 768))  # of these a step of decoding has many
    assert not is_skinny(described(16, 256, 768))
    assert not is_skinny(described(256, 4096, 4096))
    assert library(described(1, 4096, 4096), HOPPER) > 0.9 * library(described(16, 4096, 4096), HOPPER)


# -- machine code -----------------------------------------------------------------------------------------------------


@takes_turns("gpu")
@pytest.mark.parametrize("gpu", [HOPPER, AMPERE])
@pytest.mark.parametrize("sizes", [(1, 4096, 4096), (16, 1024, 16384), (64, 4096, 4096), (768, 768, 65536)])
def test_offered_tiles_compile_and_spill_nothing(sizes: tuple[int, int, int], gpu: Gpu) -> None:
    product = described(*sizes)
    for tile in gemm_tiles(product, gpu, 2):
        for made in compiled(gemm_triton(product, tile, gpu.processors), gpu.capability):
            assert made.metadata.shared <= gpu.shared_bytes
            assert spilled(made) <= (32 if OLD_TRITON else 16)


def test_reads_of_weights_are_wide() -> None:
    (made,) = compiled(gemm_triton(described(1, 4096, 4096), GemmTile(16, 32, 256, 4, 4), 132), 90)
    assert "cp.async.cg.shared.global [ %r" in made.asm["ptx"]
    assert "cp.async.ca" not in made.asm["ptx"]


# -- the pass ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return with_fake_hopper(monkeypatch, tmp_path_factory.getbasetemp() / "split")


def fuse(function: Callable[..., Any], *sizes: tuple[int, ...], **options: Any) -> tuple[Any, Fastest, GraphRecord]:
    module = on_gpu(function, *(torch.empty(s, dtype=BF16) for s in sizes))
    oracle, record = Fastest(original=1.0, x=0.5), GraphRecord("test")
    run_pass(ProductTemplate, module, oracle, record, **{"thorough": False, **options})
    return module, oracle, record


@pytest.mark.usefixtures("driver")
def test_skinny_products_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TritonTemplateKernel, "build", lambda self: None)
    _, oracle, _ = fuse(F.linear, (1, 1, 4096), (4096, 4096))
    assert len(oracle.questions) == 1
    _, oracle, _ = fuse(lambda x, w, r: F.linear(x, w) + r, (1, 1, 4096), (4096, 4096), (1, 1, 4096))
    assert len(oracle.questions) == 1
    _, oracle, _ = fuse(lambda x, w, r: F.linear(x, w) + r, (16, 11008), (4096, 11008), (16, 4096))
    assert len(oracle.questions) == 1
    _, oracle, record = fuse(F.linear, (64, 768), (768, 768))
    assert oracle.questions == record.declined == []


def launched(driver: Any, monkeypatch: pytest.MonkeyPatch, move: int = 0) -> tuple[Any, list[Any], torch.Tensor, Any]:
    """What was launched for a split product: the kernel, its tensors (moved by so many elements), the result."""
    monkeypatch.setattr(
        triton_call, "_empty", lambda device: lambda a, b, dtype: torch.empty_strided(a, b, dtype=dtype)
    )
    found = found_in(on_gpu(lambda x, w, b: F.gelu(F.linear(x, w, b)), random(5, 160), random(72, 160), random(72)))
    kernel = gemm_kernel(renamed(found.product), DESCRIBED, "gelu", 0, HOPPER)
    memory = [torch.empty(torch.Size(x.sizes).numel() + move, dtype=x.dtype) for x in kernel.inputs]
    tensors = [x[move:].as_strided(y.sizes, y.strides) for x, y in zip(memory, kernel.inputs, strict=True)]
    driver.reset(4)
    out = kernel(*tensors)
    return kernel, tensors, out, driver.launches()


def test_both_launches_get_what_they_need(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, (x, w, b), out, (first, second) = launched(driver, monkeypatch)
    assert first.name.decode() == kernel.name
    assert second.name.decode() == f"{kernel.name}_sum"
    assert list(first.values[:2]) == [x.data_ptr(), w.data_ptr()]
    assert list(second.values[:2]) == [b.data_ptr(), out.data_ptr()]
    assert first.values[2] == second.values[2] != 0
    assert (first.programs, second.programs) == tuple(launch.programs for launch in kernel.source.launches)


def test_tensors_that_are_not_aligned(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _, _, (first, second) = launched(driver, monkeypatch, move=1)
    plain = [launch.name for launch in kernel.plain.launches]
    assert [first.name.decode(), second.name.decode()] == plain
    assert "tma" not in plain[0]


@pytest.mark.usefixtures("driver")
def test_skinny_products_are_measured_with_weights_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TritonTemplateKernel, "build", lambda self: None)
    for rows, cold in ((16, True), (4096, False)):
        _, oracle, _ = fuse(lambda x, w: F.gelu(F.linear(x, w)), (rows, 4096), (4096, 4096), thorough=True)
        assert {question.cold for question in oracle.questions} == {cold}

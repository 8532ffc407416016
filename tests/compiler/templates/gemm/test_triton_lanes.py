"""Products with few rows without tensor cores: interpreted against eager and float64, and compiled for GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton")

import torch
from support.template_oracle import with_fake_hopper
from support.thorough import one_row_in, takes_turns
from support.triton_gemm import agrees, found_in, interpreted, near, on_gpu
from support.triton_kernels import compiled, spilled
from torch.nn import functional as F

from regraft.compiler.gpu import AMPERE, HOPPER, Gpu
from regraft.compiler.templates.common import gpu, triton_call
from regraft.compiler.templates.common.task import task_of
from regraft.compiler.templates.gemm.match import FoundProduct
from regraft.compiler.templates.gemm.triton_candidates import gemm_tiles
from regraft.compiler.templates.gemm.triton_fuse import ProductTemplate, gemm_kernel, renamed
from regraft.compiler.templates.gemm.triton_source import gemm_triton
from regraft.compiler.templates.gemm.triton_tiles import GemmTile, fits
from regraft.rewrites.profit import Always
from regraft.rewrites.record import GraphRecord

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ONE = GemmTile(1, 4, 64, 1, 2)
SPLIT = replace(ONE, splits=3)


def random(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(sizes, generator=generator).to(dtype)


@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize("tile", [ONE, GemmTile(1, 1, 128, 2, 1), SPLIT], ids=str)
@pytest.mark.parametrize("sizes", [(1, 9, 300), (1, 1, 1), (1, 4, 64)])
def test_one_row(sizes: tuple[int, int, int], tile: GemmTile, dtype: torch.dtype) -> None:
    m, n, k = sizes
    if tile.splits > 1 and k < 300:
        return
    agrees(lambda x, w: F.linear(x, w), random(m, k, dtype=dtype), random(n, k, dtype=dtype), tile=tile)
    agrees(lambda x, w: x @ w, random(m, k, dtype=dtype), random(k, n, dtype=dtype), tile=tile)


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_a_few_rows(rows: int) -> None:
    tile = GemmTile(2 if rows == 2 else 4, 4, 64, 1, 1)
    agrees(lambda x, w: F.linear(x, w).relu(), random(rows, 100), random(9, 100), tile=tile)
    agrees(lambda x, w: x @ w, random(rows, 100), random(100, 9), tile=replace(tile, splits=2))


@pytest.mark.parametrize(
    "make",
    [
        lambda: (random(1, 200)[:, ::2], random(9, 200)[:, ::2].t()),
        lambda: (random(100, 2).t()[1:], random(200, 9)[::2]),
        lambda: (random(3, 100)[1:, 1:], random(101, 9)[2:, 1:]),
        lambda: (random(1, 1).expand(1, 100), random(100, 1).expand(100, 7)),
    ],
)
def test_strides(make: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> None:
    x, w = make()
    agrees(lambda x, w: x @ w, x, w, tile=GemmTile(x.shape[0], 4, 64, 1, 1))


def test_matrices() -> None:
    agrees(lambda x, w: torch.bmm(x, w) * 2, random(3, 1, 100), random(3, 100, 9), tile=ONE)


EPILOGUES: dict[str, Callable[..., torch.Tensor]] = {
    "bias_gelu": lambda x, w, b, r: F.gelu(F.linear(x, w, b)),
    "silu_mul": lambda x, w, b, r: F.silu(F.linear(x, w)) * r,
    "residual": lambda x, w, b, r: F.linear(x, w, b) + r,
    "cast": lambda x, w, b, r: F.linear(x, w).float() * 2,
}


@one_row_in(2)
@pytest.mark.parametrize("tile", [ONE, SPLIT], ids=str)
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name: str, tile: GemmTile) -> None:
    agrees(EPILOGUES[name], random(1, 200), random(9, 200), random(9), random(1, 9), tile=tile)


PROLOGUES: dict[str, Callable[..., torch.Tensor]] = {
    "gate": lambda x, r, w, s: F.linear(F.silu(x) * r, w.to(x.dtype)),
    "bytes": lambda x, r, w, s: F.linear(x, w.to(x.dtype) * s),
    "row": lambda x, r, w, s: F.linear(x * x.narrow(1, 0, 1), w.to(x.dtype)),
}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", PROLOGUES)
def test_prologues(name: str, rows: int) -> None:
    inputs = random(rows, 100), random(rows, 100), (random(9, 100) * 40).to(torch.int8), random(9, 1) * 0.01
    tile = GemmTile(1 if rows == 1 else 4, 4, 64, 1, 1)
    agrees(PROLOGUES[name], *inputs, tile=tile, sides="ab")


def test_numbers_that_are_none() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        x, w = random(1, 100), random(9, 100)
        w[2, 99] = x[0, 5] = bad
        w[3, 5] = 0
        agrees(lambda x, w: F.linear(x, w), x, w, tile=ONE)


def test_float32_is_not_cut_short() -> None:
    found = found_in(on_gpu(F.linear, random(1, 64, dtype=F32), random(9, 64, dtype=F32)))
    assert found.product.exact
    assert fits(found.product, ONE, HOPPER)
    assert not fits(found.product, GemmTile(16, 32, 64, 4, 3), HOPPER)


def test_tiles_that_fit() -> None:
    one, three, five = (found_in(on_gpu(F.linear, random(n, 64), random(9, 64))).product for n in (1, 3, 5))
    assert fits(one, ONE, HOPPER)
    assert not fits(one, replace(ONE, rows=2), HOPPER)
    assert fits(three, replace(ONE, rows=4), HOPPER)
    assert not fits(three, replace(ONE, rows=2), HOPPER)
    assert not any(fits(five, replace(ONE, rows=rows), HOPPER) for rows in (1, 2, 4, 8))
    assert not fits(one, replace(ONE, depth=4096, columns=16), HOPPER)


@one_row_in(2)
@pytest.mark.parametrize("on", [HOPPER, AMPERE], ids=lambda on: on.capability)
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("turned", [False, True])
def test_machine_code(rows: int, turned: bool, on: Gpu) -> None:
    x, r = random(rows, 2048), random(rows, 256)
    w = random(2048, 256) if turned else random(256, 2048).t()
    product = found_in(on_gpu(lambda x, w, r: F.silu(x @ w) * r, x, w, r)).product
    tile = GemmTile(rows, 64, 32, 4, 1) if turned else GemmTile(rows, 4, 512, 4, 1)
    assert fits(product, tile, on)
    (made,) = compiled(gemm_triton(product, tile, on.processors), on.capability)
    assert not spilled(made)
    assert "ld.global.L1::evict_first.L2::cache_hint.v4" in made.asm["ptx"].replace(".b32", "").replace("128", "")


# -- before earlier kernels have ended --------------------------------------------------------------------------------


def early(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, writes: bool = False) -> bool:
    module = on_gpu(function, *inputs)
    if writes:
        _, w, *_ = module.graph.nodes
        with module.graph.inserting_before(module.graph.output_node()):
            module.graph.call_function(torch.ops.aten.copy_.default, (w, w))
    task = task_of(module.graph, Always(), GraphRecord("test"))
    assert task is not None
    one = ProductTemplate(task)
    every = [(node, one.match(node)) for node in module.graph.nodes]
    products = [
        found for node, match in every if isinstance(match, FoundProduct) for found in one.variants(match, node)
    ]
    return any(found.product.early for found in products)


EARLY: dict[str, tuple[bool, Callable[..., torch.Tensor]]] = {
    "activation": (True, lambda x, w: F.linear(x.relu(), w)),
    "a view of the weight": (True, lambda x, w: x.relu() @ w.t()),
    "input": (False, F.linear),
    "a view of an input": (False, lambda x, w: F.linear(x.view(-1).unsqueeze(0), w)),
    "made of numbers": (False, lambda x, w: F.linear(torch.ones_like(x), w)),
    "computed weight": (False, lambda x, w: F.linear(x.relu(), w.cumsum(0))),
}


@pytest.mark.parametrize("name", EARLY)
def test_weights_that_lie_still_are_read_early(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_fake_hopper(monkeypatch, tmp_path)
    wanted, function = EARLY[name]
    assert early(function, random(1, 2048), random(1024, 2048)) is wanted
    assert not early(function, random(1, 2048), random(1024, 2048), writes=True)


def test_what_tensor_cores_multiply_is_not_read_early(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_fake_hopper(monkeypatch, tmp_path)
    for rows, wanted in ((4, True), (5, False)):
        assert early(lambda x, w: F.linear(x.relu(), w), random(rows, 2048), random(1024, 2048)) is wanted


def test_ampere_reads_nothing_early(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_fake_hopper(monkeypatch, tmp_path)
    monkeypatch.setattr(gpu, "gpu_at", lambda index: AMPERE)
    assert not early(lambda x, w: F.linear(x.relu(), w), random(1, 2048), random(1024, 2048))


@pytest.mark.parametrize("tile", [replace(ONE, stages=4), GemmTile(16, 16, 64, 1, 2)], ids=str)
def test_what_reads_early_waits(tile: GemmTile) -> None:
    inputs = random(1, 300), random(9, 300)
    found = found_in(on_gpu(F.linear, *inputs))
    found = replace(found, product=replace(found.product, early=True))
    (result,), source = interpreted(found, inputs, tile, 3)
    near(result, F.linear, inputs, 1.5, source)
    ptx = compiled(gemm_triton(found.product, tile, 132), 90)[0].asm["ptx"]
    begin, wait = ptx.index("griddepcontrol.launch_dependents"), ptx.index("griddepcontrol.wait")
    assert begin < wait
    assert ("ld.global" in ptx[begin:wait]) is tile.by_lanes
    assert "ld.global" in ptx[wait:] or "cp.async" in ptx[wait:]
    assert source.launches[0].early


def test_it_is_launched_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver = with_fake_hopper(monkeypatch, tmp_path)
    monkeypatch.setattr(
        triton_call, "_empty", lambda device: lambda a, b, dtype: torch.empty_strided(a, b, dtype=dtype)
    )
    for wanted in (False, True):
        product = found_in(on_gpu(F.linear, random(1, 300), random(9, 300))).product
        kernel = gemm_kernel(renamed(replace(product, early=wanted)), ONE, "", 0, HOPPER)
        driver.reset(3)
        kernel(random(1, 300), random(9, 300).t())
        (launch,) = driver.launches()
        assert launch.early == wanted


def test_programs_have_more_than_a_step_of_one_column() -> None:
    def shapes(columns: int, depth: int) -> set[tuple[int, int]]:
        product = found_in(on_gpu(F.linear, random(1, depth), random(columns, depth))).product
        return {(tile.columns, tile.depth) for tile in gemm_tiles(product, HOPPER, 9) if tile.by_lanes}

    assert (1, 2048) not in shapes(2048, 2048)
    assert (1, 2048) in shapes(2048, 8192)

"""The product kernel in Triton: interpreted against eager and float64, and compiled for GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.thorough import one_row_in, takes_turns
from support.triton_gemm import SMALL, agrees, found_in, interpreted, near, on_gpu, run
from support.triton_kernels import compiled
from torch._subclasses import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.nn import functional as F

from regraft.compiler.gpu import AMPERE, HOPPER
from regraft.compiler.templates.gemm import match as gemm_match
from regraft.compiler.templates.gemm import operands as gemm_operands
from regraft.compiler.templates.gemm.match import match_gemm
from regraft.compiler.templates.gemm.operands import is_product
from regraft.compiler.templates.gemm.triton_candidates import gemm_tiles
from regraft.compiler.templates.gemm.triton_source import gemm_triton
from regraft.compiler.templates.gemm.triton_tiles import GemmTile, fits
from regraft.rewrites.reason import Reason

BF16, F16 = torch.bfloat16, torch.float16
DESCRIBED = GemmTile(32, 64, 32, 4, 2, descriptors=True)


def random(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(sizes, generator=generator).to(dtype)


# -- sizes, dtypes, strides -------------------------------------------------------------------------------------------

SIZES = [(1, 1, 1), (1, 40, 17), (32, 64, 32), (33, 65, 33), (64, 128, 96), (300, 50, 70), (40, 1, 64), (70, 200, 1)]


@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("sizes", SIZES)
def test_sizes(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, n, k = sizes
    agrees(lambda x, w: x @ w, random(m, k, dtype=dtype), random(k, n, dtype=dtype))


@pytest.mark.parametrize("sizes", [(64, 128, 64), (33, 72, 40), (300, 200, 72)])
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
def test_descriptors(sizes: tuple[int, int, int], turned: tuple[bool, bool]) -> None:
    m, n, k = (-(-size // 8) * 8 for size in sizes)
    x = random(k, m).t() if turned[0] else random(m, k)
    w = random(n, k).t() if turned[1] else random(k, n)
    _, source = agrees(lambda x, w: F.gelu(x @ w), x, w, tile=DESCRIBED)
    assert "make_tensor_descriptor" in source.text
    assert "mask" not in source.text.partition("make_tensor_descriptor")[2].partition("tl.dot")[0]


def test_conditions_vanish_where_tiles_divide_sizes() -> None:
    _, source = agrees(lambda x, w: (x @ w).relu(), random(64, 64), random(64, 128))
    assert "mask" not in source.text
    _, source = agrees(lambda x, w: (x @ w).relu(), random(64, 72), random(72, 128))
    assert "j_inside" not in source.text


@pytest.mark.parametrize(
    "make",
    [
        lambda: (random(50, 40), random(70, 40).t()),
        lambda: (random(40, 50).t(), random(40, 70)),
        lambda: (random(50, 80)[:, ::2], random(40, 140)[:, ::2]),
        lambda: (random(100, 40)[::2], random(80, 70)[::2]),
        lambda: (random(1, 40).expand(50, 40), random(40, 1).expand(40, 70)),
    ],
)
def test_strides(make: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> None:
    agrees(lambda x, w: x @ w, *make())


def test_batches() -> None:
    agrees(lambda x, w: torch.bmm(x, w) * 2, random(3, 40, 33), random(3, 33, 70))
    agrees(torch.bmm, random(3, 33, 40).transpose(1, 2), random(3, 70, 33).transpose(1, 2))
    agrees(torch.bmm, random(40, 33).expand(3, 40, 33), random(3, 33, 70))


def test_many_tiles_in_groups() -> None:
    agrees(lambda x, w: x @ w, random(16 * 11, 16), random(16, 16 * 5), tile=GemmTile(16, 16, 16, 4, 2))
    tall = GemmTile(16, 16, 16, 4, 2, descriptors=True)
    agrees(lambda x, w: x @ w, random(16 * 11, 16), random(16, 16 * 5), tile=tall)


# -- epilogues --------------------------------------------------------------------------------------------------------

EPILOGUES: dict[str, Callable[..., Any]] = {
    "gelu": lambda y, _: F.gelu(y), "gelu_tanh": lambda y, _: F.gelu(y, approximate="tanh"),
    "silu_mul": lambda y, r: F.silu(y) * r, "residual": lambda y, r: y + r, "scaled": lambda y, _: y * 0.125 + 1,
    "cast": lambda y, _: y.float() * 2, "relu_squared": lambda y, _: torch.relu(y).square(),
    "row": lambda y, r: y * r.narrow(0, 0, 1), "column": lambda y, r: y * r.narrow(1, 0, 1),
    "number": lambda y, r: y * r.select(0, 1).select(0, 2),
}  # fmt: skip


@one_row_in(2)
@pytest.mark.parametrize("tile", [SMALL, DESCRIBED], ids=["pointers", "descriptors"])
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name: str, tile: GemmTile) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return EPILOGUES[name](torch.addmm(b, x, w), r)

    inputs = [random(40, 48), random(48, 72), random(72), random(40, 72)]
    found, _ = agrees(function, *inputs, tile=tile)
    assert found.output.name != "addmm"


def test_strided_residuals_are_read_where_they_are() -> None:
    inputs = [random(40, 48), random(48, 72), random(72, 40).t()]
    _, source = agrees(lambda x, w, r: torch.tanh(x @ w) + r, *inputs)
    assert "i + 40 * j" in source.text


def test_views_are_seen_through() -> None:
    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return F.silu(F.linear(x, w, b)) * r

    found, source = agrees(layer, random(2, 20, 48), random(72, 48), random(72), random(2, 20, 72))
    assert "72 * i + j" in source.text
    assert found.product.row.extent == 40


def test_scaled_sum() -> None:
    inputs = [random(70), random(20, 30), random(30, 70)]
    agrees(lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=-2.0), *inputs)
    agrees(lambda b, x, w: torch.addmm(b, x, w), random(20, 1), *inputs[1:])


@pytest.mark.parametrize("single", [False, True])
def test_epilogues_are_as_precise_as_what_is_stored(single: bool) -> None:
    """Quotients and powers that 16 bits are left of are fast ones; of float32 they are not."""

    def capped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x @ w).float()
        y = torch.tanh(y / (y * y + 30.0)) * torch.sigmoid(y)
        return y if single else y.bfloat16()

    _, source = agrees(capped, random(40, 48), random(48, 72))
    text = source.launches[0].text
    assert ("fast_quotient" in text) == ("fast_sigmoid" in text) == (not single)
    assert "libdevice.tanh" not in text


def test_the_sum_is_not_rounded_before_the_epilogue() -> None:
    x, w = torch.full((16, 16), 1 + 2.0**-7, dtype=BF16), torch.eye(16, dtype=BF16)
    w[0, :] = 2.0**-9  # sums need more digits than 16-bit floats have
    (result,), _, _ = run(lambda x, w: ((x @ w).float() - 1.0078125) * 256, [x, w])
    assert float(result.abs().max()) > 0


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("tile", [SMALL, DESCRIBED], ids=["pointers", "descriptors"])
def test_nan_and_infinities_spread_as_in_eager(number: float, tile: GemmTile) -> None:
    for place in range(3):
        inputs = [random(40, 48), random(48, 72), random(72)]
        inputs[place].view(-1)[5] = number
        agrees(lambda x, w, b: torch.relu(torch.addmm(b, x, w)), *inputs, tile=tile)


# -- the product kept -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [SMALL, DESCRIBED], ids=["pointers", "descriptors"])
def test_product_that_is_read_elsewhere_is_written_too(tile: GemmTile) -> None:
    def function(b: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.addmm(b, x, w)
        return F.gelu(y.view(4, 10, 72)), y

    inputs = [random(72), random(40, 48), random(48, 72)]
    results, found, source = run(function, inputs, tile)
    assert found.kept is not None
    assert found.kept.name == "addmm"
    near(results[0], lambda *x: function(*x)[0], inputs, 1.5, source)
    near(results[1], lambda *x: function(*x)[1], inputs, 1.5, source)


def test_product_that_is_kept_under_a_view() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x @ w).view(4, 10, 72)
        return y, F.gelu(y)

    found = found_in(on_gpu(function, random(40, 48), random(48, 72)))
    assert found.kept is not None
    assert [x.buffer.sizes for x in found.product.results] == [(4, 10, 72), (40, 72)]


def test_the_epilogue_ends_at_what_else_is_read() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x @ w).relu()
        return y, y * 2

    assert found_in(on_gpu(function, random(40, 48), random(48, 72))).output.name == "relu"


# -- products padded for the library ----------------------------------------------------------------------------------

aten = torch.ops.aten


def padded(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, more: int, end: Any = None
) -> torch.fx.GraphModule:
    """The graph that padding makes of a linear layer: the library's product of padded operands, and a dense part."""
    graph = torch.fx.Graph()
    given = [graph.placeholder(name) for name, value in (("x", x), ("w", w), ("b", b)) if value is not None]
    wide = graph.call_function(aten.constant_pad_nd.default, (given[1], [0, 0, 0, more]))
    bias = graph.call_function(aten.constant_pad_nd.default, (given[2], [0, more])) if b is not None else None
    y = graph.call_function(aten.linear.default, (given[0], wide, bias))
    part = graph.call_function(aten.slice.Tensor, (y, x.dim() - 1, 0, w.shape[0]))
    dense = graph.call_function(aten.clone.default, (part,), {"memory_format": torch.contiguous_format})
    graph.output(dense if end is None else end(graph, y, part, dense))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    with FakeTensorMode() as mode:
        fakes = [torch.empty(v.shape, dtype=v.dtype, device="cuda") for v in (x, w, b) if v is not None]
        FakeTensorProp(module, mode).propagate(*fakes)
    return module


@pytest.mark.parametrize("bias", [False, True])
def test_padding_for_the_library_is_undone(bias: bool) -> None:
    x, w, b = random(2, 20, 32), random(77, 32), random(77) if bias else None
    module = padded(x, w, b, 3)
    found = found_in(module, "aten.linear")
    assert found.product.column.extent == 77
    assert [node.name for node in found.inputs] == ["x", "w", "b"][: 3 if bias else 2]
    (result,), source = interpreted(found, [t for t in (x, w, b) if t is not None], SMALL, 3)
    near(result, F.linear, [t for t in (x, w, b) if t is not None], 1.5, source)


@pytest.mark.parametrize(
    "end",
    [
        lambda graph, y, part, dense: (dense, y),
        lambda graph, y, part, dense: graph.call_function(aten.mm.default, (part, part)),
    ],
)
def test_padding_stays_where_its_result_is_read(end: Any) -> None:
    module = padded(random(77, 32), random(77, 32), None, 3, end)
    assert found_in(module, "aten.linear").product.column.extent == 80


# -- float32 ----------------------------------------------------------------------------------------------------------


def test_float32_is_left_to_the_library_unless_it_may_be_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [random(128, 64).float(), random(64, 128).float()]  # of few digits: nothing is cut short
    node = next(node for node in on_gpu(torch.mm, *inputs).graph.nodes if is_product(node))
    refused = match_gemm(node)
    assert isinstance(refused, Reason)
    assert refused.code == "dtype"
    for module in (gemm_operands, gemm_match):
        monkeypatch.setattr(module, "allows_tf32", lambda: True)
    found, source = agrees(lambda x, w: F.gelu(x @ w), *inputs)
    assert 'tl.dot(tensor_float(a), tensor_float(b), acc, input_precision="tf32")' in source.text
    tiles = gemm_tiles(found.product, HOPPER, 6)
    assert tiles
    assert all(fits(found.product, tile, HOPPER) and tile.shared(4) <= HOPPER.shared_bytes for tile in tiles)
    (made,) = compiled(gemm_triton(found.product, GemmTile(64, 64, 32, 4, 3), 132), 90)
    assert "tf32" in made.asm["ptx"]


# -- machine code -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tile", "gpu"),
    [
        (GemmTile(128, 128, 64, 8, 3), HOPPER),
        (GemmTile(128, 128, 64, 8, 3, True), HOPPER),
        (GemmTile(128, 64, 32, 4, 4), AMPERE),
    ],
    ids=str,
)
def test_compiled(tile: GemmTile, gpu: Any) -> None:
    inputs = [random(512), random(256, 128), random(512, 128)]
    found = found_in(on_gpu(lambda b, x, w: F.gelu(F.linear(x, w, b)), *inputs))
    assert fits(found.product, tile, gpu)
    (made,) = compiled(gemm_triton(found.product, tile, 132), gpu.capability)
    assert ("wgmma" if gpu.capability == 90 else "mma.sync") in made.asm["ptx"]
    assert made.metadata.shared <= gpu.shared_bytes
    assert ("cp.async.bulk.tensor" in made.asm["ptx"]) == tile.descriptors
    assert (made.metadata.global_scratch_size > 0) == tile.descriptors
    assert "st.global.v4" in made.asm["ptx"]

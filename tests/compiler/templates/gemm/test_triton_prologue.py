"""Operands that the product's kernel computes as it reads them: found, interpreted, compiled, decided on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.packed_words import DEPTH, LAYOUTS
from support.template_oracle import Fastest, run_pass, with_fake_hopper
from support.thorough import one_row_in, takes_turns
from support.triton_gemm import SMALL, found_in, interpreted, near, on_gpu, run
from support.triton_kernels import compiled, spilled
from torch._subclasses import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.nn import functional as F

from regraft.compiler.codegen.generate import generate_kernels
from regraft.compiler.gpu import AMPERE, HOPPER, Gpu
from regraft.compiler.templates import TritonTemplateKernel
from regraft.compiler.templates.common.formula import is_move, packet
from regraft.compiler.templates.gemm.halves import halves
from regraft.compiler.templates.gemm.match import FoundProduct, match_gemm
from regraft.compiler.templates.gemm.operands import is_product
from regraft.compiler.templates.gemm.triton_candidates import gemm_tiles
from regraft.compiler.templates.gemm.triton_fuse import ProductTemplate, renamed
from regraft.compiler.templates.gemm.triton_source import gemm_triton
from regraft.compiler.templates.gemm.triton_tiles import GemmTile, fits, shared_bytes
from regraft.rewrites.profit import Always, Never
from regraft.rewrites.record import GraphRecord

BF16, F16 = torch.bfloat16, torch.float16
SPLIT = GemmTile(16, 32, 32, 4, 2, splits=3)
TILES = pytest.mark.parametrize("tile", [SMALL, SPLIT], ids=str)


def random(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype == torch.uint8 else -128, 128, sizes, generator=generator).to(dtype)
    return torch.randn(sizes, generator=generator).to(dtype)


def empty(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype)


def source_of(node: torch.fx.Node) -> str:
    """The name of the input that a node is a view of."""
    while is_move(node):
        node = node.all_input_nodes[0]
    return node.name.removesuffix("_1")


def agrees(
    function: Callable[..., torch.Tensor], *inputs: torch.Tensor, reads: list[str], sides: str = "ab", **options: Any
) -> tuple[FoundProduct, str]:
    """Assert that a kernel with prologues reads these inputs, and computes the function as exactly as eager does."""
    (result,), found, source = run(function, inputs, sides=sides, **options)
    assert sorted(source_of(node) for node in found.inputs) == sorted(reads)
    near(result, function, inputs, 1.5, source)
    return found, source.text


def dequantized(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w.to(x.dtype) * s)


# -- weights of fewer bytes -------------------------------------------------------------------------------------------


@one_row_in(2)
@TILES
@pytest.mark.parametrize("sizes", [(1, 40, 170), (5, 33, 97), (16, 64, 256), (33, 70, 130), (1, 1, 100)])
def test_dequantized_weights(sizes: tuple[int, int, int], tile: GemmTile) -> None:
    m, n, k = sizes
    x, w, s = random(m, k), random(n, k, dtype=torch.int8), random(n, 1) * 0.01
    agrees(dequantized, x, w, s, reads=["x", "w", "s"], tile=tile)


def scaled_by_groups(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    groups = w.view(w.shape[0], -1, 32).to(x.dtype) * s.unsqueeze(-1)
    return F.linear(x, groups.view(w.shape))


def halves_of(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack([packed & 0xF, packed >> 4], -1).view(packed.shape[0], -1)


WEIGHTS: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor], list[str]]] = {
    "uint8 with zeros": (
        lambda x, w, s, z: F.linear(x, (w.to(x.dtype) - z) * s),
        [random(6, 96), random(40, 96, dtype=torch.uint8), random(40, 1) * 0.01, random(40, 1)], ["x", "w", "z", "s"],
    ),
    "scaled after": (
        lambda x, w, s: F.linear(x, w.to(x.dtype)) * s,
        [random(6, 96), random(40, 96, dtype=torch.int8), random(40) * 0.01], ["x", "w", "s"],
    ),
    "groups": (
        scaled_by_groups, [random(6, 96), random(40, 96, dtype=torch.int8), random(40, 3) * 0.01], ["x", "w", "s"],
    ),
    "cast": (
        lambda x, w, b: F.linear(x, w.to(x.dtype), b),
        [random(6, 90), random(40, 90, dtype=torch.float32), random(40)], ["x", "w", "b"],
    ),
    "rows by columns": (
        lambda x, w, s: x @ (w.to(x.dtype) * s),
        [random(6, 96), random(96, 40, dtype=torch.int8), random(40) * 0.01], ["x", "w", "s"],
    ),
    "turned": (
        lambda x, w, s: x @ (w.t().to(x.dtype) * s),
        [random(6, 96), random(40, 96, dtype=torch.int8), random(40) * 0.01], ["x", "w", "s"],
    ),
    "matrices": (
        lambda x, w, s: torch.bmm(x, w.to(x.dtype) * s),
        [random(3, 6, 90), random(3, 90, 40, dtype=torch.int8), random(3, 1, 40) * 0.01], ["x", "w", "s"],
    ),
    "halves of bytes": (
        lambda x, w, s: F.linear(x, (halves_of(w).to(x.dtype) - 8) * s),
        [random(6, 96), random(40, 48, dtype=torch.uint8), random(40, 1) * 0.01], ["x", "w", "s"],
    ),
    "halves in groups": (
        lambda x, w, s: F.linear(x, ((halves_of(w).view(40, 3, -1).to(x.dtype) - 8) * s.unsqueeze(-1)).view(40, -1)),
        [random(6, 96), random(40, 48, dtype=torch.uint8), random(40, 3) * 0.01], ["x", "w", "s"],
    ),
    "one scale": (
        lambda x, w, s: F.linear(x, w.to(x.dtype) * s),
        [random(6, 96), random(40, 96, dtype=torch.int8), random(1).view(()) * 0.01], ["x", "w", "s"],
    ),
    "number": (
        lambda x, w: F.linear(x, w.to(x.dtype) * 0.0625), [random(6, 96), random(40, 96, dtype=torch.int8)], ["x", "w"],
    ),
}  # fmt: skip


@one_row_in(2)
@TILES
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name: str, tile: GemmTile) -> None:
    function, inputs, reads = WEIGHTS[name]
    agrees(function, *inputs, reads=reads, tile=tile)


@one_row_in(3)
@TILES
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("half", [BF16, F16])
def test_floats_of_8_bits(dtype: torch.dtype, half: torch.dtype, tile: GemmTile) -> None:
    weights = random(40, 100).clamp(-3, 3).to(dtype), random(40, 1, dtype=half)
    agrees(dequantized, random(6, 100, dtype=half), *weights, reads=["x", "w", "s"], tile=tile)
    agrees(lambda x, w: x @ w.t().to(x.dtype), random(6, 100, dtype=half), weights[0], reads=["x", "w"], tile=tile)


def test_which_gpus_have_floats_of_8_bits() -> None:
    module = on_gpu(dequantized, empty(16, 4096), empty(4096, 4096, dtype=torch.float8_e4m3fn), empty(4096, 1))
    product = renamed(found_in(module, sides="b").product)
    assert gemm_tiles(product, AMPERE, 2) == []
    (tile,) = gemm_tiles(product, HOPPER, 1)
    first, *_ = compiled(gemm_triton(product, tile, 132), 90)
    assert "e4m3x2" in first.asm["ptx"]
    assert spilled(first) <= 16


@pytest.mark.parametrize("rows", [1, 16])
def test_halves_of_bytes_compile(rows: int) -> None:
    function, *_ = WEIGHTS["halves of bytes"]
    module = on_gpu(function, empty(rows, 4096), empty(4096, 2048, dtype=torch.uint8), empty(4096, 1))
    product = renamed(found_in(module, sides="b").product)
    (tile,) = gemm_tiles(product, HOPPER, 1)
    first, *_ = compiled(gemm_triton(product, tile, 132), 90)
    assert spilled(first) <= 16


@takes_turns("tile")
@pytest.mark.parametrize("tile", [GemmTile(1, 4, 64, 1, 2), SMALL], ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
def test_words_with_packed_zeros(name: str, tile: GemmTile) -> None:
    """Words, zero points and scales are read where they lie, also where an index picks the group."""
    function, given = LAYOUTS[name](BF16)
    inputs = [random(tile.rows, DEPTH), *given]
    (result,), found, source = run(function, inputs, sides="b", tile=tile)
    assert [node.meta["val"].dtype for node in found.inputs].count(torch.int32) >= 2
    near(result, function, inputs, 1.5, source)


def test_halves_of_bytes_by_lanes() -> None:
    function, inputs, reads = WEIGHTS["halves of bytes"]
    agrees(function, inputs[0][:1], *inputs[1:], reads=reads, tile=GemmTile(1, 4, 64, 2, 2))


def test_float16() -> None:
    inputs = random(6, 100, dtype=F16), random(40, 100, dtype=torch.int8), random(40, 1, dtype=F16) * 0.01
    agrees(dequantized, *inputs, reads=["x", "w", "s"])


def test_weights_are_rounded_as_in_eager() -> None:
    x, w = torch.eye(32, dtype=BF16), torch.full((32, 32), 127, dtype=torch.int8)
    s = torch.full((32, 1), 1 + 2.0**-7, dtype=BF16)
    (result,), _, _ = run(lambda x, w, s: F.linear(x, w.to(BF16) * s).float(), [x, w, s.expand(32, 32)], sides="b")
    assert torch.equal(result, (w.to(BF16) * s).t().float())


def test_factors_of_columns_are_multiplied_with_sums() -> None:
    """Nearer to what the bytes say than eager's weights, which are rounded after each is multiplied."""
    x, w = random(4, 200), random(40, 200, dtype=torch.int8)
    s = (random(40, 1) * 0.01).abs()
    exact = F.linear(x.double(), w.double() * s.double())
    (result,), found, _ = run(lambda x, w, s: F.linear(x, w.to(BF16) * s).float(), [x, w, s], sides="b")
    assert found.product.right is not None and len(found.product.right.buffers) == 1
    eager = F.linear(x.float(), (w.to(BF16) * s).float())
    assert (result - exact).norm() < 0.1 * (eager - exact).norm()


def test_what_float16_may_not_hold_stays_scaled() -> None:
    big = torch.full((40, 1), 60000.0, dtype=F16)

    def shifted(x: torch.Tensor, w: torch.Tensor, z: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return F.linear(x, ((w.float() + z.float() * 2) * s.float()).to(x.dtype))

    inputs = random(4, 64, dtype=F16), random(40, 64, dtype=torch.int8), big, torch.full((40, 1), 1e-4, dtype=F16)
    (result,), _, source = run(shifted, inputs, sides="b")
    near(result, shifted, inputs, 1.5, source)


def test_roundings_that_change_nothing_are_left_out() -> None:
    inputs = random(6, 64), random(64, 64, dtype=torch.uint8), random(64, 1)
    _, text = agrees(dequantized, *inputs, reads=["x", "w", "s"])
    assert text.partition("for start")[2].partition("tl.dot")[0].count("bfloat16") == 1
    assert text.partition("tl.dot")[2].count("tl.load") == 1  # scales are read once


# -- what comes before a layer ----------------------------------------------------------------------------------------

BEFORE: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor], list[str]]] = {
    "gelu": (lambda x, w: F.linear(F.gelu(x), w), [random(20, 100), random(40, 100)], ["x", "w"]),
    "gate": (
        lambda x, w, y: F.linear(F.silu(x) * y, w),
        [random(20, 100), random(40, 100), random(20, 100)], ["x", "w", "y"],
    ),
    "normalized": (
        lambda x, w, r, s: F.linear((x.float() * r).to(w.dtype) * s, w),
        [random(20, 100), random(40, 100), random(20, 1, dtype=torch.float32), random(100)], ["x", "w", "r", "s"],
    ),
    "cast": (
        lambda x, w: F.linear(x.to(w.dtype), w), [random(20, 100, dtype=torch.float32), random(40, 100)], ["x", "w"],
    ),
    "leading dims": (lambda x, w: F.linear(x.relu(), w) * 2, [random(2, 3, 4, 100), random(40, 100)], ["x", "w"]),
    "heads": (
        lambda x, w: F.linear(x.sigmoid().transpose(1, 2).reshape(2, 5, 96), w) * 2,
        [random(2, 3, 5, 32), random(40, 96)], ["x", "w"],
    ),
    "read twice inside": (
        lambda x, w: F.linear((y := x.relu()) * y.sigmoid(), w), [random(9, 100), random(40, 100)], ["x", "w"],
    ),
    "both": (lambda x, w: F.linear(x.relu(), (w * 2).to(x.dtype)), [random(9, 100), random(40, 100)], ["x", "w"]),
    "matrices": (
        lambda x, w: torch.bmm(x.relu(), w.transpose(1, 2)), [random(3, 20, 50), random(3, 40, 50)], ["x", "w"],
    ),
    "expanded": (
        lambda x, w: torch.bmm(x.relu().expand(3, 20, 50), w.tanh()), [random(20, 50), random(3, 50, 40)], ["x", "w"],
    ),
}  # fmt: skip


@one_row_in(2)
@TILES
@pytest.mark.parametrize("name", BEFORE)
def test_left_operands(name: str, tile: GemmTile) -> None:
    function, inputs, reads = BEFORE[name]
    agrees(function, *inputs, reads=reads, tile=tile)


def test_with_an_epilogue_of_several_results() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = dequantized(x.relu(), w, s)
        return F.gelu(y) * r, y

    inputs = [random(20, 96), random(72, 96, dtype=torch.int8), random(72, 1) * 0.01, random(20, 72)]
    results, found, source = run(function, inputs, SPLIT, sides="ab")
    assert len(found.before) > 2
    for place in range(2):
        near(results[place], lambda *x, place=place: function(*x)[place], inputs, 1.5, source)


def test_what_is_read_before_and_after_is_passed_once() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x.relu(), w) * x

    agrees(function, random(20, 72), random(72, 72), reads=["x", "w"])


@one_row_in(2)
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@TILES
def test_nan_and_infinities_spread_as_in_eager(number: float, tile: GemmTile) -> None:
    for place in (0, 2):
        inputs = [random(20, 148), random(72, 148, dtype=torch.int8), random(72, 1) * 0.01]
        inputs[place].view(-1)[5] = number
        agrees(lambda x, w, s: dequantized(x.sigmoid(), w, s), *inputs, reads=["x", "w", "s"], tile=tile)


# -- what stays in the graph ------------------------------------------------------------------------------------------


def read_twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.relu()
    return F.linear(y, w) + y.narrow(1, 0, 1)


@pytest.mark.parametrize(
    "function",
    [
        F.linear,
        read_twice,
        lambda x, w: F.linear(x.softmax(-1), w),
        lambda x, w: F.linear(x.clone().cummax(-1).values, w),
        lambda x, w: F.linear(torch.bernoulli(x), w),
        lambda x, w: (y := x.relu()) @ y.t(),
        lambda x, w: (y := w.t().mm(w).relu()) @ y,
    ],
)
def test_operands_that_are_loaded(function: Any) -> None:
    module = on_gpu(function, random(20, 64), random(40, 64))
    call = [node for node in module.graph.nodes if is_product(node)][-1]
    found = match_gemm(call, sides="ab")
    assert isinstance(found, FoundProduct)
    assert not found.product.is_computed
    assert not found.before


def test_nothing_is_looked_for_unless_asked() -> None:
    inputs = random(6, 64), random(64, 64, dtype=torch.int8), random(64, 1)
    _, found, _ = run(dequantized, inputs)
    assert not found.before
    assert not found.product.is_computed


aten = torch.ops.aten


@pytest.mark.parametrize("before", [True, False])
def test_numbers_on_the_cpu_are_no_memory_of_the_gpu(before: bool) -> None:
    graph = torch.fx.Graph()
    x, w, s = (graph.placeholder(name) for name in "xws")
    x = graph.call_function(aten.mul.Tensor, (x, s)) if before else x
    y = graph.call_function(aten.mm.default, (x, w))
    graph.output(y if before else graph.call_function(aten.mul.Tensor, (y, s)))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    with FakeTensorMode() as mode:
        halves = [torch.empty(64, 64, dtype=BF16, device="cuda") for _ in range(2)]
        FakeTensorProp(module, mode).propagate(*halves, torch.empty((), dtype=BF16))
    found = found_in(module, sides="ab")
    assert {node.meta["val"].device.type for node in found.inputs} == {"cuda"}


# -- machine code -----------------------------------------------------------------------------------------------------


@takes_turns("gpu")
@pytest.mark.parametrize("gpu", [HOPPER, AMPERE])
@pytest.mark.parametrize("rows", [1, 16, 64])
def test_offered_tiles_compile_and_spill_nothing(rows: int, gpu: Gpu) -> None:
    module = on_gpu(dequantized, empty(rows, 4096), empty(4096, 4096, dtype=torch.int8), empty(4096, 1))
    product = renamed(found_in(module, sides="b").product)
    for tile in gemm_tiles(product, gpu, 2):
        first, *rest = compiled(gemm_triton(product, tile, gpu.processors), gpu.capability)
        # Bytes of weights are on their way while others are multiplied.
        assert tile.by_lanes or "cp.async.cg" in first.asm["ptx"]
        for made in (first, *rest):
            assert made.metadata.shared <= gpu.shared_bytes
            assert spilled(made) <= 16


def test_shared_memory_holds_what_is_read() -> None:
    wide = on_gpu(lambda x, w: x @ w.to(BF16), empty(64, 512), empty(512, 512, dtype=torch.float32))
    tile = GemmTile(64, 64, 64, 4, 2)
    plain, computed = (renamed(found_in(wide, sides=sides).product) for sides in ("", "b"))
    assert shared_bytes(plain, tile) == 2 * (64 + 64) * 64 * 2
    assert shared_bytes(computed, tile) == 2 * 64 * (64 * 2 + 64 * 4)
    assert not fits(computed, replace(tile, descriptors=True), HOPPER)


# -- the pass ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return with_fake_hopper(monkeypatch, tmp_path_factory.getbasetemp() / "prologue")


@pytest.fixture
def nothing_compiled(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TritonTemplateKernel, "build", lambda self: None)


def fuse(function: Any, inputs: list[torch.Tensor], oracle: Any, **options: Any) -> tuple[Any, GraphRecord]:
    module, record = on_gpu(function, *inputs), GraphRecord("test")
    run_pass(ProductTemplate, module, oracle, record, **{"thorough": False, **options})
    module.graph.lint()
    return module, record


def calls(module: torch.fx.GraphModule) -> list[str]:
    """What a graph calls, moves apart; kernels by the template's name."""
    nodes = [node for node in module.graph.nodes if node.op == "call_function" and not is_move(node)]
    return ["gemm" if isinstance(n.target, TritonTemplateKernel) else packet(n) for n in nodes]


def decoding(rows: int = 16) -> list[torch.Tensor]:
    return [empty(rows, 4096), empty(8192, 4096, dtype=torch.int8), empty(8192, 1)]


@pytest.mark.usefixtures("nothing_compiled")
def test_dequantization_before_skinny_products_goes_in() -> None:
    module, record = fuse(dequantized, decoding(), oracle := Fastest(original=1.0, x=0.5))
    assert calls(module) == ["gemm"]
    assert len(oracle.questions) == len(record.applied) == 1
    assert [x.dtype for x in oracle.questions[0].inputs] == [BF16, torch.int8, BF16]


@pytest.mark.usefixtures("nothing_compiled")
def test_what_is_slower_with_a_prologue_is_asked_about_without() -> None:
    module, record = fuse(dequantized, decoding(), oracle := Fastest(original=0.1))
    assert calls(module) == ["aten._to_copy", "aten.mul", "aten.mm"]
    assert [x.dtype for x in oracle.questions[1].inputs] == [BF16, BF16]
    assert len(record.declined) == 2


@pytest.mark.usefixtures("nothing_compiled")
def test_what_many_programs_would_compute_again_is_not_asked_about() -> None:
    def gelu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(x), w)

    for function, inputs in ((gelu, [empty(4096, 4096), empty(4096, 4096)]), (dequantized, decoding(4096))):
        module, record = fuse(function, inputs, oracle := Fastest(original=1.0, x=0.5))
        assert "gemm" not in calls(module)
        assert oracle.questions == record.declined == []
        _, record = fuse(function, decoding(16) if function is dequantized else inputs, Always())
        assert len(record.applied) == 1


@pytest.mark.usefixtures("nothing_compiled")
def test_training_and_never() -> None:
    module, _ = fuse(dequantized, decoding(), oracle := Fastest(original=1.0, x=0.5), training=True)
    assert "gemm" not in calls(module)
    assert oracle.questions == []
    module, record = fuse(dequantized, decoding(), Never())
    assert "gemm" not in calls(module)
    assert record.applied == []


@pytest.mark.usefixtures("nothing_compiled")
def test_thorough_asks_about_all_that_may_pay() -> None:
    def cast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x.to(BF16), w)

    inputs = [empty(512, 4096, dtype=torch.float32), empty(1024, 4096)]
    module, _ = fuse(cast, inputs, Fastest(original=1.0, x=0.5), thorough=True)
    assert calls(module) == ["gemm"]


@pytest.mark.usefixtures("nothing_compiled")
def test_reads_of_a_prologue_do_not_move_over_writes() -> None:
    graph = torch.fx.Graph()
    x, w, v = (graph.placeholder(name) for name in "xwv")
    y = graph.call_function(aten.relu.default, (x,))
    graph.call_function(aten.copy_.default, (x, v))
    graph.output(graph.call_function(aten.mm.default, (y, w)))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    with FakeTensorMode() as mode:
        FakeTensorProp(module, mode).propagate(*(torch.empty(64, 64, dtype=BF16, device="cuda") for _ in range(3)))
    assert run_pass(ProductTemplate, module, Always(), GraphRecord("test"), thorough=False) == 1
    assert "aten.relu" in calls(module)


@pytest.mark.usefixtures("nothing_compiled")
def test_views_from_before_a_write_are_no_reads() -> None:
    graph = torch.fx.Graph()
    x, w, r, v = (graph.placeholder(name) for name in "xwrv")
    early = graph.call_function(aten.view.default, (r, [64, 64]))
    graph.call_function(aten.copy_.default, (v, x))
    y = graph.call_function(aten.mm.default, (graph.call_function(aten.relu.default, (x,)), w))
    graph.output(graph.call_function(aten.add.Tensor, (y, early)))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    with FakeTensorMode() as mode:
        FakeTensorProp(module, mode).propagate(*(torch.empty(64, 64, dtype=BF16, device="cuda") for _ in range(4)))
    run_pass(ProductTemplate, module, Always(), GraphRecord("test"), thorough=False)
    assert calls(module) == ["aten.copy_", "gemm"]


def test_the_whole_backend_compiles_it(driver: Any) -> None:
    module, _ = fuse(dequantized, [empty(16, 256), empty(128, 256, dtype=torch.int8), empty(128, 1)], Always())
    made = generate_kernels(module, "inference", verify=True)
    assert made.code.templates == {"gemm": 1}
    assert made.code.kept == ()


# -- by lanes ---------------------------------------------------------------------------------------------------------


LANES = (GemmTile(1, 4, 32, 1, 2), GemmTile(4, 8, 64, 2, 1), GemmTile(1, 4, 16, 1, 4, splits=3))


@takes_turns("tile")
@pytest.mark.parametrize("tile", LANES, ids=str)
@pytest.mark.parametrize("name", WEIGHTS)
def test_few_rows_by_lanes(name: str, tile: GemmTile) -> None:
    function, inputs, reads = WEIGHTS[name]
    rows = 1 if tile.rows == 1 else 3
    inputs = [inputs[0][..., :rows, :].contiguous(), *inputs[1:]]
    found = found_in(on_gpu(function, *inputs), sides="b")
    found = replace(found, product=replace(found.product, early=tile.rows == 1))
    (result,), source = interpreted(found, inputs, tile, 3)
    near(result, function, inputs, 1.5, source)
    assert sorted(source_of(node) for node in found.inputs) == sorted(reads)


@pytest.mark.parametrize("depth", [96, 90])
def test_a_byte_of_two_weights_is_loaded_once(depth: int) -> None:
    function, *_ = WEIGHTS["halves of bytes"]
    inputs = random(1, depth), random(40, depth // 2, dtype=torch.uint8), random(40, 1) * 0.01
    found = found_in(on_gpu(function, *inputs), sides="b")
    (result,), source = interpreted(found, inputs, GemmTile(1, 4, 32, 1, 2), 3)
    near(result, function, inputs, 1.5, source)
    assert "tl.split" in source.text and "% 2" not in source.text
    assert not halves(found_in(on_gpu(dequantized, random(1, 96), random(40, 96, dtype=torch.int8), inputs[2])).product)
    whole = torch.arange(256, dtype=torch.uint8).view(128, 2)  # every byte
    exact = (halves_of(whole).double() - 8) @ torch.ones(4, dtype=torch.float64)
    ones = torch.ones(1, 4, dtype=BF16), whole, torch.ones(128, 1, dtype=BF16)
    found = found_in(on_gpu(function, *ones), sides="b")
    (result,), _ = interpreted(
        found, (torch.ones(1, 4, dtype=BF16), whole, torch.ones(128, 1, dtype=BF16)), GemmTile(1, 4, 16, 1, 2), 3
    )
    assert torch.equal(result.double().view(-1), exact)


def test_every_byte_becomes_the_number_that_it_is() -> None:
    for dtype, first in ((torch.int8, -128), (torch.uint8, 0)):
        w = torch.arange(first, first + 256).to(dtype).view(256, 1).expand(256, 16).contiguous()
        x = torch.zeros(1, 16, dtype=BF16)
        x[0, 3] = 1
        found = found_in(on_gpu(lambda x, w: F.linear(x, w.to(BF16)).float(), x, w), sides="b")
        (result,), _ = interpreted(found, (x, w), GemmTile(1, 8, 16, 1, 2), 3)
        assert torch.equal(result.view(-1), w[:, 0].float())

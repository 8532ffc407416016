"""Products of the same few rows in one kernel: what is merged, what is not, and that the results are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.template_oracle import run_pass, with_fake_hopper
from support.thorough import one_row_in
from support.triton_gemm import Interpreted, on_gpu
from support.triton_kernels import compiled, spilled
from torch.nn import functional as F

from regraft.compiler.templates import TritonTemplateKernel
from regraft.compiler.templates.gemm import triton_fuse as gemm_triton_fuse
from regraft.compiler.templates.gemm.triton_fuse import ProductTemplate
from regraft.compiler.templates.gemm.triton_tiles import GemmTile
from regraft.rewrites.profit import Always, Decision, Question
from regraft.rewrites.record import Evidence, GraphRecord

BF16 = torch.bfloat16


def random(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return (torch.randn(sizes, generator=generator) * sizes[-1] ** -0.25).to(dtype)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    with_fake_hopper(monkeypatch, tmp_path_factory.getbasetemp() / "merged")
    monkeypatch.setattr(TritonTemplateKernel, "build", lambda self: None)
    monkeypatch.setattr(gemm_triton_fuse, "gemm_tiles", _small)


def _small(product: Any, gpu: Any, count: int) -> list[GemmTile]:
    rows = product.row.extent
    return [GemmTile(1 if rows == 1 else 4, 16, 64, 2, 2) if rows <= 4 else GemmTile(16, 16, 32, 4, 2)]


def merged(function: Callable[..., Any], *inputs: torch.Tensor) -> list[TritonTemplateKernel]:
    """The kernels in a function's graph, whose results are as near to float64 as eager's."""
    module = on_gpu(function, *inputs)
    run_pass(ProductTemplate, module, Always(), GraphRecord("test"))
    module.graph.lint()
    module.recompile()
    kernels = [node.target for node in module.graph.nodes if isinstance(node.target, TritonTemplateKernel)]
    with torch.no_grad():
        found, eager = Interpreted(module).run(*inputs), function(*inputs)
        exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    pairs = [(found, eager, exact)] if isinstance(eager, torch.Tensor) else list(zip(found, eager, exact, strict=True))
    for mine, theirs, best in pairs:
        assert (mine.shape, mine.dtype, mine.stride()) == (theirs.shape, theirs.dtype, theirs.stride())
        allowed = 1.5 * float((theirs.double() - best).abs().max()) + 1e-6
        assert float((mine.double() - best).abs().max()) <= allowed
    return kernels


def heads(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> Any:
    x = torch.tanh(x)
    return F.linear(x, q, b).cos(), F.linear(x, k), F.linear(x, v).view(1, -1)


def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    x = torch.tanh(x)
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


class WideOnes:
    """A timer to which kernels of narrow products lose by so many seconds; those of wide ones are faster."""

    def __init__(self, lost: float) -> None:
        self.lost = lost

    def decide(self, question: Question) -> Decision:
        """The kernel of a wide product, nothing else."""
        (name,) = question.candidates
        wide = max(max(value.shape) for value in question.inputs) >= 2048
        times = {"original": 5e-6, name: 4e-6 if wide else 5e-6 + self.lost}
        return Decision(name if wide else None, Evidence(times, "measured"))


@pytest.mark.parametrize(("lost", "count"), [(1e-6, 1), (4e-6, 2)])
@pytest.mark.parametrize("rows", [1, 7])
def test_what_loses_alone_joins_a_launch(rows: int, lost: float, count: int) -> None:
    def narrow_first(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        x = torch.tanh(x)
        return F.linear(x, q), F.linear(x, k), F.linear(x.cos(), v)

    inputs = [torch.empty(n, 1024, dtype=BF16) for n in (rows, 2048, 512, 512)]
    record = GraphRecord("test")
    module = on_gpu(narrow_first, *inputs)
    run_pass(ProductTemplate, module, WideOnes(lost), record)
    kernels = [node.target for node in module.graph.nodes if isinstance(node.target, TritonTemplateKernel)]
    assert [len(kernel.outputs) for kernel in kernels] == [2 if count == 1 else 1]
    assert len(record.declined) == count  # nobody computes with the cosine beside the last one


@one_row_in(2)
@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_heads_in_one_launch(rows: int, dtype: torch.dtype) -> None:
    sizes = [(rows, 130), (40, 130), (20, 130), (20, 130), (40,)]
    kernels = merged(heads, *(random(*size, dtype=dtype) for size in sizes))
    if rows == 7 and dtype == torch.float32:
        assert not kernels  # tensor cores would cut it short
        return
    (kernel,) = kernels
    assert kernel.name.endswith("_j3")
    assert len(kernel.inputs) == 5  # the activation once
    assert kernel.source.text.count("def part") == 2  # equal products are written once


@one_row_in(3)
@pytest.mark.parametrize("rows", [1, 4, 7])
@pytest.mark.parametrize("order", ["gate first", "up first", "GELU, transposed weights"])
def test_both_halves_in_the_same_programs(order: str, rows: int) -> None:
    def up_first(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        half = F.linear(x, up)
        return F.linear(half * F.silu(F.linear(x, gate)), down)

    def turned(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        return (F.gelu(x @ gate) * (x @ up)) @ down

    function = {"gate first": gated, "up first": up_first}.get(order, turned)
    weights = [random(50, 90), random(50, 90), random(20, 50)]
    if function is turned:
        weights = [w.t().contiguous() for w in weights]
    kernels = merged(function, random(rows, 90), *weights)
    first, *_ = kernels
    assert len(kernels) == 2
    assert "other" in first.source.text
    assert [len(kernel.inputs) for kernel in kernels] == [3, 2]


def scaled(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w.to(x.dtype) * s)


def whole(*sizes: int) -> torch.Tensor:
    return torch.randint(-128, 128, sizes, generator=torch.Generator().manual_seed(sum(sizes)), dtype=torch.int8)


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_weights_of_bytes(rows: int) -> None:
    """Heads in one launch, and both halves in the same programs: with scales of their own."""

    def heads(x: torch.Tensor, q: torch.Tensor, a: torch.Tensor, k: torch.Tensor, b: torch.Tensor) -> Any:
        x = torch.tanh(x)
        return scaled(x, q, a), scaled(x, k, b).cos()

    def gated(x: torch.Tensor, q: torch.Tensor, a: torch.Tensor, k: torch.Tensor, b: torch.Tensor) -> Any:
        x = torch.tanh(x)
        return F.silu(scaled(x, q, a)) * scaled(x, k, b)

    def scales(n: int) -> torch.Tensor:
        return random(n, 1).abs() * 0.01

    (kernel,) = merged(heads, random(rows, 90), whole(50, 90), scales(50), whole(20, 90), scales(20))
    assert kernel.name.endswith("_j2") and len(kernel.inputs) == 5
    (kernel,) = merged(gated, random(rows, 90), whole(50, 90), scales(50), whole(50, 90), scales(50))
    assert len(kernel.inputs) == 5


def test_bytes_beside_halves_stay_apart() -> None:
    def mixed(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        return F.silu(F.linear(x, gate)) * scaled(x, up, s)

    kernels = merged(mixed, random(1, 90), random(50, 90), whole(50, 90), random(50, 1) * 0.01)
    assert [len(kernel.inputs) for kernel in kernels] == [3, 3]


def test_what_stays_apart() -> None:
    def both_read(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> Any:
        x = torch.tanh(x)
        half = F.linear(x, up)
        return F.silu(F.linear(x, gate)) * half, half

    def moved(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        return F.silu(F.linear(x, gate)) * F.linear(x, up).flip(-1)

    def one_after_the_other(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        return F.linear(torch.tanh(F.linear(x, a)).narrow(1, 0, 64), b)

    def other_rows(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        x = torch.tanh(x)
        return F.linear(x, a), F.linear(x + 1, b)

    for function in (both_read, moved, one_after_the_other, other_rows):
        kernels = merged(function, random(1, 64), random(64, 64), random(64, 64))
        assert len(kernels) == 2, function
        assert not any("other" in kernel.source.text for kernel in kernels)


@pytest.mark.parametrize("rows", [1, 16])
def test_machine_code(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interpreted, "run", lambda self, *inputs: gated(*inputs))
    tile = GemmTile(1, 2, 1024, 4, 4) if rows == 1 else GemmTile(16, 64, 128, 4, 4)
    monkeypatch.setattr(gemm_triton_fuse, "gemm_tiles", lambda *_: [tile])
    twin, _ = merged(gated, random(rows, 2048), random(1024, 2048), random(1024, 2048), random(512, 1024))
    for capability in (80, 90) if rows == 1 and "await" not in twin.source.text else (90,):
        (made,) = compiled(twin.source, capability)
        assert not spilled(made)

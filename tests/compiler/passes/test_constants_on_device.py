"""Tables that a program computes on the CPU from constants, and moves: computed once."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from regraft.compiler.lowering.core import TABLE_SPAN
from regraft.compiler.passes import constants_on_device
from regraft.compiler.passes.constants_on_device import keep_constants_on_device

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants stay on the CPU, in name on the GPU."""
    moved = constants_on_device._moved

    def on_cpu(value: torch.Tensor, node: fx.Node) -> torch.Tensor:
        with FakeTensorMode(), torch.device("cpu"):
            real = node.meta["val"]
            node.meta["val"] = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype)
        try:
            return moved(value, node)
        finally:
            node.meta["val"] = real

    monkeypatch.setattr(constants_on_device, "_moved", on_cpu)


def traced(function: Callable[..., torch.Tensor], *more: torch.device) -> fx.GraphModule:
    with FakeTensorMode():
        given = [torch.empty(4, 64, 64, device="cuda"), *(torch.empty(64, device=device) for device in more)]
        module = make_fx(functionalize(function))(*given)
    module.graph.eliminate_dead_code()
    return module


def buckets() -> torch.Tensor:
    """The buckets of relative positions of T5 and MPNet."""
    steps = torch.arange(64)
    distance = (steps[None, :] - steps[:, None]).abs()
    far = 8 + (torch.log(distance.float() / 8) / math.log(16) * 8).long()
    return torch.where(distance < 8, distance, torch.minimum(far, torch.full_like(far, 15)))


def add_buckets(x: torch.Tensor) -> torch.Tensor:
    return x + buckets().to(x.device)


def add_frequencies(x: torch.Tensor) -> torch.Tensor:
    return x * torch.exp(torch.arange(64).float() / 7).to(x.device, torch.float16)


def columns_apart(x: torch.Tensor) -> torch.Tensor:
    return x + torch.sin(torch.arange(64.0)[None, :] * torch.arange(64.0)[:, None] / 9).t().to(x.device)


def devices(module: fx.GraphModule) -> set[str]:
    return {n.meta["val"].device.type for n in module.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)}


@pytest.mark.parametrize("function", [add_buckets, add_frequencies, columns_apart])
def test_a_table_is_computed_once_as_the_cpu_computes_it(function: Callable[..., torch.Tensor]) -> None:
    module = traced(function)
    assert devices(module) == {"cpu", "cuda"}
    assert keep_constants_on_device(module) == 1
    assert devices(module) == {"cuda"}
    module.graph.lint()
    x = torch.randn(4, 64, 64)
    assert torch.equal(module(x), function(x))


def test_the_range_of_an_index_is_known() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return aten.index.Tensor(x.flatten(), [buckets().to(x.device)])

    module = traced(forward)
    assert keep_constants_on_device(module) == 1
    (constant,) = [n for n in module.graph.nodes if n.op == "get_attr"]
    assert constant.meta[TABLE_SPAN] == (0, int(buckets().max()))
    assert getattr(module, str(constant.target)).dtype == torch.int32
    x = torch.randn(4, 64, 64)
    assert torch.equal(module(x), forward(x))


def test_a_table_that_layers_move_in_turn_is_kept_once() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        table = buckets()
        for _ in range(3):
            x = x * 0.5 + table.to(x.device)
        return x + table.to(x.device, torch.float32)

    module = traced(forward)
    assert keep_constants_on_device(module) == 4
    assert sum(node.op == "get_attr" for node in module.graph.nodes) == 2
    assert devices(module) == {"cuda"}
    x = torch.randn(4, 64, 64)
    assert torch.equal(module(x), forward(x))


def test_a_result_is_memory_of_its_own() -> None:
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        table = buckets().to(x.device)
        return x + table, table

    module = traced(forward)
    assert keep_constants_on_device(module) == 1
    x = torch.randn(4, 64, 64)
    first = module(x)[1]
    first.zero_()
    assert torch.equal(module(x)[1], buckets())


def test_what_depends_on_an_input_or_is_large_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_input(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + torch.log(y).to(x.device)

    assert keep_constants_on_device(traced(of_input, torch.device("cpu"))) == 0
    monkeypatch.setattr(constants_on_device, "_MAX_BYTES", 64 * 64 * 8 - 1)
    assert keep_constants_on_device(traced(add_buckets)) == 0


def test_numbers_drawn_and_tables_written_to_stay() -> None:
    def drawn(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(64).to(x.device)

    def uninitialised(x: torch.Tensor) -> torch.Tensor:
        return x + torch.empty(64).to(x.device)

    assert keep_constants_on_device(traced(drawn)) == 0
    assert keep_constants_on_device(traced(uninitialised)) == 0


def test_a_table_whose_sizes_are_symbols_stays() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x + (torch.arange(x.shape[0])[:, None] * torch.arange(x.shape[1])).to(x.device)

    mode = FakeTensorMode(shape_env=ShapeEnv())
    sizes = mode.from_tensor(torch.empty(6, 5), static_shapes=False).shape
    with mode:
        module = make_fx(functionalize(forward))(torch.empty(sizes, device="cuda"))
    assert keep_constants_on_device(module) == 0
    assert devices(module) == {"cpu", "cuda"}

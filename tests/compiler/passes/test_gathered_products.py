"""Experts that a step chooses: products of gathered matrices are turned, and read weights where they lie."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.template_oracle import run_pass, with_fake_hopper
from support.thorough import takes_turns
from support.triton_gemm import Interpreted, Values, found_in, interpreted, near, on_gpu
from support.triton_kernels import compiled

from regraft.compiler.passes.gathered_products import transpose_gathered_products
from regraft.compiler.templates import TritonTemplateKernel
from regraft.compiler.templates.gemm import triton_fuse
from regraft.compiler.templates.gemm.triton_cost import has_few_rows, is_gathered
from regraft.compiler.templates.gemm.triton_fuse import ProductTemplate
from regraft.compiler.templates.gemm.triton_source import gemm_triton
from regraft.compiler.templates.gemm.triton_tiles import GemmTile
from regraft.rewrites.profit import Always
from regraft.rewrites.record import GraphRecord

aten = torch.ops.aten
BF16 = torch.bfloat16
X, W, IDS = torch.randn(3, 90).to(BF16), torch.randn(4, 40, 90).to(BF16), torch.tensor([3, 0, -2])
TILES = (GemmTile(1, 4, 32, 1, 2), GemmTile(1, 4, 16, 1, 4, splits=3), GemmTile(16, 16, 32, 4, 2))


def chosen(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.bmm(aten.index.Tensor(w, [ids]), x.unsqueeze(-1)).squeeze(-1)


def selected(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.bmm(w.index_select(0, ids), x.unsqueeze(-1)).squeeze(-1)


def rows(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows already."""
    return torch.bmm(x.unsqueeze(1), aten.index.Tensor(w, [ids]).transpose(1, 2))


def turned(function: Any, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    module = on_gpu(function, *inputs)
    wanted = module.graph.output_node().args[0].meta["val"]
    assert transpose_gathered_products(module) == (0 if function is rows else 1)
    module.graph.lint()
    made = module.graph.output_node().args[0].meta["val"]
    assert (made.shape, made.stride(), made.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
    return module


@takes_turns("tile")
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("function", [chosen, selected, rows])
def test_chosen_matrices_are_read_where_they_lie(function: Any, tile: GemmTile) -> None:
    ids = IDS % 4 if function is selected else IDS
    module = turned(function, X, W, ids)
    found = found_in(module, sides="b")
    assert is_gathered(found.product) and has_few_rows(found.product)
    values = Values(module, (X, W, ids))
    (result,), source = interpreted(found, [values.env[node] for node in found.inputs], tile, 3)
    near(result.reshape(function(X, W, ids).shape), function, (X, W, ids), 1.5, source)
    assert "device_assert" in source.text
    assert all(compiled(gemm_triton(found.product, tile, 132), 90))


def test_the_pass_puts_a_kernel_there(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any) -> None:
    with_fake_hopper(monkeypatch, tmp_path_factory.getbasetemp() / "gathered")
    monkeypatch.setattr(TritonTemplateKernel, "build", lambda self: None)
    monkeypatch.setattr(triton_fuse, "gemm_tiles", lambda product, gpu, count: [GemmTile(1, 16, 512, 1, 1)])
    x, w = torch.randn(2, 512).to(BF16), torch.randn(4, 528, 512).to(BF16)
    module = turned(chosen, x, w, IDS[:2])
    assert run_pass(ProductTemplate, module, Always(), GraphRecord("test")) == 1
    kernels = [node.target for node in module.graph.nodes if isinstance(node.target, TritonTemplateKernel)]
    assert [len(kernel.inputs) for kernel in kernels] == [3]
    assert not any(str(node.target).startswith("aten.index") for node in module.graph.nodes)
    module.recompile()
    near(Interpreted(module).run(x, w, IDS[:2]), chosen, (x, w, IDS[:2]), 1.5, kernels[0].source)


OTHERS = {
    "several columns": lambda x, w, ids: torch.bmm(aten.index.Tensor(w, [ids]), x.unsqueeze(-1).expand(-1, -1, 2)),
    "plain matrices": lambda x, w, ids: torch.bmm(w.narrow(0, 0, 3), x.unsqueeze(-1)),
    "rows chosen": lambda x, w, ids: torch.bmm(aten.index.Tensor(w, [None, ids]).narrow(0, 0, 3), x.unsqueeze(-1)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_stays(name: str) -> None:
    assert transpose_gathered_products(on_gpu(OTHERS[name], X, W, IDS)) == 0

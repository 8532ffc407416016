"""Which convolutions the template computes, and why not the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support import triton_gemm
from support.triton_convolution import found_in, on_gpu
from torch.nn import functional as F

from regraft.compiler.templates.common.formula import packet
from regraft.compiler.templates.convolution import match as convolution_match
from regraft.compiler.templates.convolution.match import CONVOLUTION, match_convolution
from regraft.rewrites.reason import Reason

BF16 = torch.bfloat16


def empty(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    made = torch.empty(sizes, dtype=dtype)
    return made.to(memory_format=torch.channels_last) if len(sizes) == 4 else made


def refused(function: Callable[..., Any], *inputs: torch.Tensor, trace: Any = on_gpu) -> Reason:
    node = next(node for node in trace(function, *inputs).graph.nodes if packet(node) == CONVOLUTION)
    reason = match_convolution(node)
    assert isinstance(reason, Reason), reason
    return reason


IMAGE, WEIGHT = empty(2, 32, 8, 8), empty(32, 32, 3, 3)


def test_calls_of_other_operators_are_none() -> None:
    (node,) = on_gpu(torch.mm, empty(8, 8), empty(8, 8)).graph.find_nodes(
        op="call_function", target=torch.ops.aten.mm.default
    )
    assert match_convolution(node) is None


def test_other_layouts() -> None:
    reason = refused(F.conv2d, IMAGE.contiguous(), WEIGHT.contiguous(), trace=triton_gemm.on_gpu)
    assert reason.code == "layout"


def test_other_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_match, "convolutions_allow_tf32", lambda: False)
    floats = IMAGE.float(), WEIGHT.float()
    assert refused(F.conv2d, *floats).code == "dtype"
    assert refused(F.conv2d, *(x.double() for x in floats)).code == "dtype"
    single = empty(2, 32, 8, 8, dtype=torch.float32), empty(32, 1, 3, 3, dtype=torch.float32)
    found_in(on_gpu(lambda x, w: F.conv2d(x, w, groups=32), *single))  # nothing is cut short


def test_other_devices() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    module = make_fx(lambda x, w: F.conv2d(x, w))(torch.randn(1, 32, 8, 8), torch.randn(32, 32, 3, 3))
    node = next(node for node in module.graph.nodes if packet(node) == CONVOLUTION)
    reason = match_convolution(node)
    assert isinstance(reason, Reason)
    assert reason.code == "device"


def test_transposed_ones() -> None:
    assert refused(F.conv_transpose2d, IMAGE, WEIGHT).code == "transposed"


def test_groups_of_few_channels() -> None:
    assert refused(lambda x, w: F.conv2d(x, w, groups=4), IMAGE, empty(32, 8, 3, 3)).code == "groups"
    assert refused(lambda x, w: F.conv2d(x, w, groups=8), IMAGE, empty(128, 4, 3, 3)).code == "groups"
    for groups, weight in ((32, empty(64, 1, 3, 3)), (8, empty(32, 4, 3, 3)), (2, empty(2, 16, 3, 3)[:, :4])):
        image = empty(2, groups * weight.shape[1], 8, 8)
        assert found_in(on_gpu(partial(F.conv2d, groups=groups), image, weight)).product.batch.extent == 1


def test_wide_windows_of_single_channels() -> None:
    reason = refused(lambda x, w: F.conv2d(x, w, groups=32), empty(2, 32, 40, 40), empty(32, 1, 31, 31))
    assert reason.code == "window"


def test_symbolic_sizes() -> None:
    module = on_gpu(F.conv2d, IMAGE, WEIGHT)
    node = next(node for node in module.graph.nodes if packet(node) == CONVOLUTION)
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    size = ShapeEnv().create_unbacked_symint()
    fake = node.args[0].meta["val"]

    class Symbolic:
        shape, device, dtype = (size, *fake.shape[1:]), fake.device, fake.dtype

        def stride(self) -> tuple[int, ...]:
            return fake.stride()

    node.args[0].meta["val"] = Symbolic()
    reason = match_convolution(node)
    assert isinstance(reason, Reason)
    assert reason.code == "symbolic"


@pytest.mark.parametrize("position", [3, 4, 5, 7, 8], ids=["stride", "padding", "dilation", "output_padding", "groups"])
def test_symbolic_geometry(position: int) -> None:
    module = on_gpu(F.conv2d, IMAGE, WEIGHT)
    node = next(node for node in module.graph.nodes if packet(node) == CONVOLUTION)
    number = node.args[0]  # of which only a run tells the value
    node.update_arg(position, number if position == 8 else [number, number])
    reason = match_convolution(node)
    assert isinstance(reason, Reason)
    assert reason.code == "symbolic"


# -- epilogues --------------------------------------------------------------------------------------------------------


def test_what_other_loops_compute_in_passing_is_no_epilogue() -> None:
    found = found_in(on_gpu(lambda x, w: F.conv2d(x, w, padding=1).relu().flip(3).sigmoid(), IMAGE, WEIGHT))
    assert found.output is found.call


def test_the_epilogue_ends_where_images_become_rows() -> None:
    def rows(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, padding=1).relu().permute(0, 2, 3, 1).reshape(-1, 32).mm(m)

    assert found_in(on_gpu(rows, IMAGE, WEIGHT, empty(32, 16))).output.name == "relu"


def test_images_that_are_turned_are_no_epilogue() -> None:
    image, weight = empty(2, 32, 8, 8), empty(8, 32, 3, 3)  # as many channels as columns: sizes alone do not tell
    found = found_in(on_gpu(lambda x, w: F.conv2d(x, w, padding=1).transpose(1, 3).sigmoid(), image, weight))
    assert found.output is found.call


def test_results_in_another_layout_are_refused() -> None:
    def contiguous(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, w, padding=1).relu()
        return torch.ops.aten.mul.Tensor(y, y.clone(memory_format=torch.contiguous_format))

    found_in(on_gpu(contiguous, IMAGE, WEIGHT))


def test_one_number_for_all_dims() -> None:
    def one(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.convolution(x, w, None, [2], [1], [1], False, [0], 1).relu()

    found = found_in(on_gpu(one, IMAGE, WEIGHT))
    assert found.product == found_in(on_gpu(lambda x, w: F.conv2d(x, w, None, 2, 1).relu(), IMAGE, WEIGHT)).product

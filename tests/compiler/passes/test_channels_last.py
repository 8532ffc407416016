"""Convolutions in channels-last: results and strides as eager's, conversions at the ends only."""

from __future__ import annotations

import pytest
import torch
from support.freezing import counts, disturbed, frozen, residual_network
from support.rewriting import compiled
from support.thorough import one_row_in, takes_turns
from torch import nn

from regraft.compiler.passes import layout_ends

SIZES = [(2, 3, 32, 32), (1, 3, 33, 47)]


@takes_turns("nan")
@pytest.mark.parametrize("nan", ["eager", "safe"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_network(shape: tuple[int, ...], nan: str) -> None:
    model, x = residual_network(), torch.randn(shape)
    run, cov = frozen(model, nan=nan)
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    assert cov.matches["batch_norm"] == 6 and counts(cov)["packed_convolution"] == 6
    spread = cov.graphs[0].details["channels_last"]
    assert spread["chosen"] and spread["conversions"] == 1
    assert cov.matches["convolution"] == 6


def test_not_frozen() -> None:
    model, x = residual_network(), torch.randn(2, 3, 32, 32)
    run, cov = compiled(model)
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    assert cov.graphs[0].details["channels_last"]["chosen"] and cov.matches["convolution"] == 6


@one_row_in(2)
@pytest.mark.parametrize("kernel, stride, padding, groups", [(4, 2, 1, 1), (2, 2, 0, 1), (3, 1, 1, 4), (3, 2, 0, 2)])
def test_transposed(kernel: int, stride: int, padding: int, groups: int) -> None:
    layer = nn.ConvTranspose2d(16, 8, kernel, stride, padding, groups=groups)
    model = nn.Sequential(layer, nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1, output_padding=1)).eval()
    for x in (torch.randn(2, 16, 9, 11), torch.randn(1, 16, 9, 11).to(memory_format=torch.channels_last)):
        for run, cov in (compiled(model), frozen(model)):
            with cov, torch.no_grad():
                made, expected = run(x), model(x)
                torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)
                assert made.stride() == expected.stride()
            assert cov.graphs[0].details["channels_last"]["convolutions"] == 2


def test_ends_are_not_within_a_network() -> None:
    """A batch norm gives several results: what it normalizes is laid out as its input, and nothing is converted."""
    block = [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    model, asked = nn.Sequential(nn.Conv2d(3, 16, 3), *block, *block).eval(), []
    ends = layout_ends._ends
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(layout_ends, "_ends", lambda found: asked.append(ends(found)) or asked[-1])
        run, cov = compiled(model, profit="measured", verify=False)
        with cov:
            run(torch.randn(1, 3, 32, 32))
    ((first, last),) = asked
    assert first.op == "placeholder" and "relu" in last.name


def test_measured() -> None:
    model, x = residual_network(), torch.randn(1, 3, 32, 32)
    run, cov = frozen(model, profit="measured", verify=False)
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    spread = cov.graphs[0].details["channels_last"]
    assert all(seconds > 0 for seconds in spread["seconds"])
    (match,) = (m for m in (*cov.applied, *cov.declined) if m.rule == "channels_last")
    assert match.evidence.times == dict(zip(("original", "channels_last"), spread["seconds"], strict=True))
    assert (match.candidate == "channels_last") == spread["chosen"] and len(match.nodes) == 6


def test_never() -> None:
    run, cov = frozen(residual_network(), profit="never")
    with cov, torch.no_grad():
        run(torch.randn(1, 3, 32, 32))
    assert not cov.graphs[0].details["channels_last"]["chosen"]
    assert [m.rule for m in cov.declined].count("channels_last") == 1


@pytest.mark.parametrize("contiguous", [True, False], ids=["nchw", "nhwc"])
def test_strides_of_outputs_are_eagers(contiguous: bool) -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = self.conv(x)
            return y, torch.relu(y), y.flatten(1), y.transpose(1, 2), y.mean((2, 3)), torch.cat([y, y], 1)

    model, x = Many().eval(), torch.randn(2, 3, 8, 8)
    x = x if contiguous else x.contiguous(memory_format=torch.channels_last)
    run, cov = frozen(model)
    with cov, torch.no_grad():
        ours, eager = run(x), model(x)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        assert a.stride() == b.stride()


GEOMETRIES = {
    "plain": nn.Conv2d(4, 8, 3),
    "stride, padding": nn.Conv2d(4, 8, 3, stride=2, padding=1),
    "same": nn.Conv2d(4, 8, 3, padding="same"),
    "reflected": nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"),
    "uneven": nn.Conv2d(4, 8, (1, 3), stride=(2, 1), padding=(0, 2)),
    "dilated": nn.Conv2d(4, 8, 3, dilation=2),
    "groups": nn.Conv2d(4, 8, 3, groups=2),
    "depthwise": nn.Conv2d(4, 4, 3, groups=4, bias=False),
    "pointwise": nn.Conv2d(4, 1, 1),
}


@one_row_in(2)
@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries(name: str, dtype: torch.dtype) -> None:
    model, x = GEOMETRIES[name].to(dtype), torch.randn(2, 4, 9, 9, dtype=dtype)
    run, cov = frozen(model)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=tolerance, atol=tolerance)
    assert counts(cov)["packed_convolution"] == 1


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Conv1d(4, 8, 3), (2, 4, 9)),
        (nn.ConvTranspose2d(4, 8, 3), (2, 4, 9, 9)),
        (nn.Conv2d(4, 8, 3).double(), (2, 4, 9, 9)),
        (nn.Conv2d(4, 8, 3).half(), (2, 4, 9, 9)),
        (nn.Conv2d(4, 8, 3), (0, 4, 9, 9)),
    ],
    ids=["1d", "transposed", "float64", "float16", "empty"],
)
def test_left_to_aten(model: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=next(model.parameters()).dtype)
    run, cov = frozen(model)
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
    assert counts(cov)["packed_convolution"] == 0


def test_volumes() -> None:
    model = disturbed(nn.Sequential(nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4), nn.ReLU(), nn.Conv3d(4, 4, 2, groups=2)))
    x = torch.randn(2, 2, 5, 6, 7)
    run, cov = frozen(model)
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    assert counts(cov)["packed_convolution"] == 2


def test_unbatched_image() -> None:
    model, x = nn.Conv2d(4, 8, 3), torch.randn(4, 9, 9)
    run, _ = frozen(model)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)


def test_dynamic_sizes() -> None:
    model = residual_network()
    run, cov = frozen(model, dynamic=True)
    with cov, torch.no_grad():
        for shape in ((2, 3, 32, 40), (4, 3, 48, 36), (5, 3, 64, 32)):
            x = torch.randn(shape)
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    assert counts(cov)["packed_convolution"] == 6


def test_nan_passes_through_relu() -> None:
    model, x = residual_network(), torch.randn(2, 3, 32, 32)
    x[0, 0, 0, 0] = torch.nan
    run, _ = frozen(model)
    with torch.no_grad():
        assert torch.equal(run(x).isnan(), model(x).isnan())


def test_weight_of_a_convolution_that_is_no_parameter() -> None:
    """Computed from the input: nothing is packed."""
    run, cov = frozen(lambda x, w: torch.conv2d(x, w * 2))
    x, w = torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3)
    with cov, torch.no_grad():
        torch.testing.assert_close(run(x, w), torch.conv2d(x, w * 2), rtol=1e-4, atol=1e-4)
    assert counts(cov)["packed_convolution"] == 0

"""Views of what a wrapper made: their strides are eager's, dims of size 1 included."""

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in
from torch.profiler import ProfilerActivity, profile

import regraft

told = []


@torch.library.custom_op("regraft_tests::told_strides", mutates_args=())
def told_strides(x: torch.Tensor) -> torch.Tensor:
    told.append(x.stride())
    return x.clone()


@told_strides.register_fake
def _(x):
    return torch.empty_like(x)


VIEWS = {
    "tokens as an image": lambda y: y.transpose(1, 2).reshape(1, 64, 8, 4),
    "columns": lambda y: y.permute(2, 0, 1).unsqueeze(1),
    "a row": lambda y: y[:, 3:5].view(2, 64).t(),
    "repeated": lambda y: y.expand(3, 32, 64).select(1, 2),
}


@one_row_in(2)
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("source", ["kernel", "product"])
def test_strides_are_those_that_were_told(name, source):
    def function(x, w):
        y = x.sin() if source == "kernel" else (x.view(32, 64) @ w).view(1, 32, 64)
        return told_strides(VIEWS[name](y))

    x, w = torch.randn(1, 32, 64), torch.randn(64, 64)
    with torch.no_grad():
        compiled = torch.compile(function, backend=regraft.backend)
        told.clear()
        found = compiled(x, w)
        (given,) = told
        torch.testing.assert_close(found, function(x, w))
    told.clear()
    function(x, w)
    (eager,) = told
    assert given == eager


def test_a_convolution_of_tokens_is_computed_in_the_layout_that_was_told():
    def function(x, v, w):
        image = (x @ v).transpose(1, 2).view(2, 64, 16, 16)
        return F.gelu(F.conv2d(image, w, padding=1, groups=64).flatten(2).transpose(1, 2))

    inputs = torch.randn(2, 256, 64), torch.randn(64, 64), torch.randn(64, 1, 3, 3)
    compiled = torch.compile(function, backend="regraft", options={"profit": "never"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), function(*inputs), rtol=1e-4, atol=1e-4)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as profiled:
        compiled(*inputs)
    names = [event.key for event in profiled.key_averages()]
    assert "aten::mkldnn_convolution" in names
    assert "aten::copy_" not in names

"""Results of calls lie in memory as kernels were told, whatever a library made of them."""

import pytest
import torch
import torch.nn.functional as F
from support.lowering import trace
from support.offline_gpu import on_cuda
from support.thorough import one_row_in, takes_turns

import regraft  # noqa: F401 (registers the backend)
from regraft.compiler.codegen.wrapper.stride_checks import laid_out, order_of
from regraft.compiler.codegen.wrapper.wrapper import generate

SHAPES = [(2, 3, 4, 5), (1, 3, 4, 5), (2, 1, 4, 1), (3, 0, 2), (4,), ()]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_lies_as_told_is_left_alone(shape):
    x = torch.randn(shape)
    for tensor in (x, x.transpose(0, -1)) if shape else (x,):
        order = order_of(tensor)
        assert order is not None and laid_out(tensor, order) is tensor


def test_anything_else_is_copied():
    told, made = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(2, 3, 4, 5)
    copied = laid_out(made, order_of(told))
    assert copied.stride() == told.stride() and torch.equal(copied, made)


def test_what_is_not_dense_is_no_promise():
    assert order_of(torch.randn(4, 6)[:, ::2]) is None and order_of(torch.randn(4, 1).expand(4, 3)) is None


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_convolution_that_is_told_to_be_channels_last(dynamic):
    """Tokens seen as a picture are channels last; what ATen's convolution makes of one picture is not."""

    def reduced(tokens, weight, scale):
        picture = tokens.permute(0, 2, 1).reshape(tokens.shape[0], 32, 28, 28)
        fewer = F.conv2d(picture, weight, stride=4).flatten(2).permute(0, 2, 1)
        return F.layer_norm(fewer, (32,), scale)

    torch.compiler.reset()
    inputs = torch.randn(1, 784, 32), torch.randn(32, 32, 4, 4), torch.randn(32)
    with torch.no_grad():
        compiled = torch.compile(reduced, backend="regraft", dynamic=dynamic, options={"profit": "never"})
        torch.testing.assert_close(compiled(*inputs), reduced(*inputs), rtol=1e-4, atol=1e-4)


def _told_otherwise(kind, x):
    """Rows that lie in another way than the operator's fake says."""
    found = x.nonzero() if kind == "counted" else x.clone()
    return {"columns": found.t().contiguous().t(), "row": torch.stack([x[:, 0], x[:, 1]], 1)[:, 1]}.get(kind, found)


@torch.library.custom_op("regraft_test::told_otherwise", mutates_args=())
def told_otherwise(x: torch.Tensor, kind: str) -> torch.Tensor:
    return _told_otherwise(kind, x)


@told_otherwise.register_fake
def _(x, kind):
    if kind == "row":
        return x.new_empty(x.shape[0])
    if kind == "counted":
        return x.new_empty(torch.library.get_ctx().new_dynamic_size(), x.dim(), dtype=torch.int64)
    return x.new_empty(x.shape) if kind == "columns" else x.new_empty(x.shape[::-1]).t()


@one_row_in(2)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", ["columns", "rows", "row", "counted"])
def test_results_of_users_operators_are_read_where_they_lie(kind, dynamic):
    def program(x):
        return told_otherwise(x, kind) * 2 + 1, told_otherwise(x, kind).sum(0)

    torch.compiler.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(program, backend="regraft", dynamic=dynamic)
        for size in ((3, 5), (4, 7)):
            x = torch.randn(size)
            torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_group_norms_of_gpus_are_given_contiguous_images(device):
    """A graph without kernels whose convolutions run in channels last, as where there is no Triton."""

    def backward(dy, x, mean, rstd):
        return torch.ops.aten.native_group_norm_backward(
            dy.relu(), x, mean, rstd, None, 2, 8, 16, 4, [True, False, False]
        )

    last = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    graph = trace(backward, last, last, torch.randn(2, 4), torch.randn(2, 4))
    wrapper = generate(on_cuda(graph) if device == "cuda" else graph, name="test")
    (call,) = [line for line in wrapper.source.splitlines() if "native_group_norm_backward" in line and " = " in line]
    assert call.count(".contiguous()") == (2 if device == "cuda" else 0)

"""What a program gets from two equal calls is two tensors, in training as well."""

from __future__ import annotations

import pytest
import torch
from support.thorough import one_row_in, thorough
from torch.nn import functional as F

CALLS = {
    "sort": lambda x: x.sort(1)[0],
    "norm": lambda x: F.layer_norm(x, (4,)),
    "view": lambda x: x.topk(2, 1)[0].t(),
    "computed": lambda x: x.sin().max(1)[0],
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "several": lambda x: torch.stack(x.cummax(0)).unbind()[0] + x.cummax(0)[0],
    "one": lambda x: x.sin(),
    "parts": lambda x: x.sin().chunk(2, 1)[0],
    "parts of windows": lambda x: x.sin()[:, :3].unbind(1)[1],
    "parts of several": lambda x: x.sort(1)[0].split([1, 3], 1)[1],
}


@pytest.mark.parametrize("dynamic", [False, thorough(True)])  # what is equal does not depend on it
def test_equal_calls_give_tensors_of_their_own(dynamic):
    torch._dynamo.reset()

    def program(x):
        return [[call(x), call(x), call(x)] for call in CALLS.values()]

    x = torch.randn(3, 4, requires_grad=True)
    compiled = torch.compile(program, backend="regraft", dynamic=dynamic, options={"verify": True})
    results, expected = compiled(x), program(x)
    torch.testing.assert_close(results, expected)
    for name, three, eagers in zip(CALLS, results, expected, strict=True):
        assert len({y.untyped_storage().data_ptr() for y in three}) == 3, name
        assert [y.stride() for y in three] == [y.stride() for y in eagers], name
    losses = (sum(y.square().sum() for three in given for y in three) for given in (results, expected))
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in losses))


@pytest.mark.parametrize("parts", [lambda x: x.chunk(2, 1), lambda x: x.split([1, 3], 1), lambda x: x.unbind(0)])
def test_parts_of_one_value_share_its_memory(parts):
    """The parts are taken of the value anew where it has been written to."""

    def program(x):
        y = x.nan_to_num(3.0)
        y.detach().mul_(2)
        first, second, *_ = parts(y)
        return second, first

    torch._dynamo.reset()
    x = torch.randn(3, 4, requires_grad=True)
    results, expected = torch.compile(program, backend="regraft")(x), program(x)
    torch.testing.assert_close(results, expected)
    assert len({y.untyped_storage().data_ptr() for y in results}) == 1


@one_row_in(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "part", [lambda x: x.chunk(2, 1)[0], lambda x: x.split([1, 3], 1)[1], lambda x: x[:, 1:].unbind(1)[1].unsqueeze(0)]
)
def test_parts_of_equal_values_do_not(part, dynamic):
    """The values stay two themselves, and their parts lie in memory as eager's do."""

    def program(x):
        return [part(x.sin()) for _ in range(2)]

    torch._dynamo.reset()
    x = torch.randn(3, 4, requires_grad=True)
    compiled = torch.compile(program, backend="regraft", dynamic=dynamic, options={"verify": True})
    results, expected = compiled(x), program(x)
    torch.testing.assert_close(results, expected)
    assert [y.stride() for y in results] == [y.stride() for y in expected]
    assert len({y.untyped_storage().data_ptr() for y in results}) == 2

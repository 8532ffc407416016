"""What eager refuses for a dtype stays its call, so that eager's error is raised; what it takes is generated."""

import pytest
import torch
import torch.nn.functional as F
from support.lowering import trace

from regraft.compiler.lowering import lower
from regraft.compiler.lowering.refused import REFUSED, refused

ONES = torch.ones(2, 4, 4)


@pytest.mark.parametrize("function", [
    lambda x: F.adaptive_max_pool2d(x, 2), lambda x: F.gelu(x), lambda x: F.hardswish(x) + 1,
    lambda x: torch.logaddexp(x, x), lambda x: F.avg_pool2d(x.int(), 2),
])  # fmt: skip
def test_calls_that_eager_refuses_raise_its_error(function):
    x = ONES.long()
    with pytest.raises(NotImplementedError) as eager:
        function(x)
    torch._dynamo.reset()
    with pytest.raises(NotImplementedError) as ours:
        torch.compile(function, backend="regraft")(x)
    assert str(ours.value) == str(eager.value)


def test_other_dtypes_of_such_calls_are_lowered():
    assert refused("aten.gelu.default", [torch.float16]) is None
    assert refused("aten.remainder.Tensor", [torch.bool, torch.int64]) is None
    assert refused("aten.abs.default", [torch.bool]) == torch.bool
    module = trace(lambda x: torch.abs(F.leaky_relu(x)), ONES)
    assert not lower(module).kept


def test_the_table_names_operators():
    for name in REFUSED:
        _, operator, overload = name.split(".")
        assert hasattr(getattr(torch.ops.aten, operator), overload)

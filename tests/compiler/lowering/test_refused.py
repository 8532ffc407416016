"""What eager refuses for a dtype stays its call, so that eager's error is raised; what it takes is generated."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from support.lowering import trace
from support.thorough import one_row_in
from support.versions import OLD_TORCH

import regraft
from regraft.compiler.lowering import lower
from regraft.compiler.lowering.refused import REFUSED

ONES = torch.ones(2, 4, 4)


@pytest.mark.parametrize("function", [
    lambda x: F.adaptive_max_pool2d(x, 2), lambda x: F.gelu(x), lambda x: F.hardswish(x) + 1,
    lambda x: torch.logaddexp(x, x), lambda x: F.avg_pool2d(x.int(), 2), lambda x: x.var(), lambda x: x.bool() - x,
    lambda x: F.pad(x, (-5, 2)), lambda x: F.hardshrink(x, 1.5), lambda x: F.glu(x),
    lambda x: F.multilabel_margin_loss(x[0], x[0]), lambda x: F.multilabel_margin_loss(x[0].half(), x[0]),
    lambda x: F.multilabel_margin_loss(x[0].bfloat16().requires_grad_(), x[0], reduction="sum"),
    lambda x: torch._foreach_add([x > 0], [x > 0], alpha=1.5), lambda x: torch._foreach_lerp([x], [x], 0.5),
    lambda x: torch._foreach_add([x.byte()], [x.byte()], alpha=300),
    lambda x: F.smooth_l1_loss(x.float(), x.float(), beta=-0.5),
    lambda x: x.half().clone().fill_(1e6), lambda x: torch.full_like(x, 1e6, dtype=torch.float16) * 2,
    lambda x: x.cumsum(0, dtype=torch.bool), lambda x: x.float().cumprod(0, dtype=torch.bool),
    lambda x: F.max_pool1d(x, 2), lambda x: F.max_pool1d(x.byte(), 2, stride=1),
    lambda x: torch.sub(x.char(), x.char(), alpha=-128), lambda x: torch.rsub(x.int(), 1, alpha=-(2**31)),
    lambda x: x.bool() + 2**63, lambda x: x.bool() < 2**63, lambda x: x.bool() * 2**63,
    lambda x: x.bool() % True, lambda x: torch.fmod(x.bool(), True),
    lambda x: F.huber_loss(x, x.float(), reduction="none"), lambda x: F.soft_margin_loss(x, x.float(), reduction="sum"),
    lambda x: torch.ldexp(x.float(), x.bool()), lambda x: torch.ldexp(x.half(), x.bool()) * 2,
    lambda x: x.half() ** 1e6, lambda x: x.byte() ** 300, lambda x: F.pad(x.byte(), (1, 1), value=-1),
])  # fmt: skip
def test_calls_that_eager_refuses_raise_its_error(function):
    x = ONES.long()
    with pytest.raises(RuntimeError) as eager:
        function(x)
    torch._dynamo.reset()
    with regraft.coverage() as report, pytest.raises(type(eager.value)) as ours:
        torch.compile(function, backend="regraft")(x)
    assert str(ours.value) == str(eager.value)
    assert not report.faults


@pytest.mark.parametrize("function", [
    lambda x: x[:, [0, 1]], lambda x: x.index_put((torch.tensor([3]),), torch.tensor(1.0)),
    lambda x: x.index_select(1, torch.tensor([0])), lambda x: F.embedding(torch.tensor([0]), x),
])  # fmt: skip
def test_indices_into_nothing_raise(function):
    x = ONES.flatten(1)[:0, :0]
    with pytest.raises((IndexError, RuntimeError)) as eager:
        function(x)
    torch._dynamo.reset()
    with pytest.raises(type(eager.value)) as ours:
        torch.compile(function, backend="regraft", options={"strict": True})(x)
    assert str(ours.value) == str(eager.value)


@pytest.mark.parametrize("function", [
    lambda x: F.adaptive_avg_pool1d(x, 2), lambda x: F.adaptive_avg_pool2d(x, (2, 1)),
    lambda x: F.adaptive_avg_pool3d(x[:, None], 2),
    lambda x: torch.ops.aten.adaptive_max_pool2d(x, 2), lambda x: torch.ops.aten.adaptive_max_pool3d(x[None], 2),
])  # fmt: skip
def test_pools_of_nothing_raise(function):
    x = ONES[..., :0]
    with pytest.raises(RuntimeError):
        function(x)
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="non-zero size"):
        torch.compile(function, backend="regraft", options={"strict": True})(x)


INDEX = torch.tensor([0, 1])


@pytest.mark.parametrize("function", [
    lambda x: x.bool().index_reduce(0, INDEX, x.bool(), "prod", include_self=False),
    lambda x: x.bool().index_reduce(0, INDEX, x.bool(), "mean"),
    lambda x: x.bool()[:, 0, 0].index_reduce(0, INDEX, x.bool()[:, 0, 0], "prod"),
    lambda x: x.index_reduce(0, INDEX, x, "sum"), lambda x: torch.add(x, x, alpha=True),
    lambda x: torch.sub(x, x, alpha=True), lambda x: torch.add(x, x.float(), alpha=True) * 2,
])  # fmt: skip
def test_modes_that_eager_refuses_raise_its_error(function):
    x = ONES.long()
    with pytest.raises(RuntimeError) as eager:
        function(x)
    torch._dynamo.reset()
    with pytest.raises(RuntimeError) as ours:
        torch.compile(function, backend="regraft", options={"strict": True})(x)
    assert str(ours.value) == str(eager.value)


@pytest.mark.parametrize("function", [
    lambda x, i: x.bool().index_reduce(0, i, x.bool(), "amax"), lambda x, i: x.index_reduce(0, i, x, "mean"),
    lambda x, i: torch.add(x.bool(), x.bool(), alpha=True), lambda x, i: torch.add(x, x, alpha=2),
])  # fmt: skip
def test_modes_that_eager_takes_are_generated(function):
    assert not lower(trace(function, ONES.long(), INDEX)).kept


@pytest.mark.parametrize("function", [
    lambda x: x.softmax(3), lambda x: x.softmax(-4) + 1, lambda x: x.softmax(5).sum(), lambda x: x.log_softmax(3),
    lambda x: F.softmin(x, 4), lambda x: F.gumbel_softmax(x, dim=3), lambda x: x.softmax(3) @ x, lambda x: x.cumsum(3),
])  # fmt: skip
def test_dims_out_of_range_raise(function):
    torch._dynamo.reset()
    raised = torch._dynamo.exc.TorchRuntimeError if OLD_TORCH else IndexError  # of Dynamo, before any backend
    with pytest.raises((IndexError, raised), match="out of range"):
        torch.compile(function, backend="regraft", options={"strict": True})(ONES)


@pytest.mark.parametrize("dim", [1, -2])
@pytest.mark.parametrize("function", [
    lambda x, i, dim: x.cummax(dim)[0] + 1, lambda x, i, dim: x.cummin(dim)[0] + 1,
    lambda x, i, dim: x.index_reduce(dim, i, x, "prod"), lambda x, i, dim: x.index_add(dim, i, x),
])  # fmt: skip
def test_dims_of_a_number_out_of_range_raise(function, dim):
    given = torch.tensor(2.0), torch.tensor([0]), dim
    with pytest.raises(IndexError):
        function(*given)
    torch._dynamo.reset()
    with pytest.raises((IndexError, RuntimeError)):
        torch.compile(function, backend="regraft", options={"strict": True})(*given)


@pytest.mark.parametrize("dim", [0, -1])
def test_dims_of_a_number(dim):
    torch._dynamo.reset()
    assert torch.compile(lambda x: x.softmax(dim) + 1, backend="regraft")(torch.tensor(3.0)) == 2


@one_row_in(2)
@pytest.mark.parametrize("pad", [(-2, 1), (1, -2), (0, 0, 1, -2), (-1, -1)])
def test_padding_that_cuts_too_much_is_refused_for_each_size(pad):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: F.pad(x, pad) + 1, backend="regraft")
    for size in (4, 3, 1, 5, 2):
        x = torch.randn(size, size)
        if raises(F.pad, x, pad):
            with pytest.raises(RuntimeError, match=r"must be non-negative|negative output size"):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), F.pad(x, pad) + 1)


DTYPES = (torch.bool, torch.int64, torch.float32, torch.bfloat16)
OF_TWO = {
    "sub": torch.sub, "rsub": torch.rsub, "and": torch.bitwise_and, "xor": torch.bitwise_xor, "clamp": torch.clamp_min,
    "shift": torch.bitwise_left_shift, "heaviside": torch.heaviside, "range": lambda x, y: torch.clamp(x, y, y),
    "cross": lambda x, y: torch.linalg.cross(x, y, dim=0), "ratio": lambda x, y: torch.addcdiv(x, y, y),
    "difference": torch.dist,
}  # fmt: skip
OF_ONE = {
    "from one": lambda x: 1 - x, "less one": lambda x: x - 1, "place": lambda x: x.argmax(),
    "fold": lambda x: F.fold(x.expand(1, 4, 4), (3, 3), 2), "limits": lambda x: x.clamp(0, 1),
    "volume": lambda x: F.avg_pool3d(x.expand(1, 2, 4, 4, 3), 2),
    "local": lambda x: F.local_response_norm(x.expand(1, 2, 4, 3), 2),
}  # fmt: skip


def raises(function, *inputs):
    try:
        function(*inputs)
    except (RuntimeError, NotImplementedError):
        return True
    return False


@pytest.mark.parametrize("name", [*OF_TWO, *OF_ONE])
def test_what_eager_refuses_of_a_mixture_is_a_call(name):
    function, count = (OF_TWO[name], 2) if name in OF_TWO else (OF_ONE[name], 1)
    for dtypes in product(DTYPES, repeat=count):
        given = [torch.ones(4, 1) if name == "fold" else torch.ones(3) for _ in dtypes]
        given = [x.to(dtype) for x, dtype in zip(given, dtypes, strict=True)]
        if not raises(function, *given):
            continue
        try:
            module = trace(function, *given)
        except (RuntimeError, NotImplementedError):  # so does tracing
            continue
        assert lower(module).kept, (name, dtypes)


def test_other_dtypes_of_such_calls_are_lowered():
    for function, inputs in [
        (lambda x: F.gelu(x), [ONES.half()]), (torch.remainder, [ONES.bool(), ONES.long()]),
        (torch.sub, [ONES.long(), ONES]), (torch.bitwise_and, [ONES.bool(), ONES.long()]), (torch.clamp, [ONES, 0]),
        (torch.heaviside, [ONES, ONES]), (lambda x: torch.abs(F.leaky_relu(x)), [ONES]),
    ]:  # fmt: skip
        assert not lower(trace(function, *inputs)).kept
    assert lower(trace(torch.abs, ONES.bool())).kept


def test_the_table_names_operators():
    for name in REFUSED:
        _, operator, overload = name.split(".")
        assert hasattr(getattr(torch.ops.aten, operator), overload)


FILLINGS = {
    "masked": lambda x, n: x.masked_fill(x > 0, n),
    "indexed": lambda x, n: x.index_fill(0, (x.reshape(-1)[:2] * 0).long(), n),
    "written": lambda x, n: x.clone().masked_fill_(x > 0, n) * 1,
}  # fmt: skip


@one_row_in(2)
@pytest.mark.parametrize("name", FILLINGS)
@pytest.mark.parametrize(("dtype", "number"), [
    (torch.int8, torch.tensor(300)), (torch.uint8, torch.tensor(-1e3)), (torch.int16, torch.tensor(2**40)),
    (torch.float16, torch.tensor(1e6)), (torch.float32, torch.tensor(1e300, dtype=torch.float64)),
])  # fmt: skip
def test_numbers_of_tensors_that_no_element_holds_raise(name, dtype, number):
    torch._dynamo.reset()
    x, ours = ONES[0].to(dtype), torch.compile(FILLINGS[name], backend="regraft", options={"strict": True})
    one = torch.ones_like(number)
    torch.testing.assert_close(ours(x, one), FILLINGS[name](x, one))
    with pytest.raises(RuntimeError) as eager:
        FILLINGS[name](x, number)
    with pytest.raises(RuntimeError) as refusal:
        ours(x, number)
    assert str(refusal.value) == str(eager.value)


def test_numbers_of_tensors_that_every_element_holds_are_generated():
    for function in FILLINGS.values():
        assert not lower(trace(function, ONES, torch.tensor(2.0))).kept
        assert not lower(trace(function, ONES.half(), torch.tensor(True))).kept

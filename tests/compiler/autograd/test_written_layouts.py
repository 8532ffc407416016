"""Writes to tensors that are not contiguous: what is written, and all that is computed from it, lies as in eager."""

from __future__ import annotations

import pytest
import torch
from support.thorough import one_row_in, takes_turns

import regraft

I = torch.tensor([0, 1])  # noqa: E741


def rows(x):
    return torch.ones(2, *x.shape[1:])


def places(x):
    return torch.zeros(x.shape, dtype=torch.int64)


WRITES = {
    "zero": lambda x: x.zero_(), "number": lambda x: x.masked_fill_(x > 0, 1.0),
    "tensor": lambda x: x.masked_fill_(x > 0, x.sum()), "masked": lambda x: x.masked_scatter_(x > 0, x.clone()),
    "added rows": lambda x: x.index_add_(0, I, rows(x)), "rows": lambda x: x.index_copy_(0, I, rows(x)),
    "largest rows": lambda x: x.index_reduce_(0, I, rows(x), "amax"),
    "scatter": lambda x: x.scatter_(0, places(x), x * 1),
    "scattered number": lambda x: x.scatter_(0, places(x), 3.0),
    "scattered sums": lambda x: x.scatter_add_(0, places(x), x * 1),
    "scattered maxima": lambda x: x.scatter_reduce_(0, places(x), x * 1, "amax"), "sums": lambda x: x.cumsum_(0),
    "products": lambda x: x.cumprod_(-1), "lower": lambda x: x.tril_(), "upper": lambda x: x.triu_(1),
    "norms": lambda x: x.renorm_(2, 0, 1.0),
    "matrix": lambda x: x[0].T.addmm_(x[0].T * 1, torch.ones(x.shape[1], x.shape[1])),
    "batch": lambda x: x.baddbmm_(x * 1, torch.ones(x.shape[0], x.shape[2], x.shape[2])), "plain": lambda x: x.mul_(2),
}  # fmt: skip
LIES = {
    "transposed": lambda: torch.randn(5, 3, 8).transpose(0, -1),
    "rows apart": lambda: torch.randn(4, 3, 7)[..., :5],
    "permuted": lambda: torch.randn(4, 5, 3).permute(0, 2, 1),
}


@one_row_in(2)
@takes_turns("lies")
@pytest.mark.parametrize("lies", LIES)
@pytest.mark.parametrize("where", ["temporary", "input", "with gradient"])
@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_lies_as_in_eager(name, where, lies):
    def program(x, w):
        y = x if where == "input" else x * w
        part = y[1:]
        WRITES[name](y)
        return part * 2, y, y + 1

    torch.compiler.reset()
    torch.manual_seed(0)
    x = LIES[lies]()
    given = [(torch.empty_strided(x.shape, x.stride()).copy_(x), torch.ones(())) for _ in range(2)]
    for _, w in given:
        w.requires_grad_(where == "with gradient")
    with regraft.coverage() as report:
        ours = torch.compile(program, backend="regraft")(*given[0])
    eager = program(*given[1])
    assert not report.faults
    for a, b in zip((*ours, given[0][0]), (*eager, given[1][0]), strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
    if where == "with gradient" and eager[2].requires_grad:
        for results in (ours, eager):
            (results[0].sum() + results[2].square().sum()).backward()
        torch.testing.assert_close(given[0][1].grad, given[1][1].grad)


def test_images_stay_in_channels_last():
    def program(x, mask):
        y = x * 2
        half = y[:, :2]
        y.masked_fill_(mask, 0)
        return y, half

    x = torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last)
    compiled = torch.compile(program, backend="regraft", dynamic=True)
    for size in (5, 3):
        got, want = compiled(x[:, :, :size], x[:, :, :size] > 0), program(x[:, :, :size], x[:, :, :size] > 0)
        assert [t.stride() for t in got] == [t.stride() for t in want]
        torch.testing.assert_close(got, want)


GIVEN = {
    "one operand": lambda x, o: torch.neg(x, out=o), "two": lambda x, o: torch.mul(x, x + 1, out=o),
    "a number": lambda x, o: torch.add(x, 2, alpha=3, out=o), "rows": lambda x, o: torch.softmax(x, 1, out=o),
    "sums": lambda x, o: torch.cumsum(x, 0, out=o), "limits": lambda x, o: torch.clamp(x, min=0.2, out=o),
    "choice": lambda x, o: torch.where(x > 0, x, -x, out=o), "shifted": lambda x, o: torch.sub(x, x[:, :1], out=o),
    "product": lambda x, o: torch.mm(x, torch.ones(x.shape[1], x.shape[1]), out=o),
}  # fmt: skip


@takes_turns("dynamic", "where")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("where", ["temporary", "input", "turned input"])
@pytest.mark.parametrize("name", GIVEN)
def test_what_the_caller_gives_for_results_stays_as_it_lies(name, where, dynamic):
    """`out=` of other strides than those that the operator gives its own results."""

    def program(x, o):
        y = torch.empty(x.shape) if where == "temporary" else o
        return GIVEN[name](x.t().t() if where == "turned input" else x, y), y + 1, y.t()[1:] * 2

    torch.compiler.reset()
    compiled = torch.compile(program, backend="regraft", dynamic=dynamic)
    for rows_, columns in ((4, 3), (5, 6)):
        x = torch.randn(columns, rows_).t() if where != "turned input" else torch.randn(rows_, columns)
        given = [torch.empty_strided(x.shape, x.t().contiguous().t().stride()) for _ in range(2)]
        if where == "input":
            given = [torch.empty(x.shape) for _ in range(2)]
        with regraft.coverage() as report:
            ours = compiled(x, given[0])
        assert not report.faults
        for a, b in zip(ours, program(x, given[1]), strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
        if where != "temporary":
            assert torch.equal(ours[0], given[0]) and given[0].stride() == given[1].stride()


FACTORS = {
    "factor": (lambda x, o: torch.linalg.cholesky(x, out=o[0]), 1),
    "solution": (lambda x, o: torch.linalg.solve(x, x + 1, out=o[0]), 1),
    "inverse": (lambda x, o: torch.linalg.inv(x, out=o[0]), 1),
    "sorted": (lambda x, o: torch.sort(x, 0, out=(o[0], o[1]))[0], 2),
    "largest": (lambda x, o: torch.topk(x, 3, 0, out=(o[0], o[1]))[1], 2),
    "spectrum": (lambda x, o: torch.fft.fft(x, dim=0, out=o[0].to(torch.complex64)), 1),
    "rank": (lambda x, o: torch.linalg.matrix_rank(x[None].expand(3, 3, 3), out=o[1][0]), 2),
    "running": (lambda x, o: torch.cummax(x, 0, out=(o[0], o[1]))[0], 2),
}  # fmt: skip


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", FACTORS)
def test_results_that_operators_lay_out_themselves(name, turned):
    """Operators whose own results are not contiguous though operands are, and those of several results."""
    call, count = FACTORS[name]

    def program(x):
        given = [torch.zeros(3, 3, dtype=dtype) for dtype in (x.dtype, torch.int64)[:count]]
        given = [o.t() if turned else o for o in given]
        return call(x, given) * 1, *given, given[-1] + 1

    x = torch.tensor([[4.0, 1.0, 0.5], [1.0, 5.0, 2.0], [0.5, 2.0, 6.0]])
    torch.compiler.reset()
    with regraft.coverage() as report:
        ours = torch.compile(program, backend="regraft")(x)
    assert not report.faults
    for a, b in zip(ours, program(x), strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()

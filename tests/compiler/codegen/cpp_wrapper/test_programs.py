"""Programs called from C++ give what they give when they are called from Python, to the bit."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from support.random_programs import draw
from support.thorough import examples, one_row_in, takes_turns, thorough
from support.two_wrappers import check
from torch._higher_order_ops import while_loop

aten = torch.ops.aten


def several(x, w, b):
    y = torch.relu(x @ w + b)
    value, place = y.max(1)
    return y, value, place, y.t(), torch.cat([y, y.sin()], 0)


def writes(x, w, b):
    x.add_(1)
    b[1:3] = 0.5
    return x @ w, x, x.t(), b


def shares(x, w, b):
    y = (x @ w).exp()
    return y, y[1:], y.view(-1), x.t(), x, None, 3, "text"


def picks(x, w, b):
    rows = torch.tensor([2, 0, 1])
    y = x[rows].clone()
    y[:, rows] = 1.0
    y.index_put_((rows, rows), x[0, :3], accumulate=True)
    return y.sort(descending=True), y.split([1, 2, 1][: y.shape[0] - 1], 0), y.topk(2)


def drops(x, w, b):
    return F.dropout(x @ w, 0.5, training=True) + torch.randn_like(b), torch.rand(3), torch.randperm(4)


def converts(x, w, b):
    y = (x @ w).to(torch.bfloat16)
    return y, y.double().sum(), x.int(), x.bool(), torch.complex(x, x).abs(), x.to(memory_format=torch.preserve_format)


def looks(x, w, b):
    found = x.nonzero()
    return found, found.shape[0], x[x > 0], x.sum().item() > 0


def branches(x, w, b):
    return torch.cond(x.sum() > 0, lambda u: (u.sin(), u @ w), lambda u: (u.cos(), u @ w + 1), (x,)), b * 2


def loops(x, w, b):
    return while_loop(
        lambda i, u: (i < 3) & (u.norm() < 9), lambda i, u: (i + 1, u.sin() @ w @ w.t()), (torch.tensor(0), x)
    )


def norms(x, w, b):
    y = F.layer_norm(F.linear(x, w.t(), b), (b.shape[0],))
    return F.gelu(y), F.softmax(y, -1), torch.linalg.vector_norm(y), y.std(), torch.einsum("ij,kj->ik", y, y)


def inputs(rows=4, grad=False):
    x, w, b = (torch.randn(*sizes) for sizes in ((rows, 8), (8, 16), (16,)))
    return [t.requires_grad_(grad) for t in (x, w, b)]


@one_row_in(3)
@pytest.mark.parametrize(
    "function",
    [several, writes, shares, picks, drops, converts, looks, branches, loops, norms],
    ids=lambda f: f.__name__,
)
def test_inference(function):
    with torch.no_grad():
        check(function, inputs(), inputs())


@one_row_in(2)
@pytest.mark.parametrize("function", [several, shares, drops, norms], ids=lambda f: f.__name__)
def test_training(function):
    check(function, inputs(grad=True), inputs(grad=True))


@one_row_in(2)
@takes_turns("grad")
@pytest.mark.parametrize("function", [several, writes, shares, norms], ids=lambda f: f.__name__)
@pytest.mark.parametrize("grad", [False, True])
def test_sizes_that_change(function, grad):
    grad = grad and function is not writes
    check(function, *(inputs(rows, grad) for rows in (4, 7, 2, 1, 0)), dynamic=True)


def test_numbers_of_sizes_come_in_and_go_out():
    def function(x, n, f):
        rows = x.shape[0]
        return x[: n // 2] * f, rows * 2 + n, (rows - n) // 3, x.new_full((n,), rows), rows % 3, rows**2, rows / n

    check(
        function, (torch.randn(9, 2), 5, 0.5), (torch.randn(11, 2), 4, 0.25), (torch.randn(3, 2), 3, 2.0), dynamic=True
    )


def test_convolutions_lie_as_metadata_says():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 4, 1), torch.nn.Flatten(),
    )  # fmt: skip
    images = torch.randn(2, 3, 8, 8)
    check(model, (images,), (images.to(memory_format=torch.channels_last),))
    with torch.no_grad():
        check(model.eval(), (images,), (images.to(memory_format=torch.channels_last),))


def test_recurrence_and_attention():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = torch.nn.LSTMCell(8, 16)
            self.attention = torch.nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x):
            h, c = self.cell(x[:, 0])
            y = torch.stack([h, c, h * c], 1)
            return self.attention(y, y, y)[0], h

    model = Model()
    check(model, (torch.randn(2, 3, 8, requires_grad=True),))
    with torch.no_grad():
        check(model, (torch.randn(2, 3, 8),))


def test_weights_that_are_frozen_and_change():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="regraft", options={"cpp.wrapper": True, "freezing": True, "strict": True})
    x = torch.randn(3, 8)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
            model[0].weight.mul_(2)


def test_an_optimizer_of_many_small_parameters():
    parameters = [torch.randn(3, requires_grad=True) for _ in range(examples(6, 12))]
    kept = [p.detach().clone() for p in parameters]
    grads = [torch.randn(3) for _ in parameters]

    def stepped(options):
        torch.compiler.reset()
        optimizer = torch.optim.Adam(parameters, lr=0.1)
        step = torch.compile(optimizer.step, backend="regraft", options=options)
        for p, k, g in zip(parameters, kept, grads, strict=True):
            p.data.copy_(k)
            p.grad = g.clone()
        for _ in range(3):
            step()
        return [p.detach().clone() for p in parameters]

    for a, b in zip(stepped({"strict": True}), stepped({"strict": True, "cpp.wrapper": True}), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("start", [0, thorough(10)])
def test_random_programs(start):
    for seed in range(start, start + examples(2, 10)):
        program = draw(random.Random(seed), longest=6)
        symbolic = seed % 3 == 0
        with torch.no_grad():
            check(program, program.arguments(symbolic), dynamic=symbolic or None)

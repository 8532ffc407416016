"""Symbolic numbers of every kind: negative, zero, one, huge, floats, read from data; by both code generators."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.symbols import check
from support.thorough import one_row_in

import regraft

X = torch.tensor([-2.5, -0.5, 0.0, 1.0, 3.5])
INTS = torch.arange(-4, 5)
GRID = torch.arange(24.0).reshape(4, 6)
SIGNED = (-3, -1, 0, 1, 2, 7)


def arithmetic(x, i, n):
    return (
        (i[:5] + n).clamp(min=0) + x, i * n + (i * n) // 5, (i * n) % 5, i >= n, i.masked_fill(i < -n, 0), i & n, i | n,
        torch.maximum(i * n, i), x + (n // 3) - n // -3, x + (n % 3) + (n % -3), x + n**2 - n**3, x + abs(n),
        x + torch.sym_min(n, 3) + torch.sym_max(n, -2), x + (n << 2) + (n >> 1), x * (n & 5) + (n | 6) - (n ^ 2),
        x * (n / 3) - torch.sym_float(n),
        x * torch.sym_int(n / 3) + round(n / 2), x * math.ceil(n / 2) - math.floor(n / 3),
        x * (n == 2) + (n > -2), x + n * n % 7,
        torch.where(x > 0, n, x), i.clamp(n, n + 2), torch.full((3,), n) + torch.full_like(i[:3], n),
        torch.add(x, x, alpha=n), torch.sub(i, i, alpha=n), torch.rsub(x, n, alpha=n), torch.addcmul(x, x, x, value=n),
        x.lerp(x * 2, n), torch.tril(torch.ones(4, 4, dtype=torch.int64), n), x**n, i.bfloat16() == n,
        i.bfloat16().clamp(min=n + 256), F.softplus(x, n * n + 1, n), F.leaky_relu(x, n), F.elu(x, n),
        F.hardtanh(x, n, n + 3), F.threshold(x, n, n), (i[:, None] == torch.arange(n, n + 3)).float(),
        i.to(torch.uint8) + n,
    )  # fmt: skip


def divisors(x, i, n):
    return (
        i // n, i % n, torch.fmod(i, n), torch.div(i, n, rounding_mode="trunc"), x + 17 // n, x + 17 % n, x * (3 / n),
        x + n // (n - 9), torch.remainder(n, i.abs() + 1), F.celu(x, n), x.norm(n * n),
    )  # fmt: skip


def places(x, grid, n):
    return (
        torch.roll(grid, n, 0) + torch.roll(grid, (n, -n), (0, 1)), F.pad(x, (1, 3), value=n),
        x[(torch.arange(5) + n) % 5], x[(torch.arange(5) - n) // 9], x[n % 5], grid[n % 4, (n * n) % 6],
        x[: torch.sym_max(n, 0) + 2],
        torch.arange(n, n + 4), torch.arange(n, n - 4, -1, dtype=torch.int32), torch.arange(n, n + 9, 3) // 2,
        torch.arange(n, n + 4, dtype=torch.float32), torch.linspace(n, 10, 5), torch.ones(n + 5, 2) * n,
        x.index_fill(0, torch.tensor([1, 2]), n), x.scatter(0, torch.tensor([1, 2]), n),
    )  # fmt: skip


def slices(x, n):
    return x[n:] * 2, x[:n] * 2, x[1:n] + n, x[-n:] * 2, x[n : n + 2] * 2, x[n // 2 :] + n % 3


def written(x, n):
    x = x.clone()
    x[n] = 3.0
    x[n:] *= 2
    return x * n


def steps(n):
    return torch.arange(13, 0, n), torch.arange(13, -7, n) // 2, torch.arange(40 * n, 0, -n) % 5


def huge(x, i, n):
    return (
        i + n,
        i - n,
        (i + n) % 1000,
        x + (n // 1000) % 7 + (n * 3) % 11,
        x + (n * n) % 7,
        x.double() * n,
        i < n,
        x + n,
    )


def floats(x, f, n):
    return (
        x * f + (1 - f), torch.add(x, x, alpha=f), torch.add(x, x, alpha=f * n) / (n + f), x / (1 - 0.9**n),
        x * torch.sym_sqrt(n), x.clamp(-f, f), torch.full((2,), f), F.elu(x, f), x.bfloat16() * f, x.bfloat16() > f,
        torch.where(x > f, x, f), x**f, torch.arange(5) * f, torch.linspace(f, f * n, 5),
    )  # fmt: skip


def from_data(x, i, t):
    n = t.item()
    return x + n, x * (n // 2) + n % 3, i.clamp(min=n), torch.add(x, x, alpha=n)


def float_from_data(x, t):
    return x * t.item() + 1 / t.item(), torch.add(x, x, alpha=t.item())


PROGRAMS = {
    "arithmetic": (arithmetic, [(X, INTS, n) for n in SIGNED]),
    "divisors": (divisors, [(X, INTS, n) for n in (-3, -1, 1, 2, 7, 0)]),
    "places": (places, [(X, GRID, n) for n in (-3, -5, 0, 1, 2, 7)]),
    "slices": (slices, [(X, n) for n in (-3, 2, 7)]),
    "an index": (lambda x, n: x[n] * 2, [(X, n) for n in (-3, 2, 4, -5, 5, -6, 9)]),
    "writes": (written, [(X, n) for n in (-3, 2, 4, -5, 5)]),
    "steps": (steps, [(n,) for n in (-3, -2, -5, -1)]),
    "huge": (huge, [(X, INTS, n) for n in (2**31, 2**40, -(2**40), 2**61 + 1, -(2**62), 2**62 + 5, 0)]),
    "floats": (floats, [(X, f, n) for f, n in ((0.5, 2), (-1.25, 3), (3.5, 7), (1e-9, 4))]),
    "ints of data": (from_data, [(X, INTS, torch.tensor(n)) for n in (-4, 5, 0)]),
    "floats of data": (float_from_data, [(X, torch.tensor(n)) for n in (-3.5, 5.0)]),
}


@one_row_in(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_what_the_shape_environment_says(name):
    function, calls = PROGRAMS[name]
    kept = check(function, calls)
    # Eager refuses a CELU whose alpha is 0, which an int may be.
    assert {code for operator, code in kept if operator != "aten.celu.default"} <= {"data-dependent"}


@one_row_in(2)
@pytest.mark.parametrize("name", ["arithmetic", "places", "huge", "floats"])
def test_on_gpus(name):
    pytest.importorskip("triton")
    function, calls = PROGRAMS[name]
    check(function, calls[:2], "interpreter", rtol=1e-5, atol=1e-5)


def test_a_second_int_by_default():
    """What a second call makes symbolic may be negative."""

    def function(x, n):
        return (torch.arange(5) + n).clamp(min=0) + x, x[n:], torch.arange(13, 0, n - 8), x + n // 3 + n % 3

    torch._dynamo.reset()
    with regraft.coverage() as cov:
        compiled = torch.compile(function, backend="regraft")
        for n in (1, 2, -3, -4, 7, 0):
            torch.testing.assert_close(compiled(X, n), function(X, n))
    assert not cov.fallbacks


def test_gradients():
    def function(x, n):
        return (x[n:] ** 2 * n).sum() + F.elu(x, n / 3).sum() + F.softplus(x, n * n).sum() + x[n] ** 2

    def gradient(call, n):
        x = X.clone().requires_grad_()
        call(x, n).backward()
        return x.grad

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="regraft", dynamic=True)
    for n in (2, -3, -1, 4):
        torch.testing.assert_close(gradient(compiled, n), gradient(function, n))


def test_a_divisor_that_is_zero_on_the_example():
    def program(x, f):
        return x / f, (x / f).softmax(-1), x * 2 / f

    compiled = torch.compile(program, backend="regraft", dynamic=True)
    with regraft.coverage() as cov:
        for f in (0.0, 2.5, -1.25, math.inf):
            torch.testing.assert_close(compiled(X, f), program(X, f), equal_nan=True)
    assert not cov.faults


def test_sizes_that_gradients_have_as_well():
    """What the forward gives must not be computed from the size of a gradient that comes in."""

    def program(x):
        return F.pad(x, (0, 0, 2, 0)), x.new_zeros(2 + x.shape[0]), torch.stack([x, x])

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft", dynamic=True)
    with regraft.coverage() as cov:
        for rows in (3, 5):
            results = compiled(torch.ones(rows, 2, requires_grad=True))
            assert [r.shape for r in results] == [(rows + 2, 2), (rows + 2,), (2, rows, 2)]
    assert not cov.faults


def test_parts_whose_lengths_are_numbers():
    """Numbers of a list are not known to add up to the size of what they cut."""

    def cut(x, sizes, n):
        weights = x.mT.softmax(-1).split(sizes, -1)
        values = [part * 2 for part in x.split(sizes)]
        return values, [w @ v for w, v in zip(weights, values, strict=True)], x.narrow(0, 1, n) + 1, x.split(n)[-1] * n

    torch._dynamo.reset()
    compiled = torch.compile(cut, backend="regraft", dynamic=True)
    x = torch.randn(9, 4)
    with regraft.coverage() as cov:
        for sizes, n in (([2, 3, 4], 3), ([4, 4, 1], 2), ([9, 0, 0], 4), ([0, 0, 9], 5)):
            torch.testing.assert_close(compiled(x, sizes, n), cut(x, sizes, n))
        with pytest.raises(RuntimeError):
            compiled(x, [2, 3, 5], 3)
    assert not cov.faults


def test_pieces_of_padded_rows():
    """Rows that are padded to whole pieces, as state space models and attention to windows do."""

    def program(x):
        batch, rows, width = x.shape
        padded = F.pad(x, (0, 0, 0, (4 - rows % 4) % 4))
        pieces = padded.reshape(batch, padded.shape[1] // 4, 4, width)
        within = pieces @ pieces.mT
        weighted = (within + torch.eye(4)).masked_fill(torch.ones(4, 4).triu(1).bool(), 0) @ pieces
        return (weighted * torch.arange(4.0)[:, None]).reshape(batch, -1, width)[:, :rows] + x

    calls = [(torch.randn(3, rows, 5),) for rows in (10, 12, 7, 1)]
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft", dynamic=True)
    with regraft.coverage() as cov:
        for call in calls:
            torch.testing.assert_close(compiled(*call), program(*call))
    assert not [k for graph in cov.graphs for code in graph.code for k in code.kept if k.code == "symbolic"]


@one_row_in(2)
@pytest.mark.parametrize(
    "cut",
    [
        lambda x, n: x[-abs(n) :],
        lambda x, n: x[abs(n) // 3 :] * 2,
        lambda x, n: x[: max(n, 2)],
        lambda x, n: x[min(n, 0) :].sin(),
        lambda x, n: torch.cat([x[: -abs(n) - 1], x[-abs(n) :]]),
    ],
)
def test_parts_behind_a_computed_number(cut):
    """The gradient's place is a function of a number that is no input of the backward itself, nor a size there."""

    def gradient(call, x, n):
        x = x.clone().requires_grad_()
        return call(x, n), torch.autograd.grad(call(x, n).square().sum(), x)

    torch._dynamo.reset()
    compiled = torch.compile(cut, backend="regraft", dynamic=True, options={"strict": True})
    for sizes, n in (((3, 8), 100), ((8, 8), 5), ((9, 4), -3), ((16, 8), 0), ((5, 3), 2)):
        x = torch.linspace(-1, 1, math.prod(sizes)).reshape(sizes)
        torch.testing.assert_close(gradient(compiled, x, n), gradient(cut, x, n))

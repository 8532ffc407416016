"""Transforms of `torch.func` become operators, also if they write to tensors or contain constants."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in, takes_turns
from support.versions import not_in_old_torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn.attention.flex_attention import create_block_mask

import regraft

X = torch.linspace(-2, 3, 24).reshape(4, 6)


def filled(row):
    own = row * 2
    own[0] = 1
    own[1:].mul_(row[:-1])
    return own.add_(torch.tensor([1.0, 2, 3]).sum()) * own


def chosen(row):
    own = row * 2
    own[row.argmax()] = 7
    return own


def bits(row):
    kept = (row > 0).__and__(row < 2)
    kept &= row != 1
    return kept.__or__(row < -1) * row


def written(row):
    row[2] = 5
    return row * 2


def outside(x):
    own = x * 2
    torch.vmap(lambda row: row.mul_(3))(own)
    return own * x


PROGRAMS = [
    torch.vmap(filled),
    torch.vmap(chosen),
    torch.vmap(bits),
    torch.vmap(torch.vmap(lambda a: a + a.sin_())),
    outside,
]


@one_row_in(2)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [torch.vmap(written), torch.vmap(lambda row: row.add_(1) * 2), *PROGRAMS])
def test_writes_and_constants(program, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft", dynamic=dynamic)
    with regraft.coverage() as found:
        for rows in (4, 3) if dynamic else (4,):
            ours, theirs = X[:rows].clone(), X[:rows].clone()
            torch.testing.assert_close(compiled(ours), program(theirs))
            torch.testing.assert_close(ours, theirs)
    assert not found.fallbacks


@one_row_in(2)
@pytest.mark.parametrize("program", PROGRAMS[:3] + PROGRAMS[4:])
def test_gradients(program):
    torch._dynamo.reset()
    ours, theirs = (X.clone().requires_grad_() for _ in range(2))
    with regraft.coverage() as found:
        torch.compile(program, backend="regraft")(ours).square().sum().backward()
    program(theirs).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert not found.fallbacks


def test_constants_beside_attributes_of_the_program():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(3.0))
            self.table = torch.arange(6.0)

        def forward(self, x):
            return torch.vmap(filled)(x * self.scale + self.table).sum(0) + torch.vmap(chosen)(x)

    torch._dynamo.reset()
    model = Model()
    with regraft.coverage() as found:
        torch.testing.assert_close(torch.compile(model, backend="regraft")(X), model(X))
    assert not found.fallbacks


def test_a_mask_of_blocks_by_itself():
    """`create_block_mask` is a map of the mask function, and a map that writes to a table."""

    def program(ends):
        mask = create_block_mask(lambda b, _, i, j: (j <= i) & (j < ends[b]), 2, None, 160, 160, device="cpu")
        return mask.kv_indices, mask.q_indices, mask.full_q_num_blocks

    torch._dynamo.reset()
    ends = torch.tensor([9, 140])
    with regraft.coverage() as found:
        ours = torch.compile(program, backend="regraft")(ends)
    assert all(map(torch.equal, ours, program(ends))) and not found.fallbacks


def loss(row):
    return (row.sin() * row).sum()


def hidden(row):
    with torch.no_grad():
        scale = row * 2
    return (row * scale).sum()


def hidden_twice(row):
    with torch.no_grad():
        low = row * 2
        with torch.enable_grad():
            middle = low.cos()
        high = middle + row
    return row * low + middle * high


def shown(x):
    with torch.no_grad():
        fixed = grad(loss)(x)
    return fixed * x


def of_each_sample(x):
    layer = torch.nn.functional.linear
    weights = {"w": x[:2] * 0.5, "b": x[0, :2]}
    gradients = vmap(grad(lambda p, row: layer(row, p["w"], p["b"]).tanh().sum()), (None, 0))(weights, x)
    return gradients["w"].sum(0) * weights["w"], gradients["b"]


def of_a_row(x):
    value, back = vjp(lambda a: (a * a[:1]).softmax(-1), x[0])
    return value * back(x[1])[0], x.sum(0)


def draws(x):
    rows = vmap(lambda row: row + torch.rand_like(row), randomness="different")(x)
    return rows * vmap(lambda row: row * torch.rand(()), randomness="same")(x)


DERIVATIVES = {
    "grad": grad(loss),
    "of each row": vmap(grad(loss)),
    "jacrev": lambda x: jacrev(lambda a: a.sin() * a.sum())(x[0]),
    "jacfwd of each row": vmap(jacfwd(lambda a: a.cos() * a.sum())),
    "jacrev of each row": vmap(jacrev(lambda a: a.cos() * a.sum())),
    "hessian": lambda x: hessian(loss)(x[0]),
    "of a map": grad(lambda x: vmap(loss)(x).sum()),
    "of a derivative": grad(lambda x: grad(loss)(x).square().sum()),
    "constants in a map": vmap(hidden),
    "constants in a derivative": grad(hidden),
    "constants in constants": vmap(hidden_twice),
    "constant derivative": shown,
    "samples": of_each_sample,
    "vjp": of_a_row,
    "jvp": lambda x: jvp(lambda a: a.exp() * a, (x,), (x.cos(),)),
    "random numbers": draws,
}


@one_row_in(3)
@takes_turns("gradients", "dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name, gradients, dynamic):
    """Also their derivatives by the autograd that runs around the program."""
    dynamic = dynamic and name != "jvp"  # torch's dual numbers have known sizes
    torch._dynamo.reset()
    compiled = torch.compile(DERIVATIVES[name], backend="regraft", dynamic=dynamic, options={"rng": "eager"})
    with regraft.coverage() as found:
        for rows in (4, 3) if dynamic else (4,):
            seen = [observed(program, X[:rows], gradients) for program in (compiled, DERIVATIVES[name])]
            torch.testing.assert_close(*seen)
    assert not found.fallbacks and not found.faults


@one_row_in(4)
@pytest.mark.parametrize("name", [name for name in DERIVATIVES if name != "constants in constants"])
def test_derivatives_where_gradients_are_disabled(name):
    """All but those of programs that enable them again."""
    torch._dynamo.reset()
    compiled = torch.compile(DERIVATIVES[name], backend="regraft", options={"rng": "eager"})
    with regraft.coverage() as found, torch.no_grad():
        seen = [observed(program, X, False) for program in (compiled, DERIVATIVES[name])]
        torch.testing.assert_close(*seen)
    assert not found.fallbacks and not found.faults


def observed(program, x, gradients):
    torch.manual_seed(3)
    given = x.clone().requires_grad_(gradients)
    results = torch.utils._pytree.tree_leaves(program(given))
    tracked = [value for value in results if value.requires_grad]
    if tracked:
        torch.autograd.backward(tracked, [torch.ones_like(value) for value in tracked])
    return [[value.detach() for value in results], [value.requires_grad for value in results], given.grad]


def written_without_gradients(row):
    own = row * 2
    with torch.no_grad():
        own.mul_(3)
    return own * row


def enabled_again(x):
    with torch.no_grad():

        def inner(row):
            with torch.enable_grad():
                return row * 2

        return vmap(inner)(x)


@pytest.mark.parametrize("program", [vmap(written_without_gradients), enabled_again])
def test_what_autograd_sees_differently_is_kept(program):
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft")
    assert observed(compiled, X, True)[0][0].equal(observed(program, X, True)[0][0])
    torch.testing.assert_close(observed(compiled, X, True), observed(program, X, True))


def test_derivatives_by_parameters():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, 2)

        def forward(self, x):
            given = {name: value.detach() for name, value in self.layer.named_parameters()}
            score = lambda p, row: functional_call(self.layer, p, (row[None],)).square().sum()  # noqa: E731
            return vmap(grad(score), (None, 0))(given, x)["weight"] * self.layer(x).sum()

    torch._dynamo.reset()
    model = Model()
    with regraft.coverage() as found:
        torch.testing.assert_close(torch.compile(model, backend="regraft")(X), model(X))
    assert not found.fallbacks


@not_in_old_torch("asks for a number of elements that it does not know")
def test_sizes_of_what_is_squeezed_in_place():
    """A layer of a single row is a product that is squeezed; its sizes are recorded where they are first used."""
    first, second = torch.randn(5, 6), torch.randn(2, 5)

    def program(first, second, x):
        score = lambda first, row: F.linear(F.linear(row, first).tanh(), second).sum()  # noqa: E731
        return vmap(grad(score), (None, 0))(first, x)

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft", dynamic=True)
    with regraft.coverage() as found:
        torch.testing.assert_close(compiled(first, second, X), program(first, second, X))
    assert not found.fallbacks

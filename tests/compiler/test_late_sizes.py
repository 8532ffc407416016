"""Sizes that a program makes known when it runs (a mask's count, `item()`), and those that Python computes."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.symbols import check
from support.thorough import one_row_in, takes_turns
from support.versions import OLD_TORCH, not_in_old_torch

import regraft

X = torch.linspace(-2, 3, 32).reshape(8, 4)
W = torch.linspace(-1, 1, 12).reshape(4, 3)
MASKS = [torch.arange(8) % 8 < n for n in (5, 3, 0, 1, 8)]
KEPT = {"aten.index.Tensor", "aten.nonzero.default", "aten._local_scalar_dense.default"}


def rows(x, m, w):
    y = x[m]
    return (
        y.sum(0), y.softmax(-1), y.softmax(0), (y @ w).relu(), F.layer_norm(y, (4,)), torch.cat([y, x, x[~m]]) + 1,
        y + (y * 2).sum(-1, keepdim=True), torch.arange(y.shape[0]) + 1, y * y.shape[0], y.cumsum(0) * 2,
        (y[:, None] * y[None, :] + 1).sum(-1), y.relu().reshape(-1) + 1, (y.view(-1, 2, 2) + 1).transpose(0, 1).sum(1),
        torch.ones(y.shape[0] * 2 + 1, 3) * y.shape[0], (y > 0).any(0), y.mean(-1), y.exp().t() + 1,
        torch.stack([y, y * 2], 1).flatten(0, 1) + 1, y.argmax(-1) + 1, y.repeat(2, 1) * 2, y.square().mean(0),
        torch.bmm(y[None].expand(2, -1, -1), y.t()[None].expand(2, -1, -1)).sum(-1), y.pow(2).mean(-1).rsqrt() + 1,
    )  # fmt: skip


def places(x, m, w):
    at = m.nonzero().squeeze(1)
    written, added = x.clone(), torch.zeros_like(x)
    written[at] = x[at] * 3 + 1
    added.index_add_(0, at, F.silu(x[None, at].reshape(-1, 4) @ w) @ w.t() * x[at, :1])
    both = x[at] @ x[x[:, 0] > 0].t()
    inner = x[at][x[at][:, 0] > 0]
    return at * 2, written, added, both.relu(), F.embedding(at, x) * 2, F.one_hot(at, 8) + 1, inner.sum(0), inner * 2


def items(x, m, w):
    n = m.sum().item()
    torch._check(n >= 0)
    torch._check(n <= 8)
    a, b = torch.stack([m.sum(), (~m).sum()]).tolist()
    torch._check(a >= 0)
    torch._check(b >= 0)
    torch._check(a + b == 8)
    u, v = x.split([a, b])
    return (
        torch.cat([torch.ones(n, 4), x]) * 2, torch.zeros(n, 4) + 1, torch.full((n,), 3.0) * n, torch.arange(n) * 2,
        x * n + n // 2, (x + (n - 5)).clamp(min=0) * ((n - 5) // 2), x * (n / 3), x + math.ceil(n / 2), x * m.sum(),
        x[0].expand(n, 4) + 1,
        F.pad(x[m], (1, 1, 2, 0), value=2.0) + 1, x[m][n // 2 :] * 2, x[m][: math.ceil(n / 2)] + 1,
        torch.ones(n, n).tril() * 2, torch.cat([v, u]) * 2, u.sum(0) + v.exp().sum(0),
    )  # fmt: skip


IN_GRAPH = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}


@pytest.mark.parametrize("program", [rows, places, items])
def test_sizes_that_the_program_makes_known(program):
    torch._dynamo.reset()
    with torch._dynamo.config.patch(IN_GRAPH), regraft.coverage() as cov:
        compiled = torch.compile(program, backend="regraft", fullgraph=True)
        for mask in MASKS:
            torch.testing.assert_close(compiled(X, mask, W), program(X, mask, W), equal_nan=True)
    assert not cov.fallbacks
    kept = {call.operator: call.message for graph in cov.graphs for code in graph.code for call in code.kept}
    known = {*KEPT, "aten.slice.Tensor"} if OLD_TORCH else KEPT  # slices whose sizes it does not tell
    assert not [name for name in kept if name not in known and "assert" not in name and "mm" not in name], kept


@one_row_in(2)
@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: x.sin()[:, : n.item()] * 2,
        lambda x, n: (x.sin()[:, 1 : n.item()] * 2).sum(-1),
        lambda x, n: x.sin()[:, -n.item() :] * 2,
        lambda x, n: torch.cat([x[:, : n.item()], x[:, n.item() :]], 1) + 1,
    ],
)
def test_slices_whose_length_no_check_tells(program):
    torch._dynamo.reset()
    with torch._dynamo.config.patch(IN_GRAPH), regraft.coverage() as cov:
        compiled = torch.compile(program, backend="regraft", fullgraph=True)
        for number in map(torch.tensor, (2, 1, 3, 0, 4, 9)):
            torch.testing.assert_close(compiled(X, number), program(X, number))
    assert not cov.fallbacks


def _joined(x, n):
    a, b = x.sin()[:, : n.item()], x[:, n.item() :] * 2
    return torch.cat([b, a], 1), b.exp()


@one_row_in(2)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: torch.cat([x[:, : n.item()], x[:, n.item() :]], 1),
        lambda x, n: torch.cat([x[:, n.item() :] * 2, x[:, : n.item()].flip(1)], 1).sin(),
        lambda x, n: torch.cat([x.new_zeros(x.shape[0], n.item()), x[:, n.item() :]], 1),
        lambda x, n: F.pad(x, (n.item(), 0)),
        lambda x, n: x[:, : n.item()] * 2,
        _joined,
    ],
)
def test_gradients_of_results_whose_sizes_are_data(program, dynamic):
    torch._dynamo.reset()
    with torch._dynamo.config.patch(IN_GRAPH), regraft.coverage() as cov:
        compiled = torch.compile(program, backend="regraft", fullgraph=True, dynamic=dynamic)
        for number in map(torch.tensor, (2, 1, 3, 0, 4)):
            gradients = []
            for run in (program, compiled):
                x = X.clone().requires_grad_()
                results = run(x, number)
                loss = sum((y * y).sum() for y in (results if isinstance(results, tuple) else (results,)))
                gradients.append(torch.autograd.grad(loss, x))
            torch.testing.assert_close(*gradients)
    assert not cov.fallbacks


def test_gpu_kernels_of_such_sizes():
    calls = [(X, mask, W) for mask in MASKS]
    kept = check(places, calls, "interpreter", rtol=1e-4, atol=1e-5)
    # "refused": rows that a reshape counted are not known to be as many as the indices.
    assert {code for _, code in kept} <= {"symbolic", "data-dependent", "library", "refused"}


def of_sizes(x):
    n = x.shape[0]
    return (
        x[: math.ceil(n / 2)] * 2, x[: int(n / 6)].sum(0), torch.ones(round(n * 0.3), 4) + x[:1],
        torch.cat([x, torch.zeros(math.floor(n * 0.7), 4)]).softmax(-1), x[: n & 7] * (n | 3) + (n ^ 5),
        x[: n >> 1] + 1,
        torch.arange(int(n / 2.5)) + 1, x[0].expand(int(n / 2.5), 4) + 1, x[: int(n**0.5)] * n**-0.5,
        F.interpolate(x[None], scale_factor=1.5) + 1,
        F.interpolate(x[None, None], scale_factor=0.6, mode="bilinear") * 2,
        F.pad(x, (0, 0, 0, math.ceil(n / 7) * 7 - n)).view(-1, 7, 4).sum(1), (x[: int(n / 3)] @ x.t()).relu().sum(0),
        torch.stack([part.sum() for part in x.split(math.ceil(n / 2))]), x * round(n / 3, 1),
        torch.ones(int(n / 3), int(n / 3)).tril(-1).sum(0) + x[: int(n / 3), 0], x.topk(int(n * 0.3), 0)[0].sum(1),
    )  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "interpreter"])
def test_sizes_that_python_computes(device):
    calls = [(torch.linspace(-2, 2, 4 * n).reshape(n, 4),) for n in (17, 30, 13)]
    kept = check(of_sizes, calls, device, rtol=1e-4, atol=1e-5)
    assert not [call for call in kept if call[1] in ("symbolic", "data-dependent", "failed")]


def experts(x, m, w):
    """A mixture of two experts, as it is often written."""
    chosen = F.one_hot(m.long(), 2).t()
    out = torch.zeros_like(x)
    for expert in range(2):
        (at,) = torch.where(chosen[expert])
        out.index_add_(0, at, F.silu(F.linear(x[at], w.t())) @ w.t() * (expert + 1))
    return out


@pytest.mark.parametrize("in_graph", [True, False])
def test_programs_train_with_sizes_that_they_make_known(in_graph):
    def program(x, m, w):
        y = x[m]
        return experts(x, m, w).sum() + (y @ w).softmax(-1).square().sum() + (y * y.shape[0]).sum()

    torch._dynamo.reset()
    with torch._dynamo.config.patch(dict.fromkeys(IN_GRAPH, in_graph)), regraft.coverage() as cov:
        compiled = torch.compile(program, backend="regraft", fullgraph=in_graph)
        for mask in MASKS:
            results = []
            for run in (program, compiled):
                x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
                loss = run(x, mask, w)
                results.append((loss, *torch.autograd.grad(loss, (x, w))))
            torch.testing.assert_close(*results)
    assert not cov.fallbacks


@pytest.mark.parametrize("dynamic", [None, True])
def test_parts_whose_sizes_are_data(dynamic):
    """A part is as long as it is told to be; a slice is as long as there is something to take."""

    def program(sizes, x):
        a, b, c = x.split(sizes.tolist())
        return a.sum(0), b * 2, torch.cat([c, a])

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True), regraft.coverage() as cov:
        compiled = torch.compile(program, backend="regraft", dynamic=dynamic, fullgraph=True)
        for sizes in ([1, 3, 4], [0, 8, 0], [2, 1, 5]):
            given = torch.tensor(sizes), X
            torch.testing.assert_close(compiled(*given), program(*given))
    assert not cov.faults


def _all_pairs(x):
    return (x[x[:, 0] > 0][:, None] * x[x[:, 0] > 0][None]).sum((0, 1))


def _own_classes(x):
    twice = [torch.cat([x[x[:, 0] > 0], x]) for _ in range(2)]
    return F.cross_entropy(twice[0], twice[1].argmax(1))


@pytest.mark.parametrize("function", [_all_pairs, _own_classes])
def test_sizes_of_equal_calls_are_one(function):
    """Autograd's partition makes one call of two, after which none makes the other size known."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="regraft", dynamic=True, options={"strict": True})
    with torch._dynamo.config.patch(**IN_GRAPH):
        for x in (X, X[:5], -X.abs()):
            x, y = x.clone().requires_grad_(), x.clone().requires_grad_()
            ours, theirs = compiled(x), function(y)
            torch.testing.assert_close(ours, theirs)
            torch.testing.assert_close(*(torch.autograd.grad(z.sum(), w)[0] for z, w in ((ours, x), (theirs, y))))


@not_in_old_torch("asks for what it cannot know of such sizes in strict mode, in AOTAutograd")
def test_backward_with_a_read_number_times_a_symbolic_size():
    """The gradient's size is a product of the number that the program read and a size: the number is their quotient."""

    def program(x, n):
        k = n.item()
        return x.repeat_interleave(k, 1) * 2, x.repeat_interleave(n, 0)

    torch._dynamo.reset()
    with torch._dynamo.config.patch(**IN_GRAPH):
        compiled = torch.compile(program, backend="regraft", dynamic=True, options={"strict": True})
        for sizes, times in (((4, 6), 3), ((3, 5), 2), ((3, 4), 4)):
            x, n = torch.randn(sizes, requires_grad=True), torch.tensor(times)
            ours, theirs = compiled(x, n), program(x, n)
            torch.testing.assert_close(ours, theirs)
            weights = [torch.randn_like(result) for result in theirs]
            torch.testing.assert_close(
                torch.autograd.grad(ours, x, weights), torch.autograd.grad(theirs, x, weights), rtol=1e-5, atol=1e-5
            )


@one_row_in(2)
@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x.sum(), x.sum() > 0, (torch.argwhere(x.sum() > 0) + 1).to(torch.uint8) // 3 * -3),
        lambda x: (x.sum(), x.sum() * 2, x[x > 0].view(-1, 1)[:, :0] * 3 + 1),
        lambda x: (x.sum(), x.new_zeros(0, x.nonzero().shape[0]) * 2 + x.sum()),
        lambda x: (x.sum() > 0, torch.nonzero(x.sum()) * 2.5, torch.nonzero(x.sum() < 0) - 1),
    ],
)
def test_kernels_of_no_elements_follow_the_call_that_makes_their_sizes_known(program):
    """Their memory is allocated with these sizes, although they read nothing."""
    with torch._dynamo.config.patch(**IN_GRAPH):
        for device in ("cpu", "interpreter"):
            check(program, [(X[0],), (X[-1],), (X[0] * 0,)], device)
        torch._dynamo.reset()
        compiled = torch.compile(program, backend="regraft", options={"strict": True})
        for x in (X[0], X[-1], X[0] * 0):
            torch.testing.assert_close(compiled(x), program(x))


def _counted(x):
    n = x.nonzero().shape[0]
    x.add_(1)
    return n


def _split(x):
    parts = x.long().tolist()
    x.mul_(2)
    return parts, x.sum().item()


NUMBERS = {
    "int": lambda x: ((x > 0).sum(), x.add_(1))[0].item(),
    "float": lambda x: ((x * 2).sum(), x.mul_(2))[0].item(),
    "bool": lambda x: ((x * 2 > 3).any(), x.zero_())[0].item(),
    "arithmetic": lambda x: ((x > 0).sum(), x.add_(1))[0].item() * 2 + x.shape[0],
    "beside a tensor": lambda x: (lambda n, y: (n.item(), y * 2))((x > 0).sum(), x.add_(1)),
    "of a part": lambda x: (x[1:].amax(), x[0].fill_(9))[0].item(),
    "twice": lambda x: (lambda a, _, b: (a.item(), b.item()))(x.sum(), x.add_(1), x.sum()),
    "count": _counted,
    "several": _split,
}


@one_row_in(2)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_a_program_gives_are_read_before_it_writes(name, dynamic):
    """Nothing but the result needs the number, so that the call could be made at the end."""
    torch._dynamo.reset()
    compiled = torch.compile(NUMBERS[name], backend="regraft", dynamic=dynamic, options={"strict": True})
    with torch._dynamo.config.patch(**IN_GRAPH):
        for x in ([1.0, 2, 3], [-2, -2, 1], [-5, 0, 3], [4, 5, -2]):
            mine, theirs = torch.tensor(x), torch.tensor(x)
            torch.testing.assert_close(compiled(mine), NUMBERS[name](theirs), rtol=0, atol=0)
            torch.testing.assert_close(mine, theirs)

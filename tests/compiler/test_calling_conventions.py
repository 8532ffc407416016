"""What AOTAutograd passes beside a program's inputs and outputs: results, gradients, aliases and writes are eager's.

Effect tokens, written inputs, outputs that are views or inputs, inputs given twice or overlapping, and what is saved
for the backward other than tensors. Each program runs twice, the second time with other sizes, for inference and for
training.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from support.thorough import THOROUGH, one_row_in, takes_turns
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_leaves

import regraft

PROGRAMS = {}


def program(function=None, *, inputs="two", frozen=False):
    """Register a program of two matrices: inputs "two", "same" or "overlapping"; the first asks for no gradient."""

    def register(function):
        PROGRAMS[function.__name__] = (function, inputs, frozen)
        return function

    return register if function is None else register(function)


def positive(x):
    return x @ x.t() + x.shape[0] * torch.eye(x.shape[0])


@program
def tokens(x, y):
    return torch.linalg.inv(positive(x)) @ y, (y * 2).tanh()


@program
def tokens_of_many_calls(x, y):
    a = positive(x)
    lu, pivots = torch.linalg.lu_factor(a)
    return torch.linalg.solve(a, y).t(), torch.linalg.lu_solve(lu, pivots, y), torch.linalg.matrix_power(a / 9, -2)


@program
def tokens_and_written_views(x, y):
    y.view(-1).add_(1)
    z = torch.linalg.cholesky(positive(x))
    return z, z[0], y.t(), (y * z.sum()).sigmoid()


@program
def written_data(x, y):
    x.add_(1)
    return x * y.sum(), x, x.view(-1), x[1]


@program
def written_metadata(x, y):
    x.t_()
    return x.sin(), y.unsqueeze_(0)


@program
def written_both(x, y):
    x.t_()
    x.mul_(2)
    return x.sin() + y.sum()


@program
def written_without_gradients(x, y):
    with torch.no_grad():
        x.mul_(2)
    y.detach().mul_(3)
    return x * y.sum()


@program
def written_through_views(x, y):
    x[0].mul_(2)
    x.view(-1)[1:3].add_(1)
    return x * 2


@program(frozen=True)
def written_by_what_has_gradients(x, y):
    x[0] = y[0]
    return x.sum(), x


@program(frozen=True)
def given_other_memory(x, y):
    x.data = y.detach() * 2
    return x + y, x * 3


@program(frozen=True)
def exchanged_memory(x, y):
    x.data, y.data = y.data, x.data
    return x - 2 * y, x * 3


@program
def views_of_inputs(x, y):
    return x.view(-1), y.t(), x[0], x.expand(2, *x.shape), x, y, *x.chunk(2, -1)


@program
def views_of_intermediates(x, y):
    z = x.sin()
    return z.view(-1), z.t(), z[0], z, y.cos().t(), *(y * 2).unbind()[:2], z


@program
def written_intermediates(x, y):
    z = x * y
    w = z.view(-1)
    w.add_(y.sum())
    return z, w[0]


@program(inputs="same")
def given_twice(x, y):
    x.mul_(2)
    return x + y


@program(inputs="overlapping")
def overlapping(x, y):
    x.mul_(2)
    return x.sum() + y


@program(frozen=True)
def other_outputs(x, y):
    with torch.no_grad():
        scale = y.abs().sum()
    return None, x * 2, 3, y.shape[0], y.numel() * 2, x > 0, y.argmax(), scale, y * scale, y.detach(), x


@program
def detached(x, y):
    z = x.sin()
    return z, z.detach().view(-1), x.detach(), y * z.sum().detach()


@program
def saved_numbers(x, y):
    a, b = x.t().exp(), y.permute(1, 0)[1:]
    return x.sum(0) / x.shape[0], y.repeat(2, 1) * y.shape[0], a * a.sum(), b * b.sigmoid(), x.mean(0, True) * x


@program
def sizes_of_data(x, y):
    places = (x > 0).nonzero()
    return places, places.shape[0], y * places.shape[0], x[x > 0] * 2, x[places[:, 0], places[:, 1]].exp()


@program
def empty(x, y):
    return x[:0] * 2, y.sin()[:, :0], y * 2


@program
def hooked(x, y):
    z = x * 2
    if z.requires_grad:
        z.register_hook(lambda grad: grad * 3)
    return z * y.sum()


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor, flag):
        ctx.save_for_backward(x)
        ctx.factor, ctx.flag, ctx.kept = factor, flag, x.exp()
        return x * factor if flag else x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.factor * x.cos() + ctx.kept, None, None


@program
def functions_with_state(x, y):
    return Scaled.apply(x, 3, True), Scaled.apply(y, 2.5, False)


class Module(nn.Module):
    """Parameters and buffers: used twice, written, returned."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.again = self.linear.weight
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, y):
        self.count.add_(1)
        z = self.norm(self.linear(x)) @ self.again
        return z, self.linear.weight.t(), self.count, self.count * 2, F.linear(y, self.again.detach())


def drawn(rows, seed):
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows + seed))


def given(rows, inputs, frozen, training):
    """Leaves, and the inputs that are made of them (written to, so not the leaves themselves)."""
    if inputs == "two":
        leaves = [drawn(rows, 0).requires_grad_(training and not frozen), drawn(rows, 1).requires_grad_(training)]
        return leaves, [leaf.clone() if leaf.requires_grad else leaf for leaf in leaves]
    leaf = drawn(2 * rows, 0).requires_grad_(training)
    base = leaf.clone()
    return [leaf], [base, base] if inputs == "same" else [base[: rows + 1], base[rows - 1 :]]


def described(value, others):
    if not isinstance(value, torch.Tensor):
        return value
    storages = [o.untyped_storage()._cdata if isinstance(o, torch.Tensor) else None for o in others]
    shared = [k for k, storage in enumerate(storages) if storage == value.untyped_storage()._cdata]
    same = [k for k, other in enumerate(others) if other is value]
    return value.dtype, value.shape, value.stride(), value.storage_offset(), value.requires_grad, same, shared


def run(call, leaves, inputs, module=None, retain=False):
    """What is to be equal: descriptions and values of outputs, inputs and gradients."""
    outputs = tree_leaves(call(*inputs), is_leaf=lambda value: value is None)
    everything = [*outputs, *inputs]
    descriptions = [described(value, everything) for value in everything]
    values = [value.detach().clone() for value in everything if isinstance(value, torch.Tensor)]
    roots = [value for value in outputs if isinstance(value, torch.Tensor) and value.requires_grad]
    if roots:
        loss = sum((root * torch.linspace(0.5, 1.5, root.numel()).view(root.shape)).sum() for root in roots)
        for again in (True, False) if retain else (False,):
            loss.backward(retain_graph=again)
    parameters, buffers = ([*module.parameters()], [*module.buffers()]) if module else ([], [])
    gradients = [leaf.grad for leaf in [*leaves, *parameters] if leaf.is_leaf]
    descriptions += [described(gradient, []) for gradient in gradients]
    return descriptions, values + [g.clone() for g in gradients if g is not None] + [b.clone() for b in buffers]


def assert_same(actual, expected):
    assert actual[0] == expected[0]
    torch.testing.assert_close(actual[1], expected[1], rtol=1e-4, atol=1e-5, equal_nan=True)


@takes_turns("training")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, training):
    function, inputs, frozen = PROGRAMS[name]
    torch.compiler.reset()
    compiled = torch.compile(function, backend="regraft")
    for rows in (4, 5) if training or THOROUGH else (4,):
        with regraft.coverage() as found:
            actual = run(compiled, *given(rows, inputs, frozen, training), retain=training and rows == 5)
        expected = run(function, *given(rows, inputs, frozen, training), retain=training and rows == 5)
        assert_same(actual, expected)
        assert not found.fallbacks


@pytest.mark.parametrize("training", [False, True])
def test_modules(training):
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Module().train(training)
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, backend="regraft")
    for rows in (4, 5):
        actual = run(compiled, *given(rows, "two", False, training), module=twin)
        assert_same(actual, run(model, *given(rows, "two", False, training), module=model))


class Taught(nn.Module):
    """A model and its moving average, whose parameters get other memory at each call."""

    def __init__(self):
        super().__init__()
        self.pupil = nn.Linear(4, 4)
        self.teacher = copy.deepcopy(self.pupil).requires_grad_(False)

    def forward(self, x, y):
        with torch.no_grad():
            for mean, parameter in zip(self.teacher.parameters(), self.pupil.parameters(), strict=True):
                mean.data = mean.data * 0.5 + parameter.data * 0.5
        return self.pupil(x) - self.teacher(y)


def test_parameters_that_get_other_memory():
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Taught()
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, backend="regraft")
    for rows in (4, 5, 5):
        for each in (model, twin):
            each.pupil.zero_grad()
            each.pupil.weight.data.add_(1)
        actual = run(compiled, *given(rows, "two", False, True), module=twin)
        assert_same(actual, run(model, *given(rows, "two", False, True), module=model))
        torch.testing.assert_close([*twin.parameters()], [*model.parameters()])


class Exchanged(Taught):
    """Two models that exchange the memory of their parameters at each call, before the first one is used or after."""

    def __init__(self, used_before):
        super().__init__()
        self.used_before = used_before

    def forward(self, x, y):
        before = self.pupil(x) if self.used_before else x
        for one, other in zip(self.pupil.parameters(), self.teacher.parameters(), strict=True):
            one.data, other.data = other.data, one.data
        return before, self.pupil(y), self.teacher(x)


@pytest.mark.parametrize("used_before", [False, True])
def test_parameters_that_exchange_memory(used_before):
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Exchanged(used_before)
    model.teacher.weight.data.add_(1)
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, backend="regraft")
    with regraft.coverage() as found:
        actual = run(compiled, *given(4, "two", False, True), module=twin)
    assert_same(actual, run(model, *given(4, "two", False, True), module=model))
    torch.testing.assert_close([*twin.parameters()], [*model.parameters()])
    assert [f.code for f in found.fallbacks] == (["moved-after-use"] if used_before else [])


@pytest.mark.parametrize("function", [tokens, saved_numbers, views_of_inputs])
def test_tensors_of_two(function):
    def step(call):
        leaves = [TwoTensor(drawn(4, k), drawn(4, k + 9)).requires_grad_() for k in (0, 1)]
        outputs = call(*leaves)
        sum(output.sum() for output in outputs).backward()
        found = [*outputs, *(leaf.grad for leaf in leaves)]
        assert all(isinstance(tensor, TwoTensor) for tensor in found)
        return [part.detach() for tensor in found for part in (tensor.a, tensor.b)]

    torch.compiler.reset()
    actual, expected = step(torch.compile(function, backend="regraft")), step(function)
    assert [t.stride() for t in actual] == [t.stride() for t in expected]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_saved_tensors_pass_through_hooks():
    def step(call):
        packed = []
        x, y = (drawn(4, k).requires_grad_() for k in (0, 1))
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t.clone(), lambda t: t):
            outputs = call(x, y)
        sum(output.sum() for output in outputs).backward()
        assert packed
        return [x.grad, y.grad]

    for function in (tokens, saved_numbers):
        torch.compiler.reset()
        torch.testing.assert_close(step(torch.compile(function, backend="regraft")), step(function))


def test_a_failed_check_raises_as_in_eager():
    torch.compiler.reset()
    compiled = torch.compile(torch.linalg.inv, backend="regraft")
    for x in (torch.zeros(3, 3), torch.zeros(3, 3, requires_grad=True)):
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            compiled(x)


def _scaled_in_place(y, t, scale, places):
    t.mul_(scale)
    y.index_put_((places,), t)
    return y.sin(), t.t()[0] * 2


def _written_where_masked(y, t, scale, places):
    keep = places[:, None] > 0
    y[keep.expand_as(y)] = scale.mean()
    y[places > 2] *= scale
    return y.sin(), t * 2


@one_row_in(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [_scaled_in_place, _written_where_masked])
def test_inputs_that_are_written_and_read_by_the_backward(function, dynamic):
    """Eager keeps a copy of what a write in place replaces; the derivative of a masked write has a size of data."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="regraft", dynamic=dynamic)
    with regraft.coverage() as report:
        for rows in (4, 5):
            results = []
            for run in (compiled, function):
                torch.manual_seed(0)
                x, scale = torch.randn(rows, 6, requires_grad=True), torch.randn(6, requires_grad=True)
                y, places = x * 2, torch.tensor([0, 3])
                if function is _written_where_masked:
                    places = torch.arange(rows)
                outputs = run(y, (x * 3)[:2], scale, places)
                gradients = torch.autograd.grad(sum(o.sum() for o in outputs), (x, scale))
                results.append((outputs, gradients))
            torch.testing.assert_close(*results)
    assert not report.fallbacks


VERIFIED = {
    "sizes": lambda x, n: x.view(-1)[: x.shape[0]] + x.shape[1] * n,
    "writes": lambda x, n: x.clone().add_(n) * 2,
    "sizes of data": lambda x, n: x[x > 0] * n,
}


@one_row_in(2)
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", VERIFIED)
def test_calls_by_which_dynamo_verifies(name, trains):
    """Dynamo calls what is compiled with its symbols. (Of `n / 3` it takes eager's results for wrong ones, too.)"""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(verify_correctness=True):
        compiled = torch.compile(VERIFIED[name], backend="regraft")
        for rows in (3, 5, 4):
            x = torch.randn(rows, 4, requires_grad=trains)
            torch.testing.assert_close(compiled(x, rows), VERIFIED[name](x, rows))

"""Seeding: every way to write dropout becomes one operator on a seed, and no mask is kept for the backward."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._dynamo import compiled_autograd
from torch.utils.checkpoint import checkpoint

import regraft
from regraft.compiler.autograd.differentiate import differentiate
from regraft.compiler.autograd.joint_graph import incoming_gradients
from regraft.compiler.autograd.seed_dropout import seed_calls
from regraft.compiler.codegen.wrapper.wrapper import generate
from regraft.rewrites.sizes import sizes_unread

from ...support.dropouts import ALL, ALPHA, BROADCAST, ELEMENTS
from ...support.lowering import trace
from ...support.thorough import one_row_in, takes_turns

P = 0.25
aten = torch.ops.aten


class Seeded:
    """A backend that seeds, splits with recomputation, and runs the graphs by calls: no kernels."""

    def __init__(self, fast=False):
        torch.compiler.reset()
        self.graphs, self.counts, self._fast = {}, Counter(), fast

    def __call__(self, graph_module, inputs):
        return differentiate(graph_module, inputs, self._compile, prepare=self._seed, recompute=True)

    def _seed(self, graph_module, kind):
        with sizes_unread(incoming_gradients(graph_module.graph)):  # as `Stages.prepare` does
            self.counts += seed_calls(graph_module, fast=self._fast)

    def _compile(self, graph_module, inputs, kind):
        self.graphs[kind] = graph_module
        return generate(graph_module, name=kind).call

    def operators(self, kind):
        return Counter(str(n.target).split(".")[-2] for n in self.graphs[kind].graph.nodes if _is_ours(n))


def _is_ours(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "regraft"


def compiled(function, fast=False, **kwargs):
    backend = Seeded(fast)
    return torch.compile(function, backend=backend, fullgraph=True, **kwargs), backend


def saved_sizes(result):
    return [tuple(t.shape) for t in result.grad_fn.saved_tensors if t is not None]


@takes_turns("fast")
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("form", ALL)
def test_every_form_is_drawn_from_a_seed_and_keeps_no_mask(form, fast):
    torch.manual_seed(0)
    x = torch.randn(16, 6, 5, 8).requires_grad_()
    run, backend = compiled(lambda x: ALL[form](x, P), fast)
    y = run(x)
    assert saved_sizes(y) == [(1,)]
    y.backward(torch.ones_like(y))
    drawn = "uniform" if form == "row mask" else "bernoulli"
    for kind in ("forward", "backward"):
        assert backend.operators(kind)[drawn] == 1
    assert backend.operators("forward") == {"seeds": 1, "split": 1, drawn: 1}
    dropped = x.grad == 0
    assert 0 < dropped.sum() < dropped.numel()
    (scale,) = x.grad[~dropped].unique().tolist()
    if form in ALPHA:
        assert len(y[dropped].unique()) == 1
        return
    assert scale == pytest.approx(1 / (1 - P))
    assert torch.equal(y == 0, dropped)
    torch.testing.assert_close(y, x * x.grad)
    if form in BROADCAST:
        assert all(len(sample.unique()) == 1 for sample in x.grad.flatten(0, 2))


@pytest.mark.parametrize("form", ["functional", "in place", "native"])
def test_nothing_or_everything_dropped(form):
    for p in (0.0, 1.0):
        x = torch.randn(8, 5).requires_grad_()
        y = compiled(lambda x, p=p: ELEMENTS[form](x, p))[0](x)
        torch.testing.assert_close(y, x * (1 - p))
        if y.requires_grad:
            assert (torch.autograd.grad(y.sum(), x)[0] == 1 - p).all()


@one_row_in(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("form", ["functional", "alpha", "rand_like >", "drop path", "bernoulli_"])
def test_dtypes(form, dtype):
    torch.manual_seed(0)
    x = torch.randn(64, 4, 3, 2, dtype=dtype).requires_grad_()
    y = compiled(lambda x: ALL[form](x, P))[0](x)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == dtype
    assert 0.6 < (x.grad != 0).float().mean() < 0.9
    if form not in ALPHA:
        (scale,) = x.grad[x.grad != 0].unique().tolist()
        assert scale == pytest.approx(1 / (1 - P), rel=2**-8)


def test_autocast():
    layer = torch.nn.Linear(8, 64)
    x = torch.randn(32, 8)
    run, _ = compiled(lambda x: F.dropout(layer(x), 0.5))
    with torch.autocast("cpu", torch.bfloat16):
        y, expected = run(x), layer(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y[y != 0], (expected * 2)[y != 0])
    assert 0.4 < (y == 0).float().mean() < 0.6
    y.sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_other_dtypes_stay_calls():
    def function(x):
        return (
            torch.rand_like(x), torch.rand(3, dtype=torch.complex64), torch.randperm(4),
            torch.multinomial(x.abs(), 1), torch.poisson(x.abs()),
        )  # fmt: skip

    module = trace(function, torch.randn(3, 4))
    assert seed_calls(module) == {"aten.rand_like": 1}
    seeded = torch.Tag.nondeterministic_seeded
    kept = {str(n.target) for n in module.graph.nodes if seeded in getattr(n.target, "tags", ())}
    assert {"aten.rand.default", "aten.randperm.default", "aten.multinomial.default", "aten.poisson.default"} <= kept


def test_draws_from_a_generator_stay_calls():
    generator = torch.Generator()
    try:
        module = trace(lambda x: x + torch.empty(4).uniform_(generator=generator), torch.randn(3, 4))
    except NotImplementedError:
        pytest.skip("this torch does not trace generators")
    assert not seed_calls(module)


def test_a_mask_is_a_function_of_its_seed():
    """No call of a graph repeats another's numbers, in 12 layers or beside each other; all come again with the seed."""

    def function(x):
        masks = []
        for _ in range(12):
            masks.append(F.dropout(torch.ones_like(x), 0.5))
            x = torch.tanh(x * masks[-1])
        return torch.stack(masks) + x * 0

    run, backend = compiled(function)
    x = torch.randn(32, 32).requires_grad_()
    torch.manual_seed(1)
    first, second = run(x), run(x)
    torch.manual_seed(1)
    again = run(x)
    assert torch.equal(first, again)
    drawn = torch.cat([first.detach(), second.detach()]).flatten(1) != 0
    apart = (drawn[:, None] ^ drawn[None]).float().mean(-1)
    assert (apart + torch.eye(24) > 0.4).all()
    assert apart.max() < 0.6
    assert backend.counts["aten.native_dropout"] == 12
    assert backend.operators("forward")["seeds"] == 1
    assert len([sizes for sizes in saved_sizes(first) if sizes == (12,)]) == 1


def test_sizes_are_symbolic():
    def function(x):
        return F.dropout(x.sin(), P).view(-1) * (torch.rand(x.shape[0] * x.shape[1]) < 0.5)

    run, backend = compiled(function, dynamic=True)
    for rows, width in [(8, 16), (13, 33), (64, 7)]:
        x = torch.randn(rows, width).requires_grad_()
        y = run(x)
        assert saved_sizes(y).count((2,)) == 1 and len(saved_sizes(y)) == 2
        y.sum().backward()
        kept = x.grad != 0
        assert torch.equal(y.view(rows, width) != 0, kept)
        torch.testing.assert_close(x.grad, x.cos() * kept / (1 - P))
    assert backend.counts.total() == 2


def test_draws_of_the_backward_stay_there():
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * torch.rand_like(grad)

    run, backend = compiled(lambda x: F.dropout(Noisy.apply(x), P))
    x = torch.randn(50).requires_grad_()
    y = run(x)
    first, second = (torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first == 0, second == 0)
    assert not torch.equal(first, second)
    assert backend.counts == {"aten.native_dropout": 1}


def test_a_second_backward_has_the_same_mask():
    run, _ = compiled(lambda x: F.dropout(x.sin(), P))
    x = torch.randn(50).requires_grad_()
    y = run(x)
    first, second = (torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_checkpointed_parts_draw_the_same_again():
    def block(x):
        return F.dropout(x.sin(), 0.5).exp() * torch.rand_like(x)

    def function(x):
        return checkpoint(block, checkpoint(block, x, use_reentrant=False), use_reentrant=False)

    run, backend = compiled(function)
    x = torch.randn(40, 40).requires_grad_()
    torch.manual_seed(2)
    y = run(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert backend.operators("backward")["bernoulli"] == 2
    torch.manual_seed(2)
    plain, _ = compiled(lambda x: block(block(x)))
    expected = plain(x)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(grad, torch.autograd.grad(expected.sum(), x)[0])


def test_noise_is_drawn_again_rather_than_kept():
    def function(x):
        return (x * torch.randn_like(x) + x * torch.rand_like(x)).exp()

    run, _ = compiled(function)
    x = torch.randn(64, 64).requires_grad_()
    y = run(x)
    assert sorted(saved_sizes(y)) == [(2,), (64, 64)]


def test_what_the_graph_returns_anyway_is_not_drawn_again():
    run, backend = compiled(lambda x: ((noise := torch.randn_like(x)), x * noise))
    noise, y = run(x := torch.randn(64, 64, requires_grad=True))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, noise)
    assert not backend.operators("backward")["normal"]


def test_random_graphs_without_gradients_in_them():
    run, backend = compiled(lambda x: (x * 2, torch.rand(3)))
    y, _ = run(torch.randn(3, requires_grad=True))
    y.sum().backward()
    assert backend.counts == {"aten.rand": 1}
    with torch.no_grad():
        run, backend = compiled(lambda x: F.dropout(x, 0.5))
        run(torch.randn(3))
    assert backend.operators("inference")["bernoulli"] == 1


def test_compiled_autograd_draws_the_masks_of_the_forward_again():
    """It traces the backward that was made before once more, seeds included."""
    x, w = (torch.randn(n, 16, generator=torch.Generator().manual_seed(n)).requires_grad_() for n in (24, 16))

    def program(x, w):
        return F.dropout(F.dropout(x @ w, 0.5) * 3, 0.5)

    torch._dynamo.reset()
    with regraft.coverage() as cov:
        result = torch.compile(program, backend="regraft")(x, w)
        with compiled_autograd._enable(torch.compile(backend="regraft")):
            result.sum().backward()
    assert [graph.kind for graph in cov.graphs] == ["training", "inference"]
    assert "not-differentiated" not in {f.code for f in cov.fallbacks}
    mask = (result.detach() != 0) * 12.0
    torch.testing.assert_close(result.detach(), mask * (x @ w).detach())
    torch.testing.assert_close(x.grad, mask @ w.detach().T)
    torch.testing.assert_close(w.grad, x.detach().T @ mask)

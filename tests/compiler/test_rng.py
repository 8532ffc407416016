"""Option `rng` from end to end, with kernels: what comes from which stream, and what is kept for the backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in, takes_turns
from torch import nn
from torch.utils.checkpoint import checkpoint

import regraft
from regraft.compiler.prims import ops

from ..support.dropouts import ALL, BROADCAST, ELEMENTS

P = 0.25
SEEDED = ("statistical", "fast")


def compiled(function, rng, **options):
    torch.compiler.reset()
    return torch.compile(function, backend="regraft", options={"rng": rng, **options})


# -- seeded -----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Dropout as elements, by hand, and in place, around a product."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        y = self.linear(F.dropout(x.relu(), P)) * (torch.rand_like(x) > P) / (1 - P)
        return x + F.dropout(y, P, inplace=True)


@pytest.mark.parametrize("rng", SEEDED)
def test_layers_keep_no_mask_and_share_their_kernels(rng):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(4)))
    with regraft.coverage() as seen:
        y = compiled(model, rng, debug=True)(torch.randn(32, 64))
        saved = [t for t in y.grad_fn.saved_tensors if t is not None]
        y.square().mean().backward()
    assert [tuple(t.shape) for t in saved if not t.dtype.is_floating_point] == [(12,)]
    details = seen.graphs[0].details
    assert sum(seen.graphs[0].changes("seed_dropout").values()) == 12
    for kernels in (details["kernels:forward"], details["kernels:backward"]):
        assert "hash32" in kernels and "philox" not in kernels  # masks alone, in whatever spelling
    written = [line for line in details["c++:forward"].splitlines() if line.startswith('extern "C" void k')]
    assert len(written) == 3 < details["kernels:forward"].count("kernel k")  # of the first, the last, and those between
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("rng", SEEDED)
def test_forward_and_backward_have_one_mask(rng):
    x = torch.randn(37, 53).requires_grad_()
    run = compiled(lambda x: F.dropout(F.dropout(x.sin(), P) * 2, 0.5).cos(), rng)
    y = run(x)
    y.sum().backward()
    # cos(0) = 1 where dropped; its derivative there is 0
    kept = y != 1
    inner = x.sin() * 2 / (1 - P) / 0.5
    torch.testing.assert_close(y, torch.where(kept, inner.cos(), 1.0))
    torch.testing.assert_close(x.grad, torch.where(kept, -inner.sin() * x.cos() * 2 / (1 - P) / 0.5, 0.0))


@pytest.mark.parametrize("rng", SEEDED)
def test_kernels_draw_what_the_operators_do(rng):
    """In every layout, with symbolic sizes, in the tail of vectors: an element's number is a function of its place."""
    sizes = (5, 7, 13)

    def function(x):
        y = x.permute(2, 0, 1)
        return F.dropout(torch.ones_like(y), P), torch.rand(y.shape), torch.rand_like(y), F.dropout(y, P) / y

    x = torch.randn(sizes)
    torch.manual_seed(4)
    plain = compiled(function, rng)(x)
    torch.compiler.reset()
    dynamic = torch.compile(function, backend="regraft", dynamic=True, options={"rng": rng})
    torch.manual_seed(4)
    for a, b in zip(plain, dynamic(x), strict=True):
        torch.testing.assert_close(a, b)
    torch.manual_seed(4)
    seeds = ops.split(ops.seeds(4))
    fast = rng == "fast"
    assert torch.equal(plain[0] != 0, ops.bernoulli([13, 5, 7], 1 - P, seeds[0], True))
    assert torch.equal(plain[1], ops.uniform([13, 5, 7], seeds[1], torch.float32, False, fast))
    assert torch.equal(plain[2], ops.uniform([13, 5, 7], seeds[2], torch.float32, False, fast))
    assert torch.equal(plain[3] != 0, ops.bernoulli([13, 5, 7], 1 - P, seeds[3], True))


@pytest.mark.parametrize("rng", SEEDED)
def test_each_call_draws_anew_and_seeds_repeat(rng):
    run = compiled(lambda x: F.dropout(x, 0.5) * (torch.rand_like(x) < 0.5), rng)
    x = torch.ones(40, 40)
    torch.manual_seed(9)
    first, second, after = run(x), run(x), torch.rand(3)
    torch.manual_seed(9)
    assert torch.equal(run(x), first) and torch.equal(run(x), second) and torch.equal(torch.rand(3), after)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("rng", SEEDED)
def test_a_run_takes_one_number_a_call_from_eagers_generator(rng):
    run = compiled(lambda x: F.dropout(x, 0.5) + F.dropout(x, 0.25), rng)
    run(torch.randn(3))
    torch.manual_seed(5)
    run(torch.randn(1).expand(70, 3))
    after = torch.rand(4)
    torch.manual_seed(5)
    torch.randn(1)
    torch.randint(0, 2**63 - 1, (2,))
    assert torch.equal(after, torch.rand(4))


def test_layouts_are_as_promised():
    x = torch.randn(6, 8)
    made = compiled(lambda x: (*torch.native_dropout(x.t(), P, True), torch.rand_like(x.t())), "statistical")(x)
    expected = *torch.native_dropout(x.t(), P, True), torch.rand_like(x.t())
    assert [y.stride() for y in made] == [e.stride() for e in expected]


def test_random_calls_that_stay_calls_keep_their_stream_beside_seeded_ones():
    def function(x):
        return F.dropout(x, 0.5), torch.multinomial(x.abs(), 2), torch.randperm(5)

    x = torch.randn(6, 8)
    run = compiled(function, "statistical")
    torch.manual_seed(1)
    _, drawn, order = run(x)
    torch.manual_seed(1)
    torch.randint(0, 2**63 - 1, (1,))
    assert torch.equal(drawn, torch.multinomial(x.abs(), 2)) and torch.equal(order, torch.randperm(5))


# -- inside attention -------------------------------------------------------------------------------------------------


def weights_of(q, k):
    return (q @ k.mT / 8**0.5).softmax(-1)


def attentions(forms):
    """All of them, of the same operands; the values are the unit matrix, so that the weights come out."""

    def function(q, k):
        return [form(weights_of(q, k), P) @ torch.eye(6).expand(2, 4, 6, 6) for form in forms.values()]

    return function


def test_attention_with_any_spelling_of_dropout_is_one_operator_with_one_mask():
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8)
    with regraft.coverage() as seen:
        made = compiled(attentions(ELEMENTS), "statistical", profit="always")(q, k)
    assert seen.matches["sdpa"] == len(ELEMENTS)
    expected = weights_of(q, k) / (1 - P)
    for name, weights in zip(ELEMENTS, made, strict=True):
        kept = weights != 0
        assert 0.6 < kept.float().mean() < 0.9, name
        torch.testing.assert_close(weights, expected * kept, msg=name)
    masks = torch.stack([weights != 0 for weights in made]).flatten(1)
    assert len(masks.unique(dim=0)) == len(masks)


def test_attention_that_drops_rows_or_samples_keeps_doing_so():
    torch.manual_seed(0)
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8)
    made = compiled(attentions(BROADCAST), "statistical", profit="always")(q, k)
    expected = weights_of(q, k) / (1 - P)
    for name, weights in zip(BROADCAST, made, strict=True):
        torch.testing.assert_close(weights, expected * (weights != 0), msg=name)
        assert all((row != 0).all() or (row == 0).all() for row in weights.flatten(0, 2)), name


def test_attention_keeps_eagers_stream_where_asked_to():
    """What would draw other numbers, or in another order, is left as it was written."""
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8)
    function = attentions(ELEMENTS | BROADCAST)
    torch.manual_seed(6)
    with regraft.coverage() as seen:
        made = [*compiled(function, "eager", profit="always")(q, k), torch.rand(2)]
    torch.manual_seed(6)
    for name, a, b in zip([*ELEMENTS, *BROADCAST, "after"], made, [*function(q, k), torch.rand(2)], strict=True):
        torch.testing.assert_close(a, b, msg=name)
    assert seen.matches["sdpa"] > 0
    assert {"random-stream-changes"} <= {miss.code for graph in seen.graphs for miss in graph.near_misses}


# -- eager ------------------------------------------------------------------------------------------------------------


def surrounded(x):
    """Draws of every kind before, between and after dropouts."""
    before = torch.rand(3), torch.randn(2, 2), torch.randint(0, 9, (4,))
    y = F.dropout(x, P) * torch.empty_like(x).bernoulli_(0.5)
    between = torch.multinomial(x.detach().abs() + 0.1, 2), torch.randperm(5), torch.normal(0.0, 1.0, (3,))
    z = F.dropout1d(y[None], P)[0] + F.alpha_dropout(y, P, True) + torch.randn_like(x) * x
    after = torch.rand_like(x), torch.empty(5).exponential_(), torch.empty(4).uniform_(-1, 1)
    return z * (torch.rand(x.shape) < 0.5), before, between, after, torch.bernoulli(x.detach().sigmoid())


def attend(x):
    q, k, v = (x.view(6, 4, 2, 4).transpose(1, 2) * n for n in (1, 2, 3))
    noise = torch.rand(3)
    weights = F.dropout((q @ k.mT / 2).softmax(-1), P)
    mixed = torch.randn_like(x)
    fused = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
    return (weights @ v).transpose(1, 2).reshape(x.shape) + fused.sum() * 0, noise, mixed, torch.rand(2)


def broken(x):
    y = F.dropout(x, P)
    torch._dynamo.graph_break()
    y = y * (torch.rand_like(y) > 0.5)
    torch._dynamo.graph_break()
    return F.dropout(y, P), torch.randn(3)


def reseeded(x):
    torch.manual_seed(11)
    return F.dropout(x, P) * torch.rand_like(x)


def checkpointed(x):
    def block(x):
        return F.dropout(x * 2, 0.5) * torch.rand_like(x)

    y = checkpoint(block, x, use_reentrant=False, preserve_rng_state=True)
    return checkpoint(block, y, use_reentrant=False) * torch.rand_like(x), torch.rand(3)


def leaves(value):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def steps(run, x):
    """What three training steps draw, their gradients, and what eager code draws between and after them."""
    torch.manual_seed(3)
    seen = []
    for _ in range(3):
        leaf = x.clone().requires_grad_()
        made = leaves(run(leaf))
        made[0].sum().backward()
        seen += [*made, leaf.grad, torch.rand(2)]
    with torch.no_grad():
        seen += [*leaves(run(x)), torch.randn(2)]
    return seen


FORMS = {name: (lambda x, name=name: ALL[name](x.view(6, 4, 2, 4), P)) for name in ALL}


@one_row_in(2)
@pytest.mark.parametrize("function", [surrounded, attend, broken, reseeded, checkpointed])
def test_eager_keeps_eagers_stream(function):
    torch.manual_seed(0)
    x = torch.randn(6, 32)
    expected = steps(function, x)
    for made, drawn in zip(steps(compiled(function, "eager"), x), expected, strict=True):
        torch.testing.assert_close(made, drawn)


CHECKPOINTED = {
    "one": lambda x: x.sin() * torch.rand_like(x), "two": lambda x: torch.randn_like(x).exp() * x + torch.rand(x.shape),
    "dropped": lambda x: F.dropout(x.sin(), 0.5) * torch.rand(x.shape[0], 1),
    "drawn by chance": lambda x: (x.cos() * torch.bernoulli(x.sigmoid())).softmax(-1),
}  # fmt: skip


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_what_a_checkpoint_draws_again_is_compiled(name, dynamic):
    """Calls with a generator's old state have metadata, without which nothing that reads them was lowered."""

    def function(x):
        return checkpoint(CHECKPOINTED[name], x, use_reentrant=False) + torch.rand_like(x)

    torch.compiler.reset()
    run = torch.compile(function, backend="regraft", dynamic=dynamic, options={"rng": "eager", "strict": True})
    for rows in (6, 5):
        x = torch.randn(rows, 4)
        for made, drawn in zip(steps(run, x), steps(function, x), strict=True):
            torch.testing.assert_close(made, drawn)


def test_eager_keeps_eagers_stream_in_every_form():
    """One program of all forms: a draw more or less, or out of order, would show in all that follow."""

    def function(x):
        return [form(x) for form in FORMS.values()]

    x = torch.randn(6, 32)
    run = compiled(function, "eager")
    for p in (0, 1):
        torch.manual_seed(p)
        made = [*leaves(run(x)), torch.rand(1)]
        torch.manual_seed(p)
        expected = [*leaves(function(x)), torch.rand(1)]
        for name, a, b in zip([*FORMS, "after"], made, expected, strict=True):
            torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_eager_draws_where_eager_does(p):
    """Of p = 0 and p = 1 some spellings draw and some do not."""

    def function(x):
        forms = [f(x, p) for f in (F.dropout, F.dropout2d, F.alpha_dropout)]
        return *forms, torch.native_dropout(x, p, True), torch.dropout(x, p, True), torch.rand(3)

    x = torch.randn(2, 3, 4, 5)
    torch.manual_seed(1)
    made = [*leaves(compiled(function, "eager")(x)), torch.rand(3)]
    torch.manual_seed(1)
    for a, b in zip(made, [*leaves(function(x)), torch.rand(3)], strict=True):
        torch.testing.assert_close(a, b)


DRAWS = {
    "exponential": lambda x: torch.empty_like(x).exponential_(),
    "geometric": lambda x: torch.empty_like(x).geometric_(0.01),
    "cauchy": lambda x: torch.empty_like(x).cauchy_(),
    "log_normal": lambda x: torch.empty_like(x).log_normal_(),
    "uniform": lambda x: torch.empty_like(x).uniform_(),
    "normal": lambda x: torch.empty_like(x).normal_(),
    "random": lambda x: torch.empty_like(x).random_(1000),
    "randint_like": lambda x: torch.randint_like(x, 1000),
    "rrelu": lambda x: F.rrelu(torch.full_like(x, -1.0), 0.1, 0.9, training=True),
    "dirichlet": lambda x: torch._sample_dirichlet(torch.full_like(x, 2.0)),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
}


@one_row_in(2)
@takes_turns("rng")
@pytest.mark.parametrize("rng", ["statistical", "fast", "eager"])
@pytest.mark.parametrize("name", DRAWS)
def test_equal_draws_of_a_training_program_are_several(name, rng):
    def program(x):
        return x - DRAWS[name](x.detach()), x - DRAWS[name](x.detach())

    torch._dynamo.reset()
    x = torch.zeros(3, 5, requires_grad=True)
    torch.manual_seed(0)
    one, other = torch.compile(program, backend="regraft", options={"rng": rng})(x)
    assert not torch.equal(one, other)
    if rng == "eager":
        torch.manual_seed(0)
        torch.testing.assert_close((one, other), program(x))

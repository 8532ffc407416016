import pytest
import torch
import torch.nn.functional as F
from support.engine import X, capture, ops
from support.thorough import one_row_in

from regraft.rewrites.effects import mark_gradients
from regraft.rewrites.functional import functionalize_temporaries, remove_inactive_dropout, write_to_whole_tensors
from regraft.rewrites.verifier import verify_graph


def functional(function, *inputs):
    module = capture(function, *(inputs or (X,)))
    count = functionalize_temporaries(module.graph)
    module.recompile()
    return module, count


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda a: torch.exp(a).div_(8).relu_(), ["exp", "div", "relu"]),
        (lambda a: torch.exp(a).masked_fill_(a > 0, 1.0), ["exp", "gt", "masked_fill"]),
        (lambda a: (a * 2).add_(a, alpha=3), ["mul", "add"]),
    ],
)
def test_temporaries(function, expected):
    module, count = functional(function)
    assert ops(module) == expected and count == sum(op not in ("exp", "gt", "mul") for op in expected)
    assert torch.equal(module(X), function(X))


def test_operands_that_get_other_memory():
    """Such a call writes to nothing: its operand is another tensor afterwards, an input among them."""

    def program(a):
        a.set_((a * 2).exp_())
        return a + 1

    for function in (program, lambda a: program(a * 3)):
        module, count = functional(function, X.clone())
        assert "set_" in ops(module) and count == 1
        actual, expected = X.clone(), X.clone()
        assert torch.equal(module(actual), function(expected)) and torch.equal(actual, expected)


def test_metadata_of_operands_that_are_turned_in_place_stays():
    def program(a):
        b = (a * 2).clamp_(-1, 1).relu_()
        b.copy_(a * a)
        b.squeeze_().unsqueeze_(0).transpose_(0, 1)
        return b + 1

    module, _ = functional(program)
    assert torch.equal(module(X), program(X))
    shapes = {node.name: tuple(node.meta["val"].shape) for node in module.graph.nodes if "val" in node.meta}
    assert shapes["clamp_"] == shapes["relu_"] == shapes["copy_"] == tuple(X.shape), shapes


def test_results_are_turned_in_place():
    """A view out of place is another tensor, and autograd's replay fails where only some calls are views."""
    turned = lambda a: (a * 2).transpose_(0, 1).t_()  # noqa: E731
    module, count = functional(turned)
    assert count == 0 and torch.equal(module(X), turned(X))
    module, count = functional(lambda a: (a * 2).t_().relu())
    assert ops(module) == ["mul", "t", "relu"] and count == 1

    def program(x):
        y = x * 2
        y.transpose_(0, 1)
        return y, y.t_()

    torch._dynamo.reset()
    first, second = torch.compile(program, backend="regraft")(X.clone().requires_grad_())
    assert first is second and torch.equal(first, X * 2)


def seen_later(a):
    e = torch.exp(a)
    view = e.view(-1)
    e.add_(1)
    return view, e


def unseen(write, use):
    """A write to `x`'s copy that autograd does not see: it has a gradient, as if nothing had been written."""

    def program(x):
        y = x.sin()
        with torch.no_grad():
            write(y)
        return use(y, x)

    return program


WRITES = {
    "scaled unseen": unseen(lambda y: y.mul_(2), lambda y, x: y * x),
    "cleared unseen": unseen(lambda y: y[1:].zero_(), lambda y, x: y.exp()),
    "clamped unseen": unseen(lambda y: y.view(-1).clamp_(max=0.5), lambda y, x: torch.softmax(y, -1)),
    "attention unseen": unseen(lambda y: y.add_(1), lambda y, x: (y @ y.mT / 2).softmax(-1) @ y),
    "copy": lambda x: x.neg().copy_(x.sin()),
    "equal": lambda x: x.neg().eq_(0.5),
    "not equal": lambda x: x.neg().ne_(x),
    "both": lambda x: x.neg().logical_and_(x),
    "not": lambda x: x.neg().logical_not_(),
    "sign": lambda x: x.neg().sign_(),
    "filled": lambda x: x.neg().fill_(2),
    "zero": lambda x: x.neg().zero_(),
    "coins": lambda x: x.neg().bernoulli_(0.5),
    "copied over a part": lambda x: x.neg().view(-1).copy_(x.sin().view(-1)),
}


@one_row_in(3)
@pytest.mark.parametrize("what", WRITES)
def test_a_write_keeps_what_autograd_makes_of_it(what):
    results = []
    for compiled in (False, True):
        x = X.clone().requires_grad_()
        call = WRITES[what]
        if compiled:
            call = torch.compile(call, backend="regraft", options={"strict": True, "rng": "eager"})
        torch.manual_seed(0)
        result = call(x)
        result.sum().backward()
        results.append((result.detach(), result.requires_grad, x.grad))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def in_two_steps(a):
    e = torch.exp(a)
    first = e.add_(1)
    return first.mul_(2)


@pytest.mark.parametrize("function", [lambda a: a.add_(1), lambda a: a.view(-1).add_(1), seen_later])
def test_observable_writes_stay(function):
    module, count = functional(function)
    assert count == 0
    x, y = X.clone(), X.clone()
    ours, eager = module(x), function(y)
    assert torch.equal(x, y)
    torch.testing.assert_close(ours, eager, rtol=0, atol=0)


def test_in_two_steps():
    module, count = functional(in_two_steps)
    assert count == 2 and torch.equal(module(X), in_two_steps(X))


def test_views_made_after_the_write_follow_it():
    module, count = functional(lambda a: torch.exp(a).add_(1).view(-1).relu_())
    assert count == 2 and ops(module) == ["exp", "add", "view", "relu"]


def _all_of(x, *dims, start=0, end=2**63 - 1, step=1):
    """A part of a tensor as programs slice symbolic sizes: all of it by default."""
    for dim in dims:
        x = torch.ops.aten.slice.Tensor(x, dim, start, end, step)
    return x


def _written_through(*dims, read_view=False, **part):
    def program(a):
        e = torch.exp(a)
        view = _all_of(e, *dims, **part)
        view.mul_(3)
        return (view + e if read_view else e).softmax(-1)

    return program


def _to_an_input(a):
    _all_of(a, 0, 1).mul_(2)
    return a + 1


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (_written_through(0), 1),
        (_written_through(0, 1), 1),
        (_written_through(0, end=X.shape[0]), 1),
        (_written_through(0, read_view=True), 0),
        (_written_through(0, start=1), 0),
        (_written_through(1, end=1), 0),
        (_written_through(0, step=2), 0),
        (_to_an_input, 0),
    ],
)
def test_writes_through_slices_of_all_write_to_the_tensor(function, expected):
    """Programs with symbolic sizes slice where others do not: `scores[:, :, mask] = -inf`."""
    module = capture(function, X)
    write_to_whole_tensors(module.graph)
    assert functionalize_temporaries(module.graph) == expected
    module.recompile()
    x, y = X.clone(), X.clone()
    assert torch.equal(module(x), function(y)) and torch.equal(x, y)


def written_wider(a):
    narrow = a.bfloat16() * 2
    narrow += a
    narrow.mul_(a)
    return narrow.view(-1).add_(1)


def test_a_write_of_something_wider_is_cast_back():
    module, count = functional(written_wider)
    assert count == 3 and ops(module) == ["to", "mul", "add", "to", "mul", "to", "view", "add"]
    assert module(X).dtype == torch.bfloat16 and torch.equal(module(X), written_wider(X))


def read_before_the_next_write(a):
    narrow = a.bfloat16() * 2
    first = narrow.add_(a)
    view = first.view(-1)
    first.mul_(3)
    return view


def test_what_is_cast_back_has_aliases_too():
    module, count = functional(read_before_the_next_write)
    assert count == 1 and torch.equal(module(X), read_before_the_next_write(X))


def test_a_written_comparison_is_cast_back():
    module, count = functional(lambda a: a.long().eq_(a))
    assert count == 1 and ops(module) == ["to", "eq", "to"] and torch.equal(module(X), X.long().eq_(X))


def test_what_reads_an_inactive_dropout_has_its_operands_strides():
    """Tracing records the strides of a copy, where eager hands the operand on."""

    def function(x):
        return torch.nn.functional.dropout(x.expand(3, 5, 4), 0.1, training=False).to(torch.float32).mT

    module = capture(function, torch.randn(3, 1, 4))
    assert remove_inactive_dropout(module.graph) == 1
    verify_graph(module.graph)
    (result,) = module.graph.output_node().all_input_nodes
    assert result.meta["val"].stride() == (4, 1, 0)


def test_a_draw_without_a_derivative_stays_in_place_where_a_gradient_flows():
    """In place, autograd knows one of zeros."""
    for wants, expected in ((True, ["clone", "bernoulli_"]), (False, ["clone", "bernoulli"])):
        module = capture(lambda a: a.clone().bernoulli_(0.3), X)
        mark_gradients(module.graph, [wants])
        functionalize_temporaries(module.graph)
        assert ops(module) == expected


def _written_before(a):
    made = torch.empty_like(a)
    made.view(-1).copy_(a.reshape(-1))
    return made.bernoulli_(0.3)


DRAWN = {
    "empty_like": (lambda a: torch.empty_like(a).bernoulli_(0.3), ["empty_like", "bernoulli"]),
    "new_empty": (lambda a: a.new_empty(a.shape).bernoulli_(0.3), ["new_empty", "bernoulli"]),
    "written before": (_written_before, None),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_draw_into_new_memory_like_what_has_a_gradient(name):
    """The memory has the sizes of it, and no history."""
    function, expected = DRAWN[name]
    module = capture(function, X)
    mark_gradients(module.graph, [True])
    functionalize_temporaries(module.graph)
    assert ops(module) == expected if expected else "bernoulli_" in ops(module)


def test_an_inactive_dropout_with_a_hook_stays():
    """AOTAutograd loses the hook of a view that is returned beside what it is a view of."""

    def program(x):
        y = x * 2
        z = torch.nn.functional.dropout(y.reshape(1, 1, 8), 0.0)
        z.register_hook(lambda g: g * 3)
        return z, y

    def gradient(function):
        x = torch.ones(1, 8, requires_grad=True)
        return torch.autograd.grad(sum(r.sum() for r in function(x)), x)[0]

    compiled = torch.compile(program, backend="regraft", options={"strict": True})
    assert torch.equal(gradient(compiled), gradient(program))


@pytest.mark.parametrize(
    ("write", "x"),
    [
        *((w, torch.tensor([1.5, 2.0])) for w in (torch.acosh_, torch.asinh_, torch.cosh_)),
        (torch.atanh_, torch.tensor([0.5, 0.25])), (lambda x: F.silu(x, inplace=True), torch.tensor([1.5, 2.0])),
        (lambda x: F.silu(x, inplace=True), torch.tensor([1.5 + 1j, 2.0])),
    ],
)  # fmt: skip
def test_a_write_is_derived_where_eager_derives_it(write, x):
    """Autograd has no derivative of some writes, or has one of the write alone."""

    def program(x):
        y = x * 1
        write(y)
        return y * 1

    def run(function):
        given = x.clone().requires_grad_()
        try:
            function(given).abs().sum().backward()
        except (RuntimeError, NotImplementedError) as error:
            return error
        return given.grad

    torch.compiler.reset()
    eager, ours = run(program), run(torch.compile(program, backend="regraft", options={"strict": True}))
    assert isinstance(eager, torch.Tensor) == isinstance(ours, torch.Tensor), (eager, ours)
    assert not isinstance(eager, torch.Tensor) or torch.allclose(eager, ours)

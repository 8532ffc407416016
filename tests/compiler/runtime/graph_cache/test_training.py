"""Recalled training steps: outputs and gradients are those of the first compilation, whoever asks for them and how."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.caches import cache_in
from support.thorough import one_row_in

import regraft


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    with cache_in(tmp_path):
        yield


def recalled(cov):
    return all("capture" not in graph.seconds for graph in cov.graphs) and bool(cov.graphs)


def steps(function, inputs, use=lambda out: out[0].sum() if isinstance(out, tuple) else out.sum()):
    """Outputs and gradients by eager, compiled, and recalled; whether the last was."""
    results = []
    for how in ("eager", "compiled", "recalled"):
        torch.compiler.reset()
        torch.manual_seed(0)
        mine = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        with regraft.coverage() as cov:
            run = function if how == "eager" else torch.compile(function, backend="regraft")
            out = run(*mine)
            use(out).backward()
        outs = [x for x in (out if isinstance(out, tuple) else (out,)) if isinstance(x, torch.Tensor)]
        results.append(([x.detach() for x in outs], [x.grad for x in mine], [x.requires_grad for x in outs]))
    return results, recalled(cov)


def held(results):
    (outs, grads, flags), *others = results
    for other in others:
        torch.testing.assert_close(other[0], outs)
        assert other[2] == flags
        for mine, eagers in zip(other[1], grads, strict=True):
            assert (mine is None) == (eagers is None)
            if mine is not None:
                torch.testing.assert_close(mine, eagers)
    for mine, first in zip(results[2][0], results[1][0], strict=True):
        assert mine.stride() == first.stride() and torch.equal(mine, first)


def tensors(*grads):
    torch.manual_seed(1)
    return [torch.randn(6, 6, requires_grad=wanted) for wanted in grads]


PROGRAMS = {
    "one": lambda x, w: F.gelu(x @ w).softmax(-1),
    "several": lambda x, w: ((x @ w).sin(), (x * 2).exp(), w.sum()),
    "detached": lambda x, w: ((x @ w).relu(), (x * 3).detach(), x.argmax(-1)),
    "transposed": lambda x, w: ((x @ w).tanh().t().contiguous().t(), x.cos()),
    "single view": lambda x, w: F.linear(x.view(2, 3, 6), w).relu() @ w,
    "constant": lambda x, w: ((x @ w).sin(), 3),
    "loss": lambda x, w: (F.cross_entropy(x @ w, torch.arange(6)), x @ w),
}
USES = {
    "first": lambda out: (out[0] if isinstance(out, tuple) else out).sum(),
    "all": lambda out: sum(x.sum() for x in (out if isinstance(out, tuple) else (out,))
                           if isinstance(x, torch.Tensor) and x.requires_grad),
    "turned": lambda out: ((out[0] if isinstance(out, tuple) else out).mT.square() if (
        out[0] if isinstance(out, tuple) else out).ndim > 1 else (out[0] if isinstance(out, tuple) else out)).sum(),
}  # fmt: skip


@one_row_in(3)
@pytest.mark.parametrize(("name", "use"), [
    *((name, "all") for name in PROGRAMS), ("several", "first"), ("loss", "first"), ("transposed", "turned"),
])  # fmt: skip
def test_a_recalled_step_is_the_compiled_one(name, use):
    results, again = steps(PROGRAMS[name], tensors(True, True), USES[use])
    held(results)
    assert again


def test_an_input_that_is_written_and_returned():
    program = lambda x, w: ((x.sum() + w).sin(), x.add_(1), w * 2)  # noqa: E731
    results, again = steps(program, tensors(False, True))
    held(results)
    assert again


@pytest.mark.parametrize("grads", [(True, False), (False, True)])
def test_inputs_without_gradients(grads):
    results, again = steps(PROGRAMS["one"], tensors(*grads))
    held(results)
    assert again


def test_dropout_draws_what_the_compiled_one_draws():
    results, again = steps(lambda x, w: F.dropout(x @ w, 0.5).sin(), tensors(True, True))
    assert again and all(torch.equal(a, b) for k in (0, 1) for a, b in zip(results[1][k], results[2][k], strict=True))


def twice(function, inputs):
    """The recalled function."""
    for _ in range(2):
        torch.compiler.reset()
        run = torch.compile(function, backend="regraft")
        with regraft.coverage() as cov:
            out = run(*inputs)
            (out[0] if isinstance(out, tuple) else out).sum().backward(inputs=[x for x in inputs if x.requires_grad])
        for x in inputs:
            x.grad = None
    assert recalled(cov)
    return run


def test_backward_twice_and_gradients_of_gradients():
    x, w = inputs = tensors(True, True)
    loss = twice(PROGRAMS["one"], inputs)(x, w).square().sum()
    loss.backward(retain_graph=True)
    first = x.grad.clone()
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    (made,) = torch.autograd.grad(twice(PROGRAMS["one"], inputs)(x, w).square().sum(), x, create_graph=True)
    assert made.requires_grad
    x.grad = None
    made.sum().backward()
    (eagers,) = torch.autograd.grad(PROGRAMS["one"](x, w).square().sum(), x, create_graph=True)
    torch.testing.assert_close(x.grad, torch.autograd.grad(eagers.sum(), x)[0])


@one_row_in(2)
@pytest.mark.parametrize("function", [PROGRAMS["one"], lambda x, w: (x.exp() * w.exp()).sin()])
@pytest.mark.parametrize("place", [0, 1])
def test_gradients_of_gradients_of_chosen_inputs(function, place):
    """Autograd leaves out what no path leads to, and `functional.jvp` takes it for zeros."""
    inputs, results = tensors(True, True), []
    for run in (function, twice(function, inputs)):
        (made,) = torch.autograd.grad(run(*inputs).square().sum(), inputs[0], create_graph=True)
        again = torch.autograd.grad(made.sum(), inputs[place], allow_unused=True)
        results.append([*again, torch.autograd.functional.jvp(run, tuple(inputs), tuple(tensors(False, False)))])
    torch.testing.assert_close(results[1], results[0])


def test_hooks_see_what_is_kept():
    x, w = inputs = tensors(True, True)
    run, packed = twice(PROGRAMS["one"], inputs), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        run(x, w).sum().backward()
    assert packed


def test_writes_to_what_is_kept_are_noticed():
    x, w = inputs = tensors(True, True)
    out = twice(lambda x, w: x @ w, inputs)(x, w).sum()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize("function", [
    lambda x, w: F.batch_norm(x @ w, torch.zeros(6), torch.ones(6), training=True),
    lambda x, w: (x @ w, x.view(-1)),
    lambda x, w: (x.mul(2).add_(1) @ w).sin_(),
], ids=["statistics", "views", "temporary"])  # fmt: skip
def test_what_needs_autograds_wrapper_is_right(function):
    held(steps(function, tensors(True, True))[0])


def writing(x, w, count):
    count.add_(x.detach().sum())
    return (x * count).sin() @ w


def test_running_statistics_are_written():
    """The forward writes to buffers as often as it is called, and the backward reads what it has written."""
    found = []
    for how in ("eager", "compiled", "recalled"):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        x, count = torch.randn(2, 3, 6, 6), torch.zeros(())
        run = model if how == "eager" else torch.compile(model, backend="regraft")
        other = writing if how == "eager" else torch.compile(writing, backend="regraft")
        given = [y.requires_grad_() for y in tensors(False, False)]
        with regraft.coverage() as cov:
            for _ in range(3):
                run(x).square().sum().backward()
                other(*given, count).sum().backward()
        state = {name: y.clone() for name, y in model.state_dict().items()}
        grads = [p.grad for p in (*model.parameters(), *given)]
        found.append(([state, grads, count], [y._version > 0 for y in (*model.buffers(), count)]))
    for made, written in found[1:]:
        torch.testing.assert_close(made, found[0][0], rtol=1e-4, atol=1e-4)
        assert written == found[0][1]
    assert recalled(cov)


def test_a_backward_that_a_compiled_program_calls_is_not_traced():
    """Dynamo looks at Python that runs between the graphs of a program."""

    def program(x):
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad((leaf @ leaf).relu().pow(3).sum(), leaf)[0] + x

    (x,) = tensors(False)
    for _ in range(2):  # compiled, recalled
        torch.compiler.reset()
        torch.testing.assert_close(torch.compile(program, backend="regraft")(x), program(x))


def broken(x, w, breaks):
    s = x * w
    p = s.exp() * 2
    if breaks:
        torch._dynamo.graph_break()
        s.mul_(3)
    return s, p


@pytest.mark.parametrize("order", [(False, True), (True, False)])
def test_a_program_that_goes_on_is_another_one(order):
    """After a graph break it may write to results: what a backward makes anew of these is kept beside them."""
    run = torch.compile(broken, backend="regraft")
    for breaks in (*order, *order):
        found = []
        for call in (broken, run):
            x, w = tensors(False, True)
            s, p = call(x, w, breaks)
            p.square().sum().backward()
            found.append((s, p, w.grad))
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("around", [(False, True), (True, False), (True, True)])
def test_autocast_in_the_backward_alone(around):
    """It casts what the forward did, and nothing else: kernels count on the dtypes of what they read."""
    results = []
    for how in ("eager", "compiled", "recalled"):
        torch.compiler.reset()
        x, w = tensors(True, True)
        run = torch.mm if how == "eager" else torch.compile(lambda x, w: torch.mm(x, w), backend="regraft")
        with torch.autocast("cpu", torch.bfloat16, enabled=around[0]), regraft.coverage() as cov:
            out = run(x, w)
        with torch.autocast("cpu", torch.bfloat16, enabled=around[1] and how != "eager"), cov:
            out.backward(torch.ones_like(out))
        results.append((x.grad, w.grad))
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[1], rtol=0, atol=0)

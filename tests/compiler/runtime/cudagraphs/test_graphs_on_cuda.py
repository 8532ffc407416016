"""CUDA graphs on a GPU: what the program holds outlives every later replay, whichever captures share memory."""

from __future__ import annotations

import pytest
import torch

from regraft.compiler.runtime.cudagraphs import graphs

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

N = 2048  # rows and columns: 16 MiB


@pytest.fixture(autouse=True)
def _compiled_anew(monkeypatch, tmp_path):
    torch.compiler.reset()
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))


def matrix(rows=N):
    return torch.rand(rows, N, device="cuda") / N


def weight():
    return matrix().requires_grad_()


CAPTURED = {"mode": "reduce-overhead", "triton.cudagraphs_launches": 1}  # whatever a graph launches


def replayed(function):
    """A function under CUDA graphs."""
    return torch.compile(function, backend="regraft", options=CAPTURED, dynamic=False)


def check(pairs):
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


def wide(x, w):
    """Products in between are dead before the result is there."""
    return (((x @ w).relu() @ w).relu() @ w).relu() @ w


def test_results_of_one_graph_outlive_replays_of_another():
    w, first, second = matrix(), replayed(wide), replayed(lambda x, w: (x @ w) * 2)
    with torch.no_grad():
        for _ in range(4):
            x = matrix()
            first(x, w)
            held, wanted = second(x, w), (x @ w) * 2
            first(matrix(), w)
            torch.testing.assert_close(held, wanted, rtol=1e-4, atol=1e-6)


def test_results_of_one_size_outlive_replays_of_another():
    w, run = matrix(), replayed(wide)
    with torch.no_grad():
        for _ in range(4):
            run(matrix(), w)
            x = matrix(N - 8)
            held, wanted = run(x, w), wide(x, w)
            run(matrix(), w)
            torch.testing.assert_close(held, wanted, rtol=1e-4, atol=1e-6)


def test_memory_of_inputs_is_written_over_and_not_kept():
    w, before = matrix(), torch.cuda.memory_allocated()
    runs = [replayed(lambda x, y, w, k=k: (wide(x, w) * k + y).mean(0)) for k in range(3)]
    with torch.no_grad():
        for _ in range(4):
            held = []
            for k, run in enumerate(runs):
                x, y = matrix(), matrix()
                held.append((run(x, y, w), (wide(x, w) * k + y).mean(0)))
            check(held)
    del x, y, held
    assert torch.cuda.memory_allocated() < before + w.nbytes / 2


def loss_of(x, w, v):
    return ((x @ w).relu() @ v).square().mean(-1).sin().mean()


def test_gradients_outlive_a_forward():
    w, v = weight(), weight()
    run = replayed(loss_of)
    for _ in range(4):
        x = matrix() * N
        wanted = torch.autograd.grad(loss_of(x, w, v), (w, v))
        held = torch.autograd.grad(run(x, w, v), (w, v))
        run(matrix() * N, w, v)
        check(zip(held, wanted, strict=True))


def test_gradients_accumulate():
    w, v = weight(), weight()
    run, given = replayed(loss_of), [matrix() * N for _ in range(4)]
    for _ in range(3):
        grads = []
        for function in (loss_of, run):
            w.grad = v.grad = None
            for x in given:
                function(x, w, v).backward()
            grads.append((w.grad, v.grad))
        check(zip(*reversed(grads), strict=True))


def test_a_graph_that_is_kept_gives_its_gradients_again():
    w, v = weight(), weight()
    run = replayed(loss_of)
    for _ in range(4):
        x = matrix() * N
        wanted = torch.autograd.grad(loss_of(x, w, v), (w, v))
        loss = run(x, w, v)
        for kept in (True, True, False):
            held = torch.autograd.grad(loss, (w, v), retain_graph=kept)
            check(zip(held, wanted, strict=True))


@pytest.mark.parametrize("holds", [False, True])
def test_large_results_of_training_steps(holds):
    w, v = weight(), weight()
    run, held = replayed(lambda x, w, v: (x @ w).relu() @ v), []
    for _ in range(6):
        x = matrix() * N
        y = run(x, w, v)
        grads = torch.autograd.grad(y.square().mean(), (w, v))
        wanted = (x @ w).relu() @ v
        expected = torch.autograd.grad(wanted.square().mean(), (w, v))
        held += [(y.detach(), wanted.detach()), *zip(grads, expected, strict=True)]
        if not holds:
            check(held)
            held.clear()
        del y, grads
    check(held)


def seen(x, n):
    """The last `n` columns, weighed by their places."""
    places = torch.arange(N, device="cuda")
    return torch.where(places >= N - n, x * (places + n), 0).sin(), n + 1


@pytest.mark.parametrize("trains", [False, True])
def test_numbers_that_change(trains):
    """One capture serves all values of a number that is no size, forward and backward."""
    run = torch.compile(seen, backend="regraft", options=CAPTURED)
    before, n = {id(x) for x in graphs._ALIVE}, 3
    for _ in range(9):
        x = matrix(8).requires_grad_(trains)
        found, following = run(x, n)
        wanted, _ = seen(x, n)
        torch.testing.assert_close(found, wanted)
        if trains:
            given = matrix(8)
            (mine,) = torch.autograd.grad(found, x, given)
            torch.testing.assert_close(mine, torch.autograd.grad(wanted, x, given)[0])
        assert following == n + 1
        n = following
    made = [len(g.captures) for x in graphs._ALIVE if id(x) not in before for g in x._graphs]
    assert sorted(made) == ([0, 0, 1, 1] if trains else [0, 1])  # none where the first number was taken as it is

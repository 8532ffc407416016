"""CUDA graphs of training steps, by the same device: what is kept, given and held is never overwritten."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

import pytest
import torch

from regraft.compiler.runtime.cudagraphs import capture as cudagraph_capture
from regraft.compiler.runtime.cudagraphs import graphs as cudagraphs
from regraft.compiler.runtime.cudagraphs import memory as cudagraph_memory
from regraft.compiler.runtime.cudagraphs.capture import GIVEN
from regraft.compiler.runtime.cudagraphs.graphs import SLOTS, drop_captures

from ....support.recorded_graphs import FakeDevice, Graph, at_address, count_all_as_large, graphs


@pytest.fixture
def device():
    return FakeDevice()


@pytest.fixture
def large(monkeypatch):
    count_all_as_large(monkeypatch)


class Square(torch.autograd.Function):
    """y = (w x)^2, as AOTAutograd would run it: the product and the weight are kept."""

    forward_graph: object
    backward_graph: object

    @staticmethod
    def forward(ctx, w, x):
        y, *kept = Square.forward_graph([w, x])
        ctx.save_for_backward(*kept)
        return y

    @staticmethod
    def backward(ctx, grad):
        return Square.backward_graph([*ctx.saved_tensors, grad])


@pytest.fixture
def square(device):
    owner = graphs(device)

    def forward(w, x):
        p = w * x
        return p * p, p, w, x

    def backward(p, w, x, grad):
        g = 2 * p * grad
        return g * x, g * w

    Square.forward_graph = owner.forward(Graph(forward), frozenset({0}), 1)
    Square.backward_graph = owner.backward(Graph(backward))
    return owner


def expected(w, x):
    return 2 * w.detach() * x.detach() ** 2


def test_steps_are_captured_forward_and_backward(square, device):
    w = torch.randn(4, requires_grad=True)
    for _ in range(5):
        x = torch.randn(4)
        w.grad = None
        y = Square.apply(w, x)
        torch.testing.assert_close(y, (w * x) ** 2)
        y.sum().backward()
        torch.testing.assert_close(w.grad, expected(w, x))
        del y
    assert device.captures == ["pool 1", "pool 1"] and device.replays == 8


def test_forwards_before_their_backwards_keep_their_own(square, device):
    w = torch.randn(4, requires_grad=True)
    Square.apply(w, torch.randn(4)).sum().backward()
    for _ in range(3):
        xs = [torch.randn(4) for _ in range(SLOTS + 2)]
        ys = [Square.apply(w, x) for x in xs]
        for x, y in zip(xs, ys, strict=True):
            w.grad = None
            y.sum().backward()
            torch.testing.assert_close(w.grad, expected(w, x))
        del ys, x, y
    assert square.said and {reason.code for reason in square.said} == {"captures"}
    assert len(device.captures) == 2 * SLOTS


def test_gradients_live_on(square):
    w = torch.randn(4, requires_grad=True)
    grads = []
    for _ in range(5):
        x = torch.randn(4)
        y = Square.apply(w, x)
        grads.append((torch.autograd.grad(y.sum(), w)[0], expected(w, x)))
        del y
    for grad, wanted in grads:
        torch.testing.assert_close(grad, wanted)


def test_a_step_whose_gradients_come_to_be_held_is_captured_again(square, device):
    w = torch.randn(4, requires_grad=True)

    def gradient(x):
        return torch.autograd.grad(Square.apply(w, x).sum(), w)[0]

    for _ in range(3):
        gradient(torch.randn(4))
    assert device.captures == ["pool 1", "pool 1"]
    given = [torch.randn(4) for _ in range(5)]
    for grad, x in zip([gradient(x) for x in given], given, strict=True):
        torch.testing.assert_close(grad, expected(w, x))
    assert device.captures == ["pool 1", "pool 1", "pool 2", "pool 2"] and len(square.pools) == 1


def test_large_results_of_a_forward_are_given_out_as_they_are(square, device, large):
    w = torch.randn(4, requires_grad=True)
    places = []
    for _ in range(5):
        x = torch.randn(4)
        y = Square.apply(w, x)
        torch.testing.assert_close(y, (w * x) ** 2)
        places.append(y.data_ptr())
        assert y.data_ptr() not in device.lent  # else it would not outlive its capture
        (found,) = torch.autograd.grad(y.sum(), w)
        torch.testing.assert_close(found, expected(w, x))
        del y, found
    assert len(set(places[2:])) == 1 and len(device.captures) == 2


def test_large_results_that_the_next_forward_finds_alive_are_copied(square, device, large):
    w, held = torch.randn(4, requires_grad=True), []

    def step():
        x = torch.randn(4)
        y = Square.apply(w, x)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), w)[0], expected(w, x))
        return y.detach(), (w.detach() * x) ** 2

    for _ in range(3):
        step()
    held = [step() for _ in range(6)]
    for found, wanted in held:
        torch.testing.assert_close(found, wanted)
    assert len(device.captures) == 4


def test_results_that_the_backward_reads_are_copied(device, large):
    owner = graphs(device)
    run = owner.forward(Graph(lambda x: (y := x.exp(), y)), frozenset(), 1)
    run([torch.zeros(3)])
    for _ in range(4):
        y, kept = run([torch.zeros(3)])
        y.fill_(7)
        assert kept.tolist() == [1.0] * 3
        del y, kept


def test_what_a_forward_keeps_may_be_let_go_one_by_one(device):
    run = graphs(device).forward(Graph(lambda x: (x + 1, x * 2, x * 3)), frozenset(), 1)
    held = []
    for k in range(2 * SLOTS):
        _, first, second = run([torch.full((3,), float(k))])
        held.append(second)
        del first
    assert [x.tolist() for x in held] == [[3.0 * k] * 3 for k in range(2 * SLOTS)]


def test_nothing_lies_at_no_address(device):
    owner = graphs(device)
    run = owner.forward(Graph(lambda x: (x + 1, x[:0] * 2, x * 3)), frozenset(), 1)
    for _ in range(3):
        _, empty, kept = run([torch.ones(3)])
        assert empty.shape == (0,) and kept.tolist() == [3.0] * 3
        del empty, kept
    assert device.captures and 0 not in owner.pools


def through(forward, backward, held):
    """A step of boxed graphs as AOTAutograd would run it; what the backward gives is held, with what it was given."""

    class Through(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w, x):
            y, *kept = forward([x])
            ctx.save_for_backward(*kept)
            return y

        @staticmethod
        def backward(ctx, grad):
            held.append((backward([*ctx.saved_tensors, grad]), [x.data_ptr() for x in ctx.saved_tensors]))
            return grad.sum().view(1), None

    return Through.apply


def test_a_gradient_that_a_forward_has_kept_is_copied(device):
    owner = graphs(device)
    forward = owner.forward(Graph(lambda x: (x * 2, x * 3, x * 4)), frozenset(), 1)
    backward = owner.backward(Graph(lambda p, q, grad: (q, p * grad)))
    held = []
    w = torch.zeros(1, requires_grad=True)
    step = through(forward, backward, held)
    for k in range(8):
        step(w, torch.full((3,), float(k))).backward(torch.ones(6)[::2] if k % 3 else torch.ones(3))
    for k, ((given, product), _) in enumerate(held):
        assert given.tolist() == [4.0 * k] * 3 and product.tolist() == [3.0 * k] * 3


def test_a_gradient_where_kept_memory_was_let_go_is_given_out_as_it_is(device):
    def in_place_of(p, grad):
        return (at_address(p).copy_(p * grad),)

    owner = graphs(device)
    forward = owner.forward(Graph(lambda x: (x * 2, x * 3)), frozenset(), 1)
    backward = owner.backward(Graph(in_place_of))
    held = []
    w = torch.zeros(1, requires_grad=True)
    step = through(forward, backward, held)
    for k in range(8):
        step(w, torch.full((3,), float(k))).backward(torch.ones(3))
        ((gradient,), places) = held.pop()
        # The first step runs as it is, its memory is gone; the second captures: the device writes over what it reads.
        assert k < 2 or ([gradient.data_ptr()] == places and gradient.tolist() == [3.0 * k] * 3)
        del gradient
    assert len(device.captures) == 2


def test_a_tangent_in_a_parameter_is_known_by_its_layout(square, device):
    w = torch.randn(4, 4, requires_grad=True)
    for k in range(9):
        x, grad = torch.randn(4, 4), w.detach() if k % 2 else w.detach().t()
        (found,) = torch.autograd.grad(Square.apply(w, x), w, grad)
        torch.testing.assert_close(found, expected(w, x) * grad)
        del found


def test_backwards_read_large_gradients_and_kept_inputs_where_they_are(square, device, large):
    w, x, grad = torch.randn(4, requires_grad=True), torch.randn(4), torch.randn(4)
    GIVEN.note(x)
    GIVEN.note(grad)
    for _ in range(6):
        x.normal_(), grad.normal_()
        (found,) = torch.autograd.grad(Square.apply(w, x), w, grad)
        torch.testing.assert_close(found, expected(w, x) * grad)
    assert device.read[-1][-2:] == [x.data_ptr(), grad.data_ptr()]


def test_layers_and_their_backwards_read_what_the_layer_before_wrote(square, device, monkeypatch):
    monkeypatch.setattr(GIVEN, "_captured", Counter())
    for module in (cudagraph_memory, cudagraph_capture):
        monkeypatch.setattr(module, "CHAINED", 1)
    monkeypatch.setattr(cudagraphs, "GIVEN_OUT", 1)
    weights = [torch.rand(4, requires_grad=True) for _ in range(3)]
    for step in range(7):
        x = torch.rand(4)
        y = x
        for w in weights:
            y = Square.apply(w, y)
        wanted = x
        for w in weights:
            wanted = (w * wanted) ** 2
        torch.testing.assert_close(y, wanted)
        found = torch.autograd.grad(y.sum(), weights)
        for gradient, right in zip(found, torch.autograd.grad(wanted.sum(), weights), strict=True):
            torch.testing.assert_close(gradient, right)
        del y, found, gradient
        assert step < 2 or len(device.captures) == 6  # all in the second step
    # Copied are the input of the first layer, for its backward again, and the gradient of the sum.
    assert sum(len(c._buffers) for graph in square._graphs for c in graph.captures) == 3


def test_a_second_backward_of_a_forward_has_memory_of_its_own(square, device):
    w = torch.randn(4, requires_grad=True)
    for k in range(6):
        x = torch.randn(4)
        grad = torch.ones(8)[::2] if k % 2 else torch.ones(4)
        (found,) = torch.autograd.grad(Square.apply(w, x), w, grad)
        torch.testing.assert_close(found, expected(w, x))
        del found
    assert device.captures == ["pool 1", "pool 1", "pool 2"]


def test_a_graph_that_is_kept_is_run_again(square):
    w = torch.randn(4, requires_grad=True)
    Square.apply(w, torch.randn(4)).sum().backward()
    x = torch.randn(4)
    loss = Square.apply(w, x).sum()
    for _ in range(3):
        w.grad = None
        loss.backward(retain_graph=True)
        torch.testing.assert_close(w.grad, expected(w, x))
        Square.apply(w, torch.randn(4)).sum().backward()
    assert [reason.code for reason in square.said] == ["graph-kept"]


@pytest.mark.usefixtures("few_objects")
def test_what_is_dropped_is_used_again(square, device):
    w = torch.randn(4, requires_grad=True)
    for _ in range(2 * SLOTS):
        Square.apply(w, torch.randn(4))
        gc.collect()
    assert len(device.captures) == 1


@pytest.mark.usefixtures("few_objects")
def test_a_reset_gives_captures_back_but_those_whose_backward_may_come(square, device):
    w = torch.randn(4, requires_grad=True)

    def step(x):
        w.grad = None
        return Square.apply(w, x)

    for _ in range(3):
        step(torch.randn(4)).sum().backward()
    first = [weakref.ref(capture) for graph in square._graphs for capture in graph.captures]
    x = torch.randn(4)
    y = step(x)
    drop_captures()
    gc.collect()
    assert all(ref() is not None for ref in first)
    y.sum().backward()
    torch.testing.assert_close(w.grad, expected(w, x))
    del y
    w.grad = None
    drop_captures()
    gc.collect()
    assert len(first) == 2 and all(ref() is None for ref in first)
    for _ in range(3):
        x = torch.randn(4)
        step(x).sum().backward()
        torch.testing.assert_close(w.grad, expected(w, x))
    assert len(device.captures) == 4

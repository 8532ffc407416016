"""CUDA graphs of one graph for many sets of parameters, on a device that records on the CPU."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from regraft.compiler.runtime.cudagraphs import graphs as cudagraphs
from regraft.compiler.runtime.cudagraphs import places
from regraft.compiler.runtime.cudagraphs.places import AT_ONCE

from ....support.recorded_graphs import FakeDevice, Graph, graphs
from .test_graphs_training import Square, expected

LAYERS = 12


@pytest.fixture(autouse=True)
def _no_pools(monkeypatch):
    monkeypatch.setattr(cudagraphs, "_INFERENCE_POOLS", weakref.WeakValueDictionary())


@pytest.fixture
def device():
    return FakeDevice()


@pytest.fixture
def square(device):
    owner = graphs(device)
    Square.forward_graph = owner.forward(Graph(lambda w, x: ((w * x) ** 2, w * x, w, x)), frozenset({0}), 1)
    Square.backward_graph = owner.backward(Graph(lambda p, w, x, grad: (2 * p * grad * x, 2 * p * grad * w)))
    return owner


def test_each_layer_of_a_loop_is_captured(device):
    owner = graphs(device)
    graph = Graph(lambda w, x: (w @ x,))
    run = owner.inference(graph, frozenset({0}))
    weights = [torch.randn(4, 4) / 2 for _ in range(LAYERS)]
    for _ in range(4):
        found = wanted = torch.randn(4, 4)
        calls = graph.calls
        for w in weights:
            (found,) = run([w, found])
            wanted = w @ wanted
        torch.testing.assert_close(found, wanted)
        del found
    assert len(device.captures) == LAYERS and not owner.said
    assert graph.calls == calls + LAYERS  # the fake's replays


def test_each_layer_of_a_training_step_is_captured_once(square, device):
    weights = [torch.randn(4, requires_grad=True) for _ in range(LAYERS)]
    for step in range(6):
        used = [w for k, w in enumerate(weights) if k % 5 != step]  # some layers are dropped
        x = torch.randn(4)
        y, wanted = x, x
        for w in used:
            y, wanted = Square.apply(w, y).tanh(), ((w * wanted) ** 2).tanh()
        torch.testing.assert_close(y, wanted)
        found = torch.autograd.grad(y.sum(), used)
        for gradient, right in zip(found, torch.autograd.grad(wanted.sum(), used), strict=True):
            torch.testing.assert_close(gradient, right)
        del y, found, gradient
    assert len(device.captures) == 2 * LAYERS and not square.said


def test_parameters_that_are_replaced_at_every_call_are_not_captured(device, monkeypatch):
    monkeypatch.setattr(places, "_MET", 20)
    owner = graphs(device)
    run = owner.inference(Graph(lambda w, x: (w * x,)), frozenset({0}))
    held = []
    for k in range(40):
        held.append(torch.full((3,), float(k)))
        assert run([held[-1], torch.ones(3)])[0].tolist() == [float(k)] * 3
    assert len(device.captures) == AT_ONCE
    assert [reason.code for reason in owner.said] == ["moving-parameters"]


@pytest.mark.usefixtures("few_objects")
def test_captures_whose_parameters_have_died_make_room(device, monkeypatch):
    monkeypatch.setattr(places, "PLACES", 6)
    owner = graphs(device)
    run = owner.inference(Graph(lambda w, x: (w * x,)), frozenset({0}))

    def epoch(weights):
        for _ in range(3):
            for k, w in enumerate(weights):
                assert run([w, torch.ones(3)])[0].tolist() == w.tolist(), k

    epoch([torch.randn(3) for _ in range(6)])
    made = len(device.captures)
    gc.collect()
    kept = [torch.randn(3) for _ in range(6)]
    epoch(kept)
    assert made == 6 and len(device.captures) == 12 and not owner.said
    epoch([torch.randn(3)])
    assert [reason.code for reason in owner.said] == ["many-places"]


def test_a_capture_that_a_backward_waits_for_stays(square, device, monkeypatch):
    monkeypatch.setattr(places, "PLACES", 5)
    for _ in range(3):
        w, x = torch.randn(4, requires_grad=True), torch.randn(4)
        wanted = expected(w, x)
        loss = Square.apply(w, x).sum()
        for _ in range(12):
            v = torch.randn(4, requires_grad=True)
            for _ in range(3):
                (found,) = torch.autograd.grad(Square.apply(v, x).sum(), v)
                torch.testing.assert_close(found, expected(v, x))
                del found
        loss.backward()
        torch.testing.assert_close(w.grad, wanted)
    assert device.replays > 12

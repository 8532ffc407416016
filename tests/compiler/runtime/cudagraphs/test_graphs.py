"""CUDA graphs by a device that records and replays on the CPU: results are safe, memory is read where it should be."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter

import pytest
import torch

from regraft.compiler.runtime.cudagraphs import capture as cudagraph_capture
from regraft.compiler.runtime.cudagraphs import graphs as cudagraphs
from regraft.compiler.runtime.cudagraphs import memory as cudagraph_memory
from regraft.compiler.runtime.cudagraphs.capture import GIVEN, Capture
from regraft.compiler.runtime.cudagraphs.device import Device
from regraft.compiler.runtime.cudagraphs.graphs import SLOTS
from regraft.rewrites.compat import memory as torch_memory

from ....support.recorded_graphs import FakeDevice, Graph, count_all_as_large, graphs


@pytest.fixture(autouse=True)
def _no_pools(monkeypatch):
    monkeypatch.setattr(cudagraphs, "_INFERENCE_POOLS", weakref.WeakValueDictionary())


@pytest.fixture
def device():
    return FakeDevice()


def test_the_first_call_runs_the_second_is_captured_the_third_replayed(device):
    graph = Graph(lambda w, x: (w @ x,))
    run = graphs(device).inference(graph, frozenset({0}))
    w = torch.randn(4, 4)
    for k in range(4):
        x = torch.randn(4, 4)
        args = [w, x]
        (out,) = run(args)
        torch.testing.assert_close(out, w @ x)
        assert args == [] and (len(device.captures), device.replays) == (min(k, 1), k)


@pytest.fixture(params=["copied", "given"])
def small(request, monkeypatch):
    """Whether results are small enough to be copied out."""
    if request.param == "given":
        monkeypatch.setattr(cudagraphs, "_SMALL", 0)
    return request.param == "copied"


def test_results_are_never_overwritten(device, small):
    run = graphs(device).inference(Graph(lambda x: (x + 1, x.t() * 2)), frozenset())
    inputs = [torch.randn(3, 5) for _ in range(5)]
    results = [run([x]) for x in inputs]
    for x, (a, b) in zip(inputs, results, strict=True):
        torch.testing.assert_close(a, x + 1)
        torch.testing.assert_close(b, x.t() * 2)
        assert b.stride() == (x.t() * 2).stride()


@pytest.mark.parametrize(
    "function", [lambda x: (x + 1,), lambda x: (x, x + 1), lambda x: (x.view(3, 2), x + 1), lambda x: (x + 1, x[:1], x)]
)
def test_memory_that_inputs_are_copied_into(device, small, function):
    """It is written over after a call (by the device of these tests), unless results lie there."""
    run = graphs(device).inference(Graph(function), frozenset())
    inputs = [torch.randn(2, 3) for _ in range(5)]
    results = [run([x]) for x in inputs]
    for x, found in zip(inputs, results, strict=True):
        for a, b in zip(found, function(x), strict=True):
            torch.testing.assert_close(a, b)


def test_only_the_call_keeps_the_memory_that_inputs_are_copied_into():
    given, x = [None, torch.ones(1)], torch.zeros(2, 3).t()
    buffers, read = Device().own_memory(given, {0: x})
    assert buffers[0].data_ptr() == given[0].data_ptr() != x.data_ptr() and buffers[0].stride() == x.stride()
    assert read[0]() is given[0]
    given.clear()
    assert read[0]() is None


def test_large_results_are_given_out_in_turns(device, monkeypatch):
    monkeypatch.setattr(cudagraphs, "_SMALL", 0)
    run = graphs(device).inference(Graph(lambda x: (x + 1,)), frozenset())
    places = []
    for k in range(6):
        (y,) = run([torch.full((3,), float(k))])  # the last result is held while the next is computed
        torch.testing.assert_close(y, torch.full((3,), k + 1.0))
        places.append(y.data_ptr())
    assert len(device.captures) == 2 and places[2:4] == places[4:6]


def test_results_that_are_all_held_are_copied(device, monkeypatch):
    monkeypatch.setattr(cudagraphs, "_SMALL", 0)
    run = graphs(device).inference(Graph(lambda x: (x + 1, x.view(1, 3) + 2)), frozenset())
    held = [run([torch.full((3,), float(k))]) for k in range(3 * SLOTS)]
    for k, (a, b) in enumerate(held):
        assert a.tolist() == [k + 1] * 3 and b.tolist() == [[k + 2] * 3]
    assert len(device.captures) == SLOTS
    del held, a, b
    (y, _) = run([torch.zeros(3)])
    assert y.tolist() == [1, 1, 1] and len(device.captures) == SLOTS


def test_a_view_of_a_result_keeps_it(device, monkeypatch):
    monkeypatch.setattr(cudagraphs, "_SMALL", 0)
    run = graphs(device).inference(Graph(lambda x: (x + 1,)), frozenset())
    views = [run([torch.full((3,), float(k))])[0][1:] for k in range(4)]
    assert [v.tolist() for v in views] == [[k + 1.0] * 2 for k in range(4)]


def test_a_result_that_comes_twice_is_one_tensor(device, small):
    def function(x):
        y = x + 1
        return y, y, 7, None

    run = graphs(device).inference(Graph(function), frozenset())
    for _ in range(3):
        a, b, number, nothing = run([torch.ones(2)])
    assert a is b and (number, nothing) == (7, None)


def test_results_that_share_memory_share_it_when_copied(device):
    def function(x):
        y = x + 1
        return y, y[1:], y.view(2, 2), x * 2

    run = graphs(device).inference(Graph(function), frozenset())
    for k in range(4):
        y, part, square, alone = run([torch.full((4,), float(k))])
        y[2] = 9
        assert part.tolist() == [k + 1, 9, k + 1] and square[1].tolist() == [9, k + 1]
        assert alone.tolist() == [2.0 * k] * 4


def test_an_input_that_is_a_result_is_the_callers_own(device):
    run = graphs(device).inference(Graph(lambda x: (x, x + 1)), frozenset())
    for _ in range(3):
        x = torch.randn(3)
        same, _ = run([x])
        assert same is x


def test_parameters_are_read_where_they_are(device):
    w = torch.ones(3)
    run = graphs(device).inference(Graph(lambda w, x: (w * x,)), frozenset({0}))
    for k in range(4):
        w.fill_(k)
        torch.testing.assert_close(run([w, torch.ones(3)])[0], torch.full((3,), float(k)))
    assert len(device.captures) == 1
    other = torch.full((3,), 9.0)
    torch.testing.assert_close(run([other, torch.ones(3)])[0], other)
    assert len(device.captures) == 2


def test_sizes_and_strides_have_their_own_captures(device):
    run = graphs(device).inference(Graph(lambda n, x: (x * n,)), frozenset())
    for _ in range(3):
        a, b, c = torch.randn(4, 6), torch.randn(6, 4).t(), torch.randn(5, 6)
        for n, x in ((2, a), (3, a), (2, b), (2, c)):
            torch.testing.assert_close(run([n, x])[0], x * n)
    assert len(device.captures) == 4 and device.pools == 1


def test_overlapping_inputs_are_copied(device):
    run = graphs(device).inference(Graph(lambda x: (x * 2,)), frozenset())
    for _ in range(3):
        x = torch.randn(4, 1).expand(4, 5)
        torch.testing.assert_close(run([x])[0], x * 2)
    assert device.replays == 2


def test_beyond_the_limit_calls_run_as_they_are(device):
    owner = graphs(device, limit=2)
    graph = Graph(lambda x: (x + 1,))
    run = owner.inference(graph, frozenset())
    for _ in range(3):
        for n in (1, 2, 3, 4):
            torch.testing.assert_close(run([torch.ones(n)])[0], torch.full((n,), 2.0))
    assert len(device.captures) == 2 and [reason.code for reason in owner.said] == ["many-sizes"]


def test_what_cannot_be_captured_runs_as_it_is(device):
    owner = graphs(device)
    device.broken = True
    run = owner.inference(Graph(lambda x: (x + 1,)), frozenset())
    for _ in range(4):
        torch.testing.assert_close(run([torch.ones(2)])[0], torch.full((2,), 2.0))
    assert [reason.code for reason in owner.said] == ["capture-failed"] and "not permitted" in owner.said[0].message


def test_within_a_capture_of_the_users_nothing_is_captured(device):
    device.capturing = True
    run = graphs(device).inference(Graph(lambda x: (x + 1,)), frozenset())
    for _ in range(3):
        run([torch.ones(2)])
    assert device.captures == []


def test_streams_have_captures_and_pools_of_their_own(device):
    run = graphs(device).inference(Graph(lambda x: (x + 1,)), frozenset())
    for stream in (1, 2, 1, 2, 1, 2):
        device.current = stream
        run([torch.ones(2)])
    assert sorted(device.captures) == ["pool 1", "pool 2"]


@pytest.mark.usefixtures("few_objects")
def test_a_pool_whose_captures_have_died_is_not_used_again(device):
    for _ in range(2):
        run = graphs(device).inference(Graph(lambda x: (x + 1,)), frozenset())
        for _ in range(3):
            run([torch.ones(2)])
        del run
        gc.collect()
    assert device.captures == ["pool 1", "pool 2"]  # torch has freed the first


def test_results_where_other_captures_write_are_copied(device, monkeypatch):
    monkeypatch.setattr(cudagraphs, "_SMALL", 0)
    device.shared = True
    run = graphs(device).inference(Graph(lambda x: (x + 1,)), frozenset())
    held = [run([torch.full((3,), float(k))])[0] for k in range(6)]
    assert [y.tolist() for y in held] == [[k + 1.0] * 3 for k in range(6)]
    assert len(device.captures) == 1


def test_inference_mode_and_its_tensors(device, small):
    run = graphs(device).inference(Graph(lambda x: (x + 1,)), frozenset())
    for _ in range(3):
        with torch.inference_mode():
            assert run([torch.ones(2)])[0].tolist() == [2, 2]
    assert run([torch.ones(2)])[0].tolist() == [2, 2]


def test_threads_take_turns(device, small):
    run = graphs(device).inference(Graph(lambda x: (x + 1,)), frozenset())
    wrong = []

    def work(k):
        for n in range(50):
            x = torch.full((16,), float(k * 1000 + n))
            if not torch.equal(run([x])[0], x + 1):
                wrong.append((k, n))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# -- large results of other graphs ------------------------------------------------------------------------------------


@pytest.fixture
def large(monkeypatch):
    count_all_as_large(monkeypatch)


def test_large_results_of_other_graphs_are_read_where_they_are(device, large):
    memory = torch.zeros(3)
    GIVEN.note(memory)
    run = graphs(device).inference(Graph(lambda n, y: (y * n,)), frozenset())
    for k in range(5):
        memory.fill_(k)
        assert run([2, memory])[0].tolist() == [2.0 * k] * 3
    assert device.read == [[memory.data_ptr()]]
    other = torch.ones(3)  # the user's own
    assert run([2, other])[0].tolist() == [2.0] * 3
    assert len(device.read) == 2 and device.read[1] != [other.data_ptr()]


def test_the_program_may_hold_a_large_result_while_the_next_is_computed(device, large):
    first = graphs(device).inference(Graph(lambda x: (x + 1,)), frozenset())
    second = graphs(device).inference(Graph(lambda y: (y * 2, y)), frozenset())
    for k in range(12):
        (y,) = first([torch.full((3,), float(k))])
        z, same = second([y])
        assert same is y and z.tolist() == [2 * k + 2.0] * 3
    assert len(device.captures) <= 2 + 2 + 2


def test_large_results_that_lie_elsewhere_each_time_are_copied(device, large):
    first = graphs(device).forward(Graph(lambda x: (x + 1,)), frozenset(), 1)
    second = graphs(device).inference(Graph(lambda y: (y * 2,)), frozenset())
    held = []
    for k in range(12):
        held.append(first([torch.full((3,), float(k))])[0])
        assert second([held[-1]])[0].tolist() == [2 * k + 2.0] * 3
    assert [y.tolist() for y in held] == [[k + 1.0] * 3 for k in range(12)]
    assert len(device.captures) == 3 and device.replays > 12


@pytest.fixture
def chained(monkeypatch):
    """Results of captures are read where they lie, however small; no result counts as large."""
    monkeypatch.setattr(GIVEN, "_captured", Counter())
    monkeypatch.setattr(GIVEN, "_passing", {})
    for module in (cudagraph_memory, cudagraph_capture):
        monkeypatch.setattr(module, "CHAINED", 1)
    monkeypatch.setattr(cudagraphs, "_SMALL", 0)
    monkeypatch.setattr(cudagraphs, "GIVEN_OUT", 1)


def layers(device, count, function):
    return [graphs(device).inference(Graph(function), frozenset()) for _ in range(count)]


def test_results_of_captures_are_read_where_they_are_from_the_second_call_on(device, chained):
    run = layers(device, 4, lambda x: (x + 1,))
    for k in range(6):
        x = torch.full((3,), float(k))
        for layer in run:
            (x,) = layer([x])
        assert x.tolist() == [k + 4.0] * 3
        assert len(device.captures) == (4 if k else 0)  # a chain of any length is captured in the second call
    assert len(device.read) == 4 and len({read[0] for read in device.read}) == 4


def test_a_result_that_comes_from_elsewhere_is_copied_without_waiting(device, chained):
    first, second, last = layers(device, 3, lambda x: (x + 1,))
    for k in range(6):
        (y,) = first([torch.full((3,), float(k))])
        left_out = k % 3 == 2
        if not left_out:
            (y,) = second([y])
        assert last([y])[0].tolist() == [k + 3.0 - left_out] * 3
        del y
    assert len(device.captures) == 4  # of the last, one reads the second's result, and one takes what there is


def test_one_graph_of_many_layers_waits_for_the_graph_before(device, chained):
    weights = [torch.full((3,), k + 1.0) for k in range(4)]
    mask = graphs(device).inference(Graph(lambda x: (x * 0 + 2,)), frozenset())
    run = graphs(device).inference(Graph(lambda w, x, m: (w * x + m,)), frozenset({0}))
    first_call = []  # kept, or an input might later lie where one of these was
    for k in range(5):
        (m,) = mask([torch.ones(3)])
        x, wanted = torch.full((3,), float(k)), float(k)
        for w in weights:
            first_call += [x, m] if k == 0 else []
            (x,) = run([w, x, m])
            wanted = float(w[0]) * wanted + 2
        assert x.tolist() == [wanted] * 3
        del x, m
        assert len(device.captures) == (5 if k else 0)
    first, *others = (c for graph in graphs_of(run) for c in graph.captures)
    assert [len(c._buffers) for c in (first, *others)] == [1, 0, 0, 0]  # the input of the first layer


def graphs_of(run):
    return [cell.cell_contents for cell in run.__closure__]


def test_results_that_are_held_while_the_next_are_computed_stay(device, chained):
    run, held = layers(device, 3, lambda x: (x * 2,)), []
    for k in range(12):
        x = torch.full((3,), float(k))
        for layer in run:
            (x,) = layer([x])
            held.append((x, x.clone()))
        del held[:-5]
        assert all(torch.equal(found, wanted) for found, wanted in held)


@pytest.mark.usefixtures("few_objects")
def test_where_a_capture_wrote_is_forgotten_with_it(device, chained):
    (run,) = layers(device, 1, lambda x: (x + 1,))
    y = [run([torch.ones(3)])[0] for _ in range(2)][-1]
    assert GIVEN.is_captured(y)
    cudagraphs.drop_captures()
    gc.collect()
    assert not GIVEN.is_captured(y)


def test_captures_of_layers_are_looked_at_in_the_order_of_the_last_step(device, monkeypatch):
    looked, fits = [], Capture.fits
    monkeypatch.setattr(Capture, "fits", lambda self, *given: looked.append(self) or fits(self, *given))
    weights = [torch.full((3,), float(k)) for k in range(8)]
    run = graphs(device, limit=8).inference(Graph(lambda w, x: (w * x,)), frozenset({0}))
    for step in range(5):
        looked.clear()
        for w in weights:
            assert run([w, torch.ones(3)])[0].tolist() == w.tolist()
        assert step < 3 or len(looked) == len(weights)


def test_another_layout_at_the_same_place_is_another_capture(device, large):
    memory = torch.zeros(12)
    GIVEN.note(memory)
    run = graphs(device).inference(Graph(lambda y: (y.sum(0),)), frozenset())
    for _ in range(4):
        for view in (memory.view(3, 4), memory.view(4, 3), memory.view(4, 3).t()):
            memory.copy_(torch.rand(12))
            torch.testing.assert_close(run([view])[0], view.sum(0))
    assert len(device.captures) == 3


def test_a_view_of_a_large_result_does_not_keep_it(device, large):
    memory = torch.zeros(12)
    GIVEN.note(memory)
    run = graphs(device).forward(Graph(lambda y: (y + 1, y.view(3, 4))), frozenset(), 1)
    before = next(iter(torch_memory.storages_users([torch_memory.storage_key(memory)])))
    for _ in range(4):
        run([memory])
    assert device.replays and next(iter(torch_memory.storages_users([torch_memory.storage_key(memory)]))) == before

"""The generated replay of a capture: what it copies, gives and notes, and that it keeps nothing once it is gone."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from regraft.compiler.runtime.cudagraphs.plan import ReplayText, places_of


def laid_out(*strides):
    return torch.empty_strided((3, 4), strides)


LAYOUTS = {
    "one": [(4, 1)],
    "two, one of them transposed": [(4, 1), (1, 3)],
    "rows with gaps": [(8, 1)],
    "many, one with gaps": [(4, 1), (1, 3), (4, 1), (6, 1), (4, 1), (4, 1)],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_inputs_are_copied_before_the_replay(name):
    buffers = {2 * k + 1: laid_out(*strides).fill_(-1) for k, strides in enumerate(LAYOUTS[name])}
    seen = []
    text = ReplayText(lambda: seen.append([x.clone() for x in buffers.values()]), buffers)
    replay = text.function([], [], print)
    args = [None] * (2 * len(buffers) + 1)
    for k, buffer in buffers.items():
        args[k] = torch.empty_strided(buffer.shape, buffer.stride()).copy_(torch.rand(3, 4))
    given = list(args)
    assert replay(args) == () and args == []
    assert all(torch.equal(given[k], x) for k, x in zip(buffers, seen[0], strict=True))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("give", ["give_clones", "give_copies"])
def test_results_are_copies_with_their_layout(name, give):
    if give == "give_clones" and any(max(strides) > 4 for strides in LAYOUTS[name]):
        pytest.skip("clones are of contiguous tensors")
    results = [laid_out(*strides).copy_(torch.rand(3, 4)) for strides in LAYOUTS[name]]
    text = ReplayText(lambda: None, {})
    getattr(text, give)(dict(enumerate([*results, results[0]])))  # one comes twice
    made = text.function([None] * (len(results) + 1), [], print)([])
    assert made[0] is made[-1]
    for x, y in zip(results, made, strict=False):
        assert torch.equal(x, y) and x.stride() == y.stride() and x.data_ptr() != y.data_ptr()


def test_inputs_tensors_numbers_and_what_stays_are_given():
    x, own, kept, noted = torch.ones(2), torch.zeros(2), torch.zeros(3), []
    text = ReplayText(lambda: None, {})
    text.give_input(0, 1)
    for value, places in places_of([(1, own), (2, own), (3, 7)]):
        text.give_seen(value, places)
    replay = text.function([None, None, None, None, kept], [1], noted.append)
    found = replay([None, x])
    assert found[0] is x and found[3] == 7 and found[4] is kept
    assert found[1] is found[2] is noted[0] is not own and found[1].data_ptr() == own.data_ptr()
    assert replay([None, x])[1] is not found[1]  # a tensor of each call's own shows by its life that it is used


def test_memory_is_let_go_with_the_function():
    gc.collect()
    gc.disable()
    try:
        result, buffer = torch.zeros(2), torch.zeros(2)
        text = ReplayText(lambda: None, {0: buffer})
        text.give_seen(result, [0])
        replay = text.function([None], [], print)
        gone = [weakref.ref(result), weakref.ref(buffer)]
        del result, buffer, text
        assert replay([torch.ones(2)])[0].tolist() == [0, 0]
        del replay
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()

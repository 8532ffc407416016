"""Inputs that lie in one memory give what eager gives, wherever they lie in later calls."""

import contextlib
import itertools
import math

import numpy as np
import pytest
import torch
from support.thorough import takes_turns

import regraft  # noqa: F401 (registers the backend)
from regraft.compiler.runtime.overlaps import apart_from_written, places_of

PLACES = [(0, 3), (0, 5), (0, 0), (0, 4), (4, 0), (2, 3), (5, 8), (6, 0)]
FUNCTIONS = {
    "written first": lambda x, y: (x.add_(1), x * 2, y + 1)[1:],
    "read, then written": lambda x, y: (x * 2, y.mul_(3), x + y)[::2],
    "both written": lambda x, y: (x.add_(1), y.mul_(2), x - y)[2:],
}


def _given(a, b):
    memory = torch.arange(14.0)
    return memory[a : a + 5], memory[b : b + 5]


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("first", [(0, 3), (0, 0), (4, 0), (0, 5), (8, 0)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_inputs_in_one_memory(name, first, dynamic):
    """The inputs of the first call overlap, or lie apart, which AOTAutograd takes for independent without a guard."""
    torch.compiler.reset()
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="regraft", dynamic=dynamic)
    for place in [first, *PLACES]:
        own, eager = _given(*place), _given(*place)
        torch.testing.assert_close(compiled(*own), function(*eager))
        torch.testing.assert_close(own, eager)


def test_only_inputs_that_overlap_and_may_be_written_are_looked_at():
    x, y = _given(0, 3)
    writes = torch.fx.symbolic_trace(lambda x, y: x.add_(y))
    assert places_of(writes, [x, 3, y, torch.ones(2)]) == [(0, 0, 0), (2, 0, 3)]
    assert not places_of(writes, [*_given(0, 5), torch.ones(2), None]) and not places_of(writes, [x])
    assert not places_of(torch.fx.symbolic_trace(lambda x, y: torch.sin(x) + y), [x, y])


class Counting(torch.nn.Module):
    """It adds one to its state, and then reads what it is given."""

    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.arange(6.0).view(2, 3))
        self.scale = torch.nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x):
        self.state.add_(1)
        return x * self.scale


def test_the_memory_that_inputs_are_parts_of_is_another():
    """AOTAutograd makes one tensor of the whole memory, and writes to all of it: of more elements than there were."""
    function = FUNCTIONS["written first"]
    for known, mode in itertools.product((True, False), (contextlib.nullcontext, torch.inference_mode)):
        torch.compiler.reset()
        compiled = torch.compile(function, backend="regraft")
        with mode():
            for sizes in ((20,), (9,), (4096,), (9, 1), (20, 1), (5, 4), (2, 10)):
                memories = [torch.arange(float(math.prod(sizes))).view(sizes) for _ in range(2)]
                flat = [x.view(-1) if known else x.detach().view(-1) for x in memories]
                ours, eager = (run(x[:5], x[3:8]) for run, x in zip((compiled, function), flat, strict=True))
                torch.testing.assert_close(ours, eager)
                torch.testing.assert_close(*memories)


@pytest.mark.parametrize("first", [False, True])
def test_arrays_of_numpy_that_overlap(first):
    """Each is a memory of its own for torch."""
    torch.compiler.reset()
    function = FUNCTIONS["written first"]
    compiled = torch.compile(function, backend="regraft")
    found = []
    for run in (function, compiled):
        array, results = np.arange(12.0), []
        for a, b in ((0, 3), (0, 6), (2, 1))[not first :]:
            results += run(torch.from_numpy(array[a : a + 5]), torch.from_numpy(array[b : b + 5]))
            results += run(torch.from_numpy(array[a::2][:3]), torch.from_numpy(array[b : b + 3]))
        found.append((results, torch.from_numpy(array)))
    torch.testing.assert_close(found[1], found[0])


class Scaled(torch.nn.Module):
    """It writes to what it is given, and then reads its weights."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = (torch.nn.Parameter(torch.full((4,), n)) for n in (2.0, 3.0))

    def forward(self, x):
        before = self.scale * self.shift
        x[1:].add_(1)
        return before, x * self.scale + self.shift


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_what_a_module_reads_is_given_to_it_and_written(train, dynamic):
    torch.compiler.reset()
    ours, eager = Scaled(), Scaled()
    compiled = torch.compile(ours, backend="regraft", dynamic=dynamic)
    own = torch.ones(4)
    parts = (
        lambda m: own.clone(), lambda m: m.scale.detach(), lambda m: m.shift.data,
        lambda m: m.scale.detach().view(2, 2)[:, :1].expand(2, 2).reshape(4), lambda m: own.clone()
    )  # fmt: skip
    with torch.set_grad_enabled(train):
        for part in parts:
            torch.testing.assert_close(compiled(part(ours)), eager(part(eager)))
            torch.testing.assert_close(list(ours.parameters()), list(eager.parameters()))


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_part_of_what_a_module_writes_is_given_to_it(rows, dynamic):
    torch.compiler.reset()
    ours, eager = Counting(), Counting()
    compiled = torch.compile(ours, backend="regraft", dynamic=dynamic)
    own = torch.ones(rows, 3)
    for part in (
        lambda state: own,
        lambda state: state[-rows:],
        lambda state: state[:rows].view(rows, 3),
        lambda _: own,
    ):
        torch.testing.assert_close(compiled(part(ours.state)), eager(part(eager.state)))
    assert torch.equal(ours.state, eager.state)


def test_memory_is_counted_in_bytes():
    """Eight bytes of the first input are at 0 to 8, those of the second at 8 to 16, and at 4 to 12 in a later call."""
    memory, function = torch.arange(16.0), lambda x, y: (x.mul_(2), y + 1)[1]
    compiled = torch.compile(function, backend="regraft")
    for begin in (4, 2):
        own, eager = memory.clone(), memory.clone()
        ours = compiled(own[:2], own.view(torch.int16)[begin : begin + 4])
        assert torch.equal(ours, function(eager[:2], eager.view(torch.int16)[begin : begin + 4]))


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_inputs_that_had_memory_of_their_own(name, dynamic):
    torch.compiler.reset()
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="regraft", dynamic=dynamic)
    apart, once_more = (torch.arange(5.0), torch.ones(5)), (torch.arange(5.0), torch.ones(5))
    torch.testing.assert_close(compiled(*apart), function(*once_more))
    for place in PLACES:
        own, eager = _given(*place), _given(*place)
        torch.testing.assert_close(compiled(*own), function(*eager))
        torch.testing.assert_close(own, eager)


def test_only_inputs_beside_a_written_one_are_looked_at():
    seen = []

    def backend(gm, inputs):
        seen.append(apart_from_written(gm, inputs))
        return gm

    norm = torch.nn.BatchNorm1d(5)
    x, y = torch.ones(2, 5), torch.ones(2, 5)
    for program in (lambda x, y: x + y, lambda x, y: (x + y).add_(1)):
        torch.compile(program, backend=backend)(x, y)
    torch.compile(lambda x, y: x[0].add_(y), backend=backend)(x, y[0])
    torch.compile(lambda x, y: torch.sin(y, out=x), backend=backend)(x, y)
    torch.compile(lambda x, y: x.add_(norm.weight), backend=backend)(x, y)
    torch.compile(lambda x, y, z: x.add_(y * z), backend=backend)(*torch.ones(2, 5), torch.ones(5))
    torch.compile(lambda x, y: norm.running_mean.add_(x) + y, backend=backend)(x[0], y)
    torch.compile(lambda: norm.running_mean.add_(norm.running_var), backend=backend)()
    overlapping = torch.ones(8)
    torch.compile(lambda x, y, z: x.add_(y * z), backend=backend)(overlapping[:5], overlapping[3:], torch.ones(5))
    assert seen == [[], [], [0, 1], [0, 1], [], [0, 1, 2], [0, 1, 2], [], [0, 2]]

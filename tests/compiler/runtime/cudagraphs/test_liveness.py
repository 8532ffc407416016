"""Whether inputs are where they were, and whether anyone uses a result."""

from __future__ import annotations

import pytest
import torch

from regraft.compiler.runtime.cudagraphs.liveness import Checks, Users


def held_twice():
    """Memory, and an object that is given out each time, which a template of results holds as well."""
    memory = [torch.zeros(3), torch.zeros(4)]
    template = [x.data for x in memory]
    return memory, template, Users(memory, [(x, 1) for x in template])


USES = {
    "an object": lambda x: x,
    "a view": lambda x: x[1:],
    "a graph of autograd's": lambda x: torch.ones(len(x), requires_grad=True) * x,
}


@pytest.mark.parametrize("name", USES)
def test_a_use_is_seen_until_it_ends(name):
    memory, template, users = held_twice()
    assert not users.are_there()
    use = USES[name](template[0])
    assert users.are_there()
    del use
    assert not users.are_there()
    assert len(memory) == len(template)


def test_memory_alone_is_no_use_until_a_tensor_is_made_of_it():
    _, template, users = held_twice()
    memory = template[0].untyped_storage()
    assert not users.are_there()
    over = torch.empty(0).set_(memory)
    assert users.are_there()
    del over
    assert not users.are_there()


def test_an_object_may_be_held_several_times_by_us():
    x = torch.zeros(3)
    same = x.data
    template = [same, same]
    users = Users([x], [(same, 2)])
    assert users.are_there()  # this function's own
    del same
    assert not users.are_there()
    assert len(template) == 2


def test_memory_that_nobody_gives_out_again():
    x = torch.zeros(3)
    users = Users([x])
    assert not users.are_there()
    seen = x.data
    assert users.are_there()
    del seen
    assert not users.are_there()


GIVEN = [torch.zeros(4, 2), torch.zeros(3), 7]


@pytest.mark.parametrize(
    ("args", "hold"),
    [
        (GIVEN, True),
        ([GIVEN[0], torch.ones(3), 7], True),
        ([GIVEN[0].clone(), GIVEN[1], 7], False),
        ([GIVEN[0], torch.ones(4), 7], False),
        ([GIVEN[0], torch.ones(6)[::2], 7], False),
        ([GIVEN[0], torch.ones(3, dtype=torch.int32), 7], False),
        ([GIVEN[0], GIVEN[1], 8], False),
    ],
)
def test_inputs_are_checked(args, hold):
    checks = Checks(GIVEN, {0: GIVEN[0].data_ptr()}, [1])
    assert checks.hold(args) is hold


def test_nothing_to_check():
    assert Checks([], {}, []).hold([])


def test_inputs_in_other_modes_are_the_same_inputs():
    """Dynamo's check of tensors says no to them; what it says yes to, it says so of layouts alone."""
    checks = Checks(GIVEN, {}, [0, 1])
    ways = [
        lambda: [GIVEN[0].clone(), GIVEN[1].clone(), 7],
        lambda: [torch.nn.Parameter(GIVEN[0].clone()), GIVEN[1], 7],
        lambda: [GIVEN[0].clone().requires_grad_(), GIVEN[1], 7],
    ]
    for _ in range(4):
        for way in ways:
            with torch.inference_mode():
                assert checks.hold(way())
            with torch.no_grad():
                assert checks.hold(way())
                assert not checks.hold([GIVEN[0].double(), GIVEN[1], 7])
            assert not checks.hold([GIVEN[0].t().contiguous().t(), GIVEN[1], 7])
            assert not checks.hold([GIVEN[0], GIVEN[1][:2], 7])
            assert not checks.hold([GIVEN[0], GIVEN[1][None], 7])


def test_one_tensor_may_be_two_inputs():
    checks = Checks([GIVEN[1], GIVEN[1]], {}, [0, 1])
    for _ in range(8):
        assert checks.hold([GIVEN[1], GIVEN[1]])
        assert checks.hold([torch.ones(3), torch.ones(3)])
        assert not checks.hold([torch.ones(4), torch.ones(3)])

"""Views of inputs that overlap other inputs, which are written to: eager's values, in eager's memory."""

import pytest
import torch
from support.thorough import one_row_in, takes_turns

import regraft

PLACES = {
    "equal": lambda m: (m.view(5, 4, 6), m.view(5, 4, 6)),
    "strided": lambda m: (m.as_strided((5, 4, 6), (24, 6, 1)), m.as_strided((5, 4, 6), (24, 6, 1))),
    "whole and part": lambda m: (m.view(5, 4, 6), m.view(5, 4, 6)[..., :1]),
    "parts": lambda m: (m.view(5, 4, 6)[1:4], m.view(5, 4, 6)[2:]),
    "columns": lambda m: (m.view(5, 4, 6)[..., :3], m.view(5, 4, 6)[..., 3:]),
    "apart": lambda m: (m.view(5, 4, 6)[:2], m.view(5, 4, 6)[2:]),
}
PROGRAMS = {
    "a dim more": lambda x, y: (y.sub_(3), x[..., None], x * 2)[1:],
    "transposed": lambda x, y: (x.transpose(0, 1), y.sub_(3))[:1],
    "parts of both": lambda x, y: (y.sub_(3), x.mul_(2), x[0], y[1:])[2:],
    "the inputs": lambda x, y: (y.sub_(3), x, y),
    "no view": lambda x, y: (x.add_(1), y * 2 + 1)[1:],
}
KEPT = {"a dim more", "transposed", "parts of both"}


@one_row_in(4)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("places", PLACES)
def test_views_of_inputs_that_overlap(places, program, dynamic):
    """AOTAutograd raises for most of them when they run: it applies the views to another tensor."""
    torch._dynamo.reset()
    compiled = torch.compile(PROGRAMS[program], backend="regraft", dynamic=dynamic)
    with regraft.coverage() as cov:
        for start in (0.0, 1.0):
            mine, theirs = (PLACES[places](torch.arange(start, start + 120)) for _ in range(2))
            ours, eager = compiled(*mine), PROGRAMS[program](*theirs)
            for x, y in zip((*ours, *mine), (*eager, *theirs), strict=True):
                torch.testing.assert_close(x, y, check_stride=True)
                assert x.storage_offset() == y.storage_offset()
            assert _is_in(ours, mine[0]) == _is_in(eager, theirs[0])
    codes = {fallback.code for fallback in cov.fallbacks}
    assert codes <= {"view-of-shared-input"} and bool(codes) == (program in KEPT and places != "apart")


def _is_in(tensors, memory):
    return [x.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr() for x in tensors]

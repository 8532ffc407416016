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


LISTS = {
    "twice": lambda a, b: torch._foreach_mul_([a, a, b], 2.0),
    "twice, with others": lambda a, b: torch._foreach_add_([a, a], [b, b], alpha=3),
    "crossed": lambda a, b: torch._foreach_add_([a, b], [b, a]),
    "copied": lambda a, b: torch._foreach_copy_([a, b], [b, a]),
    "part": lambda a, b: torch._foreach_add_([a, a[:2]], [1.0, 2.0]),
    "products": lambda a, b: torch._foreach_addcmul_([a, b], [b, b], [b, a], [1.0, 2.0]),
    "rows": lambda a, b: torch._foreach_mul_([a[:2], a[2:]], 2.0),
    "norms": lambda a, b: torch._foreach_div_([a, b], torch._foreach_norm([a, a])),
    "themselves": lambda a, b: torch._foreach_mul_([a[:2], a[2:]], [a[:2], a[2:]]),
}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", LISTS)
def test_lists_of_tensors_that_overlap(name, shared):
    """Eager writes to one after the other."""
    torch._dynamo.reset()
    compiled, given = torch.compile(LISTS[name], backend="regraft"), []
    with regraft.coverage() as cov:
        for call in (compiled, LISTS[name]):
            a, b = torch.arange(1.0, 5.0), torch.arange(5.0, 9.0)
            a, b = (a[:], a[:]) if shared else (a, b)
            call(a, b)
            given.append([a, b])
    torch.testing.assert_close(*given)
    assert bool(cov.fallbacks) == (name not in ("rows", "norms", "themselves") or (name == "norms" and shared))


@pytest.mark.parametrize("shared", [False, True])
def test_gradients_that_are_one_tensor_are_clipped(shared):
    torch._dynamo.reset()
    found = []
    for compiled in (False, True):
        parameters = [torch.nn.Parameter(torch.ones(3, 4)) for _ in range(2)]

        def clip(parameters=parameters):
            return torch.nn.utils.clip_grad_norm_(parameters, 0.5)

        call = torch.compile(clip, backend="regraft") if compiled else clip
        for turn in range(3):
            gradients = [torch.arange(12.0).reshape(3, 4) + k for k in range(2)]
            for p, g in zip(parameters, gradients, strict=True):
                p.grad = gradients[0] if shared == (turn != 1) else g
            found.append([call(), *(p.grad for p in parameters)])
    torch.testing.assert_close(found[3:], found[:3])


def _is_in(tensors, memory):
    return [x.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr() for x in tensors]


def read_by_place(x):
    view = x.as_strided((2,), (1,), 0)
    x.mul_(2)
    return view + 1


BY_PLACE = {
    "written by place": lambda x: (x.as_strided((2,), (1,), 0).add_(5), x * 2),
    "read by place": read_by_place,
    "returned": lambda x: x.as_strided((2, 2), (1, 2), 1).mul_(2),
    "of a view": lambda x: x[1:].as_strided((2,), (1,)).mul_(2),
    "only read": lambda x: x.as_strided((2,), (1,), 0) + 1,
    "of the input": lambda x: x.as_strided((2,), (2,)).mul_(2),
}


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("name", BY_PLACE)
def test_views_by_place(name, dynamic):
    """Places count from the beginning of the memory, not of the input, and no guard fixes where the input begins."""
    torch._dynamo.reset()
    compiled = torch.compile(BY_PLACE[name], backend="regraft", dynamic=dynamic, options={"strict": True})
    with regraft.coverage() as cov:
        for start in (0, 2, 4):
            mine, theirs = torch.arange(12.0), torch.arange(12.0)
            torch.testing.assert_close(compiled(mine[start : start + 5]), BY_PLACE[name](theirs[start : start + 5]))
            assert torch.equal(mine, theirs)
    assert {f.code for f in cov.fallbacks} == (
        {"view-by-place"} if name not in ("only read", "of the input") else set()
    )


OVERLAPPING = {
    "rows that meet": lambda m: m.as_strided((5, 3), (2, 1)),
    "windows": lambda m: m.unfold(0, 4, 2),
    "diagonals": lambda m: m.as_strided((3, 4), (1, 1)),
    "expanded": lambda m: m[:4].expand(3, 4),
    "apart": lambda m: m.view(3, 4).t(),
    "interleaved": lambda m: m.as_strided((3, 2), (2, 5)),
}
WRITES = {
    "a row": lambda u: (u[0].mul_(2), u + 0)[1],
    "an element": lambda u: (u[1, 0].fill_(9), u * 2)[1],
    "through another view": lambda u: (u.as_strided((2,), (1,)).add_(5), u * 2)[1],
    "none": lambda u: u * 2,
}


@one_row_in(4)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("layout", OVERLAPPING)
def test_elements_that_share_memory(layout, write, inside, dynamic):
    """Inputs, and views by places of what the program makes, in which an element has several indices."""
    made, wrote = OVERLAPPING[layout], WRITES[write]

    def program(given):
        return (wrote(made(x := given + 1)), x) if inside else wrote(given)

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft", dynamic=dynamic, options={"strict": True})
    mine, theirs = torch.arange(12.0), torch.arange(12.0)
    for _ in range(2):
        ours = compiled(mine if inside else made(mine))
        torch.testing.assert_close(ours, program(theirs if inside else made(theirs)))
        assert torch.equal(mine, theirs)


OF_OTHER_DTYPES = {
    "larger": lambda t: (t[4:8], t.view(torch.float64)[2:4]),
    "larger, in part": lambda t: (t[6:10], t.view(torch.float64)[2:4]),
    "smaller": lambda t: (t[4:8], t.view(torch.bfloat16)[8:12]),
    "as large": lambda t: (t[4:8], t.view(torch.int32)[6:10]),
    "beside it": lambda t: (t[4:8], t.view(torch.float64)[4:6]),
    "far from it": lambda t: (t[:4], t.view(torch.float64)[6:8]),
}
OF_TWO = {
    "read": lambda x, y: (y.add_(1), x.view(2, 2) + 1)[1:],
    "written": lambda x, y: (x.mul_(2), y + 1)[1:],
    "both": lambda x, y: (torch._foreach_mul_([x, y], 2), x + 1)[1:],
    "kept": lambda x, y: (y.add_(1), x.view(2, 2))[1:],
    "no write": lambda x, y: (x + 1, y * 2),
}


@takes_turns("program")
@pytest.mark.parametrize("program", OF_TWO)
@pytest.mark.parametrize("places", OF_OTHER_DTYPES)
def test_inputs_of_several_dtypes_in_one_memory(places, program):
    """AOTAutograd counts elements, not bytes, to find out whether inputs overlap."""
    torch._dynamo.reset()
    compiled = torch.compile(OF_TWO[program], backend="regraft", options={"strict": True})
    mine, theirs = torch.arange(16.0), torch.arange(16.0)
    torch.testing.assert_close(
        compiled(*OF_OTHER_DTYPES[places](mine)), OF_TWO[program](*OF_OTHER_DTYPES[places](theirs))
    )
    assert torch.equal(mine.view(torch.int32), theirs.view(torch.int32))

"""Ranges of iterations that choose differently become loops of their own: paddings, rotations, and what looks alike."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernels import avx512_text, compiled_agrees, numbers, one_unit
from support.lowering import lowered
from support.thorough import examples, one_row_in

from regraft.compiler.codegen.cpp.joined_loops import join_loops
from regraft.compiler.codegen.cpp.ranges_apart import ranges_apart
from regraft.compiler.ir.accesses import statements
from regraft.compiler.ir.interpreter import run_kernel
from regraft.compiler.ir.kernel import Assign, Loop
from regraft.compiler.ir.printer import kernel_text
from regraft.compiler.ir.verify import verify_kernel
from regraft.compiler.schedule import schedule

R = torch.randn
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8]

PADDED = {
    "reflected": lambda x: F.pad(x, (3, 5), mode="reflect"),
    "edges": lambda x: F.pad(x, (9, 1), mode="replicate"),
    "constants": lambda x: F.pad(x, (2, 17), value=7),
    "cut": lambda x: F.pad(x, (-2, 3)),
    "rotated": lambda x: x.roll(5, -1),
    "rotated twice": lambda x: x.roll((5, -3), (-1, -2)),
    "rotated flat": lambda x: x.roll(11),
    "rows rotated": lambda x: x.roll((5, 1), (0, 1)),
    "rows padded": lambda x: F.pad(x, (0, 0, 1, 2)),
    "shifted": lambda x: F.pad(x, (1, 0))[..., :-1] + x,
    "clamped by number": lambda x: x * torch.arange(x.shape[-1]).clamp(3, 20),
    "chosen by number": lambda x: torch.where(torch.arange(x.shape[-1]) < 7, x, x + 1),
    "at one number": lambda x: torch.where(torch.arange(x.shape[-1]) == 7, x, x + 1),
    "halves": lambda x: x + (torch.arange(x.shape[-1]) // 16),
    "backwards": lambda x: F.pad(x.flip(-1), (3, 4), mode="reflect"),
}


def text_of(function, *inputs, lanes=16):
    kernels = schedule(lowered(function, *inputs).program).kernels
    return "".join(kernel_text(ranges_apart(kernel, lanes)) for kernel in kernels)


@one_row_in(3)
@pytest.mark.parametrize("name", PADDED)
@one_unit()
def test_programs(name):
    for dtype in DTYPES:
        for sizes in ((2, 3, 21), (1, 2, 100)):
            if dtype.is_floating_point or name not in ("reflected", "edges", "backwards"):
                compiled_agrees(PADDED[name], numbers(*sizes, dtype=dtype), rtol=0, atol=0)


@settings(max_examples=examples(20, 60), deadline=None)
@given(
    st.integers(1, 40), st.integers(0, 12), st.integers(0, 12), st.sampled_from(["reflect", "replicate", "constant"]),
    st.integers(-50, 50), st.booleans(), st.sampled_from([1, 5, 16]),
)  # fmt: skip
def test_any_widths(width, left, right, mode, shift, reverse, row):
    """The interpreter runs what is left of the kernel, in which rows of `row` elements move; both say the same."""
    left, right = (min(n, width - 1) for n in (left, right))

    def program(x):
        y = F.pad(x, (0, 0, left, right), mode=mode).roll(shift, -2)
        return y.flip(-2) if reverse else y

    x = R(2, 3, width, row)
    (made,) = schedule(lowered(program, x).program).kernels
    apart = ranges_apart(made, 8)
    assert verify_kernel(apart) == []
    source, result = (p.buffer.name for p in made.params)
    found = run_kernel(apart, {source: x.flatten(), result: torch.empty(2 * 3 * (width + left + right) * row)})
    out = (found or {}).get(result)
    assert torch.equal(out.view(2, 3, -1, row), program(x))


@pytest.mark.parametrize(
    "program", [lambda x: x.roll(3, 2), lambda x: x.roll((1, 3), (1, 2)) * 2, lambda x: x + x.roll(-27, 2)]
)
def test_rows_that_move_together_are_one_loop(program):
    """Rows of seven elements would each be a loop, whose place is divided."""
    (made,) = schedule(lowered(program, R(2, 8, 30, 7)).program).kernels
    joined = join_loops(ranges_apart(made, 16))
    rows = {s.var.extent for s in statements(joined.body) if isinstance(s, Loop) and isinstance(s.body[0], Assign)}
    assert rows == {3 * 7, 27 * 7}


def test_rows_with_a_row_of_their_own_are_apart():
    """Previous rows: the first has none, and the others do not ask."""
    text = text_of(lambda x, w: torch.lerp(F.pad(x, (0, 0, 1, -1)), x, w), R(4, 32, 48), R(48))
    assert " if " not in text


def test_loops_that_threads_share_stay_around():
    """Two iterations around would be all that threads could share; ranges of an outermost loop are shared each."""
    made = [*schedule(lowered(lambda x: x.roll(3, 1), R(2, 4096, 16)).program).kernels]
    assert [ranges_apart(kernel, 16) for kernel in made] == made
    assert "%" not in text_of(lambda x: x.roll(3, 0), R(4096, 16))


def test_the_middle_of_padded_rows_is_a_copy():
    text = text_of(PADDED["reflected"], R(2, 8, 64))
    assert "min" not in text
    assert "max" not in text
    assert " if " not in text_of(PADDED["constants"], R(2, 8, 64))
    made = avx512_text(PADDED["reflected"], R(2, 8, 64))
    assert "gather" not in made
    assert "pick" not in made
    assert "%" not in text_of(PADDED["rotated"], R(2, 8, 64))


def test_short_ranges_are_written_element_by_element():
    """Lanes along a loop around three stores of a constant would scatter them (and did)."""
    made = avx512_text(lambda x: F.pad(x, (3, 3, 3, 3)), R(4, 16, 112, 112))
    assert "scatter" not in made
    assert "store_rows" not in made


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.repeat_interleave(2, -1),  # a choice for each pair
        lambda x: x.tril(),  # rows choose differently
        lambda x: F.pad(x[:, :9], (1, 1)),  # few iterations
        lambda x: x.unfold(-1, 3, 1).sum(-1),
        lambda x: x + 1,
    ],
)
def test_what_stays_as_it_is(program):
    kernels = schedule(lowered(program, R(40, 64)).program).kernels
    assert all(ranges_apart(kernel, 16) == kernel for kernel in kernels)


def test_many_ranges_stay_one_loop():
    def program(x):
        for k in range(2, 40, 4):
            x = torch.where(torch.arange(64) < k, x, x + k)
        return x

    (made,) = schedule(lowered(program, R(8, 64)).program).kernels
    assert ranges_apart(made, 16) == made


@one_unit()
def test_stored_through_an_index_and_with_gathers():
    x, i = R(6, 40), torch.randperm(40)
    compiled_agrees(lambda x, i: F.pad(x[:, i], (3, 3), mode="reflect"), x, i)
    compiled_agrees(lambda x, i: x.index_copy(1, i, F.pad(x, (3, 0))[:, :40]), x, i)
    compiled_agrees(lambda x: F.pad(x, (3, 3), mode="reflect").sum(-1), x)
    compiled_agrees(lambda x: F.pad(x, (3, 3)).roll(2, -1).softmax(-1), x)


def test_symbolic_rows():
    compiled_agrees(lambda x: F.pad(x, (3, 3), mode="reflect"), R(2, 3, 40), dynamic=True)

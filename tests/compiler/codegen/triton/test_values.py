"""Values and accesses to memory as Triton: what is a block, and when lanes wait for each other."""

import pytest

pytest.importorskip("triton")

import torch
from support.triton_kernels import compiles, interpreted_agrees

ROWS, AT = torch.randn(8, 100), torch.rand(8, 100).argsort(1)


def lines(function, *inputs):
    """Barriers, loads and stores of a function's one kernel."""
    (source,) = interpreted_agrees(function, *inputs)
    return [k for line in source.text.splitlines() for k in ("debug_barrier", "tl.load", "tl.store") if k in line]


def test_an_index_of_constants_is_a_block():
    """An index may be read from memory that holds one known number: then it is no plain number either."""

    def function(x):
        return x.gather(0, torch.zeros_like(x, dtype=torch.int64)) + 1

    for source in interpreted_agrees(function, torch.randn(1)):
        assert compiles(source)


def test_a_loop_variable_means_one_loop():
    """Of two loops over one variable, lanes and one after the other, the second knows nothing of the first's."""
    x, target = torch.randn(10, 5), torch.randint(5, (10, 5))
    interpreted_agrees(torch.nn.functional.multilabel_margin_loss, x, target)


def test_scattered_stores_wait_for_what_was_stored_there():
    """Other lanes may not have stored yet: the last store of the program's order is to be the last one."""
    one = AT[:, :1]
    found = lines(lambda x, at: torch.softmax(x, 1).scatter(1, at, 0.5), ROWS, one)
    assert found[found.index("tl.store") + 1 :][-2:] == ["debug_barrier", "tl.store"]
    found = lines(lambda x, at: torch.softmax(x, 1).scatter(1, at, 0.5).sum(1), ROWS, one)
    assert found.count("debug_barrier") == 2


def test_what_each_lane_keeps_to_itself_needs_no_waiting():
    def in_place(x, y):
        x.mul_(y).add_(1)
        y.copy_(x + y)
        return x * 2

    assert "debug_barrier" not in lines(in_place, torch.randn(300), torch.randn(300))
    assert "debug_barrier" not in lines(lambda x: x.copy_(torch.softmax(x, 1)), ROWS.clone())


@pytest.mark.parametrize("many", [ROWS, ROWS[0]])
@pytest.mark.parametrize("shape", [(), (1,), (8, 1)])
def test_what_many_lanes_read_is_written_when_all_have_read_it(shape, many):
    """A step's number that is counted up in the kernel that computes with it: a late lane would see the next one."""

    def counted(n, x):
        result = x * (n + 1)
        n.add_(1)
        return result

    found = lines(counted, torch.zeros(shape), many)
    assert found.count("debug_barrier") == 1 and found[-2:] == ["debug_barrier", "tl.store"]


def test_pieces_of_one_result_need_no_waiting():
    """Other lanes store elsewhere: no two pieces have an element in common."""
    parts = [torch.randn(40, 8) for _ in range(3)]
    for function in (lambda *x: torch.stack(x, -1), lambda *x: torch.cat(x, 1)):
        found = lines(function, *parts)
        assert found == ["tl.load"] * 3 + ["tl.store"] * 3  # no load behind a store, which waits for its own


def test_rows_that_are_turned_in_place_are_read_before():
    def turned(x):
        return x.copy_((x - x.amax(1, keepdim=True)).flip(1))

    interpreted_agrees(turned, ROWS.clone())

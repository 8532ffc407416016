"""Folds of few elements: part of the kernels that read them on GPUs, with the same results."""

import pytest

pytest.importorskip("triton")

import torch
from support.lowering import trace
from support.thorough import one_row_in
from support.triton_kernels import compiles, interpreted_agrees

from regraft.compiler.ir.printer import kernel_text
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import CPU, GPU, few_folds, schedule

R = torch.randn


def steps(function, *inputs, target=GPU):
    return schedule(lower(trace(function, *inputs), strict=True).program, target=target).steps


def entries(origin, direction, low, high):
    """The places at which rays enter and leave boxes."""
    a, b = ((edge[None] - origin[:, None]) / direction[:, None] for edge in (low, high))
    return (torch.minimum(a, b).amax(-1) - torch.maximum(a, b).amin(-1)).min(1)


def weighted(x, y, w):
    w = w.relu() / (w.relu().sum() + 1e-4)
    return w[0] * x + w[1] * y.mT


def encoded(boxes, anchors):
    size = anchors[:, 2:] - anchors[:, :2]
    inside = (boxes[:, :2] - anchors[:, :2]) / size
    return torch.cat([inside, (boxes[:, 2:] - boxes[:, :2]) / size], 1)


PROGRAMS = {
    "maxima of coordinates": (entries, [R(40, 3), R(40, 3), R(9, 3), R(9, 3) + 2]),
    "weights of inputs": (weighted, [R(30, 20), R(20, 30), torch.rand(3)]),
    "sizes of boxes": (encoded, [R(70, 4), torch.rand(70, 4).cumsum(1)]),
    "products": (lambda x, y: x.prod(-1)[:, None] * y, [R(30, 4), R(30, 50)]),
    "any": (lambda x, y: torch.where((x > 1).any(-1)[:, None], y, -y), [R(30, 4), R(30, 50)]),
    "all": (lambda x, y: torch.where((x > -1).all(-1)[:, None], y, -y), [R(30, 4), R(30, 50)]),
    "of two dims": (lambda x, y: x.sum((1, 2))[:, None] * y, [R(30, 2, 3), R(30, 50)]),
    "of integers": (lambda x, y: x.sum(-1)[:, None] * y, [torch.arange(90).view(30, 3), R(30, 50)]),
}


@one_row_in(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_they_are_computed_where_they_are_read(name):
    function, inputs = PROGRAMS[name]
    assert len(steps(function, *inputs)) == 1
    for source in interpreted_agrees(function, *inputs, rtol=1e-5, atol=1e-5):
        assert compiles(source)


def test_nan_and_negative_zeros_stay():
    x = torch.tensor([[-0.0, -0.0], [float("nan"), 1.0], [float("inf"), -float("inf")]])
    one = lambda x, y: (x.sum(1)[:, None] * y, x.amax(1)[:, None] + y)  # noqa: E731
    interpreted_agrees(one, x, torch.ones(3, 5))


def test_what_is_a_result_stays_in_its_kernel():
    assert len(steps(lambda x: (x.sum(-1), x.sum(-1)[:, None] * x), R(30, 4))) == 1


def test_only_few_elements_are_written_out():
    function, length = (lambda x, y: x.sum(-1)[:, None] * y), few_folds.FEW
    found = ["Fold" in repr(steps(function, R(30, n), R(30, 50))[-1].body) for n in (length, length + 1)]
    assert found == [False, True]


def test_large_readers_do_not_compute_them_again():
    """Norms of vectors beside each other, for all pairs: computing them once is a launch, and less work."""
    pairs = lambda x: (x.square().sum(-1).sqrt()[:, None] - x.square().sum(-1).sqrt()) ** 2  # noqa: E731
    assert len(steps(pairs, R(6000, 8))) == 2
    assert len(steps(pairs, R(60, 8))) == 1


def test_of_a_cpu_they_are_loops():
    (kernel,) = steps(lambda x: x.sum(-1), R(30, 4), target=CPU)
    assert "Fold" in repr(kernel.body)


def test_folds_of_constants_are_constants():
    """What `one_hot` checks of its places is known after a remainder: nothing is folded or launched for it."""

    def program(i, m):
        places = i % 10
        return torch.where((places >= 0).all() & (places < 10).all(), m, 0.0)

    inputs = torch.randint(0, 99, (300,)), torch.tensor(2.0)
    found = schedule(lower(trace(program, *inputs), strict=True).program, target=GPU)
    assert "fold" not in "".join(map(kernel_text, found.kernels))
    interpreted_agrees(program, *inputs, target=GPU)


def test_folds_of_no_constants_stay():
    for program in (lambda i: torch.ones_like(i, dtype=torch.bool).all(0), lambda i: torch.full_like(i, 3).sum(0)):
        interpreted_agrees(program, torch.zeros(0, 4, dtype=torch.int64), target=GPU)
        interpreted_agrees(program, torch.zeros(40, 4, dtype=torch.int64), target=GPU)

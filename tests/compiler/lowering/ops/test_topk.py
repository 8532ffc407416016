"""The first few of a row: order, ties, NaN and infinities against a stable sort; routers in one kernel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lowering import compare, run, trace
from support.schedules import assert_same
from support.tensors import FLOATS, tensor_and_dim
from support.thorough import examples
from support.triton_kernels import compiles, interpreted_agrees, kernel_source

from regraft.compiler.lowering import lower
from regraft.compiler.lowering.ops import topk
from regraft.compiler.schedule import GPU, schedule

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    """As on devices whose library takes the first of equal elements, too."""
    monkeypatch.setattr(topk, "is_librarys", lambda device, dtype: False)


def first_of(x, k, dim, largest):
    """NaN is larger than anything; of equal elements the first comes first."""
    found, made = torch.sort(x, dim=dim, descending=largest, stable=True), torch.topk(x, k, dim, largest)
    return tuple(a.copy_(b.narrow(dim, 0, k)) for a, b in zip(made, found, strict=True))


def agrees(x, k, dim=-1, largest=True, in_order=True):
    module = trace(lambda x: torch.topk(x, k, dim, largest, in_order), x)
    compare(run(module, lower(module, strict=True), [x]), first_of(x, k, dim, largest), exact=True)


@settings(max_examples=examples(10, 25), deadline=None)
@given(st.data())
def test_the_first_few(data):
    x, dim = data.draw(tensor_and_dim((*FLOATS, torch.int64, torch.uint8)))
    if x.dim() == 0 or x.shape[dim] == 0:
        return
    k = data.draw(st.integers(1, x.shape[dim]))
    agrees(x, k, dim, data.draw(st.booleans()), data.draw(st.booleans()))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    "row",
    [
        [1.0, 2.0, 2.0, 2.0, 1.0],
        [NAN, INF, NAN, -INF, 0.0],
        [-INF, -INF, -INF, NAN, -INF],
        [INF, INF, NAN, INF, INF],
        [NAN, NAN, NAN, NAN, NAN],
    ],
)
def test_ties_and_numbers_that_are_none(row, largest):
    agrees(torch.tensor([row, row[::-1]]), 4, largest=largest)
    agrees(torch.tensor([row, row[::-1]], dtype=torch.bfloat16).t(), 3, 0, largest=largest)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.int16])
def test_the_ends_of_whole_numbers(dtype, largest):
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    agrees(torch.tensor([[low, high, low, high, low]], dtype=dtype), 4, largest=largest)


@pytest.mark.parametrize(
    ("sizes", "k"),
    [((128, 1024), 9), ((2, 1025), 2), ((), 1), ((3, 4), 0)],
    ids=["many", "long", "number", "none"],
)
def test_what_sorting_is_for_stays_a_call(sizes, k):
    assert lower(trace(lambda x: torch.topk(x, k), torch.randn(sizes))).kept


def test_what_eager_refuses_stays_eagers():
    assert lower(trace(lambda x: torch.topk(x, 1), torch.zeros(2, 3, dtype=torch.bool))).kept


def test_equal_elements_on_cpus_are_the_librarys(monkeypatch):
    monkeypatch.undo()
    made = lower(trace(lambda x: torch.topk(x, 2), torch.randn(3, 8)))
    assert [kept.code for kept in made.kept] == ["algorithm"]


@pytest.mark.parametrize(
    ("dtype", "librarys"), [(torch.float32, False), (torch.float64, False), (torch.bfloat16, True), (torch.int64, True)]
)
def test_equal_elements_on_gpus_are_the_librarys_where_they_are_common(dtype, librarys, monkeypatch):
    monkeypatch.undo()
    assert topk.is_librarys("cuda", dtype) == librarys


def route(x):
    """A router of experts, as `transformers` spells it."""
    weights, experts = torch.topk(torch.softmax(x.float(), -1), 2, -1)
    return (weights / weights.sum(-1, keepdim=True)).to(x.dtype), experts


@pytest.mark.parametrize("function", [route, lambda x: torch.topk(x, 3, largest=False)], ids=["router", "least"])
def test_a_router_is_one_kernel(function):
    (source,) = interpreted_agrees(function, torch.randn(5, 8))
    assert len(source.launches) == 1 and compiles(source)


def test_long_rows():
    interpreted_agrees(lambda x: torch.topk(x, 8), torch.randperm(2048).float().view(2, 1024))


def neighbours(x):
    """Edges to the 8 nearest of each point."""
    near = (x[:, :, None] - x[:, None]).square().sum(-1).topk(8, largest=False)[1]
    points = x[:, None].expand(-1, x.shape[1], -1, -1)
    return torch.gather(points, 2, near[..., None].expand(-1, -1, -1, 3)) - x[:, :, None]


def test_the_nearest_points_are_found_in_one_kernel():
    module = trace(neighbours, torch.randn(2, 256, 3))
    steps = schedule(lower(module, strict=True).program, target=GPU).steps
    assert [kernel_source(step).text.count("fold_argmin(") > 1 for step in steps] == [True]
    interpreted_agrees(neighbours, torch.randn(2, 20, 3), rtol=1e-5, atol=1e-5)


def test_many_of_a_row_are_the_beginning_of_all_in_order():
    x = torch.randn(3, 70)
    sources = interpreted_agrees(lambda x: torch.topk(x, 16), x, exact=True)
    assert len(sources) <= 2 and all(map(compiles, sources))
    agrees(x.round(), 20, largest=False)
    agrees(torch.tensor([[1.0, NAN, INF, 2.0, NAN, -INF, 0.0, 5.0, 1.0, 1.0]]), 9)


READERS = {
    "broadcast": lambda x, y: y - x.topk(1)[0] * 2,
    "another dim": lambda x, y: x.topk(1, 0)[0].cummax(1)[0] + x,
    "stacked": lambda x, y: torch.stack([x.topk(1)[0]] * 2).flatten(1),
    "places": lambda x, y: y.gather(-1, x.topk(1)[1].expand(2, 7, 1)) + x.topk(1)[0],
}


@pytest.mark.parametrize("reader", READERS)
def test_the_first_one_is_read_where_it_lies(reader):
    """Its dim of size 1 is a loop of one iteration, of which readers know nothing."""
    inputs = torch.randn(7, 8), torch.randn(2, 7, 8)
    assert_same(lower(trace(READERS[reader], *inputs), strict=True).program, target=GPU)

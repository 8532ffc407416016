"""Scatters against eager: duplicates, reductions, masks, layouts, dtypes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.lowering import agree, deterministic, lowered, run, trace
from support.tensors import FLOATS, WHOLE, tensor_and_dim, tensors
from support.thorough import examples
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.lowering import lower

pytestmark = pytest.mark.filterwarnings("ignore:index_reduce")
aten = torch.ops.aten
EXAMPLES = settings(max_examples=examples(6, 15), deadline=None)
NUMBERS = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8)
ALL = (*FLOATS, *WHOLE)
SEEDS = st.integers(0, 2**16)
REDUCTIONS = st.sampled_from(["sum", "prod", "mean", "amax", "amin"])


def indices(shape, size, seed, *, negative=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-size if negative else 0, size, shape, generator=generator)


def values(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randint(0, 5, shape, generator=generator).to(dtype)


def scattered(pair, seed, length):
    """`x`, dim, an index with duplicates and a source that is larger than it."""
    x, dim = pair
    shape = list(x.shape)
    shape[dim] = length
    index = indices(shape, x.shape[dim], seed)
    return x, dim, index, values([n + 1 for n in shape], x.dtype, seed)


PAIRS = tensor_and_dim(ALL, min_rank=1, min_size=1)


@EXAMPLES
@given(PAIRS, SEEDS, st.integers(0, 4), st.booleans())
def test_scatter_keeps_the_last(pair, seed, length, dynamic):
    x, dim, index, src = scattered(pair, seed, length)
    agree(lambda x, i, s: x.scatter(dim, i, s), x, index, src, exact=True, dynamic=dynamic)


@EXAMPLES
@given(PAIRS, SEEDS, st.integers(0, 4), st.booleans())
def test_scatter_of_a_number(pair, seed, length, dynamic):
    x, dim, index, _ = scattered(pair, seed, length)
    agree(lambda x, i: x.scatter(dim, i, 1), x, index, exact=True, dynamic=dynamic)


@EXAMPLES
@given(PAIRS, SEEDS, st.integers(0, 4))
def test_scatter_add(pair, seed, length):
    x, dim, index, src = scattered(pair, seed, length)
    agree(lambda x, i, s: x.scatter_add(dim, i, s), x, index, src)


@pytest.mark.parametrize("reduce", ["add", "multiply"])
@EXAMPLES
@given(tensor_and_dim(NUMBERS, min_rank=1, min_size=1), SEEDS)
def test_scatter_with_a_legacy_reduction(reduce, pair, seed):
    x, dim, index, src = scattered(pair, seed, 3)
    agree(lambda x, i, s: x.scatter(dim, i, s, reduce=reduce), x, index, src)
    agree(lambda x, i: x.scatter(dim, i, 2, reduce=reduce), x, index)


@EXAMPLES
@given(tensor_and_dim(NUMBERS, min_rank=1, min_size=1), SEEDS, st.integers(0, 4), REDUCTIONS, st.booleans())
def test_scatter_reduce(pair, seed, length, reduce, include_self):
    x, dim, index, src = scattered(pair, seed, length)
    agree(lambda x, i, s: x.scatter_reduce(dim, i, s, reduce, include_self=include_self), x, index, src)


def slices(pair, seed, length, **more):
    x, dim = pair
    shape = list(x.shape)
    shape[dim] = length
    return x, dim, indices((length,), x.shape[dim], seed, **more), values(shape, x.dtype, seed)


@EXAMPLES
@given(tensor_and_dim(NUMBERS, min_rank=1, min_size=1), SEEDS, st.integers(0, 4), REDUCTIONS, st.booleans())
def test_index_reduce(pair, seed, length, reduce, include_self):
    assume(reduce != "sum")
    x, dim, index, source = slices(pair, seed, length)
    agree(lambda x, i, s: x.index_reduce(dim, i, s, reduce, include_self=include_self), x, index, source)


@EXAMPLES
@given(PAIRS, SEEDS, st.integers(0, 4), st.sampled_from([1, 2]), st.booleans())
def test_index_add(pair, seed, length, alpha, dynamic):
    x, dim, index, source = slices(pair, seed, length)
    agree(lambda x, i, s: x.index_add(dim, i, s, alpha=alpha), x, index, source, dynamic=dynamic)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_factors_of_16_bits(dtype):
    torch._dynamo.reset()
    index, call = torch.tensor([2, 0, 4]), torch.Tensor.index_add
    x, source = (torch.randn(n, 64, generator=torch.Generator().manual_seed(n)).to(dtype) for n in (5, 3))
    compiled = torch.compile(lambda x, s, n: call(x, 0, index, s, alpha=n), backend="regraft")
    for factor in (0.3, 0.7, 1.1, 3.3, 2, 301):
        torch.testing.assert_close(compiled(x, source, factor), call(x, 0, index, source, alpha=factor), rtol=0, atol=0)


@pytest.mark.parametrize(("sizes", "dim"), [((0, 3), 0), ((3, 0), 1), ((2, 0), 0)])
def test_index_add_to_nothing_reads_no_index(sizes, dim):
    x, index = torch.zeros(sizes), torch.tensor([0, 5])
    source = torch.ones([2 if d == dim else n for d, n in enumerate(sizes)])
    agree(lambda x, i, s: x.index_add(dim, i, s), x, index, source)


@EXAMPLES
@given(PAIRS, SEEDS, st.integers(0, 4))
def test_index_copy(pair, seed, length):
    x, dim, index, source = slices(pair, seed, length)
    agree(lambda x, i, s: x.index_copy(dim, i, s), x, index, source, exact=True)


@EXAMPLES
@given(PAIRS, SEEDS, st.integers(0, 4))
def test_index_fill_counts_from_the_end(pair, seed, length):
    x, dim, index, _ = slices(pair, seed, length, negative=True)
    agree(lambda x, i: x.index_fill(dim, i, 1), x, index, exact=True)
    agree(lambda x, i, v: x.index_fill(dim, i, v), x, index, torch.ones((), dtype=x.dtype), exact=True)


@EXAMPLES
@given(
    tensors(ALL, min_rank=1, min_size=1),
    SEEDS,
    st.lists(st.sampled_from([None, (), (3,), (2, 1), (2, 3)]), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_index_put(x, seed, shapes, accumulate, whole):
    shapes = shapes[: x.dim()]
    if not any(shape is not None for shape in shapes):
        shapes[0] = (3,)
    given_ = [s if s is None else indices(s, x.shape[d], seed + d, negative=True) for d, s in enumerate(shapes)]
    held = [i for i in given_ if i is not None]
    value = values(aten.index(x, given_).shape if whole else (), x.dtype, seed)

    def put(x, value, *held):
        rest = iter(held)
        return aten.index_put(x, [None if i is None else next(rest) for i in given_], value, accumulate)

    agree(put, x, value, *held)


@EXAMPLES
@given(tensors(ALL, min_rank=2, min_size=1), SEEDS, st.sampled_from([(0, 1), (0, 2), (1, 2)]), st.booleans())
def test_one_value_behind_a_mask_needs_no_index(x, seed, span, accumulate):
    start, stop = span
    mask = values(x.shape[start:stop], torch.bool, seed)
    value = values((1, *x.shape[stop:]), x.dtype, seed)

    def put(x, mask, value):
        return aten.index_put(x, [None] * start + [mask], value, accumulate)

    made = agree(put, x, mask, value)
    assert len(made.program.items) == 1


def test_values_behind_a_mask_stay_a_call():
    x, mask = torch.randn(4), torch.tensor([True, False, True, False])
    agree(lambda x, m, v: x.index_put((m,), v), x, mask, torch.ones(2), extern={"aten.index_put.default"})


@EXAMPLES
@given(tensors(ALL, min_rank=1, min_size=1), SEEDS, st.sampled_from([(), (3,), (2, 3)]), st.booleans())
def test_put(x, seed, shape, accumulate):
    index = indices(shape, x.numel(), seed, negative=True)
    agree(lambda x, i, s: torch.put(x, i, s, accumulate), x, index, values(shape, x.dtype, seed))


@EXAMPLES
@given(tensors(FLOATS, min_rank=2, min_size=1, special=False), SEEDS, st.sampled_from([-1, 0, 2]), st.booleans())
def test_embedding_backward(grad, seed, padding, dynamic):
    index = indices(grad.shape[:-1], 5, seed)
    whole = grad.round().clamp(-8, 8)  # eager on CPUs rounds every sum to 16 bits
    agree(lambda g, i: aten.embedding_dense_backward(g, i, 5, padding, False), whole, index, dynamic=dynamic)


def test_a_gradient_scaled_by_frequency_stays_a_call():
    name = "aten.embedding_dense_backward.default"
    index = torch.tensor([1, 1, 3])
    agree(lambda g, i: aten.embedding_dense_backward(g, i, 4, -1, True), torch.randn(3, 2), index, extern={name})


def test_a_nan_at_the_padding_index_is_dropped():
    grad = torch.full((2, 3), float("nan"))
    agree(lambda g, i: aten.embedding_dense_backward(g, i, 4, 1, False), grad, torch.tensor([1, 2]), exact=True)


@pytest.mark.parametrize("bad", [4, -1])
def test_out_of_range_raises(bad):
    x, src = torch.randn(4, 3), torch.randn(2, 3)
    module = trace(lambda x, i, s: x.index_add(0, i, s), x, torch.tensor([0, 3]), src)
    with pytest.raises(IndexError, match="out of bounds"):
        run(module, lower(module), [x, torch.tensor([0, bad]), src])


@EXAMPLES
@given(tensor_and_dim(ALL, min_rank=1, min_size=1), SEEDS, st.integers(1, 4), st.booleans(), st.sampled_from([0, 3]))
def test_few_elements_into_a_constant(pair, seed, length, dynamic, start):
    x, dim, index, src = scattered(pair, seed, length)
    src = src.narrow(dim, 0, length) if seed % 2 else src

    def last(x, i, s):
        return torch.full_like(x, start).scatter(dim, i, s)

    def added(x, i, s):
        return torch.full_like(x, start).scatter_add(dim, i, s)

    agree(last, x, index, src, exact=True, dynamic=dynamic)
    agree(added, x, index, src, dynamic=dynamic)


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("constant", [True, False])
def test_few_elements_into_a_constant_are_chosen_where_they_are_read(length, constant):
    def function(x, i, s):
        return (torch.zeros_like(x) if constant else x).scatter_add(1, i, s) * 2

    inputs = torch.ones(5, 8), torch.zeros(5, length, dtype=torch.int64), torch.ones(5, length)
    modes = {s.mode for item in lowered(function, *inputs).program.items for s in item.stores}
    assert ("add" in modes) == (length == 5 or not constant)


@pytest.mark.parametrize("bad", [-1, 4])
def test_out_of_range_raises_where_elements_are_chosen(bad):
    x, index = torch.ones(2, 4), torch.tensor([[0], [bad]])
    module = trace(lambda x, i: torch.zeros_like(x).scatter(1, i, 1.0), x, torch.zeros_like(index))
    with pytest.raises(IndexError, match="out of bounds"):
        run(module, lower(module), [x, index])


def test_a_scatter_is_a_copy_and_a_store_into_it():
    index = torch.tensor([[0, 1, 1]])
    made = lowered(lambda x, i, s: x.scatter_add(0, i, s), torch.randn(4, 3), index, torch.randn(1, 3))
    copy, store = made.program.items
    assert copy.stores[0].buffer == store.stores[0].buffer
    assert (copy.stores[0].mode, store.stores[0].mode) == (None, "add")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_many_small_terms_keep_them(dtype):
    """As eager's on a GPU: single precision, rounded once."""
    terms, index = torch.rand(3000, 2).to(dtype), torch.arange(3000) % 3
    exact = torch.zeros(3, 2, dtype=torch.float64).index_add(0, index, terms.double()).to(dtype)
    for function in (
        lambda x, i: torch.zeros(3, 2, dtype=dtype).index_put((i,), x, accumulate=True),
        lambda x, i: aten.embedding_dense_backward(x, i, 3, -1, False),
    ):
        module = trace(function, terms, index)
        found = run(module, lower(module, strict=True), [terms, index])
        torch.testing.assert_close(found, exact, rtol=1e-2, atol=0)


ORDERED = {  # whether the order of stores shows in the result
    "add": (True, lambda x, i, v: x.scatter_add(0, i, v)),
    "add whole numbers": (False, lambda x, i, v: x.long().scatter_add(0, i, v.long())),
    "prod": (True, lambda x, i, v: x.scatter_reduce(0, i, v, "prod")),
    "amax": (False, lambda x, i, v: x.scatter_reduce(0, i, v, "amax")),
    "the last": (True, lambda x, i, v: x.scatter(0, i, v)),
    "one number": (False, lambda x, i, v: x.scatter(0, i, 1.5)),
    "index_put": (True, lambda x, i, v: x.index_put((i.select(0, 0),), v, accumulate=True)),
    "index_add": (True, lambda x, i, v: x.index_add(0, i.select(1, 0), v)),
    "index_copy": (True, lambda x, i, v: x.index_copy(0, i.select(1, 0), v)),
    "embedding": (True, lambda x, i, v: aten.embedding_dense_backward(v, i.select(1, 0), 5, -1, False)),
    "slice": (False, lambda x, i, v: x.slice_scatter(v, 0, 1, 4)),
    "cat": (False, lambda x, i, v: torch.cat([x, v])),
}


@pytest.mark.parametrize("name", ORDERED)
def test_gpus_store_in_a_fixed_order_under_deterministic_algorithms(name):
    """Their kernels have no order: eager's run, which have one or raise."""
    shows, function = ORDERED[name]
    with FakeTensorMode():
        x, v = torch.empty(5, 3, device="cuda"), torch.empty(3, 3, device="cuda")
        module = make_fx(function)(x, torch.empty(3, 3, dtype=torch.int64, device="cuda"), v)
    with deterministic():
        assert [kept.code for kept in lower(module, strict=True).kept] == ["order"] * shows
    assert not lower(module, strict=True).kept

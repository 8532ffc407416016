"""Gathers against eager: index ranks and dtypes, negative indices, layouts, empty tensors, symbolic sizes, errors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.lowering import agree, lowered, run, trace
from support.tensors import FLOATS, WHOLE, tensor_and_dim, tensors
from support.thorough import examples

from regraft.compiler.lowering import lower

aten = torch.ops.aten
EXAMPLES = settings(max_examples=examples(6, 15), deadline=None)
ALL = (*FLOATS, *WHOLE)
SEEDS = st.integers(0, 2**16)


def indices(shape, size, seed, *, negative=False, dtype=torch.int64):
    """Random indices into a dim of `size`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-size if negative else 0, size, shape, generator=generator).to(dtype)


@EXAMPLES
@given(tensor_and_dim(ALL, min_rank=1, min_size=1), SEEDS, st.integers(0, 4), st.booleans())
def test_gather(pair, seed, length, dynamic):
    x, dim = pair
    shape = list(x.shape)
    shape[dim] = length
    index = indices(shape, x.shape[dim], seed)
    agree(lambda x, index: torch.gather(x, dim, index), x, index, exact=True, dynamic=dynamic)


@EXAMPLES
@given(tensor_and_dim(ALL, min_rank=1, min_size=1), SEEDS, st.sampled_from([(), (1,), (0,), (6,)]), st.booleans())
def test_index_select(pair, seed, shape, short):
    x, dim = pair
    index = indices(shape, x.shape[dim], seed, dtype=torch.int32 if short else torch.int64)
    agree(lambda x, index: x.index_select(dim, index), x, index, exact=True)


@EXAMPLES
@given(
    tensors(ALL, min_rank=2, max_rank=2, min_size=1), SEEDS, st.sampled_from([(), (3,), (2, 0), (2, 3)]), st.booleans()
)
def test_embedding(weight, seed, shape, dynamic):
    index = indices(shape, weight.shape[0], seed)
    function = torch.nn.functional.embedding
    agree(lambda i, w: function(i, w, padding_idx=0), index, weight, exact=True, dynamic=dynamic)


@EXAMPLES
@given(tensors(ALL, min_rank=1, min_size=1), SEEDS, st.sampled_from([(), (3,), (2, 0), (2, 3)]))
def test_take_counts_from_the_end(x, seed, shape):
    agree(torch.take, x, indices(shape, x.numel(), seed, negative=True), exact=True)


@EXAMPLES
@given(
    tensors(ALL, min_rank=1, max_rank=4, min_size=1),
    SEEDS,
    st.lists(st.sampled_from([None, (1,), (3,), (2, 1), (2, 3)]), min_size=1, max_size=4),
    st.booleans(),
)
def test_advanced_indexing(x, seed, shapes, dynamic):
    assume(1 not in x.shape or x.is_contiguous())  # torch's fake tensors have other strides than eager's results there
    shapes = shapes[: x.dim()]
    if not any(shape is not None for shape in shapes):
        shapes[0] = (3,)
    given_ = [s if s is None else indices(s, x.shape[d], seed + d, negative=True) for d, s in enumerate(shapes)]
    held = [i for i in given_ if i is not None]

    def pick(x, *held):
        rest = iter(held)
        return aten.index(x, [None if i is None else next(rest) for i in given_])

    agree(pick, x, *held, exact=True, dynamic=dynamic)


@EXAMPLES
@given(tensor_and_dim(ALL, min_rank=1, min_size=1), SEEDS)
def test_an_index_of_rank_0_drops_the_dim(pair, seed):
    x, dim = pair
    assume(x.shape[dim] > 1)  # torch's own fake tensors have other strides than eager's results there
    place = [None] * (dim % x.dim())
    agree(lambda x, i: aten.index(x, [*place, i]), x, indices((), x.shape[dim], seed, negative=True), exact=True)


def test_a_masked_index_may_lie_anywhere_where_the_mask_is_off():
    x, index, mask = torch.randn(4), torch.tensor([1, 99, -70]), torch.tensor([True, False, False])
    agree(lambda x, m, i: aten._unsafe_masked_index(x, m, [i], 7), x, mask, index, exact=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x[i],
        lambda x, i: x.index_select(0, i),
        lambda x, i: torch.nn.functional.embedding(i, x),
        lambda x, i: torch.take(x, i * 3),
        lambda x, i: torch.gather(x, 0, i[:, None]),
    ],
    ids=["index", "index_select", "embedding", "take", "gather"],
)
@pytest.mark.parametrize("bad", [4, -5])
def test_out_of_range_raises(function, bad):
    x, good, wrong = torch.randn(4, 3), torch.tensor([0, 3]), torch.tensor([0, bad])
    module = trace(function, x, good)
    with pytest.raises(IndexError, match="out of bounds"):
        run(module, lower(module), [x, wrong])


OF_ONE = {
    "all dims": lambda x: x[:1, :1].expand(4, 3), "rows": lambda x: x[:1].expand(4, 3), "none": lambda x: x[:1] * 2,
    "transposed": lambda x: x[:1, :3].T.expand(3, 4).T, "a number": lambda x: torch.full((4, 3), 2.5),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_ONE)
def test_out_of_range_raises_where_all_elements_are_one(name):
    x, good = torch.randn(4, 3), torch.tensor([0])
    lookups = (
        lambda x, i: x[i], lambda x, i: x.index_select(0, i), lambda x, i: torch.nn.functional.embedding(i, x),
        lambda x, i: torch.gather(x, 0, i[:, None]), lambda x, i: torch.take(x, i * 3), lambda x, i: x[:, i],
    )  # fmt: skip
    for look_up in lookups:
        function = lambda x, i, look_up=look_up: look_up(OF_ONE[name](x), i)  # noqa: E731
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="regraft", options={"strict": True})
        assert torch.equal(compiled(x, good), function(x, good))
        with pytest.raises((IndexError, RuntimeError)):
            compiled(x, torch.tensor([4]))


@pytest.mark.parametrize("function", [lambda x, i: x.index_select(0, i), lambda x, i: torch.gather(x, 0, i[:, None])])
def test_only_indexing_counts_from_the_end(function):
    x = torch.randn(4, 3)
    module = trace(function, x, torch.tensor([0, 3]))
    with pytest.raises(IndexError, match="out of bounds"):
        run(module, lower(module), [x, torch.tensor([0, -1])])


def test_a_gather_is_one_definition():
    made = lowered(lambda x, i: x[i] + 1, torch.randn(4, 3), torch.tensor([0, 3]))
    assert [len(item.stores) for item in made.program.items] == [1, 1]

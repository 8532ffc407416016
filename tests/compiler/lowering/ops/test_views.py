"""Views against eager, as index maps: no definition is made for them."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lowering import agree
from support.thorough import examples, one_row_in, takes_turns

from regraft.compiler.lowering.ops.views import place_of
from regraft.compiler.lowering.sizes import Unlowered

X = torch.arange(24.0).reshape(2, 3, 4)
VIEWS = {
    "view": lambda x: x.view(6, 4), "merge": lambda x: x.view(2, 12), "split": lambda x: x.view(2, 3, 2, 2),
    "regroup": lambda x: x.view(4, 6), "flat": lambda x: x.view(-1), "ones": lambda x: x.view(1, 2, 3, 1, 4),
    "transposed": lambda x: x.transpose(0, 2), "permute": lambda x: x.permute(2, 0, 1), "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, -1), "swap": lambda x: x.movedim((0, 1), (-1, 0)),
    "unsqueeze": lambda x: x.unsqueeze(-1), "squeeze": lambda x: x[:1].squeeze(0),
    "squeeze_all": lambda x: x[:1].squeeze(),
    "squeeze_dims": lambda x: x[:1, :1].squeeze((0, 1)), "expand": lambda x: x[:, :1].expand(5, 2, 3, 4),
    "keep": lambda x: x.expand(-1, -1, 4), "select": lambda x: x[1], "select_end": lambda x: x.select(-1, -2),
    "slice": lambda x: x[:, 1:], "steps": lambda x: x[..., ::3], "ends": lambda x: x[:, -2:-1], "none": lambda x: x[5:],
    "wide": lambda x: x[:, -9:9], "narrow": lambda x: x.narrow(2, 1, 2), "diagonal": lambda x: x.diagonal(),
    "diagonal_up": lambda x: x.diagonal(1, 1, 2), "diagonal_down": lambda x: x.diagonal(-1, -1, -2),
    "unfold": lambda x: x.unfold(2, 2, 1), "unfold_apart": lambda x: x.unfold(1, 2, 3), "detach": lambda x: x.detach(),
    "alias": torch.ops.aten.alias, "chain": lambda x: x[:, 1:].transpose(0, 1)[:, :, ::2].unsqueeze(0)[0, -1],
    "broadcast": lambda x: x[0].broadcast_to(3, 3, 4),
}  # fmt: skip


@pytest.mark.parametrize("index, size", [(0, 0), (2, 2), (-3, 2)])
def test_a_place_that_is_not_there_is_refused(index, size):
    with pytest.raises(Unlowered, match="out of range"):
        place_of(index, size)
    assert place_of(-1, 2) == 1


@pytest.mark.parametrize("name", VIEWS)
def test_views_make_nothing(name):
    made = agree(VIEWS[name], X)
    assert not [item for item in made.program.items if item.name not in made.views]


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_kernels_read_through_views(name, dynamic):
    agree(lambda x: VIEWS[name](x) + 1, X, dynamic=dynamic)


def test_parts():
    agree(lambda x: [p + 1 for p in (*x.split(2, 2), *x.chunk(2, 1), *x.unbind(1), *x.split([1, 3], -1))], X)
    agree(lambda x: [p * 2 for p in torch.tensor_split(x, 3, 2)], X)


def test_views_of_strided_inputs():
    x = torch.arange(48.0).reshape(4, 12)[::2, ::2].t()
    agree(lambda x: (x.reshape(2, 3, 2) + 1, x.unsqueeze(0).expand(2, 6, 2) * x), x)


def test_copies_are_definitions():
    made = agree(lambda x: (x.flip(0, 2), x.flip(-1) + 1, torch.fliplr(x), x.reshape(6, 4)), X)
    assert "reshape" not in made.program.buffers
    agree(lambda x: torch.permute_copy(x, (2, 0, 1)), X)
    agree(lambda x: (*torch.unbind_copy(x, 1), torch.narrow_copy(x, 0, 1, 1)), X)


def test_a_copy_does_not_follow_a_later_write():
    def function(x):
        turned = x.flip(0)
        x.copy_(x * 2)
        return turned, turned + 1

    agree(function, X.clone())


def test_bits_seen_as_another_dtype():
    agree(lambda x: (x.view(torch.int32) + 1, x.double().view(torch.int64) - 1), X)
    agree(lambda x: x.view(torch.int16) + 1, X, extern={"aten.view.dtype"})


def test_as_strided_inside_and_outside_of_what_is_known():
    agree(lambda x: (x + 1).as_strided((2, 3), (1, 5), 2) * 2, X)
    agree(lambda x: x.as_strided((2, 3), (1, 5)) * 2, X, extern={"aten.as_strided.default"})


@st.composite
def reshapes(draw):
    """Two shapes of as many elements."""
    factors = draw(st.lists(st.sampled_from([1, 2, 3, 5]), max_size=5))

    def shape():
        sizes, ends = [], draw(st.lists(st.integers(0, len(factors)), max_size=3))
        cuts = [0, *sorted(ends), len(factors)]
        for a, b in itertools.pairwise(cuts):
            sizes.append(int(torch.tensor(factors[a:b]).prod()) if b > a else 1)
        return sizes

    return shape(), shape()


@settings(max_examples=examples(20, 40), deadline=None)
@given(reshapes(), st.booleans())
def test_any_reshape(shapes, dynamic):
    old, new = shapes
    x = torch.arange(float(torch.tensor(old).prod())).reshape(old)
    agree(lambda x: x.view(new) + 1, x)
    if dynamic:
        agree(lambda x: x.flatten() + 1, x, dynamic=True)


def test_empty_tensors():
    agree(lambda x: (x.view(0, 6) + 1, x.view(3, 0) + 1, x.transpose(0, 1) * 2), torch.zeros(2, 0, 3))


@one_row_in(2)
@pytest.mark.parametrize("result", [
    lambda y: (y.view(torch.int32), y.view(torch.int32)), lambda y: (y, y.view(torch.int32)[1:]),
    lambda y: (y.view(torch.int32).view(-1), y.view(torch.float64)), lambda y: (y.sum(), y.view(torch.int32), y[0]),
])  # fmt: skip
def test_bits_that_are_given_out_share_memory(result):
    def program(x):
        return result(x * 2)

    x = torch.arange(8.0).reshape(2, 4)
    torch._dynamo.reset()
    ours, theirs = torch.compile(program, backend="regraft")(x), program(x)
    assert all(map(torch.equal, ours, theirs))
    shared = [
        [a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for b in of]
        for of in (ours, theirs)
        for a in of
    ]
    assert shared[: len(ours)] == shared[len(ours) :]

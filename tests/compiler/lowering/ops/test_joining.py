"""Concatenation, repetition, shuffles and padding against eager."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.lowering import HALVES, agree, run, trace
from support.tensors import FLOATS, WHOLE, tensor_and_dim, tensors
from support.thorough import examples, one_row_in, takes_turns
from support.triton_kernels import compiles, interpreted_agrees

from regraft.compiler.lowering import lower
from regraft.compiler.lowering.ops import joining

aten = torch.ops.aten
functional = torch.nn.functional
EXAMPLES = settings(max_examples=examples(6, 15), deadline=None)
ALL = (*FLOATS, *WHOLE)


@EXAMPLES
@given(tensor_and_dim(ALL, min_rank=1), st.lists(st.integers(0, 3), max_size=3), st.sampled_from(ALL), st.booleans())
def test_cat(pair, lengths, dtype, dynamic):
    x, dim = pair
    shapes = [[n if d == dim % x.dim() else s for d, s in enumerate(x.shape)] for n in lengths]
    parts = [torch.ones(shape).to(dtype) for shape in shapes]
    agree(lambda *parts: torch.cat(parts, dim), x, *parts, exact=True, dynamic=dynamic)


def test_cat_passes_over_empty_vectors():
    empty = torch.empty(0)
    agree(lambda a, b: torch.cat([a, b, a], 1), empty, torch.ones(2, 3, dtype=torch.float16), exact=True)
    agree(lambda a: torch.cat([a, a]), empty, exact=True)


def test_cat_keeps_channels_last():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    agree(lambda a, b: torch.cat([a, b], 1), x, 2 * x, exact=True)


def test_cat_is_one_store_into_one_buffer_for_each_part():
    made = agree(lambda a, b: torch.cat([a, b]), torch.ones(2, 3), torch.ones(4, 3), exact=True)
    stores = [item.stores[0] for item in made.program.items]
    assert [store.buffer for store in stores] == ["cat", "cat"]


@EXAMPLES
@given(tensors(ALL), st.data())
def test_stack(x, data):
    dim = data.draw(st.integers(-x.dim() - 1, x.dim()))
    agree(lambda a, b: torch.stack([a, b, a], dim), x, torch.zeros_like(x), exact=True)


@EXAMPLES
@given(tensors(ALL), st.lists(st.integers(0, 3), max_size=2), st.data())
def test_repeat(x, extra, data):
    repeats = [*extra, *data.draw(st.lists(st.integers(0, 3), min_size=x.dim(), max_size=x.dim()))]
    agree(lambda x: x.repeat(repeats), x, exact=True)


def test_repeat_of_symbolic_sizes():
    agree(lambda x: x.repeat(2, 1, 3), torch.randn(4, 5), exact=True, dynamic=True)


@EXAMPLES
@given(tensor_and_dim(ALL), st.integers(-7, 7), st.booleans())
def test_roll(pair, shift, flat):
    x, dim = pair
    assume(x.dim() or flat)
    agree(lambda x: x.roll(shift) if flat else x.roll((shift, 1), (dim, 0)), x, exact=True)


def test_roll_of_symbolic_sizes():
    agree(lambda x: (x.roll(-2, 1), x.roll(3)), torch.randn(4, 5), exact=True, dynamic=True)


@takes_turns("dtype")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shuffles(dtype, dynamic):
    for x in (torch.randn(2, 8, 4, 6).to(dtype), torch.randn(2, 8, 6, 4).to(dtype).mT):
        agree(lambda x: functional.pixel_shuffle(x, 2), x, exact=True, dynamic=dynamic)
        agree(lambda x: functional.pixel_unshuffle(x, 2), x, exact=True, dynamic=dynamic)
        agree(lambda x: functional.channel_shuffle(x, 4), x, exact=True, dynamic=dynamic)


@EXAMPLES
@given(tensors(ALL, min_rank=1), st.data(), st.sampled_from([0, 1, 2.5, float("-inf")]))
def test_constant_pad(x, data, value):
    assume(x.dtype.is_floating_point or value in (0, 1))
    pad = data.draw(st.lists(st.integers(-2, 3), max_size=2 * x.dim()))
    pad = pad[: len(pad) // 2 * 2]
    rest = [s + a + b for s, a, b in zip(reversed(x.shape), pad[::2], pad[1::2], strict=False)]
    assume(all(size >= 0 for size in rest))
    assume(all(-min(p, 0) <= s for p, s in zip(pad, [s for s in reversed(x.shape) for _ in "ab"], strict=False)))
    agree(lambda x: aten.constant_pad_nd(x, pad, value), x, exact=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int64, torch.float16])
def test_padding_by_the_default(dtype):
    x = torch.ones(2, 3, dtype=dtype)
    agree(lambda x: functional.pad(x, (1, 2)), x, exact=True)
    agree(lambda x: aten.constant_pad_nd(x, []), x, exact=True)


def rank_of(name):
    return int(name[-2])


PADS = ["reflection_pad1d", "reflection_pad2d", "reflection_pad3d"]
PADS += [name.replace("reflection", "replication") for name in PADS]


@pytest.mark.parametrize("name", PADS)
@settings(max_examples=examples(3, 5), deadline=None)
@given(data=st.data(), dynamic=st.booleans(), batched=st.booleans(), dtype=st.sampled_from(FLOATS))
def test_mirrored_pads(name, data, dynamic, batched, dtype):
    rank = rank_of(name)
    most = 3 if "reflection" in name else 5
    pad = data.draw(st.lists(st.integers(-1, most), min_size=2 * rank, max_size=2 * rank))
    x = torch.randn([2] * batched + [3, 6, 4, 5][: rank + 1]).to(dtype)
    agree(lambda x: getattr(aten, name)(x, pad), x, exact=True, dynamic=dynamic)


@pytest.mark.parametrize("name", PADS)
@settings(max_examples=examples(3, 5), deadline=None)
@given(data=st.data(), dynamic=st.booleans())
def test_gradients_of_mirrored_pads(name, data, dynamic):
    rank = rank_of(name)
    most = 3 if "reflection" in name else 5
    pad = data.draw(st.lists(st.integers(0, most), min_size=2 * rank, max_size=2 * rank))
    x = torch.randn([2, 3, 6, 4, 5][: rank + 2], dtype=torch.float64)
    grad = torch.randn_like(getattr(aten, name)(x, pad))
    backward = getattr(aten, f"{name}_backward")
    agree(lambda g, x: backward(g, x, pad), grad, x, dynamic=dynamic)


def gradient_cases(name):
    """(shape, padding): as much as is allowed, none on one side, cut off, and of size 1 where edges are repeated."""
    rank = rank_of(name)
    sizes = [5, 4, 6][:rank]
    most = [n - 1 for n in reversed(sizes) for _ in "ab"]
    yield [2, 3, *sizes], most
    yield [3, *sizes], [k % 2 * 2 for k in range(2 * rank)]
    yield [1, 2, *sizes], [1 - 2 * (k % 2) for k in range(2 * rank)]
    if "replication" in name:
        yield [2, 2, *[1] * rank], [1] * (2 * rank)
        yield [2, 2, *[1] * rank], [7, 3] * rank


def channels_last(x, rank):
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    return x.to(memory_format=formats[rank]) if rank in formats and x.dim() == rank + 2 else x


@one_row_in(2)
@takes_turns("dynamic")
@pytest.mark.parametrize("name", PADS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_mirrored_pads_are_rounded_once(name, dynamic):
    pad_of, backward = getattr(aten, name), getattr(aten, f"{name}_backward")
    for k, (shape, pad) in enumerate(gradient_cases(name)):
        dtype = HALVES[k % 2]
        x = torch.randn(shape, dtype=dtype)
        grad = torch.randn_like(pad_of(x, pad))
        if k % 2 == 0:
            x, grad = channels_last(x, rank_of(name)), channels_last(grad, rank_of(name))
        module = trace(lambda g, x, pad=pad: backward(g, x, pad), grad, x, dynamic=dynamic)
        made = lower(module, strict=True)
        assert not made.kept
        exact = backward(grad.double(), x.double(), pad)
        error = (run(module, made, [grad, x]).double() - exact).abs()
        half_a_unit = torch.finfo(dtype).eps / 2 * exact.abs()
        assert (error <= half_a_unit + 1e-5).all(), (shape, pad)
        assert error.max() <= (backward(grad, x, pad).double() - exact).abs().max() + 1e-6, (shape, pad)


@settings(max_examples=examples(8, 20), deadline=None)
@given(
    lengths=st.lists(st.integers(1, 3), min_size=2, max_size=5),
    last=st.integers(1, 2),
    dtypes=st.lists(st.sampled_from([torch.float32, torch.bfloat16, torch.int32, torch.bool]), min_size=5, max_size=5),
)
def test_short_pieces_choose(lengths, last, dtypes):
    """As on devices whose stores of a few bytes touch a sector each: one loop over the result."""
    parts = [(torch.randn(3, n, last) * 3).to(dtype) for n, dtype in zip(lengths, dtypes, strict=False)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining, "_SCATTERING", frozenset({"cpu"}))
        agree(lambda *x: torch.cat(x, 1), *parts, exact=True)
        agree(lambda *x: torch.cat(x, -2)[:, 1:], *parts, exact=True)
        agree(lambda x: torch.stack([x, x * 2, x + 1], -1), parts[0].float(), exact=True)


def test_short_pieces_are_stored_together(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(joining, "_SCATTERING", frozenset({"cpu"}))
    x, y = torch.randn(6, 40).unbind(0)[:2]
    (source,) = interpreted_agrees(lambda x, y: torch.stack([x * y, x - y], -1), x, y)
    assert source.text.count("tl.store") == 1
    assert compiles(source)

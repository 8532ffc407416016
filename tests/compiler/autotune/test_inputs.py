"""Real inputs from fake metadata: what is kept, what is made up, what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from regraft.compiler.autotune import inputs as synthesis
from regraft.compiler.autotune.inputs import UnmeasurableError, describe, has_symbols, made_up, specs, synthesize


def fake(tensor: torch.Tensor) -> torch.Tensor:
    return FakeTensorMode().from_tensor(tensor)


def symbolic(tensor: torch.Tensor, dynamic=DimDynamic.DYNAMIC) -> torch.Tensor:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[dynamic] * tensor.dim())
    return mode.from_tensor(tensor, symbolic_context=context)


def metadata(tensor: torch.Tensor):
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


LAYOUTS = {
    "contiguous": lambda: torch.empty(2, 3, 4),
    "transposed": lambda: torch.empty(2, 3, 4).transpose(1, 2),
    "expanded": lambda: torch.empty(2, 1, 4).expand(2, 5, 4),
    "expanded from one": lambda: torch.empty(1).expand(7),
    "sliced": lambda: torch.empty(4, 10)[:, 3:5],
    "channels last": lambda: torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "overlapping": lambda: torch.empty(10).as_strided((4, 4), (2, 1)),
    "empty": lambda: torch.empty(2, 0, 3),
    "scalar": lambda: torch.empty(()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_is_kept(layout):
    source = LAYOUTS[layout]()
    (made,) = synthesize([fake(source)]).values
    assert metadata(made) == metadata(source)
    assert made.isfinite().all()
    assert not made._is_view()


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    data=st.data(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]),
)
def test_any_strides_are_kept(shape, data, dtype):
    stride = [data.draw(st.integers(0, 7)) for _ in shape]
    source = torch.empty(200, dtype=dtype).as_strided(shape, stride)
    (made,) = synthesize([fake(source)]).values
    assert metadata(made) == metadata(source)


def test_alignment_of_an_offset_is_kept():
    source = torch.empty(1000)[131:141]
    (made,) = synthesize([fake(source)]).values
    assert made.storage_offset() == 131 % 64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.float8_e4m3fn])
def test_floats_are_spread(dtype):
    (made,) = synthesize([fake(torch.empty(1000, dtype=dtype))]).values
    assert made.dtype == dtype
    values = made.to(torch.complex64).abs()
    assert 0.5 < values.mean() < 1.5


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_are_zero_and_one(dtype):
    (made,) = synthesize([fake(torch.empty(100, dtype=dtype))]).values
    assert made.unique().tolist() == [0, 1]


def test_bools_are_mostly_true_and_no_row_is_uniform():
    (made,) = synthesize([fake(torch.empty(50, 40, dtype=torch.bool))]).values
    assert made.float().mean() > 0.8
    assert made.any(-1).all() and not made.all(-1).any()
    (expanded,) = synthesize([fake(torch.empty(50, 1, 4, dtype=torch.bool).expand(50, 3, 4))]).values
    assert expanded.any(-1).all() and not expanded.all(-1).any()


def test_large_tensors_do_not_repeat_by_rows():
    (made,) = synthesize([fake(torch.empty(1024, 256))]).values
    assert made.unique(dim=0).shape[0] == 1024


def test_values_are_the_same_every_time():
    inputs = [fake(torch.empty(10)), fake(torch.empty(10))]
    first, second = synthesize(inputs).values, synthesize(inputs).values
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    assert not torch.equal(first[0], first[1])


def test_one_tensor_given_twice_stays_one():
    q, other = fake(torch.empty(4)), fake(torch.empty(4))
    values = synthesize([q, q, other]).values
    assert values[0] is values[1] is not values[2]
    assert describe([q, q, other])[0] == describe([q, q, other])[1] != describe([q, q, other])[2]


def test_numbers_and_real_tensors_are_taken_as_they_are():
    constant = torch.arange(3.0).expand(2, 3)
    numbers, real, nested = synthesize([(1, 2.5, True, None, "none"), constant, [fake(torch.empty(2))]]).values
    assert numbers == (1, 2.5, True, None, "none")
    assert torch.equal(real, constant) and metadata(real) == metadata(constant)
    real.as_strided((3,), (1,)).zero_()
    assert constant.sum() == 6
    assert isinstance(nested, list) and nested[0].shape == (2,)


def test_requires_grad_is_kept_for_training_only():
    weight = fake(torch.empty(3, requires_grad=True))
    tokens = fake(torch.empty(3, dtype=torch.int64))
    trained, indices = synthesize([weight, tokens], training=True).values
    assert trained.requires_grad and trained.is_leaf and not indices.requires_grad
    assert not synthesize([weight]).values[0].requires_grad


def test_refill_restores_the_first_values():
    inputs = synthesize([fake(torch.empty(5)), torch.ones(3)], training=True)
    before, versions = [t.clone() for t in inputs.tensors], inputs.versions()
    for tensor in inputs.tensors:
        tensor.add_(1)
    assert inputs.versions() != versions
    inputs.refill()
    assert all(torch.equal(a, b) for a, b in zip(inputs.tensors, before, strict=True))


def test_values_that_follow_from_others_are_arranged_at_first_and_at_each_refill():
    def total(values):
        values[1].copy_(values[0].sum())

    inputs = synthesize([fake(torch.empty(5, requires_grad=True)), fake(torch.empty(()))], True, total)
    first = inputs.values[1].item()
    assert first == inputs.values[0].sum().item()
    inputs.values[1].zero_()
    inputs.refill()
    assert inputs.values[1].item() == first
    assert inputs.values[0].requires_grad and not inputs.values[1].requires_grad


def test_symbolic_sizes_become_their_hints():
    x = symbolic(torch.empty(6, 5))
    inputs = [x.t(), x.shape[0], x.shape[0] * x.shape[1], x.shape[0] / 2]
    made, rows, product, half = synthesize(inputs).values
    assert (tuple(made.shape), made.stride()) == ((5, 6), (1, 5))
    assert (rows, product, half) == (6, 30, 3.0)
    assert type(rows) is int and type(half) is float
    assert has_symbols(inputs) and not has_symbols([made, 3])
    assert describe(inputs)[0] == "float32[5, 6] stride [1, 5] cpu #0"
    assert not x.fake_mode.shape_env.guards


def test_data_dependent_size_is_refused():
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    with mode:
        size = torch.ones(3, dtype=torch.int64).nonzero().shape[0]
    with pytest.raises(UnmeasurableError, match="no example value"):
        synthesize([size])


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "tensor",
    [torch.eye(3).to_sparse(), torch.empty(3, device="meta"), torch.ones(2).as_subclass(Subclass)],
    ids=["sparse", "meta", "subclass"],
)
def test_more_than_strided_memory_is_refused(tensor):
    with pytest.raises(UnmeasurableError):
        synthesize([tensor])


def test_too_large_inputs_are_refused(monkeypatch):
    monkeypatch.setattr(synthesis, "free_memory", lambda device: 10_000)
    synthesize([fake(torch.empty(600))])
    synthesize([fake(torch.empty(1).expand(100_000))])
    with pytest.raises(UnmeasurableError, match="free on cpu"):
        synthesize([fake(torch.empty(700))])


def test_free_memory_of_the_host_is_known():
    assert 0 < synthesis.free_memory(torch.device("cpu")) < 2**50


def test_specs_count_storage_not_elements():
    (spec,) = specs([fake(torch.empty(4, 1).expand(4, 1000))])
    assert (spec.extent, spec.nbytes) == (4, 16)


def test_made_up_is_contiguous_and_like_its_model():
    model = torch.empty(3, 4, dtype=torch.bfloat16).t()
    made = made_up(model)
    assert made.shape == model.shape and made.dtype == model.dtype and made.is_contiguous()
    assert torch.equal(made, made_up(model))

"""The reduction algebra: one element at a time, in halves and at once, it is the same and is eager's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.compiler.ir import folds
from regraft.compiler.ir.reducers import REDUCERS, algebra_of, folding_states

INF, NAN = float("inf"), float("nan")
ROWS = [
    [1.0, -2.0, 3.5, 3.5, 0.0],
    [-INF, 1.0, 2.0, -INF, -1.0],
    [-INF] * 5,
    [INF, 1.0, INF, -INF, 2.0],
    [1.0, NAN, 3.0, NAN, 2.0],
    [0.0, -0.0, 0.0, -0.0, 0.0],
    [5.0] * 5,
]
FLOATING = ["sum", "prod", "max", "min", "argmax", "argmin", "welford", "softmax", "logaddexp"]
STATES = [name for name, reducer in REDUCERS.items() if reducer.folds]


def operands(reducer, x):
    if REDUCERS[reducer].folds:
        return folds.element(REDUCERS[reducer].folds, (x,))
    positions = torch.arange(x.shape[-1]).expand(x.shape)
    return (x, positions) if REDUCERS[reducer].operands == 2 else (x,)


def one_by_one(reducer, given):
    state = folds.start(reducer, given[0].dtype, tuple(given[0].shape[:-1]))
    for k in range(given[0].shape[-1]):
        state = folds.update(reducer, state, tuple(x[..., k] for x in given))
    return state


def assert_same(a, b):
    if len(a) == 3:
        # Welford: the mean of what is not finite is not finite, infinite or NaN as it happens.
        assert torch.equal(a[0].isfinite(), b[0].isfinite())
        a, b = ((torch.where(mean.isfinite(), mean, 0), *rest) for mean, *rest in (a, b))
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, equal_nan=True)


@pytest.mark.parametrize("reducer", FLOATING)
def test_at_once_is_one_by_one(reducer):
    given = operands(reducer, torch.tensor(ROWS, dtype=torch.float64))
    assert_same(folds.reduce(reducer, given), one_by_one(reducer, given))


@pytest.mark.parametrize("reducer", FLOATING)
@pytest.mark.parametrize("cut", [0, 1, 3, 5])
def test_combining_parts_is_the_whole(reducer, cut):
    given = operands(reducer, torch.tensor(ROWS, dtype=torch.float64))
    left, right = (one_by_one(reducer, tuple(x[..., part] for x in given)) for part in (slice(cut), slice(cut, None)))
    assert_same(folds.combine(reducer, left, right), folds.reduce(reducer, given))


@pytest.mark.parametrize("reducer", FLOATING)
def test_folding_states_goes_on_where_folding_elements_stopped(reducer):
    given = operands(reducer, torch.tensor(ROWS, dtype=torch.float64))
    parts = [folds.reduce(reducer, tuple(x[..., part] for x in given)) for part in (slice(2), slice(2, 5))]
    states = tuple(torch.stack(components, -1) for components in zip(*parts, strict=True))
    assert_same(folds.reduce(folding_states(reducer), states), folds.reduce(reducer, given))


@pytest.mark.parametrize("reducer", STATES)
def test_states_have_the_algebra_of_what_they_are_states_of(reducer):
    base = REDUCERS[reducer].folds
    assert algebra_of(reducer) == algebra_of(base) == base
    assert REDUCERS[reducer].operands == len(REDUCERS[reducer].components) == len(REDUCERS[base].components)


@pytest.mark.parametrize("reducer", REDUCERS)
def test_nothing_reduces_to_the_identity(reducer):
    dtype = torch.bool if reducer in ("any", "all") else torch.int64 if reducer == "xor" else torch.float32
    made = folds.reduce(reducer, operands(reducer, torch.zeros(2, 0, dtype=dtype)))
    assert_same(made, folds.start(reducer, dtype, (2,)))
    assert tuple(c.dtype for c in made) == folds.component_dtypes(reducer, dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("reducer", ["sum", "prod", "max", "min", "argmax", "argmin", "xor"])
def test_integers(reducer, dtype):
    given = operands(reducer, torch.tensor([[3, 200, 7], [9, 9, 1]]).to(dtype))
    assert_same(folds.reduce(reducer, given), one_by_one(reducer, given))


def test_truth():
    x = torch.tensor([[True, False], [False, False], [True, True]])
    assert folds.reduce("any", (x,))[0].tolist() == [True, False, True]
    assert folds.reduce("all", (x,))[0].tolist() == [False, False, True]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, INF, -INF, NAN]), min_size=1, max_size=9))
def test_against_eager(row):
    x = torch.tensor(row, dtype=torch.float64)
    assert_same(folds.reduce("max", (x,)), (x.amax(),))
    assert_same(folds.reduce("argmax", operands("argmax", x)), (x.amax(), x.argmax()))
    assert_same(folds.reduce("argmin", operands("argmin", x)), (x.amin(), x.argmin()))
    assert_same(folds.reduce("logaddexp", (x,)), (x.logsumexp(0),))
    top, total = folds.reduce("softmax", (x,))
    assert_same((torch.exp(x - top) / total,), (x.softmax(0),))
    mean, squares, count = folds.reduce("welford", (x,))
    assert_same((mean, squares / count, count), (x.mean(), x.var(correction=0), count))


@pytest.mark.parametrize("reducer", FLOATING)
def test_a_scan_is_the_reduction_of_every_beginning(reducer):
    given = operands(reducer, torch.tensor(ROWS, dtype=torch.float64))
    scanned = folds.scan(reducer, given)
    for k in range(5):
        assert_same(tuple(c[..., k] for c in scanned), folds.reduce(reducer, tuple(x[..., : k + 1] for x in given)))


@pytest.mark.parametrize("reducer", ["sum", "argmax"])
def test_a_scan_of_nothing_is_empty(reducer):
    assert [c.shape for c in folds.scan(reducer, operands(reducer, torch.zeros(3, 0)))] == [
        (3, 0) for _ in REDUCERS[reducer].components
    ]

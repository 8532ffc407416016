"""Everything that is promised is drawn, and made as it is said."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from regraft import Sample, T, register_pattern
from regraft.compiler.tools.check.drawn import (
    DTYPES,
    MOST,
    OTHER_DTYPES,
    DrawnExample,
    drawings,
    hypothesis,
    sizes_of,
)
from regraft.compiler.tools.check.operands import LAYOUTS, VALUES, Look, differentiable, laid_out, looks_of, make

SAMPLE = Sample(x=T("B N"), y=T("B N"))
SIZES = {"B": 4, "N": 6, "C": 3}


def drawn(stage: str, count: int = 600, sample: Sample = SAMPLE) -> list[DrawnExample]:
    rule = register_pattern(f"drawn_{stage}", replacement=lambda x, y: x, samples=[sample], stage=stage)(
        lambda x, y: x + y * 2.0
    )
    library, found = hypothesis(), []

    @library.settings(max_examples=count, database=None, phases=(library.Phase.generate,))
    @library.seed(0)
    @library.given(drawings(rule, [sample]))
    def collect(drawing):
        found.append(drawing[1])

    collect()
    return found


def test_everything_is_drawn():
    found = drawn("forward")
    for name in ("x", "y"):
        assert {d.looks[name].layout for d in found} == set(LAYOUTS)
        assert {d.looks[name].values for d in found} == set(VALUES["normal"])
    trained = {tuple(d.looks[n].gradient for n in ("x", "y")) for d in found}
    assert trained == set(product((True, False), repeat=2))
    assert {size for d in found for _, size in d.sizes} >= {0, 1, 2, 16, 17, 64, 1000}
    assert {d.dtype for d in found} == {*DTYPES, *OTHER_DTYPES}
    assert {(d.dynamic, d.nan) for d in found} == set(product((True, False), ("eager", "safe")))


def test_a_large_dim_that_stands_in_two_places_makes_no_square():
    """`x * y` of a thousand rows each would have 16 million numbers."""
    found = [dict(d.sizes) for d in drawn("forward", 300, Sample(x=T("P 1 N"), y=T("P N"), sizes={"P": 2}))]
    assert max(d["P"] ** 2 * d["N"] for d in found) <= MOST
    assert {64, 257} <= {d["P"] for d in found} and 1000 in {d["N"] for d in found}


def test_after_autograd_nothing_is_trained():
    assert not any(look.gradient for d in drawn("lowered", 100) for look in d.looks.values())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    x = torch.arange(24.0).reshape(4, 6)
    y = laid_out(x, layout)
    assert y.shape == x.shape and y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    strides = {
        "contiguous": (6, 1), "transposed": (1, 4), "reversed": (1, 4), "channels-last": (6, 1), "sliced": (12, 1),
        "stepped": (12, 2), "offset": (6, 1), "expanded": (0, 1), "broadcast": (6, 0), "overlapping": (1, 1),
    }  # fmt: skip
    assert y.stride() == (strides[layout] if layout != "broadcast" else (1, 0))
    assert torch.equal(x, y) or layout in ("expanded", "broadcast", "overlapping")
    assert (y.storage_offset() > 0) == (layout == "offset")
    for shape in ((), (3,), (0, 2), (1, 1), (2, 3, 4)):
        assert laid_out(torch.ones(shape), layout).shape == shape


def test_windows_overlap_as_unfold_makes_them():
    x = torch.arange(24.0).reshape(2, 3, 4)
    assert torch.equal(laid_out(x, "overlapping"), torch.arange(12.0).unfold(0, 6, 6).unfold(1, 4, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", VALUES["normal"])
def test_values(kind, dtype):
    x = make(T("B N"), SIZES, dtype, Look(values=kind), seed=1)
    limits, size = torch.finfo(dtype), x.abs()
    is_so = {
        "plain": bool(x.isfinite().all()),
        "constant": bool((x == x[0, 0]).all()),
        "zeros": bool((x == 0).all()),
        "ties": bool((x == x.round()).all()) and len(set(x.flatten().tolist())) < x.numel(),
        "negative": bool((x < 0).all()),
        "small": bool(0 < size.max() < 1e-2),
        "huge": bool(1000 < size.max() < 2e4),
        "large": bool(size.max() > 20),
        "large-row": bool(size[0].max() > 500 > size[1:].max()),
        "signed-zeros": bool(((x == 0) & x.signbit()).any() and ((x == 0) & ~x.signbit()).any()),
        "denormal": bool(((size > 0) & (size < limits.tiny)).any()),
        "extreme": bool(size.max() >= 6e4 and size.min() == limits.tiny),
        "nan": int(x.isnan().sum()) == 1,
        "inf": int((x == torch.inf).sum()) == 1,
        "-inf": int((x == -torch.inf).sum()) == 1,
    }
    assert is_so[kind]


def test_ranges_and_leading_dims():
    sample = Sample(x=T("... N"), sizes={"N": range(64, 513, 64)})
    assert DrawnExample.plain(sample).sizes == (("...", (2,)), ("N", 64))
    assert set(sizes_of(sample, "N")) >= {64, 512, 1, 513}
    assert () in sizes_of(sample, "...") and (2, 1, 3) in sizes_of(sample, "...")
    x = make(sample.operands["x"], {"...": (2, 3), "N": 64}, torch.float32, Look(), seed=0)
    assert x.shape == (2, 3, 64)
    must = {size: DrawnExample((("...", (2,)), ("N", size))).ordinary(sample) for size in (64, 65, 128, 1, 576)}
    assert must == {64: True, 65: False, 128: True, 1: False, 576: False}


@pytest.mark.parametrize("dtype", OTHER_DTYPES)
def test_other_dtypes(dtype):
    for kind in looks_of(T("B N"), dtype):
        x = make(T("B N"), SIZES, dtype, Look(values=kind), seed=0)
        assert x.dtype == dtype and x.shape == (4, 6)
    assert not differentiable(T("B N"), dtype)


def test_masks_and_integers():
    keep = make(T("B N", values="bool"), SIZES, torch.float32, Look(values="masked-row"), seed=0)
    assert keep.dtype == torch.bool and not keep[0].any() and keep[1:].any(-1).all()
    low = make(T("B N", values="mask"), SIZES, torch.bfloat16, Look(values="lowest-row"), seed=0)
    assert bool((low[0] == torch.finfo(torch.bfloat16).min).all()) and bool(low.isfinite().all())
    labels = make(T("B N", dtype=torch.int64, below="C"), SIZES, torch.float32, Look(), seed=0)
    assert labels.dtype == torch.int64 and set(labels.flatten().tolist()) == {0, 1, 2}
    assert make(T("B N", device="meta"), SIZES, torch.float32, Look(), seed=0).device.type == "meta"

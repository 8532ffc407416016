"""What is written wrongly in a sample is an error where it is written."""

from __future__ import annotations

import pytest
import torch

from regraft import PatternError, Sample, T, register_pattern


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (lambda: T("B, N"), "'B,' is neither a name nor a size"),
        (lambda: T("N ..."), "in front"),
        (lambda: T(3), "dims are text"),
        (lambda: T("N", values="norml"), "did you mean 'normal'"),
        (lambda: T("N", dtype="float32"), "no torch.dtype"),
        (lambda: T("N", below=4), "as text"),
        (lambda: T("N", device="gpu"), "device='gpu' is none"),
        (lambda: Sample(), "no operands"),
        (lambda: Sample(x=None), "no operands"),
        (lambda: Sample(x=T("Q")), "nobody knows the size of dim 'Q'"),
        (lambda: Sample(x=T("N", below="C", dtype=torch.int64)), "nobody knows the size of dim 'C'"),
        (lambda: Sample(x=T("N"), sizes={"M": 3}), "sizes has 'M', but the operands have N"),
        (lambda: Sample(x=T("N"), sizes={"N": -1}), "a size"),
        (lambda: Sample(x=T("N"), sizes={"N": range(4, 4)}), "not empty"),
        (lambda: Sample(x=T("... N"), sizes={"...": 2}), "a tuple of sizes"),
        (lambda: Sample(x=T("N"), refused=True), "no code of a reason"),
        (lambda: Sample(x=T("N"), tags="where"), "tags='where' is no dict, such as tags={'spelling': 'where'}"),
        (lambda: Sample(x=T("N"), sizes=[("N", 3)]), "is no dict, such as sizes={'N': 64}"),
        (lambda: Sample(x=T("Q")), "only B, H, S, T, D, E, N, M, K have sizes of their own"),
    ],
)
def test_what_is_wrong_is_told_at_once(write, told):
    with pytest.raises(PatternError) as error:
        write()
    assert told in str(error.value)


def test_text_is_no_tensor():
    with pytest.raises(PatternError, match="give a T"):
        declare = register_pattern("sample_text", replacement=torch.relu, samples=[Sample(x="B N")])
        declare(lambda x: torch.relu(x) * 2.0)


def test_it_shows_how_it_is_written():
    sample = Sample(x=T("... N"), sizes={"N": range(8, 65, 8), "...": (2, 3)}, refused="never")
    assert eval(repr(sample), {"Sample": Sample, "T": T}).sizes == sample.sizes
    assert sample.sizes["N"] == 8 and sample.ranges == {"N": range(8, 65, 8)}


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (T("N"), "floating"),
        (T("N", dtype=torch.int32), "integer"),
        (T("N", values="bool"), "bool"),
        (T("N", values="mask"), "floating"),
        (T("N", dtype=torch.complex64), "complex"),
    ],
)
def test_kinds(given, kind):
    assert given.kind == kind

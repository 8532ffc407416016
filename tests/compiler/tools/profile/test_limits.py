"""Limits of the device: measured once, then read from the cache."""

import pytest
import torch

from regraft.compiler.tools.profile import limits
from regraft.compiler.tools.profile.limits import Limits, measured_limits

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(limits._COPY_BYTES, "cpu", 1 << 20)
    monkeypatch.setitem(limits._LARGEST, "cpu", 512)


def test_measured_once(monkeypatch, tmp_path):
    first = measured_limits(CPU, {"float32"})
    assert first.bandwidth > 1e8 and first.rates["float32"] > 1e8
    assert len(list(tmp_path.glob("decisions/*/*.json"))) == 2

    def never(*_):
        raise AssertionError("measured twice")

    monkeypatch.setattr(limits, "_seconds", never)
    assert measured_limits(CPU, {"float32"}) == first


def test_a_dtype_without_products_has_no_rate():
    assert measured_limits(CPU, {"bool", ""}).rates == {"bool": 0.0}


def test_bytes_have_a_rate():
    assert measured_limits(CPU, {"int8"}).rates["int8"] > 1e8


def test_least_times():
    known = Limits("cpu", 1e9, {"float32": 1e10})
    assert known.seconds(1000, 1000, "float32") == pytest.approx((1e-6, 1e-7))
    assert known.seconds(1000, 1000, "bfloat16") == pytest.approx((1e-6, 0.0))
    assert Limits("cpu", 0.0).seconds(1, 1, "float32") == (0.0, 0.0)

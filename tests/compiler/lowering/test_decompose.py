"""Decomposition on demand, and the list of what stays a call."""

from __future__ import annotations

import pytest
import torch
from support.lowering import agree, lowered

from regraft.compiler.lowering import core
from regraft.compiler.lowering.call import find
from regraft.compiler.lowering.fallbacks import KEPT, REASONS, kept

X = torch.randn(3, 4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_operator_is_lowered_from_what_it_is_made_of(dynamic, monkeypatch):
    monkeypatch.delitem(core.LOWERINGS, "aten.addcmul")
    made = agree(lambda x: torch.addcmul(x, x, x, value=2) + 1, X, dynamic=dynamic)
    assert "addcmul" in made.program.buffers
    assert {node for item in made.program.items for node in getattr(item, "nodes", ())} == {"addcmul", "add"}


def test_several_results(monkeypatch):
    monkeypatch.delitem(core.LOWERINGS, "aten.log_sigmoid_forward")
    agree(torch.nn.functional.logsigmoid, X)


def test_what_decomposes_into_something_that_is_not_lowered_stays_whole(monkeypatch):
    monkeypatch.delitem(core.LOWERINGS, "aten.addcmul")
    monkeypatch.delitem(core.LOWERINGS, "aten.mul")
    monkeypatch.setitem(KEPT, "aten.mul", ("library", "for the sake of the test"))
    made = agree(lambda x: torch.addcmul(x, x, x), X, extern={"aten.addcmul.default"})
    assert made.kept[0].code == "decomposition"
    assert "aten.mul" in made.kept[0].message
    assert set(made.program.buffers) == {"arg0_1", "addcmul"}


def test_names_of_many_decompositions_do_not_clash(monkeypatch):
    monkeypatch.delitem(core.LOWERINGS, "aten.addcmul")
    agree(lambda x: torch.addcmul(torch.addcmul(x, x, x), x, x), X)


def test_reasons_are_known():
    assert {code for code, _ in KEPT.values()} <= set(REASONS)


def test_overloads_share_a_reason():
    assert kept("aten.mode") == ("algorithm", "needs sorting, selection or counting")
    assert kept("aten.kthvalue.values") == kept("aten.kthvalue")
    assert kept("aten.repeat_interleave.Tensor") and not kept("aten.repeat_interleave.self_int")


def test_what_is_kept_exists():
    """Some operators come and go with torch's releases; most stay."""
    missing = [name for name in KEPT if not hasattr(torch.ops.aten, name.split(".")[1])]
    assert len(missing) <= 3, missing


def test_overloads_go_before_their_operator():
    assert find(torch.ops.aten.max.dim) is not find(torch.ops.aten.max.default)
    assert find(torch.ops.aten.add.Scalar) is find(torch.ops.aten.add.Tensor)


def test_two_lowerings_of_one_operator_are_an_error():
    with pytest.raises(ValueError, match=r"aten.relu has a lowering already"):
        core.lowers("aten.relu")(lambda low, x: x)


def test_kept_calls_say_where_and_why():
    made = lowered(lambda x: x.sort()[0], X)
    (call,) = made.kept
    assert (call.node, call.operator, call.code) == ("sort", "aten.sort.default", "algorithm")

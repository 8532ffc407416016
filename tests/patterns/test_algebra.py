"""Identities on the program itself: exact for every value there is, and nothing that only looks like one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.rewriting import compiled, rewritten

from regraft.compiler.tools.check import refusals
from regraft.patterns.algebra import idempotent, identity, reordered_twice

RULES = [identity, idempotent, reordered_twice]
ODD = torch.tensor([[0.0, -0.0, 1.5, -2.0], [torch.nan, torch.inf, -torch.inf, 1e-40]])


def simplified(function: Any, *inputs: Any, **settings: Any) -> Any:
    """The program simplified; values, signs of zero and strides are held against eager's."""
    from regraft.rewrites.compat import capture_function
    from regraft.rewrites.driver import Settings, rewrite
    from regraft.rewrites.record import GraphRecord

    module, places = capture_function(function, inputs, dynamic=settings.pop("dynamic", False))
    record = GraphRecord("test")
    rewrite(module, RULES, Settings(stage="simplify", verify="structure", near_miss_depth=0), record)
    ours, eager = module(*(inputs[i] for i in places)), function(*inputs)
    torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(ours.real), torch.signbit(eager.real)) and ours.stride() == eager.stride()
    assert ours.data_ptr() not in [x.data_ptr() for x in inputs] or eager.data_ptr() == ours.data_ptr()
    return record


def names(record: Any) -> list[str]:
    return [m.rule for m in record.applied]


IDENTITIES = {
    "times one": lambda x: x * 1,
    "over one": lambda x: x / 1.0,
    "minus zero": lambda x: x - 0.0,
    "first power": lambda x: x**1,
    "where": lambda x: torch.where(x > 0, x, x),
    "maximum": lambda x: torch.maximum(x, x),
    "twice negated": lambda x: torch.neg(torch.neg(x)),
    "lone part": lambda x: torch.cat([x], 1),
    "there and back": lambda x: torch.ops.aten._to_copy(torch.ops.aten._to_copy(x, dtype=torch.float64), dtype=x.dtype),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_identities(name: str) -> None:
    assert "identity" in names(simplified(lambda x: torch.tanh(IDENTITIES[name](x)), ODD))
    assert "identity" in names(simplified(IDENTITIES[name], ODD.t()))  # returned: a copy, laid out as eager's


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1), (1, 5), (5, 1), (3, 1, 4), (1, 3, 1)])
def test_strides_of_dims_of_one_element(sizes, dynamic):
    x = torch.randn([2 * n for n in sizes])[tuple(slice(None, n) for n in sizes)]
    for function in (lambda x: x * 1, lambda x: (x + 1) / 1.0):
        assert "identity" in names(simplified(function, x, dynamic=dynamic))


REFUSED = {
    "plus zero": (lambda x: x + 0.0, ""),
    "minus negative zero": (lambda x: x - (-0.0), "negative-zero"),
    "times one, wider": (lambda x: x.bfloat16() * torch.ones(2, 4), ""),
    "through a narrow type": (
        lambda x: torch.ops.aten._to_copy(torch.ops.aten._to_copy(x, dtype=torch.bfloat16), dtype=x.dtype),
        "cast-narrows",
    ),
    "over one, downwards": (lambda x: torch.div(x, 1.0, rounding_mode="floor"), ""),
    "over one, towards zero": (lambda x: torch.div(x, 1, rounding_mode="trunc"), ""),
    "two branches": (lambda x: torch.where(x > 0, x, -x), ""),
    "negated once": (lambda x: -(x.abs()), ""),
    "part of it": (lambda x: x[:, :3] * 2, "value-differs"),
    "doubled minus": (lambda x: torch.sub(x, 0, alpha=2) * 2 - 1, ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_only_looks_like_one(name: str) -> None:
    function, code = REFUSED[name]
    record = simplified(function, ODD)
    assert not record.applied
    assert not code or code in {m.code for m in record.near_misses}


def test_integers_through_floats() -> None:
    """Large integers do not survive a float; small ones might, but that is not their dtype's to say."""

    def function(x):
        return torch.ops.aten._to_copy(torch.ops.aten._to_copy(x, dtype=torch.float32), dtype=torch.int32)

    record = simplified(function, torch.tensor([2**24 + 1, 3], dtype=torch.int32))
    assert not record.applied and "cast-narrows" in {m.code for m in record.near_misses}


def test_symbolic_sizes() -> None:
    record = simplified(lambda x: torch.tanh(x.view(x.shape[0], 4)), ODD, dynamic=True)
    assert "size-symbolic" in {m.code for m in record.near_misses}


@pytest.mark.parametrize("function", [torch.relu, torch.abs, torch.floor, torch.ceil, torch.trunc])
def test_idempotent(function: Any) -> None:
    assert names(simplified(lambda x: function(function(function(x))), ODD)) == ["idempotent"] * 2
    assert not simplified(lambda x: function(torch.neg(function(x))), ODD).applied


def test_inner_value_is_used_elsewhere() -> None:
    record = simplified(lambda x: (y := torch.relu(x)) * torch.relu(y), ODD)
    assert names(record) == ["idempotent"]


REORDERED = {
    "back": (lambda x: x.permute(1, 2, 0).permute(2, 0, 1) + 1, 1),
    "composed": (lambda x: x.permute(1, 2, 0).transpose(0, 1) + 1, 1),
    "three": (lambda x: x.transpose(0, 1).transpose(1, 2).transpose(0, 2) + 1, 2),
    "matrix": (lambda x: x[0].t().t() + 1, 1),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", REORDERED)
def test_reordered_twice(name: str, dynamic: bool) -> None:
    function, times = REORDERED[name]
    record = simplified(function, torch.randn(2, 3, 4), dynamic=dynamic)
    assert names(record).count("reordered_twice") == times


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_near_misses(rule: Any) -> None:
    for sample in rule.samples:
        assert not sample.refused or sample.refused in refusals(rule, sample)


def test_other_stages_have_none() -> None:
    """A rule of this stage runs in no other."""
    assert not rewritten(lambda x: torch.cat([x]), [ODD], rules=RULES, stage="lowered").record.applied


def test_through_the_backend() -> None:
    def function(x, c):
        return torch.where(c, x, x) * 1 - (torch.neg(torch.neg(x)))

    run, coverage = compiled(function)
    x, c = torch.randn(3, 4), torch.rand(3, 4) > 0.5
    with coverage:
        assert torch.equal(run(x, c), function(x, c))
    assert coverage.count("algebra") == 3


def test_trained() -> None:
    def function(x):
        return (torch.neg(torch.neg(x)) * 1).tanh()

    run, coverage = compiled(function)
    ours, eager = (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in range(2))
    with coverage:
        run(ours).sum().backward()
    function(eager).sum().backward()
    torch.testing.assert_close(ours.grad, eager.grad)
    assert coverage.count("algebra") >= 2


def several(x):
    v = x * 2
    return v[:], v, v.view(-1), v * 1, v.to(v.dtype), v.reshape(-1).expand(6), v[:] + 1


def test_results_are_tensors_of_their_own():
    """Each is an object as in eager, though all are one value."""
    x = torch.randn(6)
    ours, theirs = torch.compile(several, backend="regraft")(x), several(x)
    for results in (ours, theirs):
        assert [[a is b for a in results] for b in results] == [[a is b for a in theirs] for b in theirs]
        assert [a.data_ptr() == results[0].data_ptr() for a in results] == [True, True, True, False, True, True, False]

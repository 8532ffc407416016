import pytest
import torch
from support.engine import applied, capture, guards, rule

from regraft.rewrites.dims import DimSpec, Mismatch, unify
from regraft.rewrites.pattern import PatternError

A, B = torch.randn(3, 4), torch.randn(4, 5)


def product(**dims):
    return rule(lambda x, y: torch.relu(x @ y), lambda x, y: (x @ y).clamp(min=0), dims=dims)


def test_parse():
    assert DimSpec.parse("... S 4") == DimSpec(("S", "4"), True) and str(DimSpec.parse("... S 4")) == "... S 4"
    assert DimSpec.parse("B S") == DimSpec(("B", "S"), False)
    for wrong in ("S ...", "S+1", "... ..."):
        with pytest.raises(PatternError, match="neither a name nor a size"):
            DimSpec.parse(wrong)


def test_names_bind_once():
    bound, assumed = unify(DimSpec.parse("... S D"), (2, 3, 4), {"D": 4})
    assert bound == {"S": 3, "D": 4} and assumed == ()
    assert unify(DimSpec.parse("S D"), (3, 5), {"D": 4}) == Mismatch("D = 4", "5")
    assert unify(DimSpec.parse("S S"), (3, 5), {}) == Mismatch("S = 3", "5")
    assert unify(DimSpec.parse("S 4"), (3, 5), {}) == Mismatch("4 = 4", "5")
    assert unify(DimSpec.parse("S D"), (2, 3, 4), {}) == Mismatch("dims (S D)", "3 dims")
    assert unify(DimSpec.parse("... S D"), (4,), {}) == Mismatch("dims (... S D)", "1 dims")
    assert not isinstance(unify(DimSpec.parse(""), (), {}), Mismatch)


def test_names_unify_across_operands():
    module = capture(lambda x, y: torch.relu(x @ y), A, B)
    assert len(applied(module, product(x="S D", y="D E")).applied) == 1
    record = applied(capture(lambda x, y: torch.relu(x @ y), A, B), product(x="S D", y="E D"))
    (miss,) = record.near_misses
    assert (miss.code, miss.expected, miss.depth, miss.size) == ("dims-differ", "D = 4", 2, 2)
    assert miss.found == "5 in placeholder: float32[4, 5]"


def test_a_guard_is_emitted_where_equality_is_not_provable():
    module = capture(lambda x, y: torch.relu(x + y.sum()), A, torch.randn(3, 7), dynamic=True)
    before = guards(module)
    shared = rule(
        lambda x, y: torch.relu(x + y.sum()), lambda x, y: (x + y.sum()).clamp(min=0), dims={"x": "S D", "y": "S E"}
    )
    assert len(applied(module, shared).applied) == 1
    (new,) = [g for g in guards(module) if g not in before]
    assert new.startswith("Eq(")


def test_no_guard_where_equality_is_proven_or_the_match_is_declined():
    from regraft.rewrites.profit import Never

    module = capture(lambda x, y: torch.relu(x + y.expand_as(x)), A, A, dynamic=True)
    before = guards(module)
    same = rule(lambda x, y: torch.relu(x + y), lambda x, y: (x + y).clamp(min=0), dims={"x": "S D", "y": "S D"})
    assert len(applied(module, same).applied) == 1
    assert guards(module) == before, "s == s is provable after the addition"
    module = capture(lambda x, y: torch.relu(x + y.sum()), A, A, dynamic=True)
    before = guards(module)
    shared = rule(lambda x, y: torch.relu(x + y.sum()), torch.add, "other", dims={"x": "S D", "y": "S E"})
    assert len(applied(module, shared, oracle=Never()).declined) == 1
    assert guards(module) == before


def test_sizes_that_differ_on_the_example_are_refused():
    module = capture(lambda x, y: torch.relu(x + y.sum()), A, B, dynamic=True)
    shared = rule(lambda x, y: torch.relu(x + y.sum()), torch.add, dims={"x": "S D", "y": "S E"})
    before = guards(module)
    (miss,) = applied(module, shared).near_misses
    assert miss.code == "dims-differ" and guards(module) == before

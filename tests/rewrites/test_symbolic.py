import pytest
import torch
from support.engine import X, capture, guards

from regraft.rewrites.symbolic import assume, concrete, hint, holds_on_example, known, known_equal, product, same_shape


@pytest.fixture
def sizes():
    module = capture(lambda a, b: a.sum() + b.sum(), X, X, dynamic=True)
    a, b = (n.meta["val"] for n in module.graph.nodes if n.op == "placeholder")
    return module, a.shape, b.shape


def test_known_equality_adds_no_guard(sizes):
    module, a, b = sizes
    assert known_equal(a[0], a[0]) and known_equal(a[0] * 2, a[0] + a[0]) and known_equal(3, 3)
    assert not known_equal(a[0], b[0]) and not known_equal(a[0], 3) and not known_equal(2, 3)
    assert same_shape(a, a) and not same_shape(a, b) and not same_shape((2,), (2, 2))
    assert known(a[0] > 0) and not known(a[0] > 100) and known(True)
    assert not guards(module)


def test_examples(sizes):
    module, a, b = sizes
    assert (hint(a[0]), hint(a[0] * a[1]), hint(7)) == (3, 12, 7)
    assert holds_on_example(a[0], b[0]) and holds_on_example(a[1], 4) and not holds_on_example(a[0], a[1])
    assert concrete(3) and not concrete(a[0]) and hint(product(a)) == 12 and product(()) == 1
    assert not guards(module)


def test_assume_emits_one_guard_and_then_it_is_known(sizes):
    module, a, b = sizes
    assume([(a[0], b[0]), (a[0], b[0]), (a[1], a[1])])
    assert len(guards(module)) == 1 and known_equal(a[0], b[0])


@pytest.mark.parametrize("blocks", [lambda rows, size: (rows + size - 1) // size, lambda rows, size: rows // size])
def test_sizes_that_guards_hold_to_one_are_the_same(blocks):
    many = torch.ones(100 if blocks(3, 100) == 1 else 3)
    module = capture(lambda a, b, c: a.sum() + b.sum() + c.sum(), X, X, many, dynamic=True)
    a, b, c = (n.meta["val"].shape[0] for n in module.graph.nodes if n.op == "placeholder")
    first, second = blocks(a, c), blocks(b, c)
    assert first == 1 and second == 1  # guards
    assert same_shape((first, second), (second, first)) and not same_shape((first,), (a,))


def test_sizes_of_which_guards_hold_neither_to_be_less_are_equal(sizes):
    _, (a, _), (b, _) = sizes
    assert a <= b and a >= b  # guards
    assert known_equal(a, b) and same_shape([a], [b])


def test_sizes_that_are_in_order_are_not_equal(sizes):
    _, (a, _), (b, _) = sizes
    assert a <= b and not known_equal(a, b)


def test_what_does_not_hold_is_not_assumed(sizes):
    _, a, _ = sizes
    with pytest.raises(AssertionError, match="does not hold on the example"):
        assume([(a[0], a[1])])


def test_data_dependent_sizes_have_no_example():
    module = capture(lambda a: torch.nonzero(a), X, dynamic=True)
    size = module.graph.output_node().args[0].meta["val"].shape[0]
    assert hint(size) is None and not holds_on_example(size, size)

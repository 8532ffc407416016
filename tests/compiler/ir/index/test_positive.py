"""What follows for sizes where loops have iterations: proofs of it are right for all sizes that have some."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from regraft.compiler.ir.index.bounds import bounds, known_le
from regraft.compiler.ir.index.index import Index, Size, Var, atoms, evaluate, most, quotient
from regraft.compiler.ir.index.positive import assuming_iterations

S, T = (Size(name, 0, None).index() for name in "st")
N = Size("n", None, None).index()


@pytest.mark.parametrize(
    ("extent", "low"),
    [
        (S, 1),
        (S - 2, 3),
        (3 * S - 7, 3),
        (quotient(S - 1, 2), 3),
        (quotient(S, 4) + 1, 0),
        (S * T, 1),
        (N, 1),
        (S * T - 3, 1),
    ],
)
def test_least_of_sizes(extent: Index, low: int) -> None:
    size = N if extent is N else S
    (found, _), _ = assuming_iterations((size, Var("i", extent).index()))
    assert bounds(found)[0] == low


@pytest.mark.parametrize("extent", [4 - S, S - T, most(S, T) - 1, N * S])
def test_nothing_follows(extent: Index) -> None:
    numbers, variables = assuming_iterations((S, T, Var("i", extent).index()), (Var("j", 8),))
    assert [bounds(number)[0] for number in numbers[:2]] == [0, 0] and variables == [Var("j", 8)]


def test_variables_keep_their_place() -> None:
    """Loops in indices and loops that are named are replaced alike."""
    i, j = Var("i", S - 2), Var("j", S)
    (number,), (found_i, found_j) = assuming_iterations((i.index() * S + j.index(),), (i, j))
    assert number == found_i.index() * found_j.extent + found_j.index()
    assert (found_i.name, found_j.name) == ("i", "j") and bounds(found_j.extent)[0] == 3


def test_the_larger_of_1_and_an_extent_is_the_extent() -> None:
    """Of sizes of which nothing follows: a size of its own, so that products of strides can be compared."""
    step, extent = most(1, S - T), Var("i", S - T).index()
    (found, outer, loop, _), _ = assuming_iterations((step, step * T, extent, Var("j", T).index()))
    assert bounds(found)[0] == 1 and known_le(found, outer)
    (variable,) = [atom for atom in atoms(loop) if isinstance(atom, Var)]
    assert variable.extent == found
    for extent in (S - 2, quotient(S * T, 7) * quotient(N, 3)):
        (found, _), _ = assuming_iterations((most(1, extent), Var("i", extent).index()))
        assert bounds(found)[0] == 1


EXTENTS: list[Any] = [S, T, S - 2, quotient(S - 3, 2) + 1, quotient(S, T + 1), 2 * S * T, quotient(S * T, 7)]


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(EXTENTS, 2)))
def test_what_is_proven_holds_where_loops_have_iterations(a: Any, b: Any) -> None:
    numbers, _ = assuming_iterations((a, a * b, b + 1, Var("i", a).index(), Var("j", b).index()))
    plain = [a, a * b, b + 1]
    proven = [(x, y) for x, y in itertools.permutations(range(3), 2) if known_le(numbers[x], numbers[y])]
    assert (0, 1) in proven
    for s, t in itertools.product(range(6), repeat=2):
        found = {Size("s", 0, None): s, Size("t", 0, None): t}
        values = [evaluate(n, found.__getitem__) for n in plain]
        if all(evaluate(n, found.__getitem__) >= 1 for n in (a, b)):
            assert all(values[x] <= values[y] for x, y in proven)

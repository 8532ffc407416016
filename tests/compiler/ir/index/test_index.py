"""Arithmetic of indices against Python's integers."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thorough import examples

from regraft.compiler.ir.index.bounds import bounds, known_le, known_lt
from regraft.compiler.ir.index.index import (
    Index,
    Loaded,
    Size,
    Var,
    add,
    atoms,
    evaluate,
    least,
    most,
    mul,
    quotient,
    remainder,
    sub,
    substitute,
    terms,
)

S, T = Size("s", 1, None), Size("t", 2, 9)
VARS = (Var("i", 5), Var("j", 12), Var("k", 64), Var("u", S.index()), Var("v", add(mul(S.index(), 2), -1)))
TWO = {"add": add, "sub": sub, "mul": mul, "least": least, "most": most}
DIVIDE = {"quotient": quotient, "remainder": remainder}
PYTHON = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "least": min, "most": max,
    "quotient": lambda a, b: a // b, "remainder": lambda a, b: a % b,
}  # fmt: skip


def i(name="i", extent=5):
    return Var(name, extent).index()


@st.composite
def spelled(draw, depth=4, divide=True):
    """An expression as a nested tuple, so that it can be computed both ways."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        return draw(st.one_of(st.integers(-70, 70), st.sampled_from([*VARS, S, T])))
    name = draw(st.sampled_from([*TWO, *DIVIDE, *DIVIDE, "add", "add"] if divide else ["add", "sub", "mul"]))
    if name == "mul":
        return name, draw(spelled(depth - 1, divide)), draw(st.sampled_from([-8, -1, 2, 3, 4, 8, 64, S, VARS[0]]))
    if name in DIVIDE:
        divisor = draw(st.sampled_from([1, 2, 3, 4, 8, 12, 64, 768, S, T, ("mul", S, 4), ("add", S, 1), ("mul", S, T)]))
        return name, draw(spelled(depth=depth - 1)), divisor
    return name, draw(spelled(depth - 1, divide)), draw(spelled(depth - 1, divide))


def built(tree):
    if isinstance(tree, tuple):
        name, a, b = tree
        return {**TWO, **DIVIDE}[name](built(a), built(b))
    return tree if isinstance(tree, int) else tree.index()


def python(tree, env):
    if isinstance(tree, tuple):
        name, a, b = tree
        return PYTHON[name](python(a, env), python(b, env))
    return tree if isinstance(tree, int) else env[tree]


@st.composite
def environments(draw):
    env = {S: draw(st.integers(1, 7)), T: draw(st.integers(2, 9))}
    extents = [5, 12, 64, env[S], 2 * env[S] - 1]
    return env | {var: draw(st.integers(0, extent - 1)) for var, extent in zip(VARS, extents, strict=True)}


@settings(max_examples=examples(150, 400), deadline=None)
@given(spelled(), st.lists(environments(), min_size=4, max_size=4))
def test_simplified_indices_are_what_python_computes_and_within_their_bounds(tree, environments):
    index = built(tree)
    low, high = bounds(index)
    for env in environments:
        expected = python(tree, env)
        assert evaluate(index, env.__getitem__) == expected
        assert (low is None or low <= expected) and (high is None or expected <= high)


@settings(max_examples=examples(120, 300), deadline=None)
@given(spelled(depth=2), spelled(depth=2), environments())
def test_comparisons_that_are_known_hold(left, right, env):
    a, b = built(left), built(right)
    x, y = python(left, env), python(right, env)
    assert x <= y or not known_le(a, b)
    assert x < y or not known_lt(a, b)


@settings(max_examples=examples(80, 200), deadline=None)
@given(spelled(depth=3), spelled(depth=2), environments())
def test_substitution_is_evaluation_of_what_is_put_in(tree, put, env):
    put = ("remainder", put, VARS[0].extent)
    replaced = substitute(built(tree), {VARS[0]: built(put)})
    assert evaluate(replaced, env.__getitem__) == python(tree, env | {VARS[0]: python(put, env)})


@settings(max_examples=examples(80, 200), deadline=None)
@given(spelled(divide=False), spelled(divide=False))
def test_equal_polynomials_are_one_object(left, right):
    a, b = built(left), built(right)
    assert add(a, b) is add(b, a) or isinstance(add(a, b), int)
    assert sub(add(a, b), b) == a
    assert pickle.loads(pickle.dumps(a)) == a
    assert copy.deepcopy(a) is a


def test_what_is_constant_is_a_plain_integer():
    assert type(i() - i() + 3) is int
    assert type(mul(i(), 0)) is int
    assert type(quotient(i(), 8)) is int


def test_integers_stand_on_either_side():
    assert 3 + i() is i() + 3
    assert 3 - i() is -(i() - 3)
    assert 2 * i() is i() * 2
    assert 7 // (i() + 8) == 0
    assert 7 % (i() + 8) == 7
    assert (i() * 4 + 2) // 4 is i()
    assert (i() * 4 + 2) % 4 == 2


@pytest.mark.parametrize("divide", [quotient, remainder])
def test_only_positive_numbers_divide(divide):
    with pytest.raises(ValueError, match="positive"):
        divide(i(), -4)


@pytest.mark.parametrize("divide", [quotient, remainder])
def test_the_extent_of_an_empty_loop_divides_to_nothing(divide):
    assert divide(i(), 0) == divide(7, 0) == 0


def test_atoms_are_found_inside_divisions_but_not_inside_what_is_loaded():
    inner = i("j", 9)
    assert {a.name for a in atoms(quotient(i() + inner, 3)) if isinstance(a, Var)} == {"i", "j"}
    assert [type(a) for a in atoms(Loaded("value", 3, False).index())] == [Loaded]


def test_the_constant_comes_last():
    assert terms(3 + i())[-1] == ((), 3)


def test_order_does_not_depend_on_history():
    names = [f"n{k}" for k in range(20)]
    forward, backward = 0, 0
    for name in names:
        forward = add(forward, i(name))
    for name in reversed(names):
        backward = add(backward, i(name))
    assert forward is backward
    assert [m[0].name for m, _ in forward.terms] == sorted(names)


def test_threads_get_the_same_nodes():
    def build(_):
        return [quotient(i(f"a{k}", 40) + i(f"b{k}", 40) * 40, 7) for k in range(200)]

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(build, range(4))
    assert all(x is y for other in others for x, y in zip(first, other, strict=True))
    assert all(isinstance(x, Index) for x in first)

"""Interning: one object for equal trees, that lives as long as somebody holds it."""

import copy
import gc
import pickle
import subprocess
import sys

import pytest
import torch

from regraft.compiler.ir import node
from regraft.compiler.ir.index.index import Size, Var
from regraft.compiler.ir.value import Const, Load, Op


def chain(depth):
    value = Load("x", (Var("i", 8).index(),), torch.float32)
    for _ in range(depth):
        value = Op("neg", (value,), torch.float32)
    return value


def test_equal_trees_are_one_object():
    assert chain(5) is chain(5)
    assert Var("i", 8) is not Var("i", 9)
    assert Var("s", 0) is not Size("s", 0, None)


@pytest.mark.parametrize(("a", "b"), [(0.0, -0.0), (1, 1.0), (1, True), (0, False)])
def test_numbers_that_compare_equal_yet_differ_are_two(a, b):
    assert Const(a, torch.float64) is not Const(b, torch.float64)
    assert Const(a, torch.float64).digest != Const(b, torch.float64).digest


def test_nan_is_one_constant():
    assert Const(float("nan"), torch.float32) is Const(float("nan"), torch.float32)


def test_nodes_survive_copies_and_pickling_as_themselves():
    value = chain(5)
    assert copy.copy(value) is value
    assert copy.deepcopy([value])[0] is value
    assert pickle.loads(pickle.dumps(value)) is value


def test_nodes_are_immutable_and_take_all_their_fields():
    with pytest.raises(AttributeError, match="immutable"):
        Var("i", 8).extent = 9
    with pytest.raises(AttributeError, match="immutable"):
        del Var("i", 8).extent
    with pytest.raises(TypeError, match="takes 2 fields"):
        Var("i")


@pytest.mark.usefixtures("few_objects")
def test_nodes_that_nobody_holds_are_forgotten():
    kept = chain(1)
    gc.collect()
    before = len(node._TABLE)
    more = chain(200)
    assert len(node._TABLE) >= before + 199
    del more
    gc.collect()
    assert len(node._TABLE) <= before
    assert chain(1) is kept


def test_digests_of_deep_trees_need_no_deep_stack():
    assert chain(20_000).digest != chain(20_001).digest


def test_digests_are_the_same_in_every_process():
    code = (
        "from regraft.compiler.ir.index.index import *; "
        "print((Var('i', 8).index() * 3 // Size('s', 1, None)).digest.hex())"
    )
    code = code.replace("Size('s', 1, None)", "Size('s', 1, None).index()")
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert (Var("i", 8).index() * 3 // Size("s", 1, None).index()).digest.hex() == other

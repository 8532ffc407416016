"""Walking and rewriting values."""

import torch

from regraft.compiler.ir.index.index import Loaded, Var
from regraft.compiler.ir.value import Const, Load, Number, Op, Rewriter, operands, substitute, variables, walk

F32, I64 = torch.float32, torch.int64
I, J, K = Var("i", 8), Var("j", 8), Var("k", 64)  # noqa: E741
IDS = Load("ids", (I.index(),), I64)
ROW = Load("w", (Loaded(IDS, 8, True).index(), J.index()), F32)


def test_what_indices_load_is_part_of_the_tree():
    assert list(operands(ROW)) == [IDS]
    assert list(walk([ROW])) == [IDS, ROW]
    assert variables([ROW]) == {I, J}


def test_shared_parts_are_walked_once_and_deep_ones_too():
    value = ROW
    for _ in range(5_000):
        value = Op("add", (value, value), F32)
    assert len(list(walk([value]))) == 5_002


def test_substitution_reaches_indices_of_indices():
    made = substitute(Op("neg", (ROW,), F32), {I: K.index() // 8, J: K.index() % 8})
    ids = Load("ids", (K.index() // 8,), I64)
    assert made is Op("neg", (Load("w", (Loaded(ids, 8, True).index(), K.index() % 8), F32),), F32)


def test_rewriting_replaces_from_the_bottom_and_once():
    seen = []

    def inlined(value):
        seen.append(value)
        return Const(2.0, F32) if isinstance(value, Load) and value.buffer == "w" else None

    shared = Op("exp", (ROW,), F32)
    made = Rewriter(value=inlined)(Op("mul", (shared, shared), F32))
    exp = Op("exp", (Const(2.0, F32),), F32)
    assert made is Op("mul", (exp, exp), F32)
    assert len(seen) == len(set(seen))


def test_numbers_are_rewritten():
    assert substitute(Number(I.index() * 2, I64), {I: J.index() + 1}) is Number(J.index() * 2 + 2, I64)

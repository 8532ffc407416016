"""Programs that AOTAutograd compiles for known sizes only are compiled for each combination, up to a number of them."""

from __future__ import annotations

import torch
from support.wrapping import Doubled

from regraft.compiler.autograd.by_sizes import _LIMIT, BySizes, with_known_sizes


def program(*inputs):
    return "as it is", inputs


def compiled(seen):
    def compile_it(inputs):
        seen.append(inputs)
        return lambda *given: (len(seen), given)

    return compile_it


def test_each_combination_of_sizes_is_compiled_once_and_no_more_than_some():
    seen = []
    sized = BySizes(program, compiled(seen))
    x = torch.zeros(20, 4)
    for inputs in [(3, x[:3], None), (3, x[:3], None), (4, x[:4], None), (3, x[:3].mT.contiguous().mT, None)]:
        assert sized(*inputs)[1] is not None
    assert len(seen) == 3
    for rows in range(5, 20):
        sized(rows, x[:rows], None)
    assert len(seen) == _LIMIT
    assert sized(19, x[:19], None)[0] == "as it is"
    assert sized(3, x[:3], None)[0] == _LIMIT


def test_parts_of_wrapping_tensors_count_and_kinds_of_numbers():
    seen = []
    sized = BySizes(program, compiled(seen))
    x = torch.zeros(3, 4)
    for inputs in [(Doubled(x, x * 2),), (Doubled(x, x.mT.contiguous().mT),), (1, x), (1.0, x), (True, x)]:
        sized(*inputs)
    assert len(seen) == 5


def test_tensors_in_the_same_memory_are_not_told_apart_by_sizes():
    x, seen = torch.zeros(4, 4), []
    assert BySizes(program, compiled(seen))(x[:2], x[2:])[0] == "as it is"
    assert not seen


def test_what_is_known():
    x = torch.zeros(3)
    assert with_known_sizes([x, 3, None, "name"])
    symbol = torch.fx.experimental.symbolic_shapes.ShapeEnv().create_unbacked_symint()
    assert not with_known_sizes([x, symbol])

"""Kernels up to names: equal layers are one kernel, different ones stay apart."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from regraft.compiler.codegen.cpp import build
from regraft.compiler.ir.canonical import canonical
from regraft.compiler.schedule import schedule

from ...support.lowering import lowered


def kernels(function, *inputs):
    return schedule(lowered(function, *inputs).program).kernels


def test_equal_kernels_of_other_names_are_one_object_and_one_function():
    x, w = torch.randn(32, 64), torch.randn(64, 64)

    def layers(x, w):
        for _ in range(3):
            x = F.layer_norm(x @ w, (64,)).relu()
        return x

    made = kernels(layers, x, w)
    assert len(made) == 3 and len({kernel.name for kernel in made}) == 3
    assert len({canonical(kernel) for kernel in made}) == 1
    assert len({compiled.name for compiled in build(made)}) == 1


def test_what_differs_in_more_than_names_stays_apart():
    x = torch.randn(8, 16)
    programs = [lambda x: x + 1, lambda x: x + 2, lambda x: x.sum(0), lambda x: x.sum(1)]
    found = [canonical(kernels(program, x)[0]) for program in programs]
    assert len(set(found)) == len(programs)

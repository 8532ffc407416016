"""Kernels up to names: equal layers are one kernel, different ones stay apart."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from regraft.compiler.codegen.cpp import build
from regraft.compiler.ir.canonical import beginnings, canonical
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


def test_kernels_are_one_from_where_they_begin():
    x = torch.randn(8, 16)
    made = [kernels(lambda x, k=k: x[:, k : k + 4].exp(), x)[0] for k in (0, 3, 12)]
    (name,) = (p.buffer.name for p in made[0].params if p.access == "read")
    assert [beginnings(kernel) for kernel in made] == [{}, {name: 3}, {name: 12}]
    assert len({canonical(kernel) for kernel in made}) == 3
    assert len({canonical(kernel, beginnings(kernel)) for kernel in made}) == 1


def test_accesses_that_go_down_have_no_beginning():
    (kernel,) = kernels(lambda x: x.flip(0)[:6] + x.flip(0)[2:], torch.randn(8, 16)[:, :1].clone())[:1]
    assert beginnings(kernel) == {}

"""Independent kernels in one launch: interpreted against eager, and compiled."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("triton")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.compiler.schedule import GPU, schedule
from regraft.compiler.schedule.launches import kernel_launches, sharing

from ....support.lowering import lowered
from ....support.schedules import Builder, number, op
from ....support.triton_kernels import compile_for, interpreted_agrees, kernel_source


def launches(sources):
    return sum(len(source.launches) for source in sources)


def momentum(*tensors):
    """A step of SGD with momentum, in place, over (parameter, gradient, buffer)."""
    for p, g, m in zip(tensors[::3], tensors[1::3], tensors[2::3], strict=True):
        m.mul_(0.9).add_(g)
        p.sub_(m, alpha=0.1)


def counted(*tensors):
    """Adam's counters and a parameter, in place, over (parameter, gradient, steps)."""
    for p, g, s in zip(tensors[::3], tensors[1::3], tensors[2::3], strict=True):
        s.add_(1)
        p.sub_(g / (1 - 0.9**s), alpha=0.1)


def triples(shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes for _ in range(3)]


def counters(shapes):
    tensors = triples(shapes)
    tensors[2::3] = [torch.tensor(float(k)) for k in range(len(shapes))]
    return tensors


def test_a_list_of_tensors_is_one_launch_of_one_body_for_each_alignment():
    sources = interpreted_agrees(momentum, *triples([(10,), (4, 256), (3, 7), (768,), (2000,)]))
    assert launches(sources) == 1
    (text,) = (source.text for source in sources)
    assert text.count("def ") == 3  # multiples of 16, others, and the launch
    assert "tl.multiple_of" in text


def bags(table, *weights):
    """Sums of rows that each column of a table names, and a slice of the table as numbers."""
    return [w[table[:, 3 * k : 3 * k + 3]].sum(1) for k, w in enumerate(weights)]


def test_columns_of_one_table_are_one_body_from_where_they_begin():
    torch.manual_seed(0)
    table, weights = torch.randint(0, 50, (40, 9)), [torch.randn(50, 16) for _ in range(3)]
    (source,) = interpreted_agrees(bags, table, *weights)
    assert launches([source]) == 1
    assert (
        len(re.findall(r"def \w+_part\d", source.text)) == 1 and "_ptr + 3" in source.text and "_ptr + 6" in source.text
    )
    assert compile_for(source, 90)


def test_slices_of_inputs_are_one_body_from_where_they_begin():
    x, y = torch.randn(40, 8), torch.randn(40, 8)
    sources = interpreted_agrees(lambda x, y: [x[:, 2:4].sum(1), y[:, 3:5].sum(1), x[:, 6:].sum(1)], x, y)
    assert launches(sources) == 1 and len(re.findall(r"def \w+_part\d", sources[0].text)) == 1


def test_dtypes_have_a_body_each():
    tensors = [*triples([(10,), (33,)]), *triples([(40,), (5,)], torch.bfloat16)]
    sources = interpreted_agrees(momentum, *tensors, rtol=0.02, atol=0.02)
    assert launches(sources) == 1


def test_counters_come_before_what_reads_them():
    sources = interpreted_agrees(counted, *counters([(10,), (300, 64), (20,), (300, 64)]))
    assert launches(sources) == 2


def test_aliases_keep_their_order():
    """Two updates of parts of one tensor, and a third that reads all of it, stay apart."""

    def step(x, y, g):
        x[:10].add_(g[:10])
        x[5:].mul_(2.0)
        y.add_(x)

    interpreted_agrees(step, *torch.randn(3, 30).unbind())


def test_norms_of_gradients_share_launches():
    def clip(*grads):
        total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(grads))))
        torch._foreach_mul_(list(grads), torch.clamp(1.0 / (total + 1e-6), max=1.0))

    shapes = [(40000,), (300, 100), (10,), (40000,), (7, 3), (300, 100)]
    sources = interpreted_agrees(clip, *(torch.randn(shape) for shape in shapes), rtol=1e-5, atol=1e-6)
    assert launches(sources) <= 5


def test_more_pointers_than_a_launch_takes_are_several(monkeypatch):
    monkeypatch.setattr(sharing, "_ARGUMENTS", 7)
    sources = interpreted_agrees(momentum, *triples([(16,)] * 5))
    assert launches(sources) == 3


def test_computations_that_fill_a_gpu_have_launches_of_their_own(monkeypatch):
    monkeypatch.setattr(kernel_launches, "PROGRAMS_EACH", 0)
    tensors = [*triples([(600,), (700,)]), *triples([(700,), (600,)], torch.bfloat16)]
    sources = interpreted_agrees(momentum, *tensors, rtol=0.02, atol=0.02)
    assert launches(sources) >= 2


@pytest.mark.parametrize("most", [0, 1000])
def test_pieces_of_one_result_are_one_launch(monkeypatch, most):
    """Whatever they move: their code is a load and a store."""
    monkeypatch.setattr(kernel_launches, "PROGRAMS_EACH", most)
    sources = interpreted_agrees(
        lambda x, y: torch.cat([x, y], 2), torch.randn(4, 3, 50, 64), torch.randn(4, 3, 16, 64)
    )
    assert launches(sources) == 1


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=2, max_size=6), st.integers(0, 99))
def test_random_lists(sizes, seed):
    """Nests of four computations, some of which read what others wrote."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(n, generator=generator) for n, _ in sizes]

    def program(*given):
        made = []
        for x, (_, kind) in zip(given, sizes, strict=True):
            if kind == 0:
                x.mul_(0.5)
            elif kind == 1:
                made.append(x.exp() + (made[-1].sum() if made else 1.0))
            elif kind == 2:
                made.append(x.square().sum())
            else:
                made.append(given[0].sum() + x)
        return made

    interpreted_agrees(program, *tensors, rtol=1e-4, atol=1e-5)


def test_a_step_over_150_parameters_is_three_launches():
    """Counters, then two moments and a parameter: a launch for small ones, one for counters, one for large ones."""
    b = Builder()
    for k, size in enumerate([36864, 192, 147456, 768, 192] * 30):
        p, g, m, v = (b.given(f"{name}{k}", (size,)) for name in "pgmv")
        s = b.given(f"s{k}", (1,))
        count = b.map(f"count{k}", (1,), lambda i, s=s: op("add", s.at(i), number(1.0)))
        step = b.map(f"step{k}", (1,), lambda i, c=count: op("exp", op("exp", c.at(i))))
        first = b.map(f"first{k}", (size,), lambda i, m=m, g=g: op("add", m.at(i), g.at(i)))
        second = b.map(f"second{k}", (size,), lambda i, v=v, g=g: op("add", v.at(i), op("mul", g.at(i), g.at(i))))

        def moved(i, p=p, x=first, y=second, c=step):
            return op("sub", p.at(i), op("div", op("mul", x.at(i), c.at((0,))), y.at(i)))

        b.write(f"p{k}_new", p, (size,), lambda i: i, moved)
        for into, value in ((m, first), (v, second)):
            b.write(f"{into.buffer.name}_new", into, (size,), lambda i: i, lambda i, x=value: x.at(i))
        b.write(f"s{k}_new", s, (1,), lambda i: i, lambda i, c=count: c.at(i))
    plan = schedule(b.program(), target=GPU)
    assert [len(kernel.parts) for kernel in plan.kernels] == [150, 60]
    taken = [len(launch.params) for kernel in plan.kernels for launch in kernel_source(kernel).launches]
    assert len(taken) == 3 and max(taken) <= 480


def test_a_step_over_many_parameters_compiles_with_wide_accesses():
    made = lowered(momentum, *triples([(64,), (4096,), (1024, 64)] * 8))
    (kernel,) = schedule(made.program, target=GPU).kernels
    source = kernel_source(kernel)
    assert len(source.launches) == 1 and len(source.launches[0].params) == 72
    (assembly,) = compile_for(source, 90, aligned=True)
    assert len(re.findall(r"ld\.global\S*\.v4", assembly)) >= 3
    assert compile_for(source, 80, aligned=True)

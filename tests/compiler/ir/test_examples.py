"""Bodies over symbolic sizes as they are on an example: the same loops, with numbers in place of sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.schedules import Builder, loops_of, op

from regraft.compiler.ir.examples import on_examples
from regraft.compiler.ir.index.index import Size
from regraft.compiler.ir.kernel import Kernel
from regraft.compiler.ir.printer import kernel_text
from regraft.compiler.schedule import GPU, schedule

EXAMPLES = {"s": 48, "t": 640}


def kernels(rows: object, columns: object, examples: dict[str, int]) -> list[Kernel]:
    b = Builder()
    x, w = b.given("x", (rows, columns)), b.given("w", (columns,))
    scaled = b.map("scaled", (rows, columns), lambda i: op("mul", x.at(i), w.at(i[1:])))
    total = b.sum("total", (rows,), (columns,), lambda o, r: scaled.at((*o, *r)))
    program = b.program(scaled, total)
    program.examples.update(examples)
    return schedule(program, target=GPU).kernels


def test_sizes_are_numbers() -> None:
    s, t = (Size(name, 2, None).index() for name in "st")
    for kernel, static in zip(kernels(s, t, EXAMPLES), kernels(48, 640, {}), strict=True):
        assert kernel.sizes and dict(kernel.examples) == EXAMPLES
        found = Kernel(static.name, static.params, (), static.scratch, on_examples(kernel.body, EXAMPLES))
        assert kernel_text(found) == kernel_text(replace(static, launches=()))


def test_sizes_without_an_example_stay() -> None:
    s, t = (Size(name, 2, None).index() for name in "st")
    (kernel, *_) = kernels(s, t, {"t": 640})
    assert dict(kernel.examples) == {"t": 640}
    found = on_examples(kernel.body, dict(kernel.examples))
    loops = loops_of(Kernel("k", kernel.params, kernel.sizes, kernel.scratch, found))
    assert {str(loop.var.extent) for loop in loops} == {"s", "640"}


@pytest.mark.parametrize("rows", [3, 4096])
def test_blocks_are_those_of_the_example(rows: int) -> None:
    """A plan for symbolic sizes has the blocks that it has for known ones, and the loops of its own kernel."""
    pytest.importorskip("triton")
    s, t = (Size(name, 2, None).index() for name in "st")
    for columns in (7, 64, 2000):
        dynamic, static = kernels(s, t, {"s": rows, "t": columns}), kernels(rows, columns, {})
        assert len(dynamic) == len(static)
        for one, known in zip(dynamic, static, strict=True):
            for mine, its in zip(one.launches, known.launches, strict=True):
                assert (mine.blocks.row_block, mine.blocks.column_block) == (
                    its.blocks.row_block,
                    its.blocks.column_block,
                )
                assert {v.name for v in mine.blocks.rows} == {v.name for v in its.blocks.rows}
                assert set(mine.blocks.rows) | set(mine.blocks.columns) <= {loop.var for loop in loops_of(one)}


@pytest.mark.parametrize("given", [(3, 640), (700, 2), (2, 5000)], ids=str)
def test_other_sizes_than_those_of_the_example(given: tuple[int, int]) -> None:
    """What is computed does not depend on the example."""
    pytest.importorskip("triton")
    from support.triton_kernels import run_interpreted

    s, t = (Size(name, 2, None).index() for name in "st")
    x, w = torch.randn(given), torch.randn(given[1])
    tensors = {"x": x, "w": w, "scaled": torch.empty(given), "total": torch.empty(given[0])}
    for kernel in kernels(s, t, EXAMPLES):
        run_interpreted(kernel, {n: v.view(-1) for n, v in tensors.items()}, {"s": given[0], "t": given[1]})
    torch.testing.assert_close(tensors["scaled"], x * w)
    torch.testing.assert_close(tensors["total"], (x * w).sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ragged", [False, True])
def test_lanes_have_few_elements_where_their_number_may_be_anything(ragged: bool) -> None:
    """A lane cannot access several elements at once where they may end anywhere."""
    pytest.importorskip("triton")
    s = Size("s", 2, None).index()
    columns = Size("t", 2, None).index() if ragged else 640
    b = Builder()
    x = b.given("x", (s, columns))
    program = b.program(b.map("y", (s, columns), lambda i: op("exp", x.at(i))))
    program.examples.update({"s": 4096, "t": 640})
    (kernel,) = schedule(program, target=GPU).kernels
    (launch,) = kernel.launches
    assert launch.blocks.row_block * launch.blocks.column_block // (32 * launch.blocks.warps) == (2 if ragged else 8)

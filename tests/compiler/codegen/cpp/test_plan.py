"""Which loop has lanes in C++, how many, and how memory is read and written then: `golden/plan.txt`, for a look at it.

loop < 768 parallel: 16 lanes, 4 vectors at a time
load, store; strided 2: every second element; column: the same, with those beside it; weave: stores that take turns;
gather, scatter: anywhere;
load_tile, load_rows, store_rows: transposed; load_turns, store_turns: rows of a few elements as whole vectors;
get, put: one by one; lanes_add, plain_add: added to memory, side by side and one after the other
"""

import re

import pytest
import torch
import torch.nn.functional as F
from support.lowering import trace

from regraft.compiler.codegen.cpp.kernel_text import kernel_text
from regraft.compiler.codegen.cpp.kernel_text import planned as cpp_planned
from regraft.compiler.codegen.cpp.target import target
from regraft.compiler.ir.kernel import Fold, Loop
from regraft.compiler.ir.lanes import LoopTile, Turned
from regraft.compiler.ir.verify_lanes import lane_findings
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import CPU, schedule

R = torch.randn
ROWS = torch.arange(64) * 7 % 64
MEMORY = (
    r"\b(load_tile|(?:load|store)_(?:rows|turns)|load|store|weave|strided|column|gather|near|pick|arranged|scatter|get|put"
    r"|(?:lanes|plain|atomic)_[a-z]+)"
    r"(?:_if)?(?:<[\d, ]+>)?\("
)

PROGRAMS = {
    "pointwise": (lambda x, y: x * y + 1, [R(64, 256), R(64, 256)]),
    "broadcast of a row": (lambda x, b: x + b, [R(64, 256), R(256)]),
    "broadcast of a column": (lambda x, b: x + b, [R(64, 256), R(64, 1)]),
    "short rows": (lambda x: x + x.new_ones(3), [R(1000, 3)]),
    "rows shorter than a vector": (lambda x, b: x * b, [R(64, 6), R(64, 1)]),
    "transposition": (lambda x: x.t().contiguous(), [R(64, 256)]),
    "transposed operand": (lambda x, y: x + y.t(), [R(64, 256), R(256, 64)]),
    "transposed around a middle": (lambda x: x.permute(0, 2, 4, 1, 3).contiguous(), [R(4, 16, 8, 16, 32)]),
    "channels last to first": (lambda x: x.permute(0, 3, 1, 2).contiguous(), [R(2, 16, 16, 32)]),
    "every second element": (lambda x: x[:, ::2] + 1, [R(64, 256)]),
    "every fourth element": (lambda x: x[:, 1::4].exp(), [R(64, 256)]),
    "every fifth element": (lambda x: x[:, ::5] * 2, [R(64, 250)]),
    "pairs side by side": (lambda x: x[..., 0] * x[..., 1], [R(64, 128, 2)]),
    "rotary, interleaved": (
        lambda x, c: torch.stack([x[..., ::2] * c - x[..., 1::2], x[..., 1::2] * c + x[..., ::2]], -1).flatten(-2),
        [R(64, 128), R(64, 64)],
    ),
    "reversed": (lambda x: x.flip(-1) + 1, [R(64, 256)]),
    "shifted, with a border": (lambda x: F.pad(x, (1, 1))[:, 2:] + x, [R(64, 256)]),
    "sum of rows": (lambda x: x.sum(-1), [R(64, 256)]),
    "sum of short rows": (lambda x: x.sum(-1), [R(1000, 3)]),
    "sum of columns": (lambda x: x.sum(0), [R(64, 256)]),
    "sum of few columns": (lambda x: x.sum(0), [R(256, 3)]),
    "sum of every second element": (lambda x: x[:, ::2].sum(), [R(64, 256)]),
    "sum of every seventh of few columns": (lambda x: x.sum(0), [R(256, 7)]),
    "sum over the middle": (lambda x: x.sum(1), [R(8, 64, 32)]),
    "softmax of rows": (lambda x: x.softmax(-1), [R(64, 256)]),
    "softmax of columns": (lambda x: x.softmax(0), [R(64, 256)]),
    "layer norm": (lambda x, w: F.layer_norm(x, [256], w), [R(64, 256), R(256)]),
    "argmax of rows": (lambda x: x.argmax(-1), [R(64, 256)]),
    "argmax of columns": (lambda x: x.argmax(0), [R(64, 256)]),
    "cumulative sum of rows": (lambda x: x.cumsum(-1), [R(64, 256)]),
    "cumulative sum of columns": (lambda x: x.cumsum(0), [R(64, 256)]),
    "max pooling": (lambda x: F.max_pool2d(x, 2), [R(1, 8, 32, 32)]),
    "pooling into a scatter": (
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
        [R(1, 8, 32, 32)],
    ),
    "rows by index": (lambda x, i: x[i] * 2, [R(64, 256), ROWS]),
    "elements by index": (lambda x, i: x[:, i].exp(), [R(32, 64), ROWS]),
    "rows added by index": (lambda x, i, y: x.index_add(0, i, y), [R(64, 256), ROWS, R(64, 256)]),
    "elements added by index": (lambda x, i, y: x.scatter_add(0, i, y), [R(64), ROWS, R(64)]),
    "rows added by a computed index": (
        lambda x, i: x.new_zeros(8, 256).index_put((i % 8,), x[0], accumulate=True),
        [R(64, 256), ROWS],
    ),
    "rows put by index": (lambda x, i, y: x.index_copy(0, i, y), [R(64, 256), ROWS, R(64, 256)]),
    "windows": (lambda x: x.unfold(1, 4, 2) * 2, [R(64, 256)]),
    "windows beside a sum": (lambda x: (x.sum(1), x.unfold(1, 3, 1) * 2), [R(64, 256)]),
    "columns twice": (lambda x: x.repeat_interleave(2, -1) * 2, [R(64, 256)]),
    "reflected": (lambda x: F.pad(x, (5, 5), mode="reflect") * 2, [R(64, 256)]),
    "float64": (lambda x: x * 2, [R(64, 256, dtype=torch.float64)]),
    "bfloat16 in, float32 out": (lambda x: x.float() * 2, [R(64, 256).bfloat16()]),
    "bool out": (lambda x: x > 0, [R(64, 256)]),
    "positions": (lambda x: torch.arange(256) * 2.0 + x, [R(64, 256)]),
}


def planned(kernel, name="avx512"):
    """Loops with their lanes, then how memory is touched."""
    made, lines = cpp_planned(kernel, target(name)), []

    def visit(statement, depth):
        if isinstance(statement, Loop):
            lines.append(
                "  " * depth + f"loop < {statement.var.extent}{' parallel' * statement.parallel}{how(statement)}"
            )
        elif isinstance(statement, Fold):
            lines.append("  " * depth + f"fold {', '.join(r.reducer for r in statement.reductions)}")
        for inner in getattr(statement, "body", ()):
            visit(inner, depth + 1)

    def how(loop):
        found = loop.lanes if not isinstance(loop.lanes, Turned) else None
        if isinstance(found, LoopTile):
            return f": tiles of {found.lanes} x {found.lanes}, {found.copies} of them below each other"
        return (
            ""
            if found is None
            else f": {found.lanes} lanes" + f", {found.copies} vectors at a time" * (found.copies > 1)
        )

    for statement in made.body:
        visit(statement, 0)
    body = kernel_text(kernel, target(name)).partition('extern "C"')[0]
    steps = sorted(set(re.findall(r"strided\w*<\d+>\([^;]*?, (\d+)ll\)", body)), key=int)
    words = sorted(set(re.findall(MEMORY, body)))
    return [*lines, ", ".join(w + f" {' '.join(steps)}" * (w == "strided" and bool(steps)) for w in words)]


def kernels(name):
    function, inputs = PROGRAMS[name]
    return schedule(lower(trace(function, *inputs), strict=True).program, target=CPU).kernels


def test_loops_with_lanes(golden):
    golden.check({name: "\n".join(line for kernel in kernels(name) for line in planned(kernel)) for name in PROGRAMS})


@pytest.mark.parametrize("name", PROGRAMS)
def test_lanes_and_threads_are_legal(name):
    for kernel in kernels(name):
        for instructions in ("avx512", "avx2", "generic", "scalar"):
            made = cpp_planned(kernel, target(instructions))
            assert len(made.threads) == len(made.body) and not list(lane_findings(made))


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_vectors_no_loop_has_lanes(name):
    assert not any("lanes" in line or "tiles" in line for kernel in kernels(name) for line in planned(kernel, "scalar"))


@pytest.mark.parametrize(("dtype", "width", "copies"), [
    (torch.float32, 256, 1), (torch.int64, 256, 1), (torch.bfloat16, 256, 2), (torch.float32, 251, 4),
    (torch.float32, 2048, 4),
])  # fmt: skip
def test_tiles_of_transposes_read_whole_cache_lines(dtype, width, copies):
    """More tiles below each other where rows begin anywhere in a line, or pages count."""
    x = torch.ones(2, 128, width, dtype=dtype)
    (kernel,) = schedule(
        lower(trace(lambda x: x.transpose(1, 2).contiguous(), x), strict=True).program, target=CPU
    ).kernels
    (tiles,) = [line for line in planned(kernel) if "tiles of" in line]
    assert f", {copies} of them" in tiles

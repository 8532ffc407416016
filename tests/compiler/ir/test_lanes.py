"""Lanes and threads as part of a kernel: printed, checked, and part of what makes kernels equal."""

import pickle
from dataclasses import replace

import pytest
import torch
from support.lowering import trace

from regraft.compiler.codegen.cpp.kernel_text import planned
from regraft.compiler.codegen.cpp.target import target
from regraft.compiler.ir.index.index import Var
from regraft.compiler.ir.kernel import Loop
from regraft.compiler.ir.lanes import Lanes, LoopTile, Threads, Turned
from regraft.compiler.ir.printer import kernel_text, lanes_text, threads_text
from regraft.compiler.ir.value import Load
from regraft.compiler.ir.verify import verify_kernel
from regraft.compiler.ir.verify_lanes import lane_findings
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import CPU, schedule

I, J = Var("i", 64), Var("j", 4096)  # noqa: E741


def kernel(function, *sizes, instructions="avx512"):
    program = lower(trace(function, torch.empty(sizes)), strict=True).program
    return planned(schedule(program, target=CPU).kernels[0], target(instructions))


def messages(made):
    return [fault.message for fault in lane_findings(made)]


def with_lanes(made, how):
    """The kernel whose outermost loop has other lanes, and one thread."""
    (loop,) = made.body
    return replace(made, body=(replace(loop, lanes=how),), threads=(Threads(()),))


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (Lanes(16), "16 lanes"),
        (Lanes(8, 4, frozenset({"t", "s"})), "8 lanes, 4 vectors at a time, an element a lane of s, t"),
        (LoopTile(16, (), 4, True), "tiles of 16 x 16, 4 of them below each other, unrolled"),
        (Turned((Load("x", (0,), torch.float32),), ()), "rows of x"),
    ],
)
def test_lanes_as_text(how, text):
    assert lanes_text(how) == text


def test_threads_as_text():
    assert threads_text(Threads(())) == "one thread"
    assert threads_text(Threads((I,))) == "threads share i"
    assert threads_text(Threads((I, J), 512)) == "threads share i, j, 512 iterations of j at a time"


def test_planned_kernels_show_lanes_and_threads():
    made = kernel(torch.exp, 1 << 20)
    assert "\n    threads share i, " in kernel_text(made).replace(made.threads[0].loops[0].name, "i")
    assert " parallel, 16 lanes:\n" in kernel_text(made) and not verify_kernel(made)
    assert " parallel:\n" in kernel_text(kernel(torch.exp, 1 << 20, instructions="scalar"))


def test_equal_kernels_have_equal_lanes():
    one, other = (kernel(torch.exp, 1 << 20) for _ in range(2))
    assert one == other and hash(one) == hash(other) != hash(kernel(torch.exp, 1 << 20, instructions="avx2"))
    assert one != replace(one, threads=(Threads(()),))
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (Lanes(12), "no vector has 12 lanes"),
        (Lanes(128), "no vector has 128 lanes"),
        (Lanes(16, 0), "has 0 vectors at a time"),
        (Lanes(16, 1, frozenset({"arg0_1"})), "arg0_1, with an element a lane, is no scratch buffer"),
        (LoopTile(16, (), 1, False), "is no parallel loop around a single one, and has tiles"),
        (Turned((), ()), "is gone through by rows outside of a loop in lanes"),
    ],
)
def test_illegal_lanes_are_refused(how, message):
    (found,) = messages(with_lanes(kernel(torch.exp, 4096), how))
    assert message in found


def test_illegal_tiles_are_refused():
    made = kernel(lambda x: x.mT.contiguous(), 512, 512)
    (loop,) = made.body
    assert isinstance(loop.lanes, LoopTile) and not messages(made)
    other = Load("other", loop.lanes.loads[0].indices, torch.float32)
    assert messages(with_lanes(made, replace(loop.lanes, loads=(other,)))) == ["other is not loaded in the tile"]
    inner = replace(loop.body[0], lanes=Lanes(16))
    assert "which is too" in messages(replace(made, body=(replace(loop, body=(inner,)),)))[0]


def test_illegal_threads_are_refused():
    made = kernel(torch.exp, 1 << 20)
    (threads,) = made.threads
    assert "no whole vectors" in messages(replace(made, threads=(replace(threads, piece=threads.piece + 1),)))[0]
    assert "not the outermost loops" in messages(replace(made, threads=(Threads((I,)),)))[0]
    assert messages(replace(made, threads=2 * made.threads)) == ["threads share 2 statements of 1"]
    (loop,) = made.body
    assert isinstance(loop, Loop)
    serial = replace(made, body=(replace(loop, parallel=False),))
    assert "not the outermost loops" in messages(serial)[0]

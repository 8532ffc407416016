"""Loop programs built by hand, and running their schedules against them."""

from __future__ import annotations

import random
from dataclasses import replace

import torch

from regraft.compiler.ir.interpreter import allocate, run_kernel, run_program
from regraft.compiler.ir.kernel import Fold, Kernel, Loop
from regraft.compiler.ir.printer import kernel_text
from regraft.compiler.ir.program import Buffer, Extern, Program, Reduction, Store
from regraft.compiler.ir.value import Op, Result
from regraft.compiler.ir.verify import verify_kernel, verify_program
from regraft.compiler.lowering.core import Lowering, const, contiguous, whole
from regraft.compiler.schedule import CPU, GPU, check_schedule, schedule

from .kernels import run_compiled

F32 = torch.float32
# One that a few iterations keep busy: what large programs become, of small ones.
SMALL_GPU = replace(GPU, busy=8, share=16, programs=16, lanes=4, chunk=8)


class Node:
    """As much of a graph node as lowering asks for."""

    def __init__(self, name):
        self.name, self.meta = name, {}


class Builder:
    """Builds programs: `node` names what is defined next."""

    def __init__(self):
        self.low = Lowering()

    def node(self, name):
        self.low.current = self.low.origin = Node(name)
        return self

    def given(self, name, sizes, strides=None, dtype=F32, kind="input"):
        strides = contiguous(sizes) if strides is None else strides
        self.low.buffers[name] = Buffer(name, dtype, tuple(sizes), tuple(strides), torch.device("cpu"), kind)
        return whole(self.low.buffers[name])

    def map(self, name, sizes, compute, dtype=F32, **more):
        return self.node(name).low.pointwise(compute, sizes, dtype, **more)

    def sum(self, name, sizes, reduced, compute, finish=lambda i, c: c[0], reducer="sum", dtype=F32):
        return self.node(name).low.reduce(reducer, compute, sizes, reduced, finish, [dtype])[0]

    def scan(self, name, sizes, length, compute):
        """A cumulative sum over the last dim."""
        low = self.node(name).low
        loops, (var,) = low.loops(sizes), low.loops((length,), "r")
        at = (*(v.index() for v in loops), var.index())
        made = low.buffer((*sizes, length), F32)
        fold = Reduction(low.name("fold", "fold"), "sum", (compute(at),))
        low.define(loops, [Store(made.name, at, Result(fold.name, 0, F32))], (var,), (fold,), True)
        return whole(made)

    def made(self, name, sizes, dtype=F32):
        """Fresh memory, for `write`."""
        return whole(self.node(name).low.buffer(sizes, dtype))

    def write(self, name, into, sizes, indices, value, mode=None):
        """Store into a part of a tensor; `indices` and `value` are given the loops' indices."""
        loops = self.node(name).low.loops(sizes)
        at = tuple(v.index() for v in loops)
        self.low.store(into, loops, indices(at), value(at), mode)

    def extern(self, name, reads, writes=(), pure=True):
        self.low.items.append(Extern(name, None, tuple(reads), tuple(writes), pure=pure))

    def program(self, *outputs):
        return Program(self.low.buffers, self.low.items, tuple(o.buffer.name for o in outputs))


def op(name, *args):
    return Op(name, args, torch.bool if name in ("lt", "gt") else args[-1].dtype)


def number(value):
    return const(value, F32)


def inputs_of(program, seed=0, sizes=None):
    """Tensors for everything that a program is given."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for buffer in program.buffers.values():
        if buffer.kind != "made":
            tensor = allocate(buffer, sizes or {})
            memory = torch.randint(0, 3, tensor.shape, generator=generator).to(buffer.dtype)
            if buffer.dtype.is_floating_point:
                memory = torch.randn(tensor.shape, generator=generator).to(buffer.dtype)
            found[buffer.name] = tensor.copy_(memory) if 0 not in buffer.strides else tensor.fill_(1.5)
    return found


def run_schedule(program, found, inputs, sizes=None, extern=None, shuffle=None, compiled=False):
    """All buffers after running the steps of a schedule; buffers that it says are real are there beforehand.

    Kernels run by the interpreter, an iteration at a time in any order of those that are parallel, or compiled.
    """
    tensors = {n: t.clone() if isinstance(t, torch.Tensor) and 0 not in t.stride() else t for n, t in inputs.items()}
    for name, buffer in found.buffers.items():
        tensors[name] = allocate(buffer, sizes or {})
    for step in found.steps:
        if isinstance(step, Extern):
            tensors.update(extern(step, tensors) or {})
            continue
        missing = [p.buffer.name for p in step.params if p.buffer.name not in tensors]
        assert not missing, f"{step.name} uses {missing}, which nobody allocates"
        if compiled:
            run_compiled(step, tensors, sizes)
        else:
            run_kernel(step, tensors, sizes, shuffle=shuffle)
    return tensors


def assert_same(program, *, sizes=None, extern=None, seed=0, tolerance=1e-5, fuse=True, target=CPU, compiled=False):
    """Schedule, check, run both, compare outputs and inputs; gives the schedule."""
    assert not verify_program(program)
    found = schedule(program, fuse=fuse, target=target)
    assert not verify_program(found.program)
    assert not [finding for k in found.kernels for finding in verify_kernel(k)]
    assert not check_schedule(program, found)
    inputs = inputs_of(program, seed, sizes)
    copies = {n: t if 0 in t.stride() else t.clone() for n, t in inputs.items()}
    expected = run_program(program, copies, sizes=sizes, extern=extern)
    actual = run_schedule(program, found, inputs, sizes, extern, random.Random(seed), compiled)
    for name in {*program.outputs, *inputs}:
        torch.testing.assert_close(actual[name], expected[name], rtol=tolerance, atol=tolerance, equal_nan=True)
    return found


def loops_of(kernel: Kernel) -> list[Loop]:
    """All loops of a kernel, outer ones first."""
    found, stack = [], list(kernel.body)
    while stack:
        statement = stack.pop(0)
        if isinstance(statement, Loop):
            found.append(statement)
        if isinstance(statement, (Loop, Fold)):
            stack = [*statement.body, *stack]
    return found


# -- programs that several tests use --------------------------------------------------------------------------------


def layer_norm(b, x, name="ln", weight=None, views=False):
    """Over the last dim of a (2, r, c) tensor; with `views`, the rows are seen as (2 * r, c) half way."""
    _, r, c = x.sizes
    scale = number(1 / c)
    mean = b.sum(f"{name}_mean", (2, r), (c,), lambda o, k: x.at((*o, *k)), lambda i, f: op("mul", f[0], scale))

    def square(o, k):
        away = op("sub", x.at((*o, *k)), mean.at(o))
        return op("mul", away, away)

    var = b.sum(f"{name}_var", (2, r), (c,), square, lambda i, f: op("rsqrt", op("add", f[0], number(1e-5))))

    def out(i):
        o, k = ((i[0] // r, i[0] % r), i[1]) if views else (i[:2], i[2])
        value = op("mul", op("sub", x.at((*o, k)), mean.at(o)), var.at(o))
        return value if weight is None else op("mul", value, weight.at((k,)))

    return b.map(name, (2 * r, c) if views else (2, r, c), out)


def softmax(b, x, name="softmax"):
    """Over the last dim of a (r, c) tensor."""
    r, c = x.sizes
    most = b.sum(f"{name}_max", (r,), (c,), lambda o, k: x.at((*o, *k)), reducer="max")
    exp = b.map(f"{name}_exp", (r, c), lambda i: op("exp", op("sub", x.at(i), most.at(i[:1]))))
    total = b.sum(f"{name}_sum", (r,), (c,), lambda o, k: exp.at((*o, *k)))
    return b.map(name, (r, c), lambda i: op("div", exp.at(i), total.at(i[:1])))


def body_text(kernel: Kernel) -> str:
    """The loop tree as text, params and scratch left out."""
    lines = kernel_text(kernel).splitlines()
    return "\n".join(line[4:] for line in lines if line.startswith(("    for", "    fold", "        ")))

"""Kernels of symbolic sizes: indices of 32 bits, and a variant with 64 for sizes that need them."""

from __future__ import annotations

import importlib
import itertools
import time
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support import triton_kernels
from support.lowering import trace
from support.triton_kernels import compile_for, kernel_source, run_interpreted

from regraft.compiler.codegen.triton.build import LaunchPlan, _for_reach
from regraft.compiler.codegen.triton.launch import Convention
from regraft.compiler.codegen.triton.source import KernelSource
from regraft.compiler.ir.index.index import Size, Var, evaluate, least, most, number_text, quotient, remainder
from regraft.compiler.ir.iteration_space import largest
from regraft.compiler.ir.kernel import Kernel
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import GPU, schedule

S, T = (Size(name, 0, None).index() for name in "st")
N = Size("n", None, None).index()
I, J = Var("i", S).index(), Var("j", T + 3).index()  # noqa: E741


@pytest.mark.parametrize(
    "number",
    [T * I + J, 4 * I - J, (I - 5) * (J - 7), quotient(S * I + J, 3), remainder(I * T - J, S + 1), least(I, J - 9),
     most(I, T) * I, N * I - 3, quotient(I, T + 1)],
)  # fmt: skip
def test_no_index_exceeds_what_is_told(number: Any) -> None:
    bound = largest(number)
    for s, t, n in itertools.product((1, 2, 7), (0, 1, 5), (-6, 0, 3)):
        sizes = {Size("s", 0, None): s, Size("t", 0, None): t, Size("n", None, None): n}
        for i, j in itertools.product(range(s), range(t + 3)):
            found = {**sizes, Var("i", S): i, Var("j", T + 3): j}
            assert abs(evaluate(number, found.__getitem__)) <= evaluate(bound, sizes.__getitem__)


def kernels(function: Any, *inputs: torch.Tensor) -> list[Kernel]:
    return schedule(lower(trace(function, *inputs, dynamic=True), strict=True).program, target=GPU).kernels


FUNCTIONS = {
    "pointwise": lambda x: torch.sin(x) + 1,
    "permuted": lambda x: x.transpose(0, 1).reshape(-1) * 2,
    "rows": lambda x: torch.softmax(x, -1),
    "columns": lambda x: x.sum(0),
    "scan": lambda x: x.cumsum(0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_variants(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both compute the function, and are compiled."""
    x = torch.randn(33, 70)
    for kernel in kernels(FUNCTIONS[name], torch.randn(40, 50)):
        source = kernel_source(kernel)
        (one,) = source.launches
        assert one.wide and "tl.int32" in one.text and ".to(tl.int64)" in one.wide
        compile_for(source, 90)
    for wide in (False, True):
        found = _computed(FUNCTIONS[name], x, wide, monkeypatch)
        torch.testing.assert_close(found, FUNCTIONS[name](x), rtol=1e-4, atol=1e-4)


def _computed(function: Any, x: torch.Tensor, wide: bool, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    def chosen(kernel: Kernel, plans: Any = None) -> Any:
        made = kernel_source(kernel, plans)
        return KernelSource(made.wide, made.launches) if wide else made

    monkeypatch.setattr(triton_kernels, "kernel_source", chosen)
    tensors: dict[str, Any] = {}
    made = kernels(function, torch.randn(40, 50))
    for kernel in made:
        named = [p.buffer.name for p in kernel.params if p.buffer.kind == "input"]
        tensors.update(dict.fromkeys(named, x.reshape(-1).clone()))
        # The example says which dim a size is.
        sizes = {size: x.shape[0] if example == 40 else x.shape[1] for size, example in kernel.examples}
        tensors = run_interpreted(kernel, tensors, sizes)
    return tensors[made[-1].params[-1].buffer.name].view(function(x).shape)


def test_hundreds_of_indices_have_one_bound() -> None:
    """Written and bounded at once: what the largest of many indices is, is not asked."""

    def steps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = x[:, 0]
        for t in range(24):
            h = h * x[:, t] + y[:, t] * t
        return h

    start = time.process_time()
    for kernel in kernels(steps, torch.randn(3, 24, 64), torch.randn(3, 24, 64)):
        (one,) = kernel_source(kernel).launches
        assert len(number_text(one.reach, repr)) < 400
    assert time.process_time() - start < 30


def test_the_variant_is_chosen_by_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    build = importlib.import_module("regraft.compiler.codegen.triton.build")
    called: list[str] = []
    monkeypatch.setattr(build, "_Variant", lambda plan, device: lambda *args: called.append("wide"))
    unit: Any = "a unit"
    plan = LaunchPlan(unit, Convention(0, (), "", 0, False), "1", (), reach="n0 * n1", wide=unit)
    run = _for_reach(lambda *args: called.append("narrow"), plan, 0, 1, ("n0", "n1"))
    run(object(), 1 << 15, 1 << 14)
    run(object(), 1 << 15, 1 << 15, 7)
    assert called == ["narrow", "wide"]

"""Names of generated functions say what is computed; equal texts have equal names."""

import pytest

pytest.importorskip("triton")

import torch
from support.lowering import trace
from support.schedules import GPU

from regraft.compiler.codegen.triton import source_text
from regraft.compiler.codegen.triton.kernel_names import kernel_name, provenance
from regraft.compiler.ir.canonical import canonical
from regraft.compiler.lowering import lower
from regraft.compiler.schedule import schedule


def names(function, *inputs):
    kernels = schedule(lower(trace(function, *inputs), strict=True).program, target=GPU).kernels
    return [kernel_name(canonical(kernel), "text").rpartition("_")[0] for kernel in kernels]


def test_operations_stand_in_the_order_computed():
    assert names(lambda x: (x + 1).relu().exp(), torch.randn(8)) == ["add_maximum_exp"]


def test_reductions_are_named():
    (name,) = names(lambda x: torch.nn.functional.layer_norm(x, (64,)), torch.randn(8, 64))
    assert "rsqrt" in name and name.startswith(("sum", "welford"))


def test_copies_and_casts_have_names_too():
    assert names(lambda x: x.t().contiguous(), torch.randn(8, 4)) == ["copy"]
    assert names(lambda x: x.bfloat16(), torch.randn(8, 4)) == ["round"]


def test_names_are_short():
    def function(x):
        for f in (torch.exp, torch.sin, torch.cos, torch.tanh, torch.atan, torch.asinh, torch.log1p, torch.expm1) * 2:
            x = f(x) * f(x + 1)
        return x.erf().lgamma().sigmoid().rsqrt().sqrt().acos().asin().tan().floor().ceil().trunc()

    (name,) = names(function, torch.randn(8))
    assert len(name) <= 60 and name.isidentifier()


def test_the_hash_is_of_the_text():
    (kernel,) = schedule(lower(trace(lambda x: x + 1, torch.randn(8)), strict=True).program, target=GPU).kernels
    assert kernel_name(kernel, "a") == kernel_name(kernel, "a") != kernel_name(kernel, "b")


def test_texts_say_whom_a_kernel_is_for():
    program = lower(trace(lambda x: (x.exp(), x.sin()), torch.randn(8)), strict=True).program
    kernels = schedule(program, target=GPU).kernels
    text = source_text(kernels, {kernels[0].nodes[0]: "model.py:3 in f: x.exp()"})
    assert f"# {kernels[0].nodes[0]}: model.py:3 in f: x.exp()" in text


def test_of_many_nodes_some_are_named():
    assert provenance([f"n{k}" for k in range(10)], {}).splitlines()[-1] == "# and 2 more"

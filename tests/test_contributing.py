"""What `docs/contributing.md` says of additions: made for the time of a test, in the places that it names, and run."""

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import torch
from support.triton_kernels import compiles, kernel_source, run_interpreted

import regraft
from regraft.compiler import options, pipeline, stages
from regraft.compiler.codegen.cpp import prelude_math
from regraft.compiler.codegen.triton import KernelSource
from regraft.compiler.codegen.triton import source as triton_source
from regraft.compiler.codegen.triton.source import module_text
from regraft.compiler.ir import folds
from regraft.compiler.ir.op_info import COSTLY, Cpp, OpInfo
from regraft.compiler.ir.ops import OPS
from regraft.compiler.ir.program import Buffer
from regraft.compiler.ir.reducers import REDUCERS, Reducer
from regraft.compiler.lowering.arithmetic import op
from regraft.compiler.lowering.core import LOWERINGS, lowers
from regraft.compiler.lowering.ops.elementwise import elementwise
from regraft.compiler.lowering.spaces import fold, space
from regraft.compiler.options.fields import KernelOptions
from regraft.compiler.templates import TritonTemplateKernel, gpu_passes
from regraft.compiler.templates.common.cpp_call import Layout
from regraft.compiler.templates.common.task import task_of
from regraft.compiler.templates.common.template import GpuTemplate
from regraft.compiler.templates.common.triton_launch import launch_of
from regraft.rewrites.profit import Always
from regraft.rewrites.reason import Reason
from regraft.rewrites.record import GraphRecord
from regraft.rewrites.sample import Sample, T
from regraft.rewrites.switches import left_out
from regraft.rewrites.walk import replaces_calls

from .compiler.codegen.cpp.test_operations import case
from .compiler.codegen.cpp.test_reductions import fold_kernel

BUILD = importlib.import_module("regraft.compiler.codegen.cpp.build")
aten = torch.ops.aten
ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "contributing.md").read_text()


def test_the_places_exist():
    """Paths are those of the repository; a bare file name is one of a template's folder."""
    for path in re.findall(r"`((?:\w+/)+[\w.]+)`", TEXT):
        assert (ROOT / path).exists(), path
    for name in re.findall(r"`(\w+\.py)`", TEXT):
        assert list((ROOT / "compiler").rglob(name)), name


def test_a_rule():
    @regraft.register_pattern(
        "twice_by_sum",
        replacement=lambda x: x + x,
        samples=[Sample(x=T("B N"))],
        profitable=True,
    )
    def twice_by_sum(x):
        """x * 2  ->  x + x"""
        return x * 2.0

    assert regraft.check(twice_by_sum, examples=5).ok
    run = torch.compile(lambda x: (x * 2.0).sin(), backend="regraft", options={"rules": (twice_by_sum,)})
    with regraft.coverage() as cov:
        run(torch.randn(3, 4))
    assert cov.matches["twice_by_sum"] == 1


def test_a_pass(monkeypatch):
    @replaces_calls(aten.neg.default)
    def drop_double_negation(editor, call):
        inner = call.args[0]
        return inner.args[0] if inner.target is aten.neg.default else None

    added = pipeline._simple("drop_double_negation", drop_double_negation, doc="neg(neg(x))  ->  x")
    monkeypatch.setattr(stages, "LOWERED", (added, *stages.LOWERED))
    x = torch.randn(5)
    with regraft.coverage() as cov, torch.no_grad():
        made = torch.compile(lambda x: x.neg().neg().sin(), backend="regraft", options={"verify": "structure"})(x)
    torch.testing.assert_close(made, x.sin())
    assert cov.graphs[0].changes("drop_double_negation") == {"changes": 1}


@pytest.fixture
def cube_root(monkeypatch):
    """An operation of the IR that is not in the table, and an operator that lowers to it."""
    # C++: the function of C's library for scalars, and a loop over lanes. Triton: libdevice has it under this name.
    reference = lambda x: x.sign() * x.abs() ** (1 / 3)  # noqa: E731
    info = OpInfo(1, "same", reference, floating=True, work=COSTLY, cpp=Cpp(libm="cbrt", lanes=True))
    monkeypatch.setitem(OPS, "cbrt", info)
    for cached in (prelude_math.operations, BUILD._prelude):
        cached.cache_clear()
    library = torch.library.Library("contributing", "DEF")
    library.define("cbrt(Tensor x) -> Tensor")
    library.impl("cbrt", OPS["cbrt"].reference, "CompositeExplicitAutograd")
    monkeypatch.delitem(LOWERINGS, "contributing.cbrt", raising=False)
    lowers("contributing.cbrt")(lambda low, x: elementwise(low, [x], lambda a: op("cbrt", a)))
    yield torch.ops.contributing.cbrt
    del LOWERINGS["contributing.cbrt"]
    library._destroy()
    for cached in (prelude_math.operations, BUILD._prelude):
        cached.cache_clear()


def test_a_pointwise_operation(cube_root):
    pytest.importorskip("triton")
    x = torch.linspace(-8, 8, 37)
    with regraft.coverage() as cov, torch.no_grad():
        made = torch.compile(lambda x: cube_root(x) * 2, backend="regraft")(x)
    torch.testing.assert_close(made, cube_root(x) * 2)
    (code,) = cov.graphs[0].code
    assert code.kernels == 1 and not code.kept
    assert compiles(kernel_source(case("cbrt", torch.float32)[0]))  # the interpreter has no cube root of libdevice


@pytest.fixture
def common_bits(monkeypatch):
    """A reducer that is not in the table, and an operator that lowers to it: the bits that any number of a row has."""
    info = Reducer(1, ("value",), lambda low, high: (0,), lambda a, b: a[0] | b[0], exact=True, cpp="{0} | {1}")
    monkeypatch.setitem(REDUCERS, "bits", info)
    made = {**triton_source._library(), "join_bits": "@triton.jit\ndef join_bits(x, y):\n    return x | y"}
    monkeypatch.setattr(triton_source, "_library", lambda: made)
    library = torch.library.Library("contributing", "DEF")
    library.define("bits(Tensor x) -> Tensor")
    library.impl("bits", lambda x: folds.reduce("bits", (x,))[0], "CompositeExplicitAutograd")
    monkeypatch.delitem(LOWERINGS, "contributing.bits", raising=False)
    lowers("contributing.bits")(
        lambda low, x: fold(low, space(x, -1, False), "bits", x.at, lambda _, bits: bits, x.dtype)[0]
    )
    yield torch.ops.contributing.bits
    del LOWERINGS["contributing.bits"]
    library._destroy()


def test_a_reduction(common_bits):
    pytest.importorskip("triton")
    x = torch.randint(1 << 40, (3, 300)) & 0x0F0F0F0F0F
    with regraft.coverage() as cov, torch.no_grad():
        made = torch.compile(lambda x: common_bits(x) + 1, backend="regraft")(x)
    assert torch.equal(made, common_bits(x) + 1)
    (code,) = cov.graphs[0].code
    assert code.kernels == 1 and not code.kept
    folding = fold_kernel("bits", torch.int64, 3, 300, along=True)
    source = kernel_source(folding)
    assert "join_bits" in source.text and compiles(source)
    assert torch.equal(run_interpreted(folding, {"x": x.flatten()})["out0"], common_bits(x))


@dataclass(frozen=True)
class Reversal:
    """The description of a template: a row of numbers, the last one first, each doubled."""

    x: Buffer
    out: Buffer


@dataclass(frozen=True)
class FoundReversal:
    """A reversal that was found in a graph."""

    reversal: Reversal
    inputs: tuple
    nodes: tuple
    output: object


def reversal_triton(reversal, lanes):
    """The source with so many lanes a program."""
    size, name = reversal.x.sizes[0], f"reversal_{lanes}"
    lines = [
        f"    i = tl.program_id(0) * {lanes} + tl.arange(0, {lanes})",
        f"    tl.store(out_ptr + i, 2.0 * tl.load(x_ptr + {size - 1} - i, mask=i < {size}), mask=i < {size})",
    ]
    arguments = {"x_ptr": reversal.x, "out_ptr": reversal.out}
    launch = launch_of(name, lines, arguments, programs=-(-size // lanes), warps=4)
    return KernelSource(module_text([launch.text]), (launch,))


class ReversalTemplate(GpuTemplate):
    """flip(x) * 2  ->  reversal(x)"""

    rule, family, option, name = "reversal-template", "reversal", "products", "reversals"
    seconds = 1.0

    def match(self, node):
        reverses = node.op == "call_function" and node.target is aten.mul.Tensor and node.args[1] == 2
        if not reverses or getattr(node.args[0], "target", None) is not aten.flip.default:
            return None
        flip, x = node.args[0], node.args[0].args[0]
        if x.meta["val"].dim() != 1:
            return Reason("not-a-row", "only rows are reversed and doubled", (node,))
        described = Reversal(*(buffer_of(one, name) for one, name in ((x, "x"), (node, "out"))))
        return FoundReversal(described, (x,), (flip, node), node)

    def description(self, found):
        return found.reversal

    def candidates(self, described):
        return [128, 1024]

    def estimate(self, found):
        return "fewer numbers than lanes" if found.reversal.x.sizes[0] < 32 else None

    def source(self, described, config):
        source = reversal_triton(described, config)
        reads, results = (Layout.of(described.x),), (Layout.of(described.out),)
        return TritonTemplateKernel(
            source.launches[0].name, "reversal", source, source, reads, results, self.task.device
        )


def buffer_of(node, name):
    val = node.meta["val"]
    return Buffer(name, val.dtype, tuple(val.shape), tuple(val.stride()), val.device, "input")


def test_a_template(monkeypatch, tmp_path):
    """In two files of its own, and one line of the list: found, asked about, replaced, recorded, left out."""
    pytest.importorskip("triton")
    from support.template_oracle import Fastest, with_fake_hopper
    from support.triton_gemm import Interpreted, on_gpu

    with_fake_hopper(monkeypatch, tmp_path)
    monkeypatch.setattr(gpu_passes, "TEMPLATES", (*gpu_passes.TEMPLATES, ReversalTemplate))
    assert "reversal-template" in pipeline.names_of_steps()

    def fused(function, x, oracle, **kernels):
        module, record = on_gpu(function, x), GraphRecord("test")
        task = task_of(module.graph, oracle, record)
        gpu_passes.fuse_on_gpu(task, lambda run, *args, name: run(*args), KernelOptions(**kernels))
        module.recompile()
        calls = [node.target.name for node in module.graph.nodes if isinstance(node.target, TritonTemplateKernel)]
        return module, record, calls

    x, oracle = torch.randn(300), Fastest()
    two = lambda x: (x.flip(0) * 2).sin() + (x.cos().flip(0) * 2)  # noqa: E731
    oracle.seconds = {"original": 0.5, "1024": 0.1}
    module, record, calls = fused(two, x, oracle)
    assert calls == ["reversal_1024"] * 2
    assert [match.candidate for match in record.applied] == ["1024"] * 2
    assert [set(question.candidates) for question in oracle.questions] == [{"128", "1024"}]  # alike: asked once
    torch.testing.assert_close(Interpreted(module).run(x), two(x))
    assert fused(two, x, Fastest(original=0.05))[2] == []
    assert fused(two, x, Always())[2] == ["reversal_128"] * 2
    assert fused(two, x, Always(), products="library")[2] == []
    with left_out({"reversal-template"}):
        assert fused(two, x, Always())[2] == []
    _, record, calls = fused(lambda x: x.flip(0) * 2, torch.randn(20), oracle)
    assert not calls and record.declined[0].evidence.note == "estimate: fewer numbers than lanes"
    _, record, calls = fused(lambda x: x.flip(1) * 2, torch.randn(2, 50), oracle)
    assert not calls and [miss.code for miss in record.near_misses] == ["not-a-row"]


def test_an_option():
    @dataclass(frozen=True)
    class Options(options.Options):
        loud: bool = False
        voice: Literal["high", "low"] = "low"

    made = Options.parse("default", {"loud": True, "voice": "high"})
    assert made.loud and made.voice == "high"
    assert Options.parse("default", {"loud": True}).key() != Options.parse("default", {}).key()
    with pytest.raises(options.OptionError, match="loud"):
        Options.parse("default", {"loudly": True})
    for wrong in ({"loud": 1}, {"voice": "shrill"}):
        with pytest.raises(options.OptionError, match=next(iter(wrong))):
            Options.parse("default", wrong)

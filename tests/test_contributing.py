"""What `docs/contributing.md` says of additions: made for the time of a test, in the places that it names, and run."""

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import torch
from support.triton_kernels import compiles, run_interpreted

import regraft
from regraft.compiler import options, stages
from regraft.compiler.codegen.cpp import prelude_math
from regraft.compiler.codegen.triton import kernel_source
from regraft.compiler.codegen.triton import source as triton_source
from regraft.compiler.ir import folds
from regraft.compiler.ir.op_info import COSTLY, Cpp, OpInfo
from regraft.compiler.ir.ops import OPS
from regraft.compiler.ir.reducers import REDUCERS, Reducer
from regraft.compiler.lowering.arithmetic import op
from regraft.compiler.lowering.core import LOWERINGS, lowers
from regraft.compiler.lowering.ops.elementwise import elementwise
from regraft.compiler.lowering.spaces import fold, space
from regraft.compiler.passes.registry import Pass
from regraft.compiler.templates.common.cpp_call import Layout, template_kernel
from regraft.compiler.templates.common.cpp_entry import with_entry
from regraft.compiler.templates.common.records import decided, near_miss
from regraft.rewrites.graph import erase_dead
from regraft.rewrites.profit import Question
from regraft.rewrites.reason import Reason
from regraft.rewrites.sample import Sample, T
from regraft.rewrites.splice import Original

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
    def drop_double_negation(graph, context):
        changed = 0
        for node in list(graph.graph.nodes):
            if node.target is torch.ops.aten.neg.default and node.args[0].target is torch.ops.aten.neg.default:
                node.replace_all_uses_with(node.args[0].args[0])
                graph.graph.erase_node(node)
                changed += 1
        return changed

    added = Pass("drop_double_negation", drop_double_negation, doc="neg(neg(x))  ->  x")
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

    size: int

    def kernel(self):
        lines = [
            "  const f32* x = (const f32*)call->buffers[0]; f32* y = (f32*)call->buffers[1];",
            f"  for (i64 k = begin; k < end; ++k) y[k] = 2.0f * x[{self.size - 1} - k];",
        ]
        row = Layout((self.size,), (1,), torch.float32)
        return template_kernel("reversal", with_entry(lines, self.size, str(self.size)), (row,), row, 0)


def match_reversal(node):
    """x and the description; else why not, or None where nothing of the kind is there."""
    reverses = node.target is aten.mul.Tensor and getattr(node.args[0], "target", None) is aten.flip.default
    if not reverses or node.args[1] != 2:
        return None
    x = node.args[0].args[0]
    if x.meta["val"].dim() != 1:
        return Reason("not-a-row", "only rows are reversed and doubled")
    return x, Reversal(x.meta["val"].shape[0])


def fuse_reversals(graph_module, context):
    """flip(x) * 2  ->  reversal_3f2a(x)"""
    graph, record, changed = graph_module.graph, context.record, 0
    for node in list(graph.nodes):
        found = match_reversal(node)
        if isinstance(found, Reason):
            record.near_misses.append(near_miss("reversal-template", "reversal", node, found))
        elif found is not None:
            x, description = found
            kernel, nodes = description.kernel(), [node.args[0], node]
            original = Original(nodes, [x], [node])
            asked = Question("reversal-template", kernel.name, [x.meta["val"]], original, {"generated": kernel})
            decision = context.oracle.decide(asked)
            record.applied.append(decided("reversal-template", "reversal", nodes, node, decision))
            with graph.inserting_before(node):
                call = graph.call_function(kernel, (x,))
            call.meta.update(node.meta)
            node.replace_all_uses_with(call)
            erase_dead(graph, nodes, lambda dead: True)
            changed += 1
    return changed


def test_a_template(monkeypatch):
    added = Pass("reversal-template", fuse_reversals, family="reversal", candidates=("generated",))
    monkeypatch.setattr(stages, "LOWERED", (added, *stages.LOWERED))
    x = torch.randn(100)
    with regraft.coverage() as cov, torch.no_grad():
        options = {"verify": "structure", "profit": "always"}
        made = torch.compile(lambda x: (x.flip(0) * 2).sin(), backend="regraft", options=options)(x)
        torch.compile(lambda x: x[None].flip(1) * 2, backend="regraft", options=options)(x)
    torch.testing.assert_close(made, (x.flip(0) * 2).sin())
    assert [graph.changes("reversal-template") for graph in cov.graphs] == [{"changes": 1}, {}]
    assert cov.matches["reversal-template"] == 1
    assert [miss.code for graph in cov.graphs for miss in graph.near_misses] == ["not-a-row"]


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

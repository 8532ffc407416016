"""What `docs/contributing.md` says of additions: made for the time of a test, in the places that it names, and run."""

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import torch
from support.triton_kernels import compiles

import regraft
from regraft.compiler import options, stages
from regraft.compiler.codegen.cpp import prelude_math
from regraft.compiler.codegen.triton import kernel_source
from regraft.compiler.ir.ops import OPS, OpInfo
from regraft.compiler.lowering.arithmetic import op
from regraft.compiler.lowering.core import LOWERINGS, lowers
from regraft.compiler.lowering.ops.elementwise import elementwise
from regraft.compiler.passes.registry import Pass
from regraft.rewrites.sample import Sample, T

from .compiler.codegen.cpp.test_operations import case

BUILD = importlib.import_module("regraft.compiler.codegen.cpp.build")
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
    monkeypatch.setitem(OPS, "cbrt", OpInfo(1, "same", lambda x: x.sign() * x.abs() ** (1 / 3), floating=True))
    # C++: `op_cbrt` for scalars, and for vectors a loop over them. Triton: libdevice has it under this name.
    monkeypatch.setitem(prelude_math._LIBM, "cbrt", "cbrt")
    monkeypatch.setattr(prelude_math, "_EACH1", f"{prelude_math._EACH1} cbrt")
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

"""The pass over a CPU's graph for a template of a test: what it replaces, declines and refuses, and what it records."""

from types import SimpleNamespace

import pytest
import torch
from support.lowering import trace

from regraft.compiler.codegen.cpp.errors import CompilerMissing
from regraft.compiler.templates.common.cpu_pass import CANNOT_COMPILE, CpuTemplatePass
from regraft.compiler.templates.common.task import GraphTask
from regraft.compiler.templates.common.template import Template
from regraft.rewrites.compat import tree_leaves
from regraft.rewrites.profit import Always, Never
from regraft.rewrites.reason import Reason
from regraft.rewrites.record import GraphRecord
from regraft.rewrites.switches import left_out

aten = torch.ops.aten


class Kernel:
    """Twice the sine, by calls of ATen."""

    name = __name__ = "double_sine"

    def __init__(self, refuses=False):
        self._refuses = refuses

    def build(self):
        if self._refuses:
            raise CompilerMissing("no compiler")

    def __call__(self, x):
        return 2 * x.sin()


class DoubleSine(Template):
    """sin(x) * 2  ->  double_sine(x)"""

    rule, family, size, errors = "double-sine", "sine", 2, CANNOT_COMPILE
    kernel = Kernel()
    why = None

    def match(self, node):
        if node.target is not aten.mul.Tensor:
            return None
        sine = node.args[0]
        if node.args[1] != 2:
            return Reason("factor", "the factor is not 2", (node,))
        return SimpleNamespace(inputs=(sine.args[0],), nodes=(sine, node), output=node)

    def description(self, found):
        return "a sine"

    def candidates(self, described):
        return ("one",)

    def estimate(self, found):
        return self.why

    def source(self, described, config):
        return self.kernel

    def replace(self, found, kernel, place):
        with self.task.graph.inserting_before(place):
            place.replace_all_uses_with(self.task.graph.call_function(kernel, found.inputs))


def run(oracle=None, factor=2, **attributes):
    module = trace(lambda x: x.sin() * factor, torch.randn(4))
    record = GraphRecord("test")
    template = type("Own", (DoubleSine,), attributes)(GraphTask(module.graph, oracle or Always(), record))
    return CpuTemplatePass(template).run_all(), record, module


def test_replaces_what_the_oracle_chooses():
    count, record, module = run()
    (match,) = record.applied
    assert count == 1 and (match.rule, match.candidate) == ("double-sine", "one")
    module.recompile()
    x = torch.randn(4)
    (made,) = tree_leaves(module(x))
    torch.testing.assert_close(made, 2 * x.sin())


@pytest.mark.parametrize(
    ("oracle", "attributes", "note"),
    [(Never(), {}, "profit='never'"), (Always(), {"why": "too small"}, "estimate: too small")],
)
def test_declines(oracle, attributes, note):
    count, record, _ = run(oracle, **attributes)
    (match,) = record.declined
    assert count == 0 and not record.applied and note in match.evidence.note


def test_declines_what_is_switched_off():
    with left_out(("double-sine",)):
        count, record, _ = run()
    assert count == 0 and [match.evidence.note for match in record.declined] == ["switched off"]


@pytest.mark.parametrize(
    ("attributes", "code"), [({"factor": 3}, "factor"), ({"kernel": Kernel(refuses=True)}, "no-compiler")]
)
def test_refuses_with_a_reason(attributes, code):
    count, record, _ = run(**attributes)
    (miss,) = record.near_misses
    assert count == 0 and not record.applied and miss.code == code

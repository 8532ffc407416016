"""Faults planted at every level of the compiler, which the search has to find without help."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from support.cuda_in_use import skip_forks
from support.pipeline import replace_pass
from support.thorough import one_row_in, thorough
from support.triton_kernels import interpreted

import regraft
from regraft import Sample, T
from regraft.compiler import backend as backend_module
from regraft.compiler.codegen import generate
from regraft.compiler.codegen.cpp import value_text
from regraft.compiler.codegen.triton import values as triton_values
from regraft.compiler.codegen.wrapper import memory_plan
from regraft.compiler.ir.value import Const, Op
from regraft.compiler.lowering.core import LOWERINGS
from regraft.compiler.schedule.fusion import Fuser
from regraft.compiler.schedule.inlining import _Inliner
from regraft.compiler.templates.attention import fuse
from regraft.compiler.tools.bisect.finding import Cause
from regraft.compiler.tools.bisect.search import find
from regraft.compiler.tools.bisect.subject import Verdict
from regraft.compiler.tools.bisect.trial import Trial
from regraft.rewrites.switches import KINDS, Step


def program(x, w):
    h = x @ w
    soft = torch.nn.functional.softplus(h)
    bent = torch.tanh(soft)
    twice = bent * 2.0 + h.cos()
    return twice.sum(-1), torch.relu(twice).sin()


def attention(q, k, v):
    p = torch.softmax(q @ k.mT / 4.0, -1)
    return (p @ v).relu()


def rereading(x, w):
    h = x @ w
    bent = torch.tanh(h)
    return bent @ w + h


def inputs():
    torch.manual_seed(1)
    return torch.randn(6, 8), torch.randn(8, 8)


def heads():
    torch.manual_seed(1)
    return tuple(torch.randn(1, 2, 16, 16) for _ in range(3))


@regraft.register_pattern("wrong_softplus", samples=[Sample(x=T("M N"))], replacement=torch.relu)
def wrong_softplus(x):
    return torch.nn.functional.softplus(x)


def plus_one(value):
    return Op("add", (value, Const(1.0, value.dtype)), value.dtype)


def wrong_lowering(monkeypatch, name="aten.tanh"):
    monkeypatch.setitem(LOWERINGS, name, LOWERINGS["aten.sin"])


def no_number(monkeypatch):
    def log_of_minus(low, x):
        return LOWERINGS["aten.log"](low, LOWERINGS["aten.neg"](low, x))

    monkeypatch.setitem(LOWERINGS, "aten.tanh", log_of_minus)


def wrong_cpp(monkeypatch):
    written = value_text.operation_text
    monkeypatch.setattr(
        value_text,
        "operation_text",
        lambda value, args, *rest: written(replaced(value), args, *rest),
    )


def replaced(value):
    return Op("sin", value.args, value.dtype) if value.name == "tanh" else value


def wrong_triton(monkeypatch):
    written = triton_values.operation_text
    monkeypatch.setattr(generate.cpp, "build", lambda kernels: [interpreted(kernel) for kernel in kernels])
    monkeypatch.setattr(triton_values, "operation_text", lambda value, args: written(replaced(value), args))


def wrong_pass(monkeypatch):
    def double(module):
        for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor):
            node.args = (node.args[0], 3.0)
            return 1
        return 0

    replace_pass(monkeypatch, "fold_constant_tables", double)


def wrong_joint_pass(monkeypatch):
    def double(module):
        for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default):
            node.target = torch.ops.aten.sin.default
        return 1

    replace_pass(monkeypatch, "recompute_log_softmax", double)


def wrong_inlining(monkeypatch):
    body = _Inliner._body_of

    def wrong(self, value):
        found = body(self, value)
        return None if found is None else plus_one(found)

    monkeypatch.setattr(_Inliner, "_body_of", wrong)


def wrong_fusion(monkeypatch):
    merge = Fuser._merge

    def wrong(self, a, b, found):
        last = found.members[-1]
        stores = tuple(replace(store, value=plus_one(store.value)) for store in last.definition.stores)
        member = replace(last, definition=replace(last.definition, stores=stores))
        merge(self, a, b, replace(found, members=(*found.members[:-1], member)))

    monkeypatch.setattr(Fuser, "_merge", wrong)


def wrong_template(monkeypatch):
    made = fuse.attention_kernel

    def doubled(attention):
        score = Op("add", (attention.score, attention.score), attention.score.dtype)
        return made(replace(attention, score=score))

    monkeypatch.setattr(fuse, "attention_kernel", doubled)


def wrong_memory(monkeypatch):
    monkeypatch.setattr(memory_plan, "_is_legal", lambda _node, operand, *_: operand.op != "placeholder")


def wrong_capture(monkeypatch):
    capture = backend_module.capture

    def wrong(gm, given):
        captured = capture(gm, given)
        for node in captured.graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default):
            node.target = torch.ops.aten.neg.default
        captured.graph_module.recompile()
        return captured

    wrong.__name__ = "capture"
    monkeypatch.setattr(backend_module, "capture", wrong)


def failing_kernel(monkeypatch, fail):
    build = generate.cpp.build

    def run(*args):
        fail()

    def failing(kernels):
        return [run if "tanh" in k.nodes else made for k, made in zip(kernels, build(kernels), strict=True)]

    monkeypatch.setattr(generate.cpp, "build", failing)


def raises(monkeypatch):
    def fail():
        raise ZeroDivisionError("in a kernel")

    failing_kernel(monkeypatch, fail)


def dies(monkeypatch):
    failing_kernel(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGKILL))


@dataclass(frozen=True)
class Planted:
    """A fault: how it is planted, and what is to be found."""

    name: str
    plant: Callable[[Any], None]
    kind: str
    culprit: str
    line: str
    outcome: str = "wrong"
    without: tuple[str, ...] = ()
    how: Any = None


PLANTED = [
    Planted("rule", lambda _: None, "rule", "wrong_softplus", "soft =", how={"rules": ("default", wrong_softplus)}),
    Planted("capture", wrong_capture, "capture", "graph 0/0", "", without=("capture",)),
    Planted("pass", wrong_pass, "pass", "fold_constant_tables", "twice ="),
    Planted("joint pass", wrong_joint_pass, "pass", "recompute_log_softmax", "twice =", how={"train": True}),
    Planted("lowering", wrong_lowering, "kernel", "aten.tanh.default", "bent ="),
    Planted("kernel", wrong_cpp, "kernel", "aten.tanh.default", "bent ="),
    Planted("kernel by Triton", wrong_triton, "kernel", "aten.tanh.default", "bent ="),
    Planted("inlining", wrong_inlining, "fusion", "", "", without=("fusion",)),
    Planted("fusion", wrong_fusion, "fusion", "", "", without=("fusion",)),
    Planted("memory", wrong_memory, "memory", "tanh over", "bent =", without=("memory",)),
    Planted("template", wrong_template, "template", "attention-template", "p @ v"),
    Planted("NaN", no_number, "kernel", "aten.tanh.default", "bent =", "nan"),
    Planted("error", raises, "kernel", "aten.tanh.default", "bent =", "raised"),
    Planted("crash", dies, "kernel", "aten.tanh.default", "bent =", "died"),
]


ALIKE = ("joint pass", "lowering", "kernel by Triton", "inlining", "NaN", "error")  # each found like another one


@one_row_in(3)
@pytest.mark.parametrize(
    "fault", [thorough(f) if f.name in ALIKE else f for f in PLANTED], ids=lambda fault: fault.name
)
def test_a_planted_fault_is_found(fault, monkeypatch):
    if fault.outcome == "died":
        skip_forks()
    fault.plant(monkeypatch)
    how = dict(fault.how or {})
    train = how.pop("train", False)
    model, given = {"template": (attention, heads()), "memory": (rereading, inputs())}.get(
        fault.kind, (program, inputs())
    )
    if train:
        given = tuple(x.requires_grad_() for x in given)
    found = regraft.bisect(
        model, given, options={"profit": "always", **how}, train=train, isolate=fault.outcome == "died"
    )
    assert found.culprit is not None, found
    assert (found.culprit.kind, found.verdict.outcome) == (fault.kind, fault.outcome), found
    assert fault.culprit in found.culprit.name, found
    assert fault.line in str(found.culprit.site), found
    assert found.before.right and not found.first.right, found
    assert found.workaround == (fault.without or (found.culprit.name,)), found
    assert repr(found.workaround) in str(found) and fault.culprit in str(found)


def test_what_is_right_has_no_culprit():
    found = regraft.bisect(program, inputs())
    assert found.ok and found.culprit is None and found.trials == 1
    assert "nothing to search for" in str(found)
    assert found.verdict.error < 1e-6 and found.verdict.eager < 1e-6 and not found.faults


def test_faults_that_were_contained_are_told(monkeypatch):
    def fail(_module):
        raise KeyError("a planted fault")

    replace_pass(monkeypatch, "cse", fail)
    found = regraft.bisect(program, inputs())
    assert found.ok and "pass cse failed" in found.faults[0] and "pass cse failed" in str(found)


def test_the_program_is_left_as_it_was(monkeypatch):
    wrong_lowering(monkeypatch, "aten.relu")
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.ReLU())
    before = model[0].running_mean.clone()
    found = regraft.bisect(model, torch.randn(4, 8), train=True)
    assert found.culprit.name == "aten.relu.default"
    assert torch.equal(model[0].running_mean, before) and model[0].weight.grad is None


@dataclass
class Script:
    """Runs as written: which counts of which kinds fail."""

    fails: Callable[[dict[str, int]], bool]
    steps: dict[str, int]
    torchs: str = "right"
    trials: int = 0

    def __call__(self, limits, without=()):
        self.trials += 1
        on = {kind: min(limits.get(kind, count), count) for kind, count in self.steps.items()}
        steps = {kind: [Step(kind, f"{kind}{k}") for k in range(count)] for kind, count in self.steps.items()}
        wrong = self.fails(on) and not without
        return Trial(Verdict("wrong" if wrong else "right"), steps)

    def with_backend(self, name):
        return Verdict(self.torchs)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("number", [1, 37, 200])
def test_searches_take_the_logarithm_of_the_steps(kind, number):
    run = Script(lambda on: on[kind] >= number, dict.fromkeys(KINDS, 200))
    found = find(run)
    assert (found.culprit.kind, found.number, found.culprit.name) == (kind, number, f"{kind}{number - 1}")
    assert run.trials == found.trials <= 2 + 3 + 8 + 2


@pytest.mark.parametrize(("torchs", "where"), [("right", "base"), ("wrong", "torch")])
def test_a_fault_that_no_step_causes(torchs, where):
    found = find(Script(lambda _: True, {"rule": 3}, torchs))
    assert found.culprit is None and found.where == where and isinstance(found, Cause)
    assert ("aot_eager" in str(found)) == (where == "torch")

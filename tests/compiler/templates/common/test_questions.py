"""Questions of a pass: one budget without the time of compilers, refusals with their reasons, kernels left out."""

from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

from torch import fx

from regraft.compiler.codegen.triton import TritonMissing, UnsupportedDtypeError
from regraft.compiler.templates.common import questions as module
from regraft.compiler.templates.common.questions import Questions
from regraft.rewrites.profit import Decision
from regraft.rewrites.record import Evidence, GraphRecord
from regraft.rewrites.switches import left_out


class Clock:
    """Seconds pass while the oracle decides."""

    now = 0.0

    def perf_counter(self):
        return self.now

    def decide(self, question):
        self.now += 3.0
        question.compiled.seconds += 2.0
        return Decision("a", Evidence(note="measured"))


@pytest.fixture
def asked(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    task = SimpleNamespace(oracle=clock, record=GraphRecord("graph"), generated=False)
    return Questions(task, "linear-template", "linear-kernel", 1.5), task


def node():
    return fx.Graph().placeholder("x")


def test_waiting_for_compilers_does_not_count(asked):
    questions, task = asked
    compiled = SimpleNamespace(seconds=10.0)
    for over in (False, True):
        assert not questions.are_over
        assert questions.ask(compiled, SimpleNamespace(compiled=compiled)).chosen == "a"
        assert questions.are_over == over
    task.generated = True
    assert not questions.are_over
    task.generated = False
    questions.allow(1.0)
    assert not questions.are_over


def test_errors_are_near_misses_with_a_code(asked):
    questions, task = asked
    questions.refuse_error(node(), UnsupportedDtypeError("complex64"))
    questions.refuse_error(node(), TritonMissing("no compiler"))
    assert [(miss.rule, miss.code) for miss in task.record.near_misses] == [
        ("linear-template", "epilogue-dtype"),
        ("linear-template", "no-machine-code"),
    ]


def test_kernels_may_be_left_out(asked):
    questions, _ = asked
    decision = Decision("a", Evidence())
    assert questions.switched(decision, [node()]) is decision
    with left_out({"linear-template"}):
        assert questions.switched(decision, [node()]).chosen is None

"""What tests of the passes over templates share: a timer that knows, and a Hopper GPU in name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from torch import fx

from regraft.compiler.gpu import HOPPER
from regraft.compiler.templates.common import gpu, triton_call
from regraft.compiler.templates.common.task import task_of
from regraft.compiler.templates.common.template_pass import TemplatePass
from regraft.rewrites.profit import Decision, Question
from regraft.rewrites.record import Evidence, GraphRecord

from .fake_cuda import with_fake_driver


class Fastest:
    """A timer that knows: seconds by what the program's name has in it; the first it does not know takes 1."""

    def __init__(self, **seconds: float) -> None:
        self.seconds, self.questions = seconds, list[Question]()

    def time(self, name: str) -> float:
        return next((s for key, s in self.seconds.items() if key in name), 1.0)

    def decide(self, question: Question) -> Decision:
        self.questions.append(question)
        original = [] if question.excluded else ["original"]
        times = {name: self.time(name) for name in (*original, *question.candidates)}
        best = min(times, key=lambda name: times[name])
        return Decision(None if best == "original" else best, Evidence(times, "measured"))


def run_pass(kind: Any, module: fx.GraphModule, oracle: Any, record: GraphRecord, **options: Any) -> int:
    """How many kernels the pass of a template puts into a graph."""
    task = task_of(module.graph, oracle, record, **options)
    return 0 if task is None else TemplatePass(kind(task)).run_all()


def with_fake_hopper(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Any:
    """Template kernels are for a Hopper GPU that runs nothing, their code in `folder`; gives the driver."""
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(folder))
    fake = with_fake_driver(monkeypatch, 8)
    module = importlib.import_module("regraft.compiler.codegen.triton.driver")
    monkeypatch.setattr(triton_call, "driver", module.driver)
    monkeypatch.setattr(triton_call, "capability", lambda device: 90)
    monkeypatch.setattr(gpu, "gpu_at", lambda index: HOPPER)
    return fake

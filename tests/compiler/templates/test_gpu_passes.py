"""All passes over templates begin to compile before one of them measures; a fault of one leaves the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.template_oracle import with_fake_hopper
from support.triton_gemm import on_gpu

from regraft.compiler.options import Options
from regraft.compiler.templates import gpu_passes as module
from regraft.compiler.templates.common.task import task_of
from regraft.compiler.templates.common.template import GpuTemplate
from regraft.compiler.templates.gpu_passes import fuse_on_gpu
from regraft.rewrites.profit import Always
from regraft.rewrites.record import GraphRecord


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return with_fake_hopper(monkeypatch, tmp_path_factory.getbasetemp() / "passes")


def do(function: Callable[..., Any], *args: Any, name: str) -> Any:
    try:
        return function(*args)
    except RuntimeError as error:
        OUTCOMES.append(f"{name}: {error}")
        return None


OUTCOMES: list[str] = []


def ran(monkeypatch: pytest.MonkeyPatch, training: bool, faulty: str = "") -> list[str]:
    """What the passes do, in order."""
    OUTCOMES.clear()
    told: list[str] = []

    class Pass:
        def __init__(self, template: GpuTemplate) -> None:
            self.template, self.name = template, template.name

        def begin(self, taken: Any = ()) -> Any:
            told.append(f"begin {self.name}{' but for some' if taken else ''}")
            if self.name == faulty:
                raise RuntimeError("planted")
            return set(self.template.task.graph.nodes) if self.template.comes_first else set()

        def run_all(self) -> int:
            told.append(f"run {self.name}")
            return 0

    monkeypatch.setattr(module, "TemplatePass", Pass)
    graph = on_gpu(lambda x: x @ x, torch.empty(16, 16)).graph
    task = task_of(graph, Always(), GraphRecord("test"), training=training)
    assert task is not None
    fuse_on_gpu(task, do, Options().kernels)
    return told


LATER = ["products", "convolutions", "weight-gradients"]


def test_all_begin_before_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = ["begin attention", *(f"begin {name} but for some" for name in LATER)]
    assert ran(monkeypatch, False) == [*begun, "run attention", *(f"run {name}" for name in LATER)]


def test_attentions_of_training_have_been_decided_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(monkeypatch, True) == [f"{what} {name}" for what in ("begin", "run") for name in LATER]


def test_a_fault_of_one_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    told = ran(monkeypatch, False, faulty="products")
    assert told[-3:] == ["run attention", "run convolutions", "run weight-gradients"]
    assert OUTCOMES == ["products: planted"]

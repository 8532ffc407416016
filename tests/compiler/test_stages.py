"""The stages between capture and kernels: which passes look at which graphs, and what is left of a fault there."""

import pytest
import torch

import regraft
from regraft.compiler import pipeline, stages
from regraft.compiler.backend import Compilation


@pytest.mark.parametrize("training", [False, True])
def test_products_of_every_graph_on_cuda_may_become_templates(monkeypatch, training):
    """Which graphs are looked at, and what is left of a fault there: as if the inputs were on a GPU."""
    asked = []

    def task(graph, oracle, record, *, while_compiling=None, **settings):
        asked.append(settings)
        return None if while_compiling is None else settings

    def fuse_on_gpu(task, do):
        raise RuntimeError("planted")

    monkeypatch.setattr(pipeline, "task_of", task)
    monkeypatch.setattr(pipeline, "fuse_on_gpu", fuse_on_gpu)
    real = Compilation.__init__

    def on_cuda(self, *args, **kwargs):
        real(self, *args, **kwargs)
        self._devices = self._stages._devices = frozenset({"cuda"})

    monkeypatch.setattr(Compilation, "__init__", on_cuda)
    monkeypatch.setattr(Compilation, "_key", lambda self: None)
    monkeypatch.setattr(stages.triton, "can_build", lambda: False)
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    with torch.set_grad_enabled(training), regraft.coverage() as cov:
        out = torch.compile(model, backend="regraft")(x)
        if training:
            out.sum().backward()
    torch.testing.assert_close(out, model(x))
    assert {settings["training"] for settings in asked} == {training}
    assert ["gpu-templates" in f.message for f in cov.fallbacks if f.code == "passes-failed"] == [True]

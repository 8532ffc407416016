"""The stages between capture and kernels: which passes look at which graphs, and what is left of a fault there."""

import pytest
import torch

import regraft
from regraft.compiler import stages
from regraft.compiler.backend import Compilation


@pytest.mark.parametrize("training", [False, True])
def test_products_of_every_graph_on_cuda_may_become_templates(monkeypatch, training):
    """Which graphs are looked at, and what is left of a fault there: as if the inputs were on a GPU."""
    asked = []

    def planted(graph_module, oracle, record, **settings):
        assert callable(settings.pop("meanwhile"))
        asked.append(settings)
        raise RuntimeError("planted")

    monkeypatch.setattr(stages, "fuse_gemm_triton", planted)
    monkeypatch.setattr(stages, "fuse_attention_triton", planted)
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
    # Products of forward and backward, or attentions and products of a graph of inference.
    products = {"thorough": False, "training": training}
    assert asked == ([products] * 2 if training else [{"thorough": False}, products])
    assert {f.code for f in cov.fallbacks if f.stage == "templates"} == {"templates-failed"}

"""The measuring oracle may be asked anywhere in a compilation: it finds plain eager torch and leaves all as it was."""

from __future__ import annotations

import contextlib
import time

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from regraft.compiler.autotune.autotuner import Measured
from regraft.rewrites.profit import Question


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))


@contextlib.contextmanager
def autocast_and_inference_mode():
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        yield


@contextlib.contextmanager
def python_dispatcher():
    from torch._dispatch.python import enable_python_dispatcher

    with enable_python_dispatcher(), FakeTensorMode(shape_env=ShapeEnv()):
        yield


SURROUNDINGS = {
    "nothing": contextlib.nullcontext,
    "fake tensors": FakeTensorMode,
    "python dispatcher": python_dispatcher,
    "autocast, inference mode": autocast_and_inference_mode,
    "no grad": torch.no_grad,
    "default device": lambda: torch.device("meta"),
    "functional tensors": FunctionalTensorMode,
}


def surroundings_seen():
    """The parts of torch's state that a measurement must find neutral and leave alone."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return (
        _get_current_dispatch_mode_stack(),
        _get_current_function_mode_stack(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PreDispatch),
        torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher),
    )


def real_question(log):
    """Programs that notice fake tensors, autocast and tracing."""

    def look(x, w):
        out = torch.nn.functional.linear(x, w)
        log.append((type(out), out.dtype, out.device.type, torch.is_autocast_enabled("cpu"), out.requires_grad))
        float(out.sum())  # fails on fake tensors and proxies
        return out

    def original(x, w):
        time.sleep(0.01)
        return look(x, w)

    with FakeTensorMode():
        x, w = torch.empty(3, 4), torch.empty(5, 4)
    return Question("linear", "real", [x, w], original, {"look": look})


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_programs_run_in_plain_eager_whatever_surrounds_them(name):
    log = []
    question = real_question(log)
    with SURROUNDINGS[name]():
        before = surroundings_seen()
        torch.manual_seed(3)
        state = torch.random.default_generator.get_state()
        decision = Measured(program_seconds=0.0).decide(question)
        assert surroundings_seen() == before
    assert torch.equal(torch.random.default_generator.get_state(), state)
    assert decision.chosen == "look", decision.evidence.note
    assert set(log) == {(torch.Tensor, torch.float32, "cpu", False, False)}


@pytest.mark.parametrize("pre_dispatch", [False, True])
@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_inside_make_fx(pre_dispatch, tracing_mode):
    log, decisions = [], []
    question = real_question(log)

    def traced(x):
        y = x + 1
        before = surroundings_seen()
        decisions.append(Measured(program_seconds=0.0).decide(question))
        assert surroundings_seen() == before
        return y * 2

    graph = make_fx(traced, tracing_mode=tracing_mode, pre_dispatch=pre_dispatch)(torch.ones(3)).graph
    calls = [node.target for node in graph.nodes if node.op == "call_function"]
    assert calls == [torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor]
    assert decisions[0].chosen == "look", decisions[0].evidence.note
    assert {kind for kind, *_ in log} == {torch.Tensor}


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.functionalize, torch.func.grad])
def test_inside_function_transforms(transform):
    log, decisions = [], []
    question = real_question(log)

    def transformed(x):
        decisions.append(Measured(program_seconds=0.0).decide(question))
        return (x * 2).sum()

    result = transform(transformed)(torch.ones(3, 2) if transform is torch.func.vmap else torch.ones(3))
    assert decisions[0].chosen == "look", decisions[0].evidence.note
    assert result.sum() == (12 if transform is torch.func.vmap else 6)


def test_inside_a_backend_and_its_lowering():
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    log, decisions = [], []

    def lower(gm, example_inputs):
        decisions.append(Measured(program_seconds=0.0).decide(real_question(log)))
        return make_boxed_func(gm.forward)

    def backend(gm, example_inputs):
        decisions.append(Measured(program_seconds=0.0).decide(real_question(log)))
        return aot_autograd(fw_compiler=lower, bw_compiler=lower)(gm, example_inputs)

    torch._dynamo.reset()
    x, noise = torch.ones(3, requires_grad=True), torch.get_rng_state()
    compiled = torch.compile(lambda x: (x * 2).sin(), backend=backend)
    compiled(x).sum().backward()
    assert torch.equal(torch.get_rng_state(), noise)
    assert torch.allclose(x.grad, 2 * torch.cos(x * 2))
    assert len(decisions) >= 3
    assert [d.chosen for d in decisions] == ["look"] * len(decisions), decisions[0].evidence.note

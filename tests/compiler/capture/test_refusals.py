"""What is not captured: Dynamo's own graph comes back, with a typed reason, and still does what eager does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.capturing import CaptureBackend, same_as_eager
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from regraft.compiler.capture import capture

X = torch.linspace(-2, 3, 16).reshape(4, 4)
W = torch.linspace(1, -1, 16).reshape(4, 4).requires_grad_()


class Odd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 5


@torch.compiler.allow_in_graph
def unseen(x):
    return Odd.apply(x)


@torch.compiler.allow_in_graph
def hidden(x):
    return x.sin()


@pytest.mark.parametrize(
    ("program", "args", "code", "culprit"),
    [
        (lambda w: unseen(w) + 1, (W,), "opaque-call", "unseen"),
        (lambda x: torch.vmap(hidden)(x), (X,), "functorch-transform", "lazy_load_decompositions"),
        (
            lambda x: torch.func.grad(lambda a: hidden(a).sum())(x),
            (X,),
            "functorch-transform",
            "_saved_tensors_hooks_disable",
        ),
    ],
)
def test_calls_that_a_recording_would_lose(program, args, code, culprit):
    backend = same_as_eager(program, *args)
    (captured,) = backend.captured
    assert captured.fallback.code == code and culprit in captured.fallback.message
    assert captured.fallback.nodes[0] in list(captured.graph_module.graph.nodes)


def test_tensor_subclasses():
    class Labelled(torch.Tensor):
        pass

    class Dispatching(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise AssertionError

    gm = fx.symbolic_trace(lambda x: (x * 2,))
    found = capture(gm, [torch.Tensor._make_wrapper_subclass(Dispatching, (4,))])
    assert found.fallback.code == "tensor-subclass" and found.fallback.nodes[0].name == "x"
    # To the dispatcher, this one is a plain tensor.
    assert capture(gm, [X.as_subclass(Labelled)]).fallback is None
    nested = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 4)], layout=torch.jagged)
    backend = CaptureBackend()
    torch._dynamo.reset()
    out = torch.compile(lambda x: x.sin(), backend=backend)(nested)
    assert backend.codes == ["tensor-subclass"] and torch.equal(out.values(), nested.values().sin())


def test_python_numbers_and_other_objects_as_inputs():
    gm = fx.symbolic_trace(lambda x, n: x * n)
    assert capture(gm, [X, 3]).fallback.code == "number-input"
    assert capture(gm, [X, object()]).fallback.code == "object-input"
    assert capture(gm, [X]).fallback.code == "arity"
    with torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(X)
    assert capture(gm, [fake, fake]).fallback.code == "fake-input"


def test_inside_a_transform():
    gm = fx.symbolic_trace(lambda x: (x * 2,))
    codes = []

    def program(x):
        codes.append(capture(gm, [X]).fallback.code)
        return x

    torch.vmap(program)(X)
    assert codes == ["functorch-active"]


def test_a_fallback_is_dynamos_graph_itself():
    gm = fx.symbolic_trace(lambda x, n: (x * n,))
    found = capture(gm, [X, 3])
    assert found.graph_module is gm and found.restore is None
    nested = fx.symbolic_trace(lambda x, n: {"a": x * n})
    found = capture(nested, [X, 3])
    assert found.restore(found.graph_module(X, 3)).keys() == {"a"} and "flatten" not in nested.code


def test_specialized_graphs():
    torch._dynamo.reset()
    backend = CaptureBackend()
    compiled = torch.compile(lambda x: x * 2 + 1, backend=backend)
    for size in (8, 5, 8, 3):
        x = torch.randn(size, 3)
        torch._dynamo.mark_dynamic(x, 0, specialize_on=[lambda s: s == 8])
        assert torch.equal(compiled(x), x * 2 + 1)
    assert backend.codes == ["number-input"]


def test_errors_of_tracing_are_reasons(monkeypatch):
    from regraft.rewrites import compat

    def fails(function, inputs):
        raise ValueError("no such thing\nand more")

    monkeypatch.setattr(compat, "trace_before_dispatch", fails)
    backend = same_as_eager(lambda x, w: F.linear(x, w), X, W)
    assert backend.codes == ["trace-failed"]
    assert "ValueError: no such thing" in backend.captured[0].fallback.message


def test_results_that_differ_are_reasons(monkeypatch):
    """A recorder that loses `no_grad`, say, changes what requires a gradient; the net under everything notices."""
    from regraft.compiler.capture.retrace import Retracer

    def loses_grad_mode(self, target, args, kwargs):
        return (
            None if target is torch._C._set_grad_enabled else fx.Interpreter.call_function(self, target, args, kwargs)
        )

    def program(x, w):
        with torch.no_grad():
            return x * w

    monkeypatch.setattr(Retracer, "call_function", loses_grad_mode)
    backend = same_as_eager(program, X, W)
    assert backend.codes == ["changed-result"]
    assert backend.captured[0].fallback.expected == "False"


@pytest.mark.parametrize("trained", [False, True])
def test_fake_tensors_give_fake_tensors(trained):
    """Kernels would read memory that is not there."""

    def program(x):
        return x.sin() @ x.t() + x.shape[0]

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft", options={"strict": True})
    x = torch.randn(3, 4, requires_grad=trained)
    for _ in range(2):
        with FakeTensorMode() as mode:
            result = compiled(torch.ones(3, 4, requires_grad=trained))
            converted = compiled(mode.from_tensor(x))
        assert type(result) is type(converted) is FakeTensor and result.shape == converted.shape == (3, 3)
        assert result.requires_grad is converted.requires_grad is trained
        torch.testing.assert_close(compiled(x), program(x))

"""Grad mode, inference mode and autocast, inside the graph and around it."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.autograd.forward_ad as fwad
import torch.nn.functional as F
from support.capturing import CaptureBackend, same_as_eager
from support.thorough import one_row_in
from torch import nn

import regraft
from regraft.compiler.capture.audit import Derivatives

X = torch.linspace(-2, 3, 16).reshape(4, 4)
W = torch.linspace(1, -1, 16).reshape(4, 4).requires_grad_()
B = torch.arange(4.0).requires_grad_()
bf16 = functools.partial(torch.autocast, "cpu", torch.bfloat16)


def without_grad_inside(x, w):
    with torch.no_grad():
        y = x * w
    return y * w, y


def with_grad_inside(x, w):
    z = x * w
    with torch.enable_grad():
        y = x * w
        with torch.no_grad():
            v = y + w
    return y, z, v


@pytest.mark.parametrize("program", [without_grad_inside, with_grad_inside])
def test_grad_mode_inside(program):
    assert "_set_grad_enabled" in same_as_eager(program, X, W).calls()


@pytest.mark.parametrize(("around", "reference"), [(torch.no_grad, "eager"), (torch.inference_mode, "aot")])
@pytest.mark.parametrize("program", [without_grad_inside, with_grad_inside])
def test_grad_mode_around(program, around, reference):
    assert same_as_eager(program, X, W, context=around, reference=reference).codes == []


def test_inference_mode_inside():
    def program(x, w):
        with torch.inference_mode():
            y = x * w
        return x + w, y

    calls = same_as_eager(program, X, W, reference="aot").calls()
    assert calls == ["_set_grad_enabled", "aten.mul.Tensor", "_set_grad_enabled", "aten.add.Tensor"]


def test_views_made_in_inference_mode_of_what_was_made_outside():
    def program(x):
        y = x * 2
        with torch.inference_mode():
            z = y.mT.contiguous()
            with torch.inference_mode(False):
                assert torch.is_grad_enabled()
                w = y * 3
        return w, torch.cat([z, x.mT])

    torch._dynamo.reset()
    compiled = torch.compile(program, backend=CaptureBackend())
    given = W.detach().requires_grad_()
    for found, expected in zip(compiled(given), program(given), strict=True):
        assert torch.equal(found, expected) and found.requires_grad == expected.requires_grad


@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad])
def test_nothing_has_a_gradient_in_inference_mode(around):
    """What is compiled there is compiled anew outside, where it has one."""

    def program(x):
        with torch.enable_grad():
            y = layer(x)
        with torch.no_grad():
            z = (y * 2).sum()
            return y, y.tanh() @ x, z

    torch.compiler.reset()
    layer = nn.Linear(4, 4)
    compiled = torch.compile(program, backend="regraft", options={"strict": True})
    for given in (X, X.clone().requires_grad_()):
        for inference in (True, False):
            for run in (compiled, compiled, program):
                with torch.inference_mode(inference), around():
                    made = run(given * 1)
                facts = [(y.requires_grad, y.is_inference()) for y in made]
                if run is not program:
                    results, told = made, facts
            assert told == facts
            torch.testing.assert_close(results, made)


def test_inference_tensors():
    with torch.inference_mode():
        made = torch.randn(4, 4)
    assert same_as_eager(lambda x, w: F.linear(x, w), made, W, context=torch.no_grad).codes == []


def test_autocast_inside_becomes_casts():
    def program(x, w, b):
        with bf16():
            y = F.linear(x, w, b) @ x
        return y.softmax(-1), y @ y

    backend = same_as_eager(program, X, W, B)
    assert not any("autocast" in call for call in backend.calls())
    (linear,) = (n for n in backend.graph.graph.nodes if n.target is torch.ops.aten.linear.default)
    assert {n.meta["val"].dtype for n in (linear, *linear.args)} == {torch.bfloat16}


def test_autocast_around_is_switched_off_inside():
    def program(x, w, b):
        y = F.dropout(F.layer_norm(F.linear(x, w, b), (4,))).softmax(-1) @ x
        return y, F.cross_entropy(x @ x, torch.arange(4))

    backend = same_as_eager(program, X, W, B, context=bf16)
    calls = backend.calls()
    assert calls[0] == "_enter_autocast" and calls[-1] == "_exit_autocast"
    assert {"aten.layer_norm.default", "aten.dropout.default", "aten.softmax.int"} <= set(calls)
    for node in backend.graph.graph.nodes:
        if node.target in (torch.ops.aten.linear.default, torch.ops.aten.matmul.default):
            assert {n.meta["val"].dtype for n in (node, *node.all_input_nodes)} == {torch.bfloat16}


def test_autocast_switched_off_inside():
    def program(x, w):
        y = x @ w
        with torch.autocast("cpu", enabled=False):
            z = y.float() @ w
        return z @ w, y

    # AOTAutograd runs the backward under the autocast that is on around the call; eager does not.
    backend = same_as_eager(program, X, W, context=bf16, reference="aot")
    first, second, third = (n for n in backend.graph.graph.nodes if n.target is torch.ops.aten.matmul.default)
    assert [n.meta["val"].dtype for n in (first, second, third)] == [torch.bfloat16, torch.float32, torch.bfloat16]


@one_row_in(2)
@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: torch.cat([x, x @ w]).sum(0),
        lambda x, w: torch.addmm(x, x, w).add_(x),
        lambda x, w: F.bilinear(x, w, torch.ones(2, 4, 4)) + F.mse_loss(x @ w, x).sum(),
        lambda x, w: torch.einsum("ij,jk->ik", x @ w, w),
        lambda x, w: F.scaled_dot_product_attention(x[None], w[None], x[None]),
        lambda x, w: F.multi_head_attention_forward(
            x[:, None], w[:, None], x[:, None], 4, 2, torch.ones(12, 4), torch.zeros(12), None, None, False, 0.1,
            torch.eye(4), torch.zeros(4),
        )[0],
    ],
)  # fmt: skip
def test_operators_that_hide_others_from_autocast(program):
    assert same_as_eager(program, X, W, context=bf16, reference="aot").codes == []


def test_parts_are_recorded_only_where_something_is_cast():
    def program(x, w):
        y = x @ w
        return torch.einsum("ij,jk->ik", y, y), torch.einsum("ij,jk->ik", y, w)

    calls = same_as_eager(program, X, W, context=bf16).calls()
    assert calls.count("aten.einsum.default") == 1 and calls.count("aten.bmm.default") == 1


def test_training_a_module_under_autocast():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 3)]

    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(*layers)

        def forward(self, x):
            return F.log_softmax(self.body(x), -1)

    calls = same_as_eager(Program(), torch.randn(2, 3, 8, 8), context=bf16).calls()
    assert {"aten.conv2d.default", "aten.batch_norm.default", "aten.linear.default"} <= set(calls)


def test_a_device_context_around():
    assert same_as_eager(lambda x, w: torch.ones(4, 4) @ w + x, X, W, context=lambda: torch.device("cpu")).codes == []


def test_saved_tensor_hooks_see_no_fakes():
    seen = []

    def hooks():
        return torch.autograd.graph.saved_tensors_hooks(lambda t: (seen.append(type(t)), t)[1], lambda t: t)

    assert same_as_eager(lambda x, w: (x @ w).sin() @ w, X, W, context=hooks).codes == []
    assert set(seen) == {torch.Tensor}


@pytest.mark.parametrize("scope", [
    torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16),
], ids=["no_grad", "inference", "autocast"])  # fmt: skip
def test_what_fails_within_a_scope_has_left_it(scope, monkeypatch):
    """Compiled as it was written, the program has its gradients: no mode stays as the failed recording had it."""

    def fails(self, values, node):
        if "cos" in str(node.target):
            raise RuntimeError("as tracing may")

    def program(x):
        with scope():
            shift = (x.detach() @ x.detach()).cos().mean().float()
        return (x * shift.clone()).sin() @ x

    monkeypatch.setattr(Derivatives, "lost", fails)
    x = X.clone().requires_grad_()
    with regraft.coverage() as found:
        ours = torch.compile(program, backend="regraft")(x)
    assert any(fallback.code == "trace-failed" for fallback in found.fallbacks)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled() and not torch.is_autocast_enabled("cpu")
    assert ours.dtype == torch.float32 and ours.requires_grad
    (mine,), (theirs,) = (torch.autograd.grad(y.sum(), x) for y in (ours, program(x)))
    torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


@one_row_in(2)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_tangents_are_eagers(first, training):
    """Generated kernels compute none; torch compiles nothing anew where tensors begin or cease to carry them."""
    torch.compiler.reset()
    linear = nn.Linear(4, 4).requires_grad_(training)
    program = lambda x: linear(x).sin() * x.sum()  # noqa: E731
    compiled = torch.compile(program, backend="regraft")
    x = torch.randn(3, 4)
    if first:
        torch.testing.assert_close(compiled(x), program(x))
    with regraft.coverage() as found, fwad.dual_level():
        dual = fwad.make_dual(x, torch.randn(3, 4))
        actual, expected = fwad.unpack_dual(compiled(dual)), fwad.unpack_dual(program(dual))
        torch.testing.assert_close((actual.primal, actual.tangent), (expected.primal, expected.tangent))
    assert [f.code for f in found.fallbacks] == ["forward-ad"] and not found.faults
    with regraft.coverage() as found:
        torch.testing.assert_close(compiled(x), program(x))
    assert not found.fallbacks and len(found.graphs) == (not first)


@pytest.mark.parametrize("first", [False, True])
def test_within_functionalize(first):
    """AOTAutograd does not take its tensors; before and after, programs are compiled."""
    torch.compiler.reset()
    compiled = torch.compile(lambda x: x.sin() * x.sum(), backend="regraft", options={"strict": True})
    expected = X.sin() * X.sum()
    if first:
        torch.testing.assert_close(compiled(X), expected)
    for _ in range(2):
        torch.testing.assert_close(torch.func.functionalize(compiled)(X), expected)
    with regraft.coverage() as found:
        torch.testing.assert_close(compiled(X), expected)
    assert not found.fallbacks


HOOKS = {
    "forward": lambda: torch.nn.modules.module.register_module_forward_hook(lambda m, given, y: y * 2),
    "before": lambda: torch.nn.modules.module.register_module_forward_pre_hook(lambda m, x: (x[0] + 1,)),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_of_all_modules_come_and_go(name):
    """Dynamo guards no hooks."""
    torch._dynamo.reset()
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()), torch.randn(2, 4)
    compiled = torch.compile(lambda x: model(x), backend="regraft")  # an OptimizedModule would call them, too
    for hooked in (False, True, False, True):
        handle = HOOKS[name]() if hooked else None
        try:
            torch.testing.assert_close(compiled(x), model(x))
        finally:
            if handle is not None:
                handle.remove()


def doubled(_, given, *others):
    return tuple(x if x is None else x * 2 for x in given) if isinstance(given, tuple) else given * 2


OF_ONE_MODULE = {
    "forward": lambda m: m.register_forward_hook(lambda m, given, y: y * 2),
    "before": lambda m: m.register_forward_pre_hook(doubled),
    "backward": lambda m: m.register_full_backward_hook(doubled),
    "before backward": lambda m: m.register_full_backward_pre_hook(doubled),
}


@one_row_in(2)
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", OF_ONE_MODULE)
def test_hooks_of_a_module_come_and_go(name, whole):
    """By default Dynamo does not look for hooks where there were none."""

    def values(call, x):
        x = x.clone().requires_grad_(whole or "backward" in name)
        y = call(x)
        return y.detach(), torch.autograd.grad(y.sum(), x) if x.requires_grad else None

    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())).requires_grad_(False)
    x, other = torch.randn(2, 4), nn.Tanh()
    with regraft.coverage() as found:
        compiled = (
            torch.compile(model, backend="regraft") if whole else torch.compile(lambda x: model(x), backend="regraft")
        )
        for hooked in (None, model[0], None, model[1][1], model[0], other, None):
            handle = None if hooked is None else OF_ONE_MODULE[name](hooked)
            if hooked is other:  # it is of the class of what it replaces
                model[1][1] = other
            torch.testing.assert_close(values(compiled, x), values(model, x))
            if handle is not None:
                handle.remove()
    assert len(found.graphs) <= 4


SETTERS = {
    "default dtype": (torch.set_default_dtype, torch.float64, torch.get_default_dtype),
    "deterministic": (torch.use_deterministic_algorithms, True, torch.are_deterministic_algorithms_enabled),
    "debug mode": (torch.set_deterministic_debug_mode, 1, torch.get_deterministic_debug_mode),
    "warnings": (torch.set_warn_always, True, torch.is_warn_always_enabled),
    "attention": (torch.backends.cuda.enable_flash_sdp, False, torch.backends.cuda.flash_sdp_enabled),
    "autocast dtype": (
        functools.partial(torch.set_autocast_dtype, "cpu"),
        torch.float16,
        functools.partial(torch.get_autocast_dtype, "cpu"),
    ),
}


@pytest.mark.parametrize("name", SETTERS)
def test_each_run_sets_the_state_that_the_program_sets(name):
    """AOTAutograd calls such functions while it traces, and never again."""
    sets, value, state = SETTERS[name]
    before = state()

    def program(x):
        sets(value)
        return x + torch.arange(x.shape[0]) / 3, torch.ones(2)

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="regraft")
    try:
        for _ in range(2):
            expected, set_ = program(torch.zeros(4)), state()
            sets(before)
            actual = compiled(torch.zeros(4))
            assert state() == set_ == value and before != value
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)
            sets(before)
    finally:
        sets(before)

"""Higher-order operators, custom derivatives, custom operators."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from support.capturing import CaptureBackend, interpret, same_as_eager, target_name
from support.thorough import one_row_in, takes_turns
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from regraft.compiler.capture import capture

X = torch.linspace(-2, 3, 16).reshape(4, 4)
W = torch.linspace(1, -1, 16).reshape(4, 4).requires_grad_()
bf16 = functools.partial(torch.autocast, "cpu", torch.bfloat16)


class Odd(torch.autograd.Function):
    """A product whose derivatives are not its own."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t().to(g.dtype) * 3, x.t().to(g.dtype) @ g * 2


def under_autocast(x, w):
    with bf16():
        y = Odd.apply(x, w)
    return y @ y


def odd(x, w):
    return F.linear(Odd.apply(x, w), x).softmax(-1)


@pytest.mark.parametrize(
    ("program", "around"), [(odd, torch.enable_grad), (odd, bf16), (under_autocast, torch.enable_grad)]
)
def test_the_users_derivatives_stay(program, around):
    backend = same_as_eager(program, X, W, context=around, reference="aot" if around is bf16 else "eager")
    assert "autograd_function_apply" in backend.calls()


def bodies(backend: CaptureBackend) -> list[list[str]]:
    modules = [m for m in backend.graph.children() if isinstance(m, torch.fx.GraphModule)]
    return [[target_name(n) for n in m.graph.nodes if n.op == "call_function"] for m in modules]


def attend(x, w):
    return F.dropout(F.gelu(x @ w)).softmax(-1)


def mixed_modes(x, w):
    with torch.no_grad():
        y = x * w
    with bf16():
        z = x @ w
    return y * w + z


@pytest.mark.parametrize(
    ("body", "around"), [(attend, torch.enable_grad), (attend, bf16), (mixed_modes, torch.enable_grad)]
)
def test_checkpointed_bodies_are_captured_too(body, around):
    def program(x, w):
        return checkpoint(body, x, w, use_reentrant=False) * 2

    backend = same_as_eager(program, X, W, context=around, reference="aot")
    assert "tag_activation_checkpoint" in backend.calls()
    assert "aten.matmul.default" in bodies(backend)[0]


SELECTIVE = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])


@pytest.mark.parametrize("how", [{}, {"context_fn": SELECTIVE}], ids=["all", "selective"])
def test_checkpoint_recomputes_as_with_dynamos_own_graph(how):
    def program(x, w):
        return checkpoint(attend, x, w, use_reentrant=False, **how) @ w

    def backward_calls(capturing):
        torch._dynamo.reset()
        seen = []

        def compiler(graph_module, example_inputs):
            seen.append(sorted(target_name(n) for n in graph_module.graph.nodes if n.op == "call_function"))
            return interpret(graph_module, example_inputs)

        def backend(gm, example_inputs):
            found = capture(gm, example_inputs).graph_module if capturing else gm
            return aot_autograd(fw_compiler=compiler)(found, example_inputs)

        torch.compile(program, backend=backend)(X, W.detach().requires_grad_()).sum().backward()
        return seen

    assert backward_calls(True) == backward_calls(False)


def test_bodies_of_selective_checkpoints_are_captured_too():
    def program(x, w):
        return checkpoint(lambda a, b: F.gelu(a @ b).softmax(-1), x, w, use_reentrant=False, context_fn=SELECTIVE)

    for around in (torch.enable_grad, bf16):
        backend = same_as_eager(program, X, W, context=around, reference="aot")
        assert "aten.matmul.default" in bodies(backend)[0]


def test_checkpointed_writes_happen_as_often_as_with_dynamos_graph():
    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return checkpoint(self.norm, x, use_reentrant=False) * 2

    assert same_as_eager(Program(), X, reference="aot").codes == []


def test_branches_and_loops():
    from torch._higher_order_ops import scan, while_loop

    def branch(x, w):
        return torch.cond(x.sum() > 0, lambda a, b: a + b, lambda a, b: a - b, (x, w))

    def loop(x):
        return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))

    def running(x):
        return scan(lambda c, a: (c + a, c * a), torch.zeros(4), x, dim=0)

    assert "cond" in same_as_eager(branch, X, W).calls()
    assert "while_loop" in same_as_eager(loop, X).calls()
    assert "scan" in same_as_eager(running, X).calls()


def test_nested_regions():
    @torch.compiler.nested_compile_region
    def region(x, y):
        return F.gelu(x @ y).softmax(-1)

    assert same_as_eager(lambda x, w: region(region(x, w), w), X, W).codes == []


def test_hooks_of_intermediates():
    def program(x, w):
        y = x * w
        y.register_hook(lambda g: g * 2)
        return y.sum()

    assert same_as_eager(program, X, W).codes == []


@pytest.fixture(scope="module")
def custom():
    library = torch.library.Library("regraft_capture_test", "FRAGMENT")

    @torch.library.custom_op("regraft_capture_test::sine", mutates_args=())
    def sine(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)

    @torch.library.custom_op("regraft_capture_test::shift_", mutates_args=("x",))
    def shift_(x: torch.Tensor, by: float) -> None:
        x.add_(by)

    sine.register_fake(torch.empty_like)
    shift_.register_fake(lambda x, by: None)
    sine.register_autograd(lambda ctx, g: g * 5, setup_context=lambda ctx, inputs, output: None)
    yield sine, shift_
    library._destroy()


def test_custom_operators(custom):
    sine, shift_ = custom

    def program(x, w):
        y = x * 2
        shift_(y, 3.0)
        shift_(x, 1.0)
        sine(y)
        return sine(w) * y

    calls = same_as_eager(program, X, W).calls()
    assert calls.count("regraft_capture_test.shift_.default") == calls.count("regraft_capture_test.sine.default") == 2


INTO_VIEWS = {
    "diagonal": lambda y: y.diagonal().fill_(3),
    "turned": lambda y: y.t()[0].mul_(2),
    "flat": lambda y: y.view(-1)[-1:].add_(1),
    "whole": lambda y: y.zero_(),
    "twice": lambda y: y[0].add_(1) + y.select(1, -1).sub_(2),
}


@one_row_in(2)
@takes_turns("sizes")
@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("write", INTO_VIEWS)
@pytest.mark.parametrize("body", [lambda x: x.sin(), lambda x: (x.sin().t() * 2).reshape(-1).view(x.shape)])
def test_a_write_through_a_view_of_what_a_checkpoint_gives(body, write, sizes):
    def program(x):
        y = checkpoint(body, x, use_reentrant=False)
        INTO_VIEWS[write](y)
        return y, y * 2

    torch._dynamo.reset()
    x = torch.linspace(-1, 2, sizes[0] * sizes[1]).reshape(sizes)
    torch.testing.assert_close(torch.compile(program, backend="regraft", fullgraph=True)(x), program(x))

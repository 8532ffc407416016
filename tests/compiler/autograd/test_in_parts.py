"""Programs around an operator whose registered derivative reads a value are compiled in parts."""

from __future__ import annotations

import pytest
import torch
from support.thorough import takes_turns
from torch import fx

import regraft
from regraft.compiler.autograd.in_parts import in_parts


@torch.library.custom_op("regraft_tests::scaled_rows", mutates_args=())
def scaled_rows(x: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `count` rows, doubled in place of the others; and the largest number."""
    return torch.cat([x[: int(count)] * 2, x[int(count) :]]), x.amax()


@scaled_rows.register_fake
def _(x, count):
    return torch.empty_like(x), x.new_empty(())


def _backward(ctx, grad, _):
    (count,) = ctx.saved_tensors
    n = count.item()
    if n == len(grad):
        return grad * 2, None
    return torch.cat([grad[:n] * 2, grad[n:]]), None


scaled_rows.register_autograd(_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]))


def plain(x, w, count):
    h = (x @ w).relu()
    y, most = scaled_rows(h, count)
    return (y.softmax(-1) * 3).sum() + most.detach(), h


def twice(x, w, count):
    y, _ = scaled_rows(x.exp() * w[0], count)
    z, most = scaled_rows(y.tanh() + 1, count + 1)
    return z.sin() * most.detach()


def adjoining(x, w, count):
    y, most = scaled_rows(scaled_rows(x, count)[0], count)
    return y, most.detach(), w.sum() * 2


def with_modes(x, w, count):
    with torch.no_grad():
        scale = w.square().mean()
    with torch.autocast("cpu", torch.bfloat16):
        h = x @ w
        y, _ = scaled_rows(h.float(), count)
        out = (y @ w).float()
    return out * scale


def writing(x, w, count):
    h = x * 2
    y, most = scaled_rows(h, count)
    h.mul_(3)
    y.add_(h)
    return y, h, most.detach()


def views(x, w, count):
    h = (x @ w)[1:]
    y, _ = scaled_rows(h, count)
    return y.mT, h[0], x.view(-1)


# torch says where the derivative was that it could not trace.
pytestmark = pytest.mark.filterwarnings("ignore:Error detected in")

PROGRAMS = [plain, twice, adjoining, with_modes, writing, views]


def made(program, x, w, count):
    """Values and gradients."""
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    results = program(x * 1, w, count)
    results = results if isinstance(results, tuple) else (results,)
    sum(r.square().sum() for r in results if r.requires_grad).backward()
    return results, x.grad, w.grad


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_parts_agree_with_the_program(program, dynamic):
    torch._dynamo.reset()
    torch.manual_seed(0)
    compiled = torch.compile(program, backend="regraft", fullgraph=True, dynamic=dynamic, options={"strict": True})
    with regraft.coverage() as cov:
        for rows, count in [(5, 2), (5, 3), (7, 2)]:
            given = torch.randn(rows, 4), torch.randn(4, 4), torch.tensor(count)
            close = {"rtol": 1e-2, "atol": 1e-2} if program is with_modes else {"rtol": 1e-4, "atol": 1e-4}
            torch.testing.assert_close(made(compiled, *given), made(program, *given), **close)
    assert "in-parts" in {f.code for f in cov.fallbacks}
    assert any(graph.code for graph in cov.graphs)


def in_inference_mode(x, w, count):
    with torch.inference_mode():
        scale = w.amax() * 1
        y, _ = scaled_rows(x, count)
    return scaled_rows(x, count)[0] * w.sum(), y.shape[0], scale.dim()


def with_chosen_kernels(x, w, count):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        y, _ = scaled_rows(x, count)
        q = y[None, None]
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)


@pytest.mark.parametrize("program", [in_inference_mode, with_chosen_kernels])
def test_modes_that_reach_over_parts_leave_the_program_as_it_was_written(program):
    given = torch.randn(5, 4), torch.randn(4, 4), torch.tensor(2)
    torch._dynamo.reset()
    with regraft.coverage() as cov:
        ours = torch.compile(program, backend="regraft")(given[0].requires_grad_(), *given[1:])
    torch.testing.assert_close(ours, program(*given))
    assert "in-parts" not in {f.code for f in cov.fallbacks}


def test_views_of_inputs_stay_beside_the_operator():
    """A compiled part that gives a view of a parameter would copy the parameter's gradient."""

    def program(x, w, count):
        h = (x @ w).relu()
        return scaled_rows(w.transpose(0, 1), count)[0] @ h.mT

    gm = fx.symbolic_trace(program)
    seen = []

    def compiled(part, inputs):
        seen.append([node.target for node in part.graph.nodes if node.op in ("call_function", "call_method")])
        return part

    given = torch.randn(5, 4), torch.randn(4, 4), torch.tensor(2)
    torch.testing.assert_close(in_parts(gm, compiled)(*given), program(*given))
    assert len(seen) == 2 and "transpose" not in [target for part in seen for target in part]


def test_rewrites_happen_in_the_parts():
    def program(q, k, v, count):
        h, _ = scaled_rows((q @ k.mT * 0.5).softmax(-1) @ v, count)
        return (h @ k.mT * 0.25).softmax(-1) @ v

    q, k, v = (torch.randn(6, 16, requires_grad=True) for _ in range(3))
    torch._dynamo.reset()
    with regraft.coverage() as cov:
        torch.compile(program, backend="regraft", options={"profit": "always"})(
            q, k, v, torch.tensor(2)
        ).sum().backward()
    assert cov.matches["sdpa"] == 2


def test_without_an_operator_of_a_library_the_program_runs_as_it_was_written():
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * x.abs().max().item()

    def program(x):
        return Reads.apply(x.sin()).cos()

    x = torch.randn(5)
    torch._dynamo.reset()
    torch.testing.assert_close(
        made(torch.compile(lambda x, w, n: program(x) * w, backend="regraft"), x, x, 1),
        made(lambda x, w, n: program(x) * w, x, x, 1),
    )

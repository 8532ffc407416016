"""Training through the whole compiler with attention kernels, a GPU in name: graphs are split, code is generated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from torch.utils.checkpoint import checkpoint

from regraft.compiler.templates import TritonTemplateKernel

from ..support.template_oracle import with_fake_hopper
from ..support.training_attention import TrainingBackend

RULE = "attention-template"


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    fake = with_fake_hopper(monkeypatch, tmp_path_factory.getbasetemp() / "attentions")
    monkeypatch.setattr(TritonTemplateKernel, "build", lambda self: None)
    return fake


def random(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes))).requires_grad_()


def train(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], **options: Any) -> tuple[Any, list[Any]]:
    """What a backend did, and the results and gradients."""
    backend = TrainingBackend(**options)
    out = torch.compile(function, backend=backend)(*inputs)
    above = torch.ones_like(out)
    return backend, [out, *torch.autograd.grad(out, inputs, above)]


def expected(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> list[Any]:
    out = function(*inputs)
    return [out, *torch.autograd.grad(out, inputs, torch.ones_like(out))]


def applied(backend: TrainingBackend) -> int:
    return sum(match.rule == RULE for record in backend.records for match in record.applied)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    scores = torch.tanh(torch.matmul(q, k.transpose(-1, -2)) * 0.2) * 3.0 + bias
    return torch.matmul(torch.softmax(scores, -1), v)


def merged(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def inputs() -> list[torch.Tensor]:
    return [*(random(2, 3, 40, 16) for _ in range(3)), random(3, 40, 40)]


def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return merged(attend(q, k, v, bias)).sin()


def test_both_halves_are_calls_of_kernels() -> None:
    backend, ours = train(layer, inputs())
    assert applied(backend) == 1 and not backend.records[0].fallbacks
    assert backend.codes["forward"].templates == {"attention": 1}
    assert backend.codes["backward"].templates == {"attention": 2}
    assert "bmm" not in backend.sources["forward"] + backend.sources["backward"]
    for a, b in zip(ours, expected(layer, inputs()), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_the_forward_keeps_what_the_kernels_read() -> None:
    backend, _ = train(layer, inputs())
    kept = backend.graphs["forward"].graph.output_node().args[0][1:]
    made = [node.meta["val"] for node in kept if node.op != "placeholder"]
    assert sum(x.numel() for x in made) <= 2 * 3 * 40 * (
        16 * 2 + 2
    )  # the result, the sine's operand, two numbers a row


def test_dropout_is_drawn_again_from_its_seed() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * 0.25 + bias, -1)
        return merged(torch.matmul(torch.nn.functional.dropout(weights, 0.5), v))

    given = inputs()
    given[2] = torch.eye(40)[:, :40].expand(2, 3, 40, 40).clone().requires_grad_()
    backend, (out, *gradients) = train(function, given)
    assert applied(backend) == 1
    assert all(x.dtype != torch.bool for x in backend.graphs["forward"].graph.output_node().meta.get("val", []) or [])
    weights = out.view(2, 40, 3, 40).transpose(1, 2)
    dropped = weights == 0
    assert 0.45 < dropped.float().mean() < 0.55
    full = torch.softmax(torch.matmul(given[0], given[1].transpose(-1, -2)) * 0.25 + given[3], -1)
    torch.testing.assert_close(weights, torch.where(dropped, 0.0, full * 2), rtol=1e-4, atol=1e-5)
    same = torch.autograd.grad(merged(torch.matmul(full * ~dropped * 2, given[2])).sum(), given)
    for a, b in zip(gradients, same, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_numbers_of_eager_are_drawn_by_eager() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * 0.25 + bias, -1)
        return merged(torch.matmul(torch.nn.functional.dropout(weights, 0.5), v))

    backend = train(function, inputs(), rng="eager")[0]
    assert applied(backend) == 0


def test_what_the_user_checkpoints_stays() -> None:
    def function(*given: torch.Tensor) -> torch.Tensor:
        return checkpoint(layer, *given, use_reentrant=False).sin()

    backend, ours = train(function, inputs())
    codes = [miss.code for record in backend.records for miss in record.near_misses if miss.rule == RULE]
    assert applied(backend) == 0 and codes == ["checkpointed"]
    for a, b in zip(ours, expected(function, inputs()), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_results_that_the_program_writes_to_are_not_what_the_backward_keeps() -> None:
    def function(*given: torch.Tensor) -> torch.Tensor:
        return merged(attend(*given))

    given = inputs()
    backend = TrainingBackend()
    out = torch.compile(function, backend=backend)(*given)
    assert applied(backend) == 1 and backend.codes["forward"].kernels == 1  # the copy
    with torch.no_grad():
        out.zero_()
    ours = torch.autograd.grad(out, given, torch.ones_like(out))
    for a, b in zip(ours, expected(function, given)[1:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_gradients_changed_on_their_way_are_not_the_kernels() -> None:
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 0.5

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        scores = Halved.apply(torch.matmul(q, k.transpose(-1, -2)) * 0.2) + bias
        return merged(torch.matmul(torch.softmax(scores, -1), v)).sin()

    backend, ours = train(function, inputs())
    codes = [miss.code for record in backend.records for miss in record.near_misses if miss.rule == RULE]
    assert applied(backend) == 0 and codes == ["products-gradient"]
    for a, b in zip(ours, expected(function, inputs()), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_several_graphs_each_have_theirs() -> None:
    def function(*given: torch.Tensor) -> torch.Tensor:
        x = layer(*given)
        torch._dynamo.graph_break()
        return layer(x.view(2, 40, 3, 16).transpose(1, 2), *given[1:])

    backend, ours = train(function, inputs())
    assert applied(backend) == 2
    for a, b in zip(ours, expected(function, inputs()), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)

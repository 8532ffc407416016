"""Softmax and its logarithm keep two numbers a row for the backward: same results, nothing wider is kept."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.rewriting import compiled
from support.thorough import takes_turns
from torch.utils.checkpoint import checkpoint

from regraft.compiler.passes.recompute_softmax import recompute_log_softmax, recompute_softmax

from ...support.joint_pass import JointPass
from ...support.lowering import trace

aten = torch.ops.aten


def gradients(function, x, *more):
    x = x.detach().clone().requires_grad_()
    loss = function(x, *more)
    (loss[0] if isinstance(loss, tuple) else loss).float().sum().backward()
    return loss, x.grad


def agrees(function, x, *more, **tolerance):
    kept = JointPass(recompute_log_softmax)
    theirs = gradients(function, x, *more)
    ours = gradients(torch.compile(function, backend=kept, fullgraph=True), x, *more)
    torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerance)
    return kept


TARGETS = torch.tensor([3, -100, 0, 6, 6])


@takes_turns("dtype")
@pytest.mark.parametrize(
    "function",
    [
        lambda x, t: F.cross_entropy(x, t),
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1, reduction="sum"),
        lambda x, t: F.nll_loss(F.log_softmax(x.float(), -1), t, reduction="none"),
        lambda x, t: F.cross_entropy(x.t().contiguous().t() * 2, t),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_results_are_eagers(function, dtype):
    # Eager's logarithms of 16 bits may round the other way.
    tolerance = {"rtol": 5e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
    kept = agrees(function, torch.randn(5, 7).to(dtype), TARGETS, **tolerance)
    assert kept.count == 1


def test_transposed_scores():
    """Both directions of a contrastive loss: the result is contiguous, its parts lie as the scores do."""

    def function(x):
        scores, target = x @ x.t() / 0.07, torch.arange(5)
        return F.cross_entropy(scores, target) + F.cross_entropy(scores.t(), target)

    x = torch.randn(5, 7)
    run, coverage = compiled(function)  # checks the graph after each pass
    with coverage:
        torch.testing.assert_close(gradients(run, x), gradients(function, x))
    assert not any(graph.fallbacks for graph in coverage.graphs)


def test_special_values():
    x = torch.randn(5, 7)
    x[0], x[1, 2], x[2, 3], x[3, 4] = -torch.inf, torch.nan, torch.inf, 1e30
    agrees(lambda x, t: F.cross_entropy(x, t, reduction="none"), x, TARGETS)


def test_what_is_kept_has_no_wider_copy_of_the_classes():
    def function(x, w, t):
        return F.cross_entropy((x @ w).float(), t)

    w = torch.randn(7, 70, dtype=torch.bfloat16)
    kept = agrees(function, torch.randn(5, 7, dtype=torch.bfloat16), w, TARGETS)
    saved = [node.meta["val"] for node in kept.graphs["backward"].graph.nodes if node.op == "placeholder"]
    assert [t.dtype for t in saved if t.shape == (5, 70)] == [torch.bfloat16]


def test_checkpoints_and_returned_results_stay():
    def checkpointed(x, t):
        return checkpoint(lambda x: F.cross_entropy(x, t), x, use_reentrant=False)

    def returned(x, t):
        logs = F.log_softmax(x, -1)
        return F.nll_loss(logs, t), logs

    for function in (checkpointed, returned):
        assert agrees(function, torch.randn(5, 7), TARGETS).count == 0


def test_what_no_backward_reads_stays():
    module = trace(lambda x: aten._log_softmax(x, 1, False), torch.randn(4, 3))
    assert recompute_log_softmax(module) == 0


def test_an_empty_dim_stays():
    assert agrees(lambda x: F.log_softmax(x, 1).sum(), torch.randn(4, 0)).count == 0


def test_the_loss_may_take_another_dtype():
    """As autocast on GPUs has it: log-softmax in half precision, the loss of it in single."""

    def function(x, target):
        y = torch.log_softmax(x, 1, torch.bfloat16)
        return F.nll_loss(y.to(torch.float32), target)

    kept = agrees(function, torch.randn(5, 7, dtype=torch.bfloat16), TARGETS, rtol=1e-2, atol=1e-2)
    saved = [value.meta["val"] for value in kept.graphs["forward"].graph.output_node().args[0][1:]]
    assert kept.count == 1 and not any(v.shape == (5, 7) and v.dtype == torch.float32 for v in saved)


def attention(q, k, v, bias):
    scores = (q @ k.transpose(-1, -2)) * 0.5 + bias
    return scores.softmax(-1).to(v.dtype) @ v


def test_scores_of_16_bits_are_kept_in_place_of_weights_of_32():
    q, k, v = (torch.randn(8, 3, 7, 4, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 3, 7, 7)
    kept = JointPass(recompute_softmax)
    found = torch.compile(attention, backend=kept)(q, k, v, bias).float().square().sum()
    wanted = attention(q, k, v, bias).float().square().sum()
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)
    ours, theirs = (torch.autograd.grad(x, (q, k, v)) for x in (found, wanted))
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    assert kept.count == 1
    assert ("torch.float32", 8 * 3 * 7 * 7) not in kept.kept()


def test_hidden_rows_and_rows_of_infinities_are_eagers():
    x = torch.randn(5, 7, dtype=torch.bfloat16)
    x[0], x[1, 2], x[2, 3] = -torch.inf, torch.nan, torch.inf
    kept = JointPass(recompute_softmax)
    found = gradients(torch.compile(lambda x: x.float().softmax(-1).square(), backend=kept), x)
    torch.testing.assert_close(found, gradients(lambda x: x.float().softmax(-1).square(), x), equal_nan=True)
    assert kept.count == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_are_as_wide_as_the_scores_stay(dtype):
    kept = JointPass(recompute_softmax)
    x = torch.randn(5, 7, dtype=dtype)
    gradients(torch.compile(lambda x: (x * 2).softmax(-1).square(), backend=kept), x)
    assert kept.count == 0

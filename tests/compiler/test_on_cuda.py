"""Compiled programs on a GPU: eager's results, safe memory, random numbers that follow their seeds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import regraft
from regraft.compiler.autotune import autotuner
from regraft.patterns.attention_cuda import CUDA_KERNELS

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True)
def _compiled_anew(monkeypatch, tmp_path):
    torch.compiler.reset()
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))


ATTENTION = [candidate.name for candidate in CUDA_KERNELS]  # the first is the one to look at


def randn(*shape, **kwargs):
    return torch.randn(shape, device="cuda", **kwargs)


def compiled(function, **options):
    return torch.compile(function, backend="regraft", options=options)


@pytest.fixture
def fused_attention(monkeypatch):
    """Attention is measured, and becomes a kernel whatever the clock says: cuDNN's where that gives right results."""

    def choose(trial, question, plain=autotuner.choose):
        decision = plain(trial, question)
        right = [name for name in question.candidates if name in trial.times and name in ATTENTION]
        return replace(decision, chosen=min(right, key=ATTENTION.index)) if right else decision

    monkeypatch.setattr(autotuner, "choose", choose)


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128)).cuda()


PROGRAMS = {
    "pointwise": lambda x: (x.sin() + x.exp()).relu(),
    "transposed": lambda x: x.t().contiguous() * 2,
    "softmax": lambda x: torch.softmax(x, -1),
    "columns": lambda x: (x.sum(0), x.var(0)),
    "argmax": lambda x: (x.argmax(1), x.max(1).values),
    "scan": lambda x: x.cumsum(-1),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("shape", [(1024, 768), (37, 1023), (0, 5)])
def test_kernels_are_eagers(name, shape):
    if 0 in shape and name == "columns":
        pytest.skip("variance of nothing warns")
    x = randn(*shape)
    with torch.no_grad(), regraft.coverage() as cov:
        torch.testing.assert_close(compiled(PROGRAMS[name])(x), PROGRAMS[name](x), rtol=1e-4, atol=1e-4)
    assert cov.fallbacks == [] and sum(code.kernels for graph in cov.graphs for code in graph.code)


def test_pointers_that_are_not_aligned():
    memory, run = randn(100_000), compiled(lambda x: x * 2 + 1)
    for start in (0, 1, 2, 4):
        x = memory[start : start + 5000]
        torch.testing.assert_close(run(x), x * 2 + 1, rtol=0, atol=0)


def test_the_backward_draws_the_forwards_mask():
    x = torch.ones(500, 500, device="cuda", requires_grad=True)
    run = compiled(lambda x: F.dropout(x, 0.25) * 1.0)
    torch.manual_seed(1)
    y = run(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach()) and abs(float((y != 0).float().mean()) - 0.75) < 0.01
    torch.manual_seed(1)
    assert torch.equal(run(x), y)


@pytest.mark.parametrize("rows", [16, 4096])
def test_results_of_cuda_graphs_are_safe(rows):
    model = mlp()
    run = compiled(model, template="cudagraphs")
    with torch.no_grad():
        inputs = [randn(rows, 64) for _ in range(7)]
        results = [run(x) for x in inputs]
        for x, y in zip(inputs, results, strict=True):
            torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-4)


def test_training_steps_of_cuda_graphs():
    model = mlp()
    run = compiled(model, template="cudagraphs")
    for _ in range(3):
        xs = [randn(16, 64) for _ in range(3)]
        ys = [run(x) for x in xs]
        for x, y in zip(xs, ys, strict=True):
            ours = torch.autograd.grad(y.square().sum(), list(model.parameters()))
            eager = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
            torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-3)


def attention_under(mask):
    def function(q, k, v):
        scores = q @ k.transpose(-2, -1) * 0.125
        return torch.softmax(scores + mask(q), -1) @ v

    return function


def keeps_all(q):
    rows = torch.arange(q.shape[-2], device=q.device)
    zero = torch.tensor(0.0, device=q.device, dtype=q.dtype)
    return torch.where((rows[:, None] >= 0).expand(2, 1, -1, q.shape[-2]), zero, torch.finfo(q.dtype).min)


@pytest.mark.usefixtures("fused_attention")
def test_masks_of_literals_on_the_gpu_are_known():
    given = [randn(2, 4, 128, 64, dtype=torch.bfloat16) for _ in range(3)]
    function = attention_under(keeps_all)
    with torch.no_grad(), regraft.coverage() as cov:
        out = compiled(function, debug=True)(*given)
        torch.testing.assert_close(out, function(*given), rtol=2e-2, atol=2e-2)
    (graph,) = cov.graphs
    assert cov.count("attention") == 1 and "arange" not in graph.details["graph:inference"]


def test_attention_calls_with_spread_masks_get_a_fused_kernel():
    given = [randn(2, 4, 128, 64, dtype=torch.bfloat16) for _ in range(3)]
    bias = randn(128, 128, 4, dtype=torch.bfloat16)

    def function(q, k, v, bias):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.permute(2, 0, 1).unsqueeze(0))

    with torch.no_grad(), regraft.coverage() as cov:
        out = compiled(function, debug=True)(*given, bias)
        torch.testing.assert_close(out, function(*given, bias), rtol=2e-2, atol=2e-2)
    (graph,) = cov.graphs
    assert graph.changes("constant_sdpa_masks") == {"rows": 1} and "bmm" not in graph.details["graph:inference"]


def test_attention_calls_within_windows_get_a_fused_kernel():
    """Of five dims, which torch computes in single precision; the gradients as well."""
    qkv = randn(2, 9, 64, 3, 4, 32, dtype=torch.bfloat16)

    def function(qkv):
        q, k, v = qkv.permute(3, 0, 4, 1, 2, 5).unbind(0)
        return F.scaled_dot_product_attention(q, k, v)

    given = [qkv.clone().requires_grad_() for _ in range(2)]
    with regraft.coverage() as cov:
        results = [f(x) for f, x in zip((function, compiled(function, debug=True)), given, strict=True)]
        for out in results:
            out.float().square().sum().backward()
    torch.testing.assert_close(*results, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(*(x.grad for x in given), rtol=5e-2, atol=5e-2)
    (graph,) = cov.graphs
    assert graph.changes("sdpa_four_dims") == {"changes": 1} and "bmm" not in graph.details["graph:forward"]


def test_gelu_by_tanh_is_an_epilogue():
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(approximate="tanh")).cuda().to(torch.bfloat16)
    x = randn(512, 256, dtype=torch.bfloat16)
    with torch.no_grad(), regraft.coverage() as cov:
        out = compiled(model, profit="always", debug=True)(x)
        torch.testing.assert_close(out, model(x), rtol=2e-2, atol=2e-2)
    assert "_addmm_activation" in cov.graphs[0].details["graph:inference"]


def relative_error(found, expected):
    return float(torch.linalg.vector_norm(found.double() - expected) / torch.linalg.vector_norm(expected))


@pytest.mark.parametrize("classes", [512, 1003])
def test_gradients_under_autocast_are_no_worse_than_eagers(classes):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, classes)).cuda()
    x, labels = randn(2048, 256), torch.randint(classes, (2048,), device="cuda")

    def gradients(run, x):
        model.zero_grad()
        F.cross_entropy(run(x).float() if x.dtype == torch.float32 else run(x), labels).backward()
        return [p.grad.clone() for p in model.parameters()]

    def autocast(x):
        with torch.autocast("cuda", torch.bfloat16):
            return model(x)

    eager = gradients(autocast, x)
    with regraft.coverage() as cov:
        ours = gradients(compiled(autocast), x)
    assert cov.fallbacks == []
    model.double()
    exact = gradients(model, x.double())
    for found, other, expected in zip(ours, eager, exact, strict=True):
        assert relative_error(found, expected) < 1.5 * relative_error(other, expected) + 1e-6


class SelfAttention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(4))

    def forward(self, x):
        q, k, v = (part(x).view(*x.shape[:2], 4, 64).transpose(1, 2) for part in self.parts[:3])
        weights = torch.softmax(q @ k.transpose(2, 3) * 0.125, -1)
        return self.parts[3]((weights @ v).transpose(1, 2).reshape(x.shape))


@pytest.mark.usefixtures("fused_attention")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_gradients_of_attention_after_it_was_measured(mode):
    """What was measured must not change what runs later: torch keeps cuDNN's plans without the gradient's layout."""
    torch.manual_seed(0)
    model, x = SelfAttention().cuda(), randn(4, 512, 256)

    def gradients(run, x):
        model.zero_grad()
        run(x).float().square().mean().backward()
        return [p.grad.double() for p in model.parameters()]

    def autocast(x):
        with torch.autocast("cuda", torch.bfloat16):
            return model(x)

    with regraft.coverage() as cov:
        run = compiled(autocast, mode=mode)
        ours = [gradients(run, x) for _ in range(4)][-1]
    assert cov.count("attention") == 1, [(m.rule, m.evidence) for graph in cov.graphs for m in graph.declined]
    weights = [p.dim() == 2 for p in model.parameters()]  # the bias of keys has no gradient but rounding
    exact = gradients(model.double(), x.double())
    for found, expected, is_weight in zip(ours, exact, weights, strict=True):
        assert not is_weight or relative_error(found, expected) < 2e-2


@pytest.mark.parametrize("keys", [49, 64, 300])
@pytest.mark.parametrize("width", [40, 80, 96, 160])
def test_attention_of_few_keys(width, keys):
    """Heads of two parts beside one block of keys: Triton multiplied them wrongly."""

    def attention(q, k, v):
        return ((q @ k.mT) * width**-0.5).softmax(-1) @ v

    q, k, v = (torch.randn(2, 4, n, width, device="cuda", dtype=torch.bfloat16) for n in (196, keys, keys))
    exact = attention(q.double(), k.double(), v.double())
    ours = torch.compile(attention, backend="regraft", options={"profit": "always"})(q, k, v)
    assert (ours.double() - exact).norm() < 8e-3 * exact.norm()


@pytest.mark.parametrize("draw", [lambda y: F.dropout(y, 0.4), lambda y: y * torch.rand_like(y), torch.bernoulli])
def test_checkpoints_draw_eagers_numbers(draw):
    def program(x):
        return checkpoint(lambda y: draw(y.sigmoid()) * y, x, use_reentrant=False) + F.dropout(x, 0.5)

    run, x = compiled(program, rng="eager", strict=True), randn(4, 5, requires_grad=True)
    for _ in range(2):  # seeds are followed in each call
        found = []
        for call in (run, program):
            torch.manual_seed(3)
            y = call(x)
            found.append((y, torch.rand(1, device="cuda"), torch.autograd.grad(y.sum(), x)))
        torch.testing.assert_close(*found)

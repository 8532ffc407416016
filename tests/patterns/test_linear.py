"""The linear rule: which library computes the product, and activations as its epilogue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.attentions import normal
from support.rewriting import assert_agrees, compiled, outcome, rewritten, trained
from support.thorough import takes_turns
from torch import fx, nn
from torch._subclasses import FakeTensorMode

import regraft
from regraft.compiler.tools.check import refusals
from regraft.patterns.linear import cublaslt_applies, linear, onednn_applies

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")

ACTIVATIONS = {
    "none": lambda y: y,
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
X, W, BIAS = normal(2, 5, 16), normal(24, 16), normal(24)


def lowered(function: Any, inputs: Any, **settings: Any) -> Any:
    return rewritten(function, inputs, stage="lowered", **settings)


@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_is_the_epilogue(name: str, bias: bool, dtype: torch.dtype) -> None:
    def function(x, w, b):
        return ACTIVATIONS[name](F.linear(x, w, b if bias else None))

    inputs = [x.to(dtype) for x in (X, W, BIAS)]
    found = lowered(function, inputs, nan="safe")
    assert found.count("linear") == 1
    assert f"activation:{name}" in found.tags or name == "none"
    assert not found.ops & {"linear", "relu", "gelu", "silu", "sigmoid", "tanh"}
    assert_agrees(function, found.run, inputs)


def test_every_activation_is_told_apart() -> None:
    """gelu is not its tanh form, and an activation with another parameter is none of ours."""
    found = lowered(lambda x, w: F.leaky_relu(F.linear(x, w), 0.2), (X, W))
    assert found.count("linear") == 1 and "leaky_relu" in found.ops
    assert_agrees(lambda x, w: F.leaky_relu(F.linear(x, w), 0.2), found.run, (X, W))


@pytest.mark.parametrize("overlapping", [True, False])
def test_a_weight_whose_rows_overlap_is_not_taken(overlapping: bool) -> None:
    """oneDNN cannot describe windows over a vector; it does any other strides, and one row for all."""
    weights = [normal(40).as_strided((24, 16), (1, 1))] if overlapping else [W.expand(24, 16), normal(16, 24).T, W[:1]]
    for weight in [*weights, *([] if overlapping else [normal(1, 16).expand(24, 16), normal(24, 32)[:, ::2]])]:
        found = lowered(F.linear, (X, weight))
        assert found.count("linear") == (0 if overlapping else 1)
        assert_agrees(F.linear, found.run, (X, weight))


@pytest.mark.parametrize(("sizes", "code"), [((1, 1, 16), "rows-few"), ((16, 16), "rows-few"), ((17, 16), None)])
def test_few_rows_on_a_gpu_are_left_to_generated_kernels(sizes: tuple[int, ...], code: str | None) -> None:
    nodes = {}
    with FakeTensorMode():
        for name, given in (("x", sizes), ("weight", (24, 16)), ("bias", (24,))):
            nodes[name] = fx.Graph().placeholder(name)
            nodes[name].meta["val"] = torch.empty(given, dtype=torch.bfloat16, device="cuda")
    match: Any = SimpleNamespace(operands=nodes, tags=(("activation", "gelu_tanh"),))
    reason = cublaslt_applies(match, {})
    assert (reason.code if reason else None) == code


@pytest.mark.parametrize(
    ("sizes", "dtype", "profit", "code"),
    [
        ((64, 128, 128), torch.float32, "measured", "product-small"),
        ((1, 64, 512), torch.float32, "measured", "product-small"),
        ((96, 128, 128), torch.float32, "measured", None),
        ((16384, 8, 8), torch.float32, "measured", None),
        ((2048, 8, 8), torch.float32, "measured", None),
        ((512, 8, 8), torch.float32, "measured", "product-small"),
        ((16, 2048, 16), torch.float32, "measured", "product-small"),
        ((1, 768, 768), torch.float32, "measured", None),
        ((64, 128, 128), torch.bfloat16, "measured", None),
        ((64, 128, 128), torch.float32, "always", None),
    ],
    ids=str,
)
def test_small_products_are_left_to_mkl(
    sizes: tuple[int, int, int], dtype: torch.dtype, profit: str, code: str | None
) -> None:
    rows, depth, columns = sizes
    nodes = {name: fx.Graph().placeholder(name) for name in ("x", "weight")}
    nodes["x"].meta["val"], nodes["weight"].meta["val"] = (
        torch.empty(rows, depth, dtype=dtype),
        torch.empty(columns, depth),
    )
    match: Any = SimpleNamespace(operands=nodes, tags=(("activation", "tanh"),))
    reason = onednn_applies(match, {"profit": profit})
    assert (reason.code if reason else None) == code


def test_product_used_twice() -> None:
    """The value before the activation is wanted as well: the product is one call, the activation another."""

    def function(x, w, b):
        y = F.linear(x, w, b)
        return torch.relu(y), y

    found = lowered(function, (X, W, BIAS))
    assert found.count("linear") == 1 and "relu" in found.ops
    assert_agrees(function, found.run, (X, W, BIAS))


@pytest.mark.parametrize("sizes", [((5, 16), (24, 16)), ((1, 16), (1, 16)), ((2, 3, 4, 16), (8, 16))])
def test_shapes(sizes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    inputs = [normal(*s) for s in sizes]
    for dynamic in (False, True):
        found = lowered(F.linear, inputs, dynamic=dynamic)
        assert_agrees(F.linear, found.run, inputs)


@pytest.mark.parametrize("sizes", [((0, 16), (24, 16)), ((5, 0), (24, 0)), ((5, 16), (0, 16))])
def test_empty(sizes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    inputs = [torch.zeros(*s) for s in sizes]
    found = lowered(F.linear, inputs)
    assert found.count("linear") == 0
    assert_agrees(F.linear, found.run, inputs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_other_types_stay(dtype: torch.dtype) -> None:
    inputs = [(x * 4).to(dtype) for x in (X, W)]
    found = lowered(F.linear, inputs)
    assert found.count("linear") == 0
    torch.testing.assert_close(found.run(*inputs), F.linear(*inputs))


def test_strided_operands() -> None:
    inputs = [X.transpose(0, 1), W.t().contiguous().t(), BIAS[::1]]
    found = lowered(F.linear, inputs)
    assert found.count("linear") == 1
    assert_agrees(F.linear, found.run, inputs)


def test_trained_through_the_backend() -> None:
    """The rule runs after autograd: forward and backward are right, and shared weights too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))

    def function(x):
        return model(x)

    run, coverage = compiled(function, dynamic=False)
    with coverage:
        ours, eager = _gradients(model, run), _gradients(model, function)
    assert coverage.count("linear") >= 3
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def _gradients(model: nn.Module, run: Any) -> list[torch.Tensor]:
    model.zero_grad()
    out = run(X)
    out.square().mean().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters())]


def test_compiled_inference_fuses_activations() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.SiLU()).eval()
    run, coverage = compiled(model)
    with coverage, torch.no_grad():
        torch.testing.assert_close(run(X), model(X), rtol=1e-4, atol=1e-5)
    tags = {t for m in coverage.applied for t in m.tags}
    assert {"activation:gelu", "activation:silu"} <= tags, tags


def test_nan_passes() -> None:
    x = X.clone()
    x[0, 0, 0] = torch.nan
    for activation in ACTIVATIONS.values():

        def function(x, w, b, activation=activation):
            return activation(F.linear(x, w, b))

        found = lowered(function, (x, W, BIAS))
        assert found.count("linear") == 1
        (ours,), (eager,) = outcome(found.run, (x, W, BIAS)), outcome(function, (x, W, BIAS))
        assert torch.equal(ours.isnan(), eager.isnan())


def test_weights_that_want_gradients() -> None:
    """In the lowered stage nothing does, but a graph of plain calls may be compiled under no_grad."""
    given = trained((X, W, BIAS))
    run, coverage = compiled(lambda x, w, b: F.gelu(F.linear(x, w, b)))
    with coverage, torch.no_grad():
        torch.testing.assert_close(run(*given), F.gelu(F.linear(*given)))
    assert coverage.count("linear") == 1


def test_gelu_by_hand_is_the_epilogue() -> None:
    """One rule makes `gelu` of it before autograd, this one takes it in after."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(16, 24)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.dense(x)
            return y * 0.5 * (1.0 + torch.erf(y / 2**0.5))

    model = Layer().eval()
    run, coverage = compiled(model)
    with coverage, torch.no_grad():
        torch.testing.assert_close(run(X), model(X), rtol=1e-4, atol=1e-5)
    (match,) = (m for m in coverage.applied if m.rule == "linear")
    assert "activation:gelu" in match.tags


def test_relu_that_keeps_nan_stands_alone() -> None:
    found = lowered(lambda x, w: torch.relu(F.linear(x, w)), (X, W), near_miss_depth=0)
    assert found.count("linear") == 1 and "relu" in found.ops and "kernel-unavailable" in found.codes


def test_weight_that_may_change_is_not_packed() -> None:
    found = lowered(F.linear, (X, W), near_miss_depth=0)
    assert [m.candidate for m in found.record.applied] == ["onednn"]


@pytest.mark.parametrize("sample", [s for s in linear.samples if s.refused], ids=lambda s: s.refused)
def test_near_misses(sample: Any) -> None:
    assert sample.refused in refusals(linear, sample)


def test_a_product_that_a_backward_keeps_is_computed_once():
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU()), torch.randn(2, 32, 64)
    options = {"profit": "always", "debug": True}
    with regraft.coverage() as cov:
        torch.compile(model, backend="regraft", options=options)(x).sum().backward()
    forward = cov.graphs[0].details["graph:forward"]
    assert sum(forward.count(f"target=torch.ops.{name}") for name in ("mkldnn._linear_pointwise", "aten.addmm")) == 1


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_operands_of_several_dtypes_are_left_to_eager(which, dtype):
    given = [torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)]
    given[which] = given[which].to(dtype)

    def seen(function):
        try:
            return function(*given)
        except RuntimeError as error:
            return str(error)

    torch._dynamo.reset()
    compiled = torch.compile(F.linear, backend="regraft", options={"profit": "always", "strict": True})
    ours, theirs = seen(compiled), seen(F.linear)
    assert ours == theirs if isinstance(theirs, str) else torch.equal(ours, theirs)


ONE_MATRIX = {
    "batch of one": (lambda x, w, b: torch.bmm(x[:1], w.t()[None]), 1),
    "one for all": (lambda x, w, b: torch.bmm(x, w.t().expand(2, -1, -1)), 1),
    "one of one for all": (lambda x, w, b: torch.bmm(x, w.t()[None].expand(2, -1, -1)), 1),
    "with a bias": (lambda x, w, b: torch.baddbmm(b.expand(2, 5, -1), x, w.t().expand(2, -1, -1)), 1),
    "a bias for each row": (lambda x, w, b: torch.baddbmm(b[:5, None].expand(2, 5, 24), x, w.t().expand(2, -1, -1)), 0),
    "scaled": (lambda x, w, b: torch.baddbmm(b.expand(2, 5, -1), x, w.t().expand(2, -1, -1), alpha=2), 0),
    "two matrices": (lambda x, w, b: torch.bmm(x, torch.stack([w.t(), w.t() * 2])), 0),
}


@pytest.mark.parametrize("name", ONE_MATRIX)
def test_products_of_a_batch_with_one_matrix(name: str) -> None:
    function, count = ONE_MATRIX[name]
    for dynamic in (False, True):
        found = lowered(function, (X, W, BIAS), dynamic=dynamic)
        assert found.count("linear") == count
        assert_agrees(function, found.run, (X, W, BIAS))


def test_what_einsum_makes_of_linear_layers() -> None:
    """Products with a batch of one."""
    for equation in ("bsd,nd->bsn", "bsd,nd->bns", "bsd,nd->sbn"):
        run, cov = compiled(lambda x, w, equation=equation: torch.einsum(equation, x, w))
        with cov, torch.no_grad():
            torch.testing.assert_close(run(X, W), torch.einsum(equation, X, W), rtol=1e-4, atol=1e-4)
        assert cov.matches["linear"] == 1, equation

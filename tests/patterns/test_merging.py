"""Projections of one input merged into one product: where, how many, and where not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.attentions import normal
from support.freezing import frozen
from support.rewriting import assert_agrees, compiled, rewritten, trained
from support.thorough import one_row_in
from torch import nn

from regraft.compiler.tools.check import refusals
from regraft.patterns.merging import NEARBY, merged_linear

X, A, B, C = normal(2, 20, 16), normal(24, 16), normal(8, 16), normal(24, 16)
BIAS = normal(24)


def merged(function: Any, inputs: Any, **settings: Any) -> Any:
    found = rewritten(function, inputs, rules=[merged_linear], **settings)
    assert_agrees(function, found.run, inputs)
    return found


def products(found: Any) -> int:
    return sum("linear" in str(n.target) for n in found.graph.nodes)


@pytest.mark.parametrize("dynamic", [False, True])
def test_query_key_and_value_are_one_product(dynamic: bool) -> None:
    def function(x, a, b, c, bias):
        return F.linear(x, a, bias), F.linear(x, b), F.linear(x, c, bias)

    found = merged(function, (X, A, B, C, BIAS), dynamic=dynamic)
    assert found.count("merged_linear") == 2 and products(found) == 1


def test_gate_and_up() -> None:
    def function(x, a, c):
        return F.silu(F.linear(x, a)) * F.linear(x, c)

    found = merged(function, (X, A, C))
    assert found.count("merged_linear") == 1 and products(found) == 1


def test_other_inputs_stay_apart() -> None:
    found = merged(lambda x, y, a, b: (F.linear(x, a), F.linear(y, b)), (X, X + 1, A, B))
    assert found.count("merged_linear") == 0 and not found.codes


def test_the_result_of_one_is_the_input_of_none() -> None:
    """The second product reads the first: there is no input that they share."""
    found = merged(lambda x, a, b: F.linear(F.linear(x, b), a[:, :8]), (X, A, B))
    assert found.count("merged_linear") == 0


def test_input_that_depends_on_the_first_product() -> None:
    """A weight computed from the first result: the merged product cannot stand before its own operand."""

    def function(x, a, c):
        y = F.linear(x, a)
        return y, F.linear(x, c * y.mean())

    found = merged(function, (X, A, C))
    assert found.count("merged_linear") == 0 and found.codes == {"outputs-entangled"}


def test_trained_weights_stay_apart() -> None:
    found = merged(lambda x, a, c: (F.linear(x, a), F.linear(x, c)), trained((X, A, C)), near_miss_depth=0)
    assert found.count("merged_linear") == 0 and "weight-trained" in found.codes


def test_weights_at_rest_under_a_trained_input() -> None:
    given = trained((X, A, C), first=1)
    assert merged(lambda x, a, c: (F.linear(x, a), F.linear(x, c)), given).count("merged_linear") == 1


@pytest.mark.parametrize("between", [NEARBY, NEARBY + 1])
def test_products_far_apart(between: int) -> None:
    def function(x, y, a, c, w):
        first = F.linear(x, a)
        for _ in range(between):
            y = torch.tanh(F.linear(y, w))
        return first, F.linear(x, c), y

    found = merged(function, (X, X + 1, A, C, normal(16, 16)))
    assert found.count("merged_linear") == (between == NEARBY)
    assert ("products-apart" in found.codes) == (between > NEARBY)


def test_written_result_stays_apart() -> None:
    def function(x, a, c):
        y = F.linear(x, a)
        view = y[0]
        y.add_(1)
        return y, view, F.linear(x, c)

    assert merged(function, (X, A, C)).count("merged_linear") == 0


@pytest.mark.parametrize("sample", [s for s in merged_linear.samples if s.refused], ids=lambda s: s.refused)
def test_near_misses(sample: Any) -> None:
    assert sample.refused in refusals(merged_linear, sample)


class Projections(nn.Module):
    """Query, key and value, and a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 8, bias=False), nn.Linear(16, 8)
        self.gate, self.up = nn.Linear(16, 32, bias=False), nn.Linear(16, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k, v = (y.view(2, 20, 1, 8).transpose(1, 2).expand(-1, 2, -1, -1) for y in (self.k(x), self.v(x)))
        q = self.q(x).view(2, 20, 2, 8).transpose(1, 2)
        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 20, 16)
        return F.silu(self.gate(x)) * self.up(x)


@pytest.mark.parametrize("freezing", [True, False])
def test_through_the_backend(freezing: bool) -> None:
    torch.manual_seed(0)
    model = Projections().eval()
    run, coverage = frozen(model) if freezing else compiled(model)
    with coverage, torch.no_grad():
        torch.testing.assert_close(run(X), model(X), rtol=1e-4, atol=1e-5)
    assert coverage.matches["merged_linear"] == 3
    assert {m.candidate for m in coverage.applied if m.rule == "merged_linear"} == {
        "merged_frozen" if freezing else "merged"
    }
    (graph,) = coverage.graphs
    if freezing:
        assert "cat" not in graph.details["source:inference"]


def test_changed_weights_are_seen() -> None:
    """A frozen weight that is written to later: the concatenated one is computed anew."""
    model = Projections().eval()
    run, _ = frozen(model)
    with torch.no_grad():
        run(X)
        model.k.weight.mul_(2)
        torch.testing.assert_close(run(X), model(X), rtol=1e-4, atol=1e-5)


def test_measured() -> None:
    """The decision has its evidence, whichever it is."""
    model = Projections().eval()
    run, coverage = frozen(model, profit="measured")
    with coverage, torch.no_grad():
        torch.testing.assert_close(run(X), model(X), rtol=1e-4, atol=1e-5)
    settled = [m for m in (*coverage.applied, *coverage.declined) if m.rule == "merged_linear"]
    assert settled and all({"original", "merged_frozen"} <= set(m.evidence.times) for m in settled)


@one_row_in(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kernels", ["measured", "library"])
def test_heads_that_share_a_key_after_a_merged_product(kernels: str, dynamic: bool) -> None:
    """Slices of one product lie in another way than products: kernels that trust strides read copies."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 8), nn.Linear(32, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = self.q(x).unflatten(-1, (4, 8)).transpose(1, 2)
            scores = torch.einsum("bhid,bjd->bhij", q, self.k(x)) * 0.35
            hidden = torch.ones(scores.shape[-2:]).bool().triu(1)
            return torch.einsum("bhij,bjd->bhid", scores.masked_fill(hidden, -1e30).softmax(-1), self.v(x))

    model = Shared()
    torch.compiler.reset()
    options = {"profit": "always", "kernels.attention": kernels}
    run = torch.compile(model, backend="regraft", dynamic=dynamic, options=options)
    with torch.no_grad():
        for x in (normal(2, 24, 32), normal(3, 17, 32)):
            torch.testing.assert_close(run(x), model(x))


SPELLINGS = {
    "transposed weights": (lambda x, a, c: (x @ a.T, x @ c.T), (A, C)),
    "transposed weights and a bias": (lambda x, a, c, bias: (x @ a.T + bias, x @ c.T), (A, C, BIAS)),
    "a bias first": (lambda x, a, c, bias: (bias + x @ a.T, bias + torch.matmul(x, c.t())), (A, C, BIAS)),
    "columns": (lambda x, a, c: (x @ a, x @ c), (normal(16, 24), normal(16, 8))),
    "columns, biases": (lambda x, a, c, b: (x @ a + b, x @ c + b[:8]), (normal(16, 24), normal(16, 8), BIAS)),
    "both": (lambda x, a, c: (F.linear(x, a), x @ c.T), (A, C)),
    "einsum": (lambda x, a, c: (torch.einsum("bsk,nk->bsn", x, a), torch.einsum("bsk,nk->bsn", x, c)), (A, C)),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_products_are_found_however_they_are_spelled(name: str) -> None:
    function, weights = SPELLINGS[name]
    found = merged(function, (X, *weights))
    assert found.count("merged_linear") == 1
    targets = [str(n.target) for n in found.graph.nodes]
    assert sum("linear" in target or "matmul" in target for target in targets) == 1


def test_three_products_by_columns_are_one() -> None:
    q, k, v = normal(16, 16), normal(16, 8), normal(16, 8)
    found = merged(lambda x, q, k, v: (x @ q, x @ k, x @ v), (X, q, k, v))
    assert found.count("merged_linear") == 2 and sum("matmul" in str(n.target) for n in found.graph.nodes) == 1


@pytest.mark.parametrize(
    ("function", "weights"),
    [
        (lambda x, a, c: (x @ a + c[:1], x @ c), (normal(16, 24), normal(16, 24))),
        (lambda x, a, c: (x @ a + c[0, :1], x @ c), (normal(16, 24), normal(16, 24))),
        (lambda x, a, c: (x @ a + c[0].double(), x @ c), (normal(16, 24), normal(16, 24))),
        (lambda x, a, c: (x @ a, x @ c), (normal(2, 16, 24), normal(2, 16, 24))),
        (lambda x, a, c: (x @ a.mT, x @ c), (normal(24, 16), normal(2, 16, 24))),
    ],
)
def test_what_is_broadcast_stays_apart_or_right(function: Any, weights: Any) -> None:
    merged(function, (X, *weights))


def test_a_product_alone_is_no_near_miss() -> None:
    found = rewritten(lambda x, a, bias: torch.tanh(x @ a.T + bias), (X, A, BIAS), rules=[merged_linear])
    assert not found.codes

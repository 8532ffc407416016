"""Activations written by hand become the operator that they are; what only looks alike does not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.attentions import normal
from support.rewriting import assert_agrees, compiled, rewritten, trained
from support.thorough import one_row_in, takes_turns

BOTH = pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
ROOT = math.sqrt(2.0 / math.pi)

GELUS = {
    "GPT-2": lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))),
    "cube as product": lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * x * x * x))),
    "integer power": lambda x: x * 0.5 * (torch.tanh((x + x**3 * 0.044715) * ROOT) + 1),
    "other order": lambda x: (1 + torch.tanh((x + 0.044715 * x.pow(3)) * ROOT)) * (0.5 * x),
    "square times x": lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x**2 * x))),
    "factored, a square": lambda x: 0.5 * x * (1 + torch.tanh(ROOT * x * (1 + 0.044715 * x**2))),
    "multiplied out": lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608028654 * x + 0.035677408136300125 * x**3)),
    "sum of halves": lambda x: 0.5 * (x + x * torch.tanh(ROOT * (x + 0.044715 * x**3))),
    "logistic": lambda x: x * torch.sigmoid(2 * ROOT * (x + 0.044715 * x**3)),
    "root in float32": lambda x: (
        0.5 * x * (1 + torch.tanh(torch.sqrt(torch.tensor(2 / math.pi)) * (x + 0.044715 * x**3)))
    ),
}
ERF_GELUS = {
    "BERT": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "gate": lambda x: x * (0.5 * (1.0 + torch.erf(x * 0.70710678))),
    "halved last": lambda x: x * (torch.erf(x / 1.4142135623730951) + 1) / 2,
    "sum of halves": lambda x: 0.5 * x + 0.5 * x * torch.erf(x / math.sqrt(2.0)),
    "half and half": lambda x: x * (0.5 + 0.5 * torch.erf(x * 0.7071067811865476)),
    "normal distribution": lambda x: x * torch.special.ndtr(x),
    "complement": lambda x: x * 0.5 * torch.erfc(-x / math.sqrt(2.0)),
    "two minus the complement": lambda x: x * 0.5 * (2 - torch.erfc(x / math.sqrt(2.0))),
    "one minus the negative's": lambda x: x * 0.5 * (1 - torch.erf(-x / math.sqrt(2.0))),
    "root in float32": lambda x: 0.5 * x * (1 + torch.erf(x / torch.sqrt(torch.tensor(2.0)))),
}
BLOOMS = {
    "factored": lambda x: x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))),
}
GATES = {
    "silu": (lambda x: x * torch.sigmoid(x), "silu"),
    "gate": (lambda x: x * (torch.sigmoid(x) * x), "silu"),
    "mish": (lambda x: x * torch.tanh(torch.nn.functional.softplus(x)), "mish"),
    "silu by tanh": (lambda x: 0.5 * x * (1 + torch.tanh(x / 2)), "silu"),
    "silu by the complement": (lambda x: x * (1 - torch.sigmoid(-x)), "silu"),
    "silu by a logarithm": (lambda x: x * torch.nn.functional.logsigmoid(x).exp(), "silu"),
    "mish by a logarithm": (lambda x: x * torch.tanh(-torch.nn.functional.logsigmoid(-x)), "mish"),
    "mish by a sum of exponents": (lambda x: x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x))), "mish"),
    "mish by sigmoid": (lambda x: x * (2 * torch.sigmoid(2 * torch.nn.functional.softplus(x)) - 1), "mish"),
    "other name": (lambda x: torch.multiply(x, torch.special.expit(x)), "silu"),
    "among factors": (lambda x: x.flip(0) * x * torch.sigmoid(x), "silu"),
    "gate among factors": (lambda x: (x.flip(0) * torch.sigmoid(x)) * x, "silu"),
    "gelu among factors": (lambda x: (0.5 * x.flip(0) * x) * (1 + torch.erf(x / math.sqrt(2.0))), "gelu"),
}
BY_EXPONENTS = {  # whose gradients are NaN where the exponent overflows
    "silu": (lambda x: x / (1 + torch.exp(-x)), "silu"),
    "silu by a power": (lambda x: (torch.exp(-x) + 1).pow(-1) * x, "silu"),
    "silu by a reciprocal": (lambda x: torch.reciprocal(torch.exp(-x) + 1) * x, "silu"),
    "silu among factors": (lambda x: x.flip(0) * x / (torch.exp(-x) + 1), "silu"),
    "gelu": (lambda x: x / (1 + torch.exp(-2 * ROOT * (x + 0.044715 * x * x * x))), "gelu_tanh"),
    "mish": (lambda x: x * torch.tanh(torch.log1p(torch.exp(x))), "mish"),
    "mish by a logarithm": (lambda x: x * torch.tanh(torch.log(1 + x.exp())), "mish"),
}
OF_AMOUNTS = {
    "relu": lambda x: x * torch.tanh(torch.relu(x) + torch.log1p(torch.exp(-x.abs()))),
    "clamp": lambda x: x * torch.tanh((-x.abs()).exp().log1p() + x.clamp(min=0)),
}
OVERLOOKED = {  # activation, what is told, and the same where gradients are wanted
    "exponent on both sides": (lambda x: x * x.exp() / (1 + x.exp()), "silu", "except", "except"),
    "mish by algebra": (lambda x: x * (n := x.exp() * (x.exp() + 2)) / (n + 2), "mish", "except", "except"),
    "mish by squares": (lambda x: x * (1 - 2 / ((1 + x.exp()) ** 2 + 1)), "mish", "spelling", "gradient"),
    "mish of amounts": (OF_AMOUNTS["relu"], "mish", "", "spelling"),
    "a difference of exponents": (
        lambda x: 0.5 * x * (1 + ((u := ROOT * (x + 0.044715 * x**3)).exp() - (-u).exp()) / (u.exp() + (-u).exp())),
        "gelu_tanh",
        "except",
        "except",
    ),
    "choice": (
        lambda x: x * torch.where(x >= 0, 1 / (1 + (-x).exp()), x.exp() / (1 + x.exp())),
        "silu",
        "spelling",
        "gradient",
    ),
    "power": (lambda x: x / (1 + math.e ** (-x)), "silu", "spelling", "gradient"),
    "difference": (lambda x: x - x * torch.sigmoid(-x), "silu", "spelling", "spelling"),
    "gelu of amounts": (
        lambda x: 0.5 * (x + x.abs() * torch.erf(x.abs() / math.sqrt(2))),
        "gelu",
        "spelling",
        "spelling",
    ),
    **{n: (f, r, "", "gradient") for n, (f, r) in BY_EXPONENTS.items()},
}
UNLIKE = {
    "of another value": lambda x: x.flip(0) / (1 + torch.exp(-x)),
    "two and an exponent": lambda x: x / (2 + torch.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "softmax": lambda x: x * x.exp() / x.exp().sum(-1, keepdim=True),
    "squares": lambda x: x * (1 - 2 / ((1 + x.exp()) ** 2 + 2)),
    "a swish with a slope": lambda x: x * torch.sigmoid(1.5 * x) * torch.exp(-x),
}
NOT_GATES = {
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "another gate": lambda x: x.flip(0) * torch.sigmoid(x),
    "another slope": lambda x: x * torch.tanh(torch.nn.functional.softplus(x, beta=2.0)),
    "cut erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / 1.41421)),
    "other root": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(3.0))),
    "minus erf": lambda x: x * 0.5 * (1.0 - torch.erf(x / math.sqrt(2.0))),
    "exponents of another sign": lambda x: x / (1 + torch.exp(x)),
    "two and an exponent": lambda x: x / (2 + torch.exp(-x)),
    "complement": lambda x: x * (1 - torch.sigmoid(x)),
    "tanh of another slope": lambda x: 0.5 * x * (1 + torch.tanh(x / 3)),
    "three minus the complement": lambda x: x * 0.5 * (3 - torch.erfc(x / math.sqrt(2.0))),
}
NOT_GELUS = {
    "other constant": lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.0447 * torch.pow(x, 3.0)))),
    "square": lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 2.0)))),
    "other root": lambda x: 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.044715 * torch.pow(x, 3.0)))),
    "minus": lambda x: 0.5 * x * (1.0 - torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))),
    "two inputs": lambda x: 0.5 * x.flip(0) * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))),
    "no half": lambda x: x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))),
}
X = normal(3, 4, 8) * 3


@one_row_in(2)
@takes_turns("dynamic")
@BOTH
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", GELUS)
def test_gelu(name: str, training: bool, dynamic: bool) -> None:
    given = trained([X]) if training else [X]
    found = rewritten(GELUS[name], given, dynamic=dynamic)
    assert found.count("gelu_tanh") == 1, found.record.near_misses
    assert "tanh" not in found.ops and "gelu" in found.ops
    assert_agrees(GELUS[name], found.run, given)


@one_row_in(2)
@takes_turns("dynamic")
@BOTH
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", [*ERF_GELUS, *BLOOMS, *GATES])
def test_others(name: str, training: bool, dynamic: bool) -> None:
    given = trained([X]) if training else [X]
    named = {n: (f, "gelu") for n, f in ERF_GELUS.items()} | {n: (f, "gelu_tanh") for n, f in BLOOMS.items()} | GATES
    function, rule = named[name]
    found = rewritten(function, given, dynamic=dynamic)
    assert found.count(rule) == found.count("activation") == 1, found.record.near_misses
    assert rule.removesuffix("_tanh") in found.ops and not {"tanh", "erf", "sigmoid"} & found.ops
    assert_agrees(function, found.run, given)


@BOTH
@pytest.mark.parametrize("name", BY_EXPONENTS)
def test_by_exponents_where_no_gradient_is_wanted(name: str, training: bool) -> None:
    function, rule = BY_EXPONENTS[name]
    extremes = torch.tensor([0.0, -0.0, 30.0, -30.0, 300.0, -300.0, float("inf"), -float("inf"), float("nan")])
    given = [X if rule == "gelu_tanh" or "factors" in name else torch.cat([X.flatten(), extremes])]
    found = rewritten(function, trained(given) if training else given)
    assert found.count("activation") == found.count(rule) == int(not training), found.record.near_misses
    assert_agrees(function, found.run, given)


@pytest.mark.parametrize("name", OF_AMOUNTS)
def test_mish_of_amounts(name: str) -> None:
    given = [torch.cat([X.flatten(), torch.tensor([0.0, 300.0, -300.0, float("inf"), float("nan")])])]
    found = rewritten(OF_AMOUNTS[name], given)
    assert found.count("mish") == 1, found.record.near_misses
    assert_agrees(OF_AMOUNTS[name], found.run, given)


def told_of(found: Any) -> list[str]:
    return [m.message for m in found.record.near_misses if m.code in ("exponents-overflow", "spelling-unknown")]


@pytest.mark.parametrize("name", UNLIKE)
def test_nothing_overlooked(name: str) -> None:
    assert told_of(rewritten(UNLIKE[name], trained([X]))) == []


@takes_turns("training")
@BOTH
@pytest.mark.parametrize("name", OVERLOOKED)
def test_overlooked(name: str, training: bool) -> None:
    """A formula that is an activation is told of: what differs, or that no rule knows it."""
    function, rule, *told = OVERLOOKED[name]
    found = rewritten(function, trained([X]) if training else [X])
    messages = told_of(found)
    if not told[training]:
        assert found.count(rule) == 1 and not messages
        return
    (message,) = messages
    assert not found.count("activation") and f"this is {rule} of" in message and told[training] in message
    assert_agrees(function, found.run, trained([X]) if training else [X])


def test_a_logarithm_of_exponents_that_is_no_gate_stays() -> None:
    """Infinite where the exponent overflows, unlike softplus."""

    def function(x: Any) -> Any:
        y = torch.log1p(torch.exp(x))
        return x * torch.tanh(y), y

    found = rewritten(function, [X * 100])
    assert found.count("activation") == 0
    assert_agrees(function, found.run, [X * 100])


@takes_turns("training")
@BOTH
@pytest.mark.parametrize("name", NOT_GATES)
def test_not_others(name: str, training: bool) -> None:
    given = trained([X]) if training else [X]
    found = rewritten(NOT_GATES[name], given)
    assert found.count("activation") == 0
    assert_agrees(NOT_GATES[name], found.run, given)


def test_rounded_constant_in_double_precision() -> None:
    """What float32 rounds away shows in float64."""
    x = X.double()
    assert rewritten(ERF_GELUS["BERT"], [x]).count("gelu") == 1
    found = rewritten(ERF_GELUS["gate"], [x])
    assert found.count("gelu") == 0 and "constant-differs" in found.codes


def test_gate_keeps_its_input_alone() -> None:
    """The derivative of an activation needs its input, and of the gate its two factors: no sigmoid is kept."""

    def function(gate: Any, up: Any) -> Any:
        return gate * torch.sigmoid(gate) * up

    run, coverage = compiled(function)
    given = trained([X, normal(3, 4, 8)])
    with coverage:
        run(*given).sum().backward()
    assert coverage.count("silu") == 1
    (forward,) = [code for graph in coverage.graphs for code in graph.code if code.kind == "forward"]
    assert forward.kernels == 1 and not forward.kept
    (source,) = [graph.details["source:forward"] for graph in coverage.graphs]
    assert source.count("= empty_strided_cpu(") == 1


@takes_turns("training")
@BOTH
@pytest.mark.parametrize("name", NOT_GELUS)
def test_not_gelu(name: str, training: bool) -> None:
    given = trained([X]) if training else [X]
    found = rewritten(NOT_GELUS[name], given)
    assert found.count("gelu_tanh") == 0
    assert_agrees(NOT_GELUS[name], found.run, given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    found = rewritten(GELUS["GPT-2"], [x])
    assert found.count("activation") == 1
    assert_agrees(GELUS["GPT-2"], found.run, [x])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_odd_values(value: float) -> None:
    """NaN stays NaN; -inf is NaN in eager code (0 times inf) and must not become a number unannounced."""
    x = X.clone()
    x[0, 0, 0] = value
    found = rewritten(GELUS["GPT-2"], [x])
    ours, eager = found.run(x), GELUS["GPT-2"](x)
    assert not (eager.isnan() & ~ours.isnan()).any()


@pytest.mark.parametrize("shape", [(0, 3), (), (1,)])
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    found = rewritten(GELUS["GPT-2"], [x])
    assert_agrees(GELUS["GPT-2"], found.run, [x])


def test_inner_value_used_elsewhere() -> None:
    def function(x):
        t = torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))
        return 0.5 * x * (1.0 + t), t

    found = rewritten(function, [X])
    assert found.count("gelu_tanh") == 0 and "inner-value-escapes" in found.codes
    assert_agrees(function, found.run, [X])


def test_compiled_with_its_linear() -> None:
    """Found before autograd, and in inference the epilogue of the product afterwards."""
    layer = torch.nn.Linear(8, 16)

    def function(x: Any) -> Any:
        return GELUS["GPT-2"](layer(x))

    run, coverage = compiled(function)
    with coverage, torch.no_grad():
        torch.testing.assert_close(run(X), function(X), rtol=1e-4, atol=1e-5)
    assert coverage.count("gelu_tanh") == 1
    if torch.backends.mkldnn.is_available():
        assert "activation:gelu_tanh" in {t for m in coverage.applied for t in m.tags}


def by_hand(x: torch.Tensor, cubed: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(cubed, 3.0))))


def test_cube_in_a_wider_dtype() -> None:
    """As autocast on CUDA has it: the power, and so the result, in float32."""

    def function(x):
        y = x.view(-1, 4)
        return by_hand(y, y.float())

    x = normal(2, 3, 4).bfloat16()
    found = rewritten(function, [x])
    assert found.count("gelu_tanh") == 1
    assert_agrees(function, found.run, [x])


@pytest.mark.parametrize(
    "cubed",
    [lambda y, x: x.flip(0).float(), lambda y, x: y.mT.reshape(y.shape).float()],
    ids=["another value", "another order"],
)
def test_cube_of_another_value(cubed: Any) -> None:
    def function(x):
        y = x.view(-1, 4)
        return by_hand(y, cubed(y, y))

    x = normal(2, 3, 4).bfloat16()
    found = rewritten(function, [x])
    assert found.count("gelu_tanh") == 0 and "cube-of-another-value" in found.codes
    assert_agrees(function, found.run, [x])


def test_cube_of_what_was_rounded_away() -> None:
    """The cube sees more digits than x has."""

    def function(wide):
        return by_hand(wide.bfloat16(), wide)

    x = normal(6, 4)
    found = rewritten(function, [x])
    assert found.count("gelu_tanh") == 0

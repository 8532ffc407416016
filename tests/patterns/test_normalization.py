"""Norms written by hand become the operator that they are, also in whole models; what only looks alike does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.attentions import normal
from support.rewriting import assert_agrees, compiled, rewritten, trained
from support.thorough import one_row_in, takes_turns

from regraft.patterns.normalization import layer_norm, rms_norm

BOTH = pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
EPS = 1e-5
X, W, BIAS = normal(3, 4, 8) + 0.3, normal(8) + 1, normal(8, seed=1)


def mean(x: Any) -> Any:
    return x.mean(-1, keepdim=True)


def llama(x, w, b):
    wide = x.to(torch.float32)
    return w * (wide * torch.rsqrt(mean(wide.pow(2)) + EPS)).to(x.dtype)


def gemma(x, w, b):
    wide = x.float()
    return (wide * torch.rsqrt(mean(wide.pow(2)) + EPS) * (1.0 + w.float())).type_as(x)


def t5(x, w, b):
    return w * (x * torch.rsqrt(mean(x.to(torch.float32).pow(2)) + EPS)).to(w.dtype)


def olmo2(x, w, b):
    wide = x.to(torch.float32)
    return (w * (wide * torch.rsqrt(mean(wide.pow(2)) + EPS))).to(x.dtype)


RMS_NORMS: dict[str, Callable[..., Any]] = {
    "Llama": llama,
    "Gemma": gemma,
    "T5": t5,
    "OLMo 2": olmo2,
    "root": lambda x, w, b: x / torch.sqrt(x.square().mean(dim=2, keepdim=True) + EPS) * w,
    "power": lambda x, w, b: w * x * (mean(x**2) + EPS) ** -0.5,
    "product and sum": lambda x, w, b: w * (x * (1 / ((x * x).sum(-1, keepdim=True) / 8 + EPS).sqrt())),
    "no weight": lambda x, w, b: x * torch.rsqrt(mean(x.pow(2)) + EPS),
    "weight on the root": lambda x, w, b: (torch.rsqrt(mean(x.pow(2)) + EPS) * w) * x,
    "dim put back": lambda x, w, b: x * torch.rsqrt(x.pow(2).mean(-1) + EPS).unsqueeze(-1) * w,
    "dim put back first": lambda x, w, b: x * torch.rsqrt(x.pow(2).mean(-1)[..., None] + EPS) * w,
    "sum over size": lambda x, w, b: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / x.shape[-1] + EPS) * w,
    "square of a norm": lambda x, w, b: x / torch.sqrt(x.norm(dim=-1, keepdim=True) ** 2 / x.shape[-1] + EPS) * w,
    "square of a vector norm": lambda x, w, b: (
        x * torch.rsqrt(torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1] + EPS) * w
    ),
    "squares by einsum": lambda x, w, b: (
        x * torch.rsqrt(torch.einsum("...d,...d->...", x, x)[..., None] / x.shape[-1] + EPS) * w
    ),
    "square of an amount": lambda x, w, b: x * torch.rsqrt(mean(x.abs() ** 2) + EPS) * w,
    "expanded": lambda x, w, b: x / torch.sqrt(mean(x.pow(2)) + EPS).expand_as(x) * w,
    "product with ones": lambda x, w, b: x * torch.rsqrt((x * x) @ x.new_ones(8, 1) / x.shape[-1] + EPS) * w,
    "sum": lambda x, w, b: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS) * 8**0.5 * w,
    "length": lambda x, w, b: x / torch.sqrt(x.norm(dim=-1, keepdim=True) ** 2 + EPS),
}


def textbook(x, w, b):
    return w * (x - mean(x)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + EPS) + b


def cohere(x, w, b):
    wide = x.to(torch.float32)
    centered = wide - mean(wide)
    return (w.to(torch.float32) * (centered * torch.rsqrt(mean((wide - mean(wide)).pow(2)) + EPS))).to(x.dtype)


def by_both(x, w, b):
    variance, average = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - average) * torch.rsqrt(variance + EPS) * w + b


def variance(x: Any) -> Any:
    return x.var(-1, correction=0, keepdim=True)


def scale_and_shift(x, w, b):
    scale = torch.rsqrt(variance(x) + EPS) * w
    return x * scale + (b - mean(x) * scale)


LAYER_NORMS: dict[str, Callable[..., Any]] = {
    "textbook": textbook,
    "Cohere": cohere,
    "var_mean": by_both,
    "bias alone": lambda x, w, b: (x - mean(x)) * torch.rsqrt(mean((x - mean(x)) ** 2) + EPS) + b,
    "plain": lambda x, w, b: (x - mean(x)) * torch.rsqrt(mean((x - mean(x)) ** 2) + EPS),
    "deviation squared": lambda x, w, b: (
        (x - mean(x)) / torch.sqrt(x.std(-1, unbiased=False, keepdim=True) ** 2 + EPS) * w + b
    ),
    "dims put back": lambda x, w, b: (
        (x - x.mean(-1)[..., None]) / torch.sqrt(x.var(-1, unbiased=False)[..., None] + EPS) * w + b
    ),
    "weight on the root": lambda x, w, b: (x - mean(x)) * (w * torch.rsqrt(variance(x) + EPS)) + b,
    "scale and shift": scale_and_shift,
    "addcmul": lambda x, w, b: torch.addcmul(b, w, (x - mean(x)) * torch.rsqrt(variance(x) + EPS)),
    "squares minus square": lambda x, w, b: (x - mean(x)) * torch.rsqrt(mean(x * x) - mean(x) ** 2 + EPS) * w + b,
    "squares minus square, not below zero": lambda x, w, b: (
        (x - mean(x)) * (torch.rsqrt((mean(x.square()) - mean(x).square()).clamp(min=0) + EPS) * w) + b
    ),
    "unbiased": lambda x, w, b: w * (x - mean(x)) / torch.sqrt(x.var(-1, keepdim=True) + EPS) + b,
    "dims put back after squares minus square": lambda x, w, b: (
        (x - x.mean(-1)[..., None]) / torch.sqrt(((x**2).mean(-1) - x.mean(-1) ** 2)[..., None] + EPS) * w + b
    ),
}
NEITHER: dict[str, Callable[..., Any]] = {
    "deviation and eps": lambda x, w, b: w * (x - mean(x)) / (x.std(-1, unbiased=False, keepdim=True) + EPS) + b,
    "dims apart": lambda x, w, b: w * (x * torch.rsqrt(x.pow(2).mean((0, 2), keepdim=True) + EPS)),
    "means of two kinds": lambda x, w, b: (x - mean(x)) * torch.rsqrt(x.square().mean(1, True) - mean(x) ** 2 + 9),
    "whole tensor": lambda x, w, b: w * (x * torch.rsqrt(x.pow(2).mean() + EPS)),
    "cubes": lambda x, w, b: w * (x * torch.rsqrt(mean(x.abs().pow(3)) + EPS)),
    "another value's": lambda x, w, b: w * (x * torch.rsqrt(mean((x + b).pow(2)) + EPS)),
    "another mean": lambda x, w, b: (x - mean(x + b)) * torch.rsqrt(mean((x - mean(x)) ** 2) + EPS),
    "computed eps": lambda x, w, b: x * torch.rsqrt(mean(x.pow(2)) + b.abs()[:1]),
    "statistics of another row": lambda x, w, b: x * torch.rsqrt(mean(x.pow(2)) + EPS).reshape(3, 1, 4).mT.flip(1),
}


EPS_OUTSIDE, BOUND, NO_EPS = "outside of the root", "a bound from below", "no eps"
length = torch.linalg.vector_norm
OVERLOOKED: dict[str, tuple[Callable[..., Any], str]] = {
    "eps outside": (lambda x, w, b: x / (torch.sqrt(mean(x * x)) + EPS) * w, EPS_OUTSIDE),
    "deviation and eps": (NEITHER["deviation and eps"], EPS_OUTSIDE),
    "length and eps": (lambda x, w, b: x / (length(x, dim=-1, keepdim=True) / 8**0.5 + EPS) * w, EPS_OUTSIDE),
    "unbiased deviation": (lambda x, w, b: (x - mean(x)) / (x.std(-1, keepdim=True) + EPS), "variance is unbiased"),
    "bound": (lambda x, w, b: x / torch.sqrt(mean(x * x)).clamp(min=EPS) * w, BOUND),
    "bound under the root": (lambda x, w, b: x * torch.rsqrt(mean(x * x).clamp(min=EPS)) * w, BOUND),
    "normalize": (lambda x, w, b: torch.nn.functional.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * w, BOUND),
    "normalize by a number": (lambda x, w, b: torch.nn.functional.normalize(x, dim=-1) * 8**0.5 * w, BOUND),
    "no eps": (lambda x, w, b: x * torch.rsqrt(mean(x * x)) * w, NO_EPS),
    "length": (lambda x, w, b: x / x.norm(dim=-1, keepdim=True) * 8**0.5 * w, NO_EPS),
    "sum of squares and eps": (lambda x, w, b: x / (x.square().sum(-1, True).sqrt() * 8**-0.5 + EPS), EPS_OUTSIDE),
    "another view": (
        lambda x, w, b: (x - x.flatten(1).mean(1)[:, None, None]) / (x.flatten(1).var(1) + EPS).sqrt()[:, None, None],
        "another view",
    ),
}
NO_NORMS: dict[str, Callable[..., Any]] = {
    "unit vectors": lambda x, w, b: torch.nn.functional.normalize(x, dim=-1) * w,
    "weight norm": lambda x, w, b: x / x.norm(dim=-1, keepdim=True) * 3.0,
    "sum of amounts": lambda x, w, b: x / (x.abs().sum(-1, keepdim=True) + EPS) * 8**0.5,
    "whole tensor": lambda x, w, b: (x - x.mean()) / (x.std() + EPS),
    "softmax by hand": lambda x, w, b: x.exp() / x.exp().sum(-1, keepdim=True),
    "another value": lambda x, w, b: b / (torch.sqrt(mean(x * x)) + EPS),
}

IMAGES = normal(2, 8, 3, 5) + 0.3


def images(x):
    return x.mean((2, 3), keepdim=True)


def convnext(x, w, b):
    centered = x - x.mean(1, keepdim=True)
    root = torch.sqrt((x - x.mean(1, keepdim=True)).pow(2).mean(1, keepdim=True) + EPS)
    return w[:, None, None] * (centered / root) + b[:, None, None]


def groups(x, w, b):
    apart = x.unflatten(1, (2, 4))
    variance, average = torch.var_mean(apart, (2, 3, 4), correction=0, keepdim=True)
    return ((apart - average) * torch.rsqrt(variance + EPS)).flatten(1, 2) * w.view(-1, 1, 1) + b.view(-1, 1, 1)


OTHER_DIMS: dict[str, tuple[str, Callable[..., Any]]] = {
    "ConvNeXt": ("layer_norm", convnext),
    "scale of channels": (
        "layer_norm",
        lambda x, w, b: (
            (x - x.mean(1, True)) * (torch.rsqrt(x.var(1, unbiased=False, keepdim=True) + EPS) * w.view(1, 8, 1, 1))
        ),
    ),
    "one row": ("layer_norm", lambda x, w, b: convnext(x[..., 0, 0].unflatten(1, (8, 1, 1)), w, b)),
    "squares of channels": ("rms_norm", lambda x, w, b: x * torch.rsqrt((x**2).mean(1, True) + EPS) * w[:, None, None]),
    "pixels": ("rms_norm", lambda x, w, b: x / torch.sqrt(torch.mean(x * x, dim=1, keepdim=True) + EPS)),
    "batch": ("rms_norm", lambda x, w, b: x * torch.rsqrt(x.square().mean(0, keepdim=True) + EPS)),
    "whole samples": ("rms_norm", lambda x, w, b: x * (x.pow(2).mean((1, 2, 3), keepdim=True) + EPS).rsqrt()),
    "images": (
        "layer_norm",
        lambda x, w, b: (x - images(x)) / torch.sqrt(images((x - images(x)) ** 2) + EPS) * w[:, None, None],
    ),
    "groups": ("layer_norm", groups),
    "leading dims": (
        "layer_norm",
        lambda x, w, b: (x - x.mean((0, 1))) / torch.sqrt(x.var((0, 1), unbiased=False) + EPS),
    ),
    "means of means": (
        "layer_norm",
        lambda x, w, b: (
            (y := x - x.mean(-1, True).mean(-2, True)) * torch.rsqrt(y.square().mean(-1, True).mean(-2, True) + EPS)
        ),
    ),
}


OF_KNOWN_ROWS = ("sum", "length", "unbiased")


def declined(function: Callable[..., Any], inputs: list[Any]) -> None:
    found = rewritten(function, inputs, dynamic=True)
    assert found.count("normalization") == 0 and {"rows-of-symbolic-size", "dims-differ"} & found.codes


def check(function: Callable[..., Any], rule: str, inputs: list[Any], **options: Any) -> Any:
    found = rewritten(function, inputs, **options)
    assert found.count(rule) == found.count("normalization") == 1, found.record.near_misses
    assert "rms_norm" in found.ops and not {"rsqrt", "sqrt", "pow"} & found.ops
    assert_agrees(function, found.run, inputs)
    return found


@one_row_in(2)
@takes_turns("dynamic")
@BOTH
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", RMS_NORMS)
def test_rms_norm(name: str, training: bool, dynamic: bool) -> None:
    if dynamic and name == "product and sum":
        pytest.skip("its divisor is 8, and the size of the row a symbol")
    if dynamic and name in OF_KNOWN_ROWS:
        declined(RMS_NORMS[name], [X, W, BIAS])
        return
    check(RMS_NORMS[name], "rms_norm", trained([X, W, BIAS]) if training else [X, W, BIAS], dynamic=dynamic)


@one_row_in(2)
@takes_turns("dynamic")
@BOTH
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", LAYER_NORMS)
def test_layer_norm(name: str, training: bool, dynamic: bool) -> None:
    if dynamic and name in OF_KNOWN_ROWS:
        declined(LAYER_NORMS[name], [X, W, BIAS])
        return
    check(LAYER_NORMS[name], "layer_norm", trained([X, W, BIAS]) if training else [X, W, BIAS], dynamic=dynamic)


@one_row_in(2)
@takes_turns("dynamic")
@BOTH
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", OTHER_DIMS)
def test_other_dims(name: str, training: bool, dynamic: bool) -> None:
    rule, function = OTHER_DIMS[name]
    given = [IMAGES, W, BIAS]
    found = check(function, rule, trained(given) if training else given, dynamic=dynamic)
    result = found.run(*given)
    assert result.stride() == function(*given).stride()


@pytest.mark.parametrize("centered", [False, True])
def test_rows_of_a_product(centered: bool) -> None:
    """A product of matrices could be scores, whose views move below what follows: not below statistics of rows."""

    def function(a, b, gate, w):
        x = (a @ b).transpose(1, 2).flatten(2) * torch.sigmoid(gate)
        x = x.unflatten(-1, (1, -1))
        x = x - mean(x) if centered else x
        return w * (x * torch.rsqrt(mean(x.pow(2)) + EPS)).flatten(-2)

    check(function, "rms_norm", [normal(2, 3, 5, 5), normal(2, 3, 5, 4), normal(2, 5, 12), normal(12)])


@takes_turns("training")
@BOTH
@pytest.mark.parametrize("name", NEITHER)
def test_neither(name: str, training: bool) -> None:
    given = trained([X, W, BIAS]) if training else [X, W, BIAS]
    found = rewritten(NEITHER[name], given)
    assert found.count("normalization") == 0
    assert_agrees(NEITHER[name], found.run, given)


@one_row_in(2)
@takes_turns("dynamic")
@BOTH
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", [*OVERLOOKED, *NO_NORMS])
def test_overlooked(name: str, training: bool, dynamic: bool) -> None:
    """What differs from a norm near zero is told, in one line."""
    function, word = OVERLOOKED.get(name) or (NO_NORMS[name], "")
    given = trained([X, W, BIAS]) if training else [X, W, BIAS]
    found = rewritten(function, given, dynamic=dynamic)
    told = [miss.message for miss in found.record.near_misses if miss.code == "norm-differs"]
    assert [word in message for message in told] == [True] * bool(word), told
    assert found.count("normalization") == 0
    assert_agrees(function, found.run, given)


@takes_turns("training")
@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["Llama", "Gemma", "T5", "OLMo 2", "no weight"])
def test_half_precision(name: str, dtype: torch.dtype, training: bool) -> None:
    """The operator computes statistics in float32 by itself; Gemma's weight is in float32."""
    given = [t.to(dtype) for t in (X, W, BIAS)]
    given = trained(given) if training else given
    found = check(RMS_NORMS[name], "rms_norm", given)
    assert ("to" in found.ops) == (name == "Gemma")


def test_double_precision() -> None:
    """A cast of float64 to float32 loses digits: what is normalized is the cast, not x."""
    given = [t.double() for t in (X, W, BIAS)]
    check(RMS_NORMS["no weight"], "rms_norm", given)
    check(textbook, "layer_norm", given)
    found = rewritten(llama, given)
    assert found.count("rms_norm") == 1 and "to" in found.ops
    torch.testing.assert_close(found.run(*given), llama(*given), rtol=1e-5, atol=1e-6)


def test_weight_in_another_type() -> None:
    check(llama, "rms_norm", [X.bfloat16(), W, BIAS])
    check(cohere, "layer_norm", [X.bfloat16(), W, BIAS])


def test_statistics_of_rounded_values() -> None:
    """What is summed up has fewer digits than what is normalized."""

    def function(x):
        return x * torch.rsqrt(mean(x.bfloat16().pow(2)) + EPS)

    found = rewritten(function, [X])
    assert found.count("normalization") == 0 and "statistics-rounded" in found.codes
    torch.testing.assert_close(found.run(X), function(X))


@pytest.mark.parametrize(("name", "rule"), [("T5", rms_norm), ("plain", layer_norm)])
def test_cast_to_integers(name: str, rule: Any) -> None:
    """The cast stays behind the norm."""

    def function(*given):
        return (RMS_NORMS | LAYER_NORMS)[name](*given).to(torch.int32)

    given = [X * 3, W, BIAS]
    found = rewritten(function, given, rules=[rule])
    assert found.count("normalization") == 1 and "to" in found.ops and "cast-not-floating" in found.codes
    assert torch.equal(found.run(*given), function(*given))


@pytest.mark.parametrize("weight", [normal(4, 8), normal(4, 1), normal(1)], ids=str)
def test_weight_that_is_no_row(weight: torch.Tensor) -> None:
    """It stays a product of its own."""
    for function, rule in ((llama, "rms_norm"), (by_both, "layer_norm")):
        given = [X, weight, normal(4, 8)]
        found = rewritten(function, given)
        assert found.count(rule) == 1 and "mul" in found.ops
        assert_agrees(function, found.run, given)


def test_lone_row() -> None:
    """A batch of one token: the statistics have one element, and are no scale all the same."""
    for function, rule in ((llama, "rms_norm"), (textbook, "layer_norm")):
        check(lambda x, w, b, f=function: f(x * 3.0, w, b), rule, [X[:1, :1], W, BIAS])


def test_statistics_used_elsewhere() -> None:
    def function(x, w):
        root = torch.rsqrt(mean(x.pow(2)) + EPS)
        return w * (x * root), root

    found = rewritten(function, [X, W])
    assert found.count("normalization") == 0 and "inner-value-escapes" in found.codes
    assert_agrees(function, found.run, [X, W])


def test_eps_that_changes() -> None:
    """A symbolic number becomes a constant under a guard."""

    def function(x, w, eps):
        return w * (x * torch.rsqrt(mean(x.pow(2)) + eps))

    run, coverage = compiled(function, dynamic=True)
    with coverage:
        for eps in (1e-6, 0.5):
            torch.testing.assert_close(run(X, W, eps), function(X, W, eps))
    assert coverage.count("rms_norm") == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e15])
def test_odd_values(value: float) -> None:
    x = X.clone()
    x[0, 0, 0] = value
    for function in (llama, by_both):
        found = rewritten(function, [x, W, BIAS])
        ours, eager = found.run(x, W, BIAS), function(x, W, BIAS)
        assert torch.equal(ours.isnan(), eager.isnan())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@takes_turns("training")
@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [*RMS_NORMS, *LAYER_NORMS])
def test_on_cuda(name: str, dtype: torch.dtype, training: bool) -> None:
    """The RMS norm of rows for either, of centered ones for a layer norm."""
    given = [t.to("cuda", dtype) for t in (X, W, BIAS)]
    given = trained(given) if training else given
    found = rewritten((RMS_NORMS | LAYER_NORMS)[name], given)
    assert found.count("normalization") == 1
    assert "rms_norm" in found.ops and not {"rsqrt", "sqrt", "pow"} & found.ops
    assert ("mean" in found.ops) == (name in LAYER_NORMS)
    assert_agrees((RMS_NORMS | LAYER_NORMS)[name], found.run, given)


MODELS = {
    "Llama": ("LlamaModel", {"num_key_value_heads": 2, "num_hidden_layers": 2}, "rms_norm", 5),
    "Gemma": ("GemmaModel", {"num_key_value_heads": 2, "head_dim": 8}, "rms_norm", 3),
    "Qwen 3": ("Qwen3Model", {"num_key_value_heads": 2, "head_dim": 8}, "rms_norm", 5),
    "Cohere": ("CohereModel", {"num_key_value_heads": 2}, "layer_norm", 2),
}


@one_row_in(2)
@takes_turns("training")
@BOTH
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, training: bool) -> None:
    transformers = pytest.importorskip("transformers")
    kind, more, rule, count = MODELS[name]
    model_class = getattr(transformers, kind)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, **more}
    config = model_class.config_class(**sizes, num_attention_heads=4, max_position_embeddings=32)
    torch.manual_seed(0)
    model = model_class(config).train(training)
    ids = torch.arange(2, 26).reshape(2, 12)
    run, coverage = compiled(model, rules=("rms_norm", "layer_norm", "rotary"))
    with coverage, torch.set_grad_enabled(training):
        ours, eager = run(ids, use_cache=False)[0], model(ids, use_cache=False)[0]
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
        if training:
            weight = next(model.parameters())
            (a,), (b,) = (torch.autograd.grad(out.square().sum(), [weight]) for out in (ours, eager))
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert coverage.count(rule) == count
    assert coverage.count("rotary") == (2 * sizes["num_hidden_layers"] if name != "Cohere" or not training else 0)

"""Declaring a rule: its pattern goes through the normal form of programs, so that it matches its own source."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.nn.functional as F
from support.opinfo import operators
from support.own_source import NAME, matched_by, outcome, pattern_of, quiet
from support.thorough import one_row_in, takes_turns
from support.versions import OLD_TORCH
from torch import nn

from regraft import PatternError, Sample, T, choose, register_pattern
from regraft.compiler.tools.explain.explain import explain_all
from regraft.rewrites import rule as rules
from regraft.rewrites.sample import DEFAULT_SIZES

X, M, W, POSITIVE = T("B N"), T("B S D"), T("N D"), T("B N", values="positive")


def declare(pattern, *samples, **declaration):
    rules._declared.pop(NAME, None)
    return register_pattern(NAME, replacement=pattern, samples=samples, **declaration)(pattern)


def operands(sample, sizes=DEFAULT_SIZES):
    made = []
    for spec in sample.operands.values():
        if not isinstance(spec, T):
            made.append(spec)
            continue
        values = torch.rand(spec.shape(sizes), generator=torch.Generator().manual_seed(1)) + 0.1
        made.append((values * 2).to(spec.dtype or torch.float32))
    return made


def verdict(rule, program, *given):
    with torch.no_grad():
        return matched_by("", rule, program, given).verdict


def test_a_pattern_matches_its_own_source(subtests):
    matching = {
        "clamp(min)": (lambda x: x.clamp(min=0.5), {"x": X}),
        "maximum": (lambda x, t: torch.maximum(x, t), {"x": X, "t": X}),
        "square": (lambda x: torch.square(x), {"x": X}),
        "1 / sqrt": (lambda x: 1 / torch.sqrt(x), {"x": POSITIVE}),
        "flatten": (lambda x: x.flatten(1), {"x": M}),
        "reshape(-1)": (lambda x: x.reshape(-1), {"x": X}),
        "einsum": (lambda q, k: torch.einsum("bsd,btd->bst", q, k), {"q": M, "k": T("B T D")}),
        "dropout": (lambda x: F.dropout(torch.relu(x), 0.1, training=False), {"x": X}),
        "masked_fill": (lambda x, m: x.masked_fill(m, 0.0), {"x": X, "m": T("B N", dtype=torch.bool)}),
        "leaky_relu": (lambda x: F.leaky_relu(x), {"x": X}),
        "relu6": (lambda x: F.relu6(x), {"x": X}),
        "hardtanh": (lambda x: F.hardtanh(x), {"x": X}),
        "norm": (lambda x: x / x.norm(dim=-1, keepdim=True), {"x": X}),
        "linear": (lambda x, w, b: F.linear(x, w, b), {"x": T("B D"), "w": W, "b": T("N")}),
        "x @ w.T": (lambda x, w: x @ w.T, {"x": T("B D"), "w": W}),
        "max.values": (lambda x: x.max(-1).values, {"x": X}),
        "rsub": (lambda x: 1 - x, {"x": X}),
        "casts": (lambda x: (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, True) + 1e-6)).to(x.dtype), {"x": M}),
        "chunk": (lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], {"x": T("B D")}),
        "index": (lambda x: x[..., :4] * 2, {"x": T("B 8")}),
        "heads": (lambda x: x.view(x.shape[0], x.shape[1], 2, -1).transpose(1, 2), {"x": M}),
        "1/sqrt(d)": (lambda q, k: q @ k.mT / math.sqrt(q.size(-1)), {"q": M, "k": T("B T D")}),
        "pool": (lambda x: F.max_pool2d(x, 2), {"x": T("B 4 6 6")}),
        "interpolate": (lambda x: F.interpolate(x, scale_factor=2.0), {"x": T("B 4 6 6")}),
        "in place": (lambda x: torch.relu_(x + 1), {"x": X}),
    }
    for name, (pattern, given) in matching.items():
        with subtests.test(name):
            sample = Sample(**given)
            assert verdict(declare(pattern, sample), pattern, *operands(sample)) == "matched"


def test_modules_without_weights_work_and_others_are_refused():
    sample = Sample(x=T("B 6"))
    pattern = lambda x: torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Sigmoid())(x)  # noqa: E731
    assert verdict(declare(pattern, sample), lambda x: torch.sigmoid(F.silu(x)), *operands(sample)) == "matched"
    with pytest.raises(PatternError, match="it makes a Linear, whose weight is new at each call"):
        declare(lambda x: torch.nn.Linear(6, 3)(x), sample)
    layer = torch.nn.Linear(6, 3)
    with pytest.raises(PatternError, match="it reads a tensor that is none of its parameters, such as the weight"):
        declare(lambda x: layer(x), sample)


ROWS = T("2 N")
PYTHON = {
    "unpacked": (lambda x: (lambda p, q: p + q)(*x), ROWS),
    "a sum of rows": (lambda x: sum(x), ROWS),
    "rows in a list": (lambda x: torch.stack(list(x)[::-1]), ROWS),
    "a loop over rows": (lambda x: torch.stack([row * 2 for row in x], -1), ROWS),
    "unbind": (lambda x: x.unbind(1)[0] * 2, T("N 3")),
    "from the end": (lambda x: x[-1] - x[0], ROWS),
    "steps": (lambda x: x[:, ::2] + 1, X),
    "new dims": (lambda x: x[..., None] * x[:, None], X),
    "built-ins": (lambda x: abs(x) ** 0.5, X),
    "a comparison as a factor": (lambda x: (x > 0) * x, X),
    "a tensor of a number": (lambda x: x * torch.tensor(2.0), X),
    "a table of sizes": (lambda x: torch.arange(x.shape[1]) * x, X),
}


@one_row_in(2)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PYTHON)
def test_python_is_matched_as_torch_compile_sees_it(name, dynamic):
    """Dynamo writes Python's loops and subscripts otherwise than tracing does."""
    pattern, spec = PYTHON[name]
    rule = declare(pattern, Sample(x=spec))
    torch.compiler.reset()
    shape = spec.shape(DEFAULT_SIZES | {"N": 9})
    options = {"rules": (rule,), "profit": "always", "strict": True}
    (found,) = explain_all((rule,), pattern, torch.rand(shape), options=options, dynamic=dynamic)
    assert len(found.matches) == 1, str(found)


def test_numbers_bind_what_samples_give(subtests):
    for name, pattern, given, other in (
        ("a quotient", lambda x, c: x / c, 7.0, 3.0),
        ("a difference", lambda x, c: x - c, 7.0, 3.0),
        ("a slope", lambda x, c: F.leaky_relu(x, c), 0.2, 0.7),
        ("a dim", lambda x, c: torch.softmax(x, c), -1, 0),
        ("a flag", lambda x, c: x - x.mean(-1, keepdim=c).sum(), True, False),
        ("a list", lambda x, c: torch.relu(x.permute(c)), [0, 2, 1], [2, 0, 1]),
        ("text", lambda x, c: F.gelu(x, approximate=c), "tanh", "none"),
    ):
        with subtests.test(name):
            sample = Sample(x=M, c=given)
            rule = declare(pattern, sample, numbers=["c"])
            assert rule.variables[1].number
            x = operands(sample)[0]
            for value in (given, other):
                assert verdict(rule, lambda x, p=pattern, v=value: p(x, v), x) == "matched"


def test_products_with_weights_match_in_either_spelling():
    x, w, b = torch.randn(2, 8), torch.randn(6, 8), torch.randn(6)
    plain = declare(lambda x, w: F.linear(x, w), Sample(x=T("B D"), w=W))
    assert verdict(plain, lambda x, w: x @ w.T, x, w) == "matched"
    transposed = declare(lambda x, w: x @ w.T, Sample(x=T("B D"), w=W))
    assert verdict(transposed, F.linear, x, w) == "matched"
    biased = declare(lambda x, w, b: x @ w.T + b, Sample(x=T("B D"), w=W, b=T("N")))
    assert verdict(biased, F.linear, x, w, b) == "matched"
    assert verdict(biased, lambda x, w, r: x @ w.T + r, x, w, torch.randn(2, 6)) == "silent"  # a residual is no bias


def test_a_traced_pattern_fires_only_where_it_is_what_was_traced(subtests):
    flat = declare(lambda x: x.flatten(1), Sample(x=M))
    with subtests.test("other sizes"):
        assert verdict(flat, lambda x: x.reshape(3, 20), torch.randn(3, 4, 5)) == "matched"
    with subtests.test("another reshape"):
        assert verdict(flat, lambda x: x.reshape(12, 5), torch.randn(3, 4, 5)) == "silent"
    with subtests.test("another rank"):
        assert verdict(flat, lambda x: x.flatten(1), torch.randn(3, 4, 5, 2)) == "silent"
    with subtests.test("more dims, where that is the same"):
        clamped = declare(lambda x: x.clamp(min=0.5), Sample(x=X))
        assert verdict(clamped, lambda x: x.clamp(min=0.5), torch.randn(3, 4, 5)) == "matched"
    with subtests.test("a branch on a size"):
        wide = declare(lambda x: x.flatten(1) if x.shape[0] > 1 else x.flatten(0), Sample(x=M))
        assert verdict(wide, lambda x: x.flatten(1), torch.randn(3, 4, 5)) == "matched"
    with subtests.test("a number that normal form computes with"):
        scaled = declare(lambda x, c: x / c * 3, Sample(x=X, c=2.0), numbers=["c"])
        assert verdict(scaled, lambda x: x / 2.0 * 3, torch.randn(3, 4)) == "matched"
        assert verdict(scaled, lambda x: x / 5.0 * 3, torch.randn(3, 4)) == "silent"
    with subtests.test("another dtype"):
        upcast = declare(lambda x: torch.relu(x.float()), Sample(x=X))
        assert verdict(upcast, lambda x: torch.relu(x.float()), torch.randn(3, 4).bfloat16()) == "matched"
        assert verdict(upcast, lambda x: torch.relu(x), torch.randn(3, 4).bfloat16()) == "silent"


def test_alternatives_of_what_cannot_be_recorded_are_those_of_samples():
    def pattern(x):
        return choose("how", six=lambda: F.relu6(x), tanh=lambda: F.hardtanh(x))

    with pytest.raises(PatternError, match="no sample takes how=tanh"):
        declare(pattern, Sample(x=X))
    rule = declare(pattern, *(Sample(x=X, tags={"how": how}) for how in ("six", "tanh")))
    assert rule.tags == {"how": ("six", "tanh")}
    assert verdict(rule, F.hardtanh, torch.randn(2, 3)) == "matched"


@pytest.mark.parametrize(
    ("pattern", "given", "why"),
    [
        (nn.Linear(6, 4), {"x": T("B 6")}, "make it a parameter"),
        (lambda x: x.nonzero(), {"x": X}, "known only when it runs"),
        (lambda x: x.contiguous(), {"x": X}, "no operator computes"),
        (lambda x, y: x.reshape_as(y), {"x": T("D"), "y": T("2 4")}, "never uses y"),
        (lambda x, y: x.reshape_as(y), {"x": T("N"), "y": T("B M"), "sizes": {"N": 8}}, "reads the size of y"),
        (lambda x: x.relu() if x.sum() > 0 else x, {"x": X}, "may not branch on an operand"),
        (lambda x: x.relu() if x.sum().item() > 0 else x, {"x": X}, "may not branch on an operand"),
        (lambda x: x * torch.tensor(x.tolist()), {"x": T("3")}, "needs the value of an operand"),
        (lambda x: torch.vmap(torch.sin)(x), {"x": X}, "functional" if OLD_TORCH else "torch.vmap"),
        (lambda x: x.copy_(x + 1), {"x": X}, "functional"),
        (lambda x, y: x.relu(), {"x": X, "y": X}, "never uses y"),
        (lambda x: x.relu(), {"x": 3.0}, "x binds tensors"),
    ],
)
def test_what_is_no_pattern_is_refused_with_a_reason(pattern, given, why):
    function = pattern if not isinstance(pattern, nn.Module) else lambda x: pattern(x)
    with quiet(), pytest.raises(PatternError, match=why):
        declare(function, Sample(**given))


def test_no_operator_is_silent_on_its_own_source(subtests):
    """A sample; `benchmarks/patterns.py` takes all operators and their methods."""
    with quiet():
        for name in random.Random(0).sample(sorted(operators()), 16):
            op = operators()[name]
            samples = list(op.sample_inputs("cpu", torch.float32)) if torch.float32 in op.dtypes else ()
            if not samples:
                continue
            sample = samples[0]
            pattern, given = pattern_of(op.op, (sample.input, *sample.args), sample.kwargs)
            with subtests.test(name):
                assert not given or outcome(name, pattern, given).verdict != "silent"


def test_an_operand_that_a_sample_leaves_out_is_named():
    """The sample is shown as it was written."""
    message = r'traced on Sample\(x=T\("... N"\)\): TypeError: .* \(the sample gives no eps, None there\)'
    with pytest.raises(PatternError, match=message):
        declare(lambda x, eps: torch.rsqrt(x + eps), Sample(x=T("... N")), numbers=["eps"])


def test_products_under_alternatives_match_in_either_spelling():
    def pattern(x, w):
        y = torch.nn.functional.linear(x, w)
        return choose("after", relu=lambda: torch.relu(y), tanh=lambda: torch.tanh(y))

    rule = declare(pattern, *(Sample(x=X, w=T("M N"), tags={"after": after}) for after in ("relu", "tanh")))
    assert verdict(rule, lambda x, w: torch.tanh(x @ w.T), torch.randn(2, 3), torch.randn(4, 3)) == "matched"


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda f: register_pattern(f), "takes arguments"),
        (lambda f: register_pattern()(f), "needs a name, not None"),
        (lambda f: register_pattern(3, replacement=f, samples=[])(f), "needs a name, not 3"),
        (lambda f: register_pattern("bare")(f), "'bare' has no replacement and no samples"),
        (lambda f: register_pattern("bare", replacement=f)(f), "'bare' has no samples"),
    ],
)
def test_a_decorator_without_arguments_says_how_to_write_it(declare, message) -> None:
    with pytest.raises(PatternError, match=message) as raised:
        declare(lambda x: x)
    assert "@register_pattern('name', replacement=function" in str(raised.value)

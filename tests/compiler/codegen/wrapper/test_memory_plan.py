"""Reuse of dead memory: where it happens, where it must not, and that results keep every bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thorough import examples, one_row_in, takes_turns
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.codegen.wrapper.memory_plan import plan_memory
from regraft.compiler.codegen.wrapper.wrapper import generate

aten = torch.ops.aten


def traced(function, *inputs, mode="fake"):
    return make_fx(function, tracing_mode=mode)(*inputs)


def reuses(function, *inputs, mode="fake"):
    """``{result: operand}`` by name."""
    plan = plan_memory(traced(function, *inputs, mode=mode).graph)
    return {n.name: r.operand.name for n, r in plan.reuses.items()}


X = torch.randn(4, 4)


@pytest.mark.parametrize(("name", "function", "expected"), [
    ("a chain", lambda x: x.exp().neg().tanh(), {"neg": "exp", "tanh": "neg"}),
    ("first operand", lambda x: x.exp() + x, {"add": "exp"}),
    ("second operand", lambda x: x - x.exp(), {"sub": "exp"}),
    ("both operands the same", lambda x: (lambda e: e * e)(x.exp()), {"mul": "exp"}),
    ("a scalar", lambda x: x.exp() * 2, {"mul": "exp"}),
    ("broadcast into the operand", lambda x: x.exp() / x[0], {"div": "exp"}),
    ("a view of all of it", lambda x: x.exp().view(2, 8).relu(), {"relu": "view"}),
    ("a transposed view", lambda x: x.exp().t().sigmoid(), {"sigmoid": "t"}),
    ("activations", lambda x: F.gelu(F.silu(x.exp())), {"silu": "exp", "gelu": "silu"}),
    ("a product on top of it", lambda x: torch.addmm(x.exp(), x, x), {"addmm": "exp"}),
    ("a product on top of what it reads", lambda x: (lambda e: torch.addmm(e, e, x))(x.exp()), {}),
    ("a product on top of a row", lambda x: torch.addmm(x[0].exp(), x, x), {}),
    ("an input", lambda x: x.neg(), {}),
    ("a view of an input", lambda x: x.view(-1).neg(), {}),
    ("an output", lambda x: (lambda e: (e, e.neg()))(x.exp()), {}),
    ("a base of an output", lambda x: (lambda e: (e.view(-1), e.neg()))(x.exp()), {}),
    ("read later", lambda x: (lambda e: e.neg() + e)(x.exp()), {"add": "neg"}),
    ("an alias read later", lambda x: (lambda e: e.neg() + e.view(16).sum())(x.exp()), {"add": "neg"}),
    ("another dtype", lambda x: (x.exp() > 0) + x, {}),
    ("another shape", lambda x: x[0].exp() + x, {}),
    ("a part", lambda x: x.exp()[1:].neg().sum(), {}),
    ("expanded", lambda x: x[:1].exp().expand(4, 4).neg().sum(), {}),
    ("other strides", lambda x: x + x.exp().t(), {}),
    ("an overlapping view of itself", lambda x: (lambda e: e + e.t())(x.exp()), {}),
    ("no known maker", lambda x: aten.copy(x, x.exp()).neg(), {}),
    ("a constant", lambda x: torch.tensor([1.0, 2.0]).neg(), {"neg": "lift_fresh_copy"}),
])  # fmt: skip
def test_where(name, function, expected):
    if "lift_fresh_copy" in expected.values():
        expected = {}  # a copy of a constant is fresh, but not known as such
    assert reuses(function, X) == expected


def test_complex_and_integer():
    assert reuses(lambda x: x.exp().neg(), X.to(torch.complex64)) == {}
    assert reuses(lambda x: (x + 1) * 3, X.long()) == {"mul": "add"}
    assert reuses(lambda x: (x + 1) / 3, X.long()) == {}


def test_symbolic_shapes():
    assert reuses(lambda x: x.exp() + x, X, mode="symbolic") == {"add": "exp"}
    assert reuses(lambda x, y: x.exp() + y, torch.randn(3, 5), torch.randn(5), mode="symbolic") == {"add": "exp"}


def test_a_write_counts_as_a_read():
    assert reuses(lambda x: (e := x.exp(), v := e.view(-1), n := e.neg(), v.add_(1), n + v.sum())[-1], X) == {
        "add": "neg"
    }


def test_user_streams_switch_reuse_off():
    gm = traced(lambda x: x.exp().neg(), X)
    gm.graph.find_nodes(op="call_function", target=aten.exp.default)[0].meta["val"] = X
    assert plan_memory(gm.graph).reuses
    node = gm.graph.find_nodes(op="call_function", target=aten.neg.default)[0]

    def sync():
        """Stands for an operator of `torch.ops.streams`."""

    sync.namespace = "streams"
    with gm.graph.inserting_before(node):
        gm.graph.call_function(sync)
    assert not plan_memory(gm.graph).reuses


def test_peak():
    plan = plan_memory(traced(lambda x: x.exp().neg().tanh().sum(), X).graph)
    assert (plan.peak_before, plan.peak_after) == (128, 68)
    plan = plan_memory(traced(lambda x: x.exp().neg().tanh(), X, mode="symbolic").graph)
    assert (plan.peak_before, plan.peak_after) == (128, 64)


# Random programs: each step takes values made so far; whatever torch refuses to run is no program.
UNARY = [torch.exp, torch.neg, torch.relu, torch.tanh, torch.sigmoid, F.silu, F.gelu]
BINARY = [torch.add, torch.sub, torch.mul, torch.div, lambda a, b: torch.add(a, b, alpha=2), lambda a, b: a - 3]
VIEWS = [
    lambda a: a.t() if a.dim() <= 2 else a.mT, lambda a: a.view(-1), lambda a: a[:1], lambda a: a[..., 1:],
    lambda a: a.unsqueeze(0), lambda a: a.reshape(3, -1), lambda a: a.expand(3, *a.shape), lambda a: a.view(3, -1).t(),
    lambda a: aten._unsafe_view(a, [-1]), lambda a: a.detach(), lambda a: a.split(1)[0], lambda a: a.chunk(3, -1)[1],
]  # fmt: skip
OTHER = [
    lambda a, b: a @ b, lambda a, b: a.sum(-1, keepdim=True), lambda a, b: a.softmax(-1), lambda a, b: a.clone(),
    lambda a, b: a.to(torch.float64), lambda a, b: a.max(-1)[0], lambda a, b: torch.cat([a, b]),
    lambda a, b: torch.where(a > 0, a, b), lambda a, b: torch.var_mean(a, -1)[1], lambda a, b: aten.copy(a, b),
]  # fmt: skip
WRITES = [lambda a, b: a.add_(b), lambda a, b: a.relu_(), lambda a, b: a.mul_(2), lambda a, b: a.copy_(b)]
STEPS = st.tuples(
    st.sampled_from(["unary", "binary", "binary", "view", "other", "write"]),
    st.integers(0, 11), st.integers(0, 5), st.integers(0, 5),
)  # fmt: skip


def program(steps, outputs):
    """A function of three tensors; refers to values from the newest back, so that chains are likely."""

    def run(*inputs):
        values = list(inputs)
        for kind, which, i, j in steps:
            a, b = values[-1 - i % len(values)], values[-1 - j % len(values)]
            if kind == "unary":
                values.append(UNARY[which % len(UNARY)](a))
            elif kind == "view":
                values.append(VIEWS[which % len(VIEWS)](a))
            else:
                table = {"binary": BINARY, "other": OTHER, "write": WRITES}[kind]
                values.append(table[which % len(table)](a, b))
        return [values[-1 - k % len(values)] for k in outputs]

    return run


def inputs():
    generator = torch.Generator().manual_seed(0)
    first, second, third = (torch.randn(shape, generator=generator) for shape in [(3, 3), (3, 3), (3,)])
    second[0, 0], second[1, 1], first[2, 2] = float("nan"), -0.0, float("inf")
    return [first, second, third]


def layout(tensor):
    """Dtype, shape and strides; strides of dims of size 1 mean nothing, and fake ones differ from real ones."""
    return tensor.dtype, tensor.shape, [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]


def bits(tensor):
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).view(-1).view(torch.uint8)


@settings(max_examples=examples(100, 300), deadline=None)
@given(st.lists(STEPS, min_size=2, max_size=12), st.lists(st.integers(0, 11), min_size=1, max_size=3))
def test_random_programs_keep_every_bit(steps, outputs):
    function = program(steps, outputs)
    try:
        gm = traced(function, *inputs())
    except (RuntimeError, IndexError, ValueError, TypeError):
        return
    left, right = inputs(), inputs()
    try:
        expected = fx.Interpreter(gm).run(*left)
    except RuntimeError:
        return
    wrapper = generate(gm, name="g")
    actual = wrapper.call(list(right))
    for a, e in zip([*actual, *right], [*expected, *left], strict=True):
        assert layout(a) == layout(e), wrapper.source
        assert torch.equal(bits(a), bits(e)), wrapper.source
    assert wrapper.stats.peak_after <= wrapper.stats.peak_before


def test_peak_of_values_that_only_might_share_memory():
    """`aten.copy` may return what it is given: the sets of both operands become one, of several pieces of memory."""

    def function(x, y):
        early, late = torch.exp(x), torch.neg(torch.exp(y))
        return torch.relu(x), aten.copy(late.t(), early)

    stats = generate(traced(function, *inputs()[:2]), name="g").stats
    assert stats.reused == 1 and stats.peak_after <= stats.peak_before


def test_random_programs_do_reuse():
    """The property above would hold of a plan that never reuses; this program is one of its kind."""
    steps = [("unary", 0, 0, 0), ("view", 1, 0, 0), ("binary", 2, 0, 0), ("unary", 1, 0, 0)]
    gm = traced(program(steps, [0]), *inputs())
    assert generate(gm, name="g").stats.reused == 2


@one_row_in(3)
@takes_turns("dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [0, 1, 7, 1000, 40000])
@pytest.mark.parametrize("function", [*UNARY, *BINARY[:5]])
def test_in_place_forms_give_the_same_bits(function, dtype, size):
    x = (torch.randn(size, dtype=torch.float64) * 4).to(dtype)
    y = torch.randn(size, dtype=torch.float64).to(dtype)
    binary = function not in UNARY
    for gm in (
        traced((lambda a, b: function(a.clone(), b)) if binary else (lambda a, b: function(a.clone())), x, y),
        traced((lambda a, b: function(a, b.clone())) if binary else (lambda a, b: function(a.clone())), x, y),
    ):
        wrapper = generate(gm, name="g")
        assert wrapper.stats.reused == 1
        expected = fx.Interpreter(gm).run(x, y)
        assert torch.equal(bits(wrapper.call([x, y])), bits(expected))

"""Keys of compilations: equal for equal programs, different for whatever the code depends on."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation
from torch._ops import HigherOrderOperator
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from regraft.compiler.options import Options
from regraft.compiler.runtime.graph_cache.key import graph_key
from regraft.rewrites import rule
from regraft.rewrites.reason import Reason
from regraft.rewrites.rule import register_pattern
from regraft.rewrites.sample import Sample, T


def key(function=lambda x: torch.relu(x) + 1, *inputs, options=None):
    inputs = inputs or (torch.randn(4, 8),)
    return graph_key(fx.symbolic_trace(function), inputs, options or Options())


def test_equal_programs_have_equal_keys():
    assert key() == key()


@pytest.mark.parametrize(
    "other",
    [
        lambda: key(lambda x: torch.relu(x) + 2),
        lambda: key(lambda x: torch.relu(x) + 1.0),
        lambda: key(lambda x: torch.sigmoid(x) + 1),
        lambda: key(lambda x: torch.relu(x) + 1, torch.randn(4, 9)),
        lambda: key(lambda x: torch.relu(x) + 1, torch.randn(8, 4).t()),
        lambda: key(lambda x: torch.relu(x) + 1, torch.randn(4, 8).double()),
        lambda: key(lambda x: torch.relu(x) + 1, torch.randn(4, 8, requires_grad=True)),
        lambda: key(options=Options(nan="safe")),
        lambda: key(options=Options(profit="never")),
    ],
)
def test_what_the_code_depends_on_is_in_the_key(other):
    assert other() != key()


def test_inputs_that_share_memory_are_told_apart():
    x, y = torch.randn(4), torch.randn(4)
    assert key(lambda x, y: x + y, x, y) != key(lambda x, y: x + y, x, x)


def test_threads_are_in_the_key():
    before, threads = key(), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert key() != before
    finally:
        torch.set_num_threads(threads)


def test_constants_count_by_their_content():
    def holding(value):
        graph = fx.Graph()
        x = graph.placeholder("x")
        graph.output((graph.call_function(torch.add, (x, graph.get_attr("c"))),))
        return graph_key(fx.GraphModule({"c": value}, graph), (torch.randn(3),), Options())

    assert holding(torch.ones(3)) == holding(torch.ones(3)) != holding(torch.zeros(3))
    assert isinstance(holding(torch.ones(1 << 20)), Reason)


def test_what_the_program_writes_to_counts_by_its_form():
    def holding(value, write):
        graph = fx.Graph()
        x, held = graph.placeholder("x"), graph.get_attr("c")
        graph.output((write(graph, held, x),))
        return graph_key(fx.GraphModule({"c": value}, graph), (torch.randn(3),), Options())

    def method(graph, held, x):
        return graph.call_method("add_", (held, x))

    def listed(graph, held, x):
        return graph.call_function(torch._foreach_add_, ([held], [x]))

    def read(graph, held, x):
        return graph.call_method("add_", (x, held))

    ones, zeros = torch.ones(3), torch.zeros(3)
    for write in (method, listed):
        assert holding(ones, write) == holding(zeros, write) != holding(zeros.double(), write)
        assert isinstance(holding(torch.ones(1 << 20), write), str)
    assert holding(ones, read) != holding(zeros, read)


def test_code_that_a_key_cannot_hold_has_none():
    def mine(x):
        return x + 1

    graph = fx.Graph()
    graph.output((graph.call_function(mine, (graph.placeholder("x"),)),))
    refusal = graph_key(fx.GraphModule({}, graph), (torch.randn(3),), Options())
    assert isinstance(refusal, Reason) and "mine" in refusal.message


LIBRARY = torch.library.Library("keys", "DEF")
LIBRARY.define("composed(Tensor x) -> Tensor")
LIBRARY.impl("composed", lambda x: x + 1, "CompositeImplicitAutograd")


class Own(HigherOrderOperator):
    def __call__(self, x):
        return super().__call__(x)


@pytest.mark.parametrize(
    "target", [torch.ops.keys.composed, torch.ops.keys.composed.default, triton_kernel_wrapper_mutation, Own("own")]
)
def test_operators_of_users_have_none(target):
    """Capture decomposes them, AOTAutograd traces their backward, and kernels of users go by numbers."""
    graph = fx.Graph()
    graph.output((graph.call_function(target, (graph.placeholder("x"),)),))
    refusal = graph_key(fx.GraphModule({}, graph), (torch.randn(3),), Options())
    assert isinstance(refusal, Reason) and "whose code is not part of the key" in refusal.message


@pytest.mark.parametrize("target", [torch.ops.aten.relu.default, torch.ops.aten.relu, torch.ops.quantized.linear])
def test_operators_of_torch_have_one(target):
    graph = fx.Graph()
    graph.output((graph.call_function(target, (graph.placeholder("x"),)),))
    assert isinstance(graph_key(fx.GraphModule({}, graph), (torch.randn(3),), Options()), str)


def test_functions_of_torch_have_one_whatever_made_them():
    """Those that another function makes are closures (`max_pool2d`, which may give indices); each has its own."""
    public = {name: f for name, f in vars(torch.nn.functional).items() if callable(f) and not name.startswith("_")}
    functions = {name: f for name, f in public.items() if getattr(f, "__module__", "") == torch.nn.functional.__name__}
    made = {}
    for name, function in functions.items():
        if isinstance(function, type):
            continue
        graph = fx.Graph()
        graph.output((graph.call_function(function, (graph.placeholder("x"),)),))
        made[name] = graph_key(fx.GraphModule({}, graph), (torch.zeros(3),), Options())
    assert "max_pool2d" in made and not [name for name, key in made.items() if isinstance(key, Reason)]
    closures = [name for name in made if "<locals>" in functions[name].__qualname__]
    assert len({made[name] for name in closures}) == len(closures) > 5


def test_policies_of_checkpoints_have_none():
    def body(x):
        return torch.sin(x).cos()

    def key_of(**options):
        keys = []

        def note(gm, inputs):
            keys.append(graph_key(gm, inputs, Options()))
            return gm

        torch._dynamo.reset()
        x = torch.randn(3, requires_grad=True)
        torch.compile(lambda x: checkpoint(body, x, use_reentrant=False, **options), backend=note)(x)
        return keys[0]

    policy = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.sin.default])
    assert isinstance(key_of(), str) and isinstance(key_of(context_fn=policy), Reason)


def test_an_edited_operator_is_not_recalled(tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    for slope in (2.0, 3.0):

        @torch.library.custom_op("keys::edited", mutates_args=())
        def edited(x: torch.Tensor) -> torch.Tensor:
            return x.sin()

        edited.register_fake(torch.empty_like)
        edited.register_autograd(lambda ctx, g: g * slope, setup_context=lambda ctx, inputs, output: None)  # noqa: B023
        torch.compiler.reset()
        x = torch.zeros(3, requires_grad=True)
        torch.compile(lambda x: torch.ops.keys.edited(x) * 2, backend="regraft")(x).sum().backward()
        assert torch.equal(x.grad, torch.full((3,), 2 * slope))


def test_edited_rules_are_not_recalled_under_their_names(tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)

    def pattern(x):
        return torch.relu(x).sinh()

    for factor in (2.0, 3.0):
        replacement = functools.partial(lambda x, factor: torch.relu(x).sinh() * factor, factor=factor)
        monkeypatch.setattr(rule, "_declared", {})
        register_pattern("edited", replacement=replacement, samples=[Sample(x=T("N"))])(pattern)
        torch.compiler.reset()
        compiled = torch.compile(pattern, backend="regraft", options={"rules": ("edited",), "profit": "always"})
        torch.testing.assert_close(compiled(torch.ones(3)), pattern(torch.ones(3)) * factor)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.vmap, torch.func.jacrev])
def test_inputs_within_a_transformation_have_none(transform):
    found = []

    def inner(x):
        found.append(key(lambda x: torch.relu(x) + 1, x))
        return x.sum()

    transform(inner)(torch.randn(3))
    assert isinstance(found[0], Reason)


def test_what_is_compiled_for_one_value_of_a_float_is_not_recalled_for_another(tmp_path, monkeypatch):
    """AOTAutograd fixes symbolic floats where it can't compute with them, by a guard that a recalled graph lacks."""
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)
    torch.compiler.reset()
    compiled = torch.compile(lambda x, f: (torch.full((3,), f), x * f), backend="regraft")
    x = torch.randn(3)
    for number in (-3.5, 0.0, 1.0, 7.25, 0.0):
        full, product = compiled(x, number)
        torch.testing.assert_close((full, product), (torch.full((3,), number), x * number))


@pytest.mark.parametrize("mode", ["circular", "constant"])
def test_what_is_compiled_for_one_value_of_a_tensor_is_not_recalled_for_another(mode, tmp_path, monkeypatch):
    """Dynamo fixes a number that it reads from a tensor, by a guard that a recalled graph lacks: here a width of 0."""
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("REGRAFT_DISABLE_CACHE", raising=False)

    def padded(x, width):
        return torch.nn.functional.pad(x.sin(), (width, 0), mode=mode) * 2

    torch._dynamo.reset()
    x, compiled = torch.randn(2, 3, 5), torch.compile(padded, backend="regraft", fullgraph=True)
    for width in map(torch.tensor, (0, 1, 3)):
        torch.testing.assert_close(compiled(x, width), padded(x, width))


def test_methods_of_tensors_that_users_replace_have_none(monkeypatch):
    known = key(lambda x: x.sin())
    assert isinstance(known, str)
    for method in (torch.Tensor.cos, lambda x: x + 1):
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "sin", method, raising=False)
            assert isinstance(key(lambda x: x.sin()), Reason)
    assert key(lambda x: x.sin()) == known


def test_errors_instead_of_warnings_are_in_the_key():
    """Of algorithms that are not deterministic."""
    known = key()
    try:
        torch.use_deterministic_algorithms(True)
        raises = key()
        torch.use_deterministic_algorithms(True, warn_only=True)
        assert len({known, raises, key()}) == 3
    finally:
        torch.use_deterministic_algorithms(False)

"""The walk over a graph: names, views, calls that stay, writes to inputs, what is refused."""

from __future__ import annotations

import operator

import pytest
import torch
from support.lowering import agree, compare, fresh, lowered, run, trace
from support.thorough import one_row_in

import regraft
from regraft.compiler.ir.program import Definition, Extern
from regraft.compiler.lowering import core, lower
from regraft.compiler.lowering.fallbacks import REASONS
from regraft.compiler.schedule.dependences import effects
from regraft.rewrites.faults import Faults
from regraft.rewrites.record import GraphRecord

aten = torch.ops.aten
X = torch.linspace(-2, 2, 12).reshape(3, 4)


def definitions(made):
    return [item for item in made.program.items if isinstance(item, Definition)]


def externs(made):
    return [item for item in made.program.items if isinstance(item, Extern)]


def codes(made):
    assert all(kept.code in REASONS for kept in made.kept)
    return {kept.operator: kept.code for kept in made.kept}


def test_a_buffer_has_the_name_of_its_node_and_views_have_none():
    made = agree(lambda x: (x.relu().t(), x.view(-1)[2:]), X)
    assert set(made.program.buffers) == {"arg0_1", "relu"}
    assert made.views == {"t": "relu", "view": "arg0_1", "slice_1": "arg0_1"}
    assert set(made.program.outputs) == {"relu", "arg0_1"}


def test_a_call_that_stays_reads_the_bases_of_its_views():
    made = agree(lambda x, y: (x.relu().t() @ y).exp(), X, X, extern={"aten.mm.default"})
    call = externs(made)[0]
    assert (call.reads, call.writes, call.reason, call.pure) == (("relu", "arg1_1"), ("mm",), "library", True)
    assert [item.name for item in made.program.items] == ["relu", "mm", "exp"]


def test_results_of_a_tuple_have_the_names_of_those_that_take_them():
    made = lowered(lambda x: torch.sort(x.relu())[0] + 1, X)
    (call,) = externs(made)
    assert call.writes == ("getitem",)
    made = agree(lambda x: torch.max(x + 1, 1), X)
    assert {"add", "getitem", "getitem_1"} <= set(made.program.buffers)
    assert not made.views


def test_writes_to_inputs_are_stores():
    def function(x, y):
        before = y + 1
        y.copy_(x[0])
        return before, y * 2

    made = agree(function, X, torch.ones(4))
    assert definitions(made)[-1].stores[0].buffer == "arg1_1"


def written_back(module, value):
    """The graph of `module` with ``copy_(input, value)`` at its end."""
    graph = module.graph
    into = next(iter(graph.nodes))
    with graph.inserting_before(graph.output_node()):
        node = graph.call_function(aten.copy_.default, (into, value))
    node.meta["val"] = into.meta["val"]
    return module


def last_call(module):
    return module.graph.output_node().args[0]


def test_a_write_of_a_view_of_what_is_written_takes_a_copy_first():
    x = torch.arange(9.0).reshape(3, 3)
    module = trace(lambda x: x.t(), x)
    written_back(module, last_call(module))
    made = lower(module, strict=True)
    assert len(definitions(made)) == 2
    own = fresh([x])
    run(module, made, own)
    compare(own[0], x.t().contiguous())


def test_an_input_written_to_itself_costs_nothing():
    module = trace(lambda x: x + 1, X)
    written_back(module, next(iter(module.graph.nodes)))
    assert [d.name for d in definitions(lower(module))] == ["add"]


def test_in_place_calls_stay_and_say_what_they_write():
    module = trace(lambda x: x + 1, X)
    add = last_call(module)
    with module.graph.inserting_after(add):
        inplace = module.graph.call_function(aten.mul_.Tensor, (add, 3))
    inplace.meta["val"] = add.meta["val"]
    module.graph.output_node().args = (inplace,)
    made = lower(module, strict=True)
    (call,) = externs(made)
    assert (call.reason, call.writes, call.pure) == ("mutation", ("add",), False)
    assert made.views == {call.name: "add"}
    compare(run(module, made, [X]), (X + 1) * 3)


def test_a_lowering_that_refuses_leaves_nothing_behind(monkeypatch):
    def half_made(low, x):
        low.pointwise(x.at, x.sizes, x.dtype)
        raise core.Unlowered("arguments", "on second thought")

    monkeypatch.setitem(core.LOWERINGS, "aten.relu", half_made)
    made = agree(lambda x: x.relu() + 1, X, extern={"aten.relu.default"})
    assert set(made.program.buffers) == {"arg0_1", "relu", "add"}
    assert codes(made) == {"aten.relu.default": "arguments"}


def test_a_lowering_that_fails_is_a_call_for_users_and_an_error_in_tests(monkeypatch, caplog):
    def broken(low, x):
        return low.nothing_of_the_kind

    monkeypatch.setitem(core.LOWERINGS, "aten.relu", broken)
    module = trace(torch.relu, X)
    made = lower(module)
    assert codes(made) == {"aten.relu.default": "failed"}
    compare(run(module, made, [X]), X.relu())
    record = GraphRecord("broken")
    assert codes(lower(module, faults=Faults(record))) == {"aten.relu.default": "failed"}
    (fault,) = record.fallbacks
    assert fault.code == "lowering-failed" and "lowering of aten.relu.default failed" in fault.message
    with pytest.raises(AttributeError):
        lower(module, strict=True)


def test_wrong_metadata_is_found(monkeypatch):
    monkeypatch.setitem(core.LOWERINGS, "aten.relu", lambda low, x: low.pointwise(x.at, x.sizes, torch.float64))
    module = trace(torch.relu, X)
    assert codes(lower(module)) == {"aten.relu.default": "metadata"}
    with pytest.raises(AssertionError, match="float64"):
        lower(module, strict=True)


def test_temporaries_give_way_to_the_result(monkeypatch):
    def two_steps(low, x):
        first = low.pointwise(x.at, x.sizes, x.dtype)
        return low.pointwise(first.at, x.sizes, x.dtype)

    monkeypatch.setitem(core.LOWERINGS, "aten.abs", two_steps)
    made = agree(lambda x: x.exp().abs().relu(), X)
    _, first, second, _ = definitions(made)
    assert second.stores[0].buffer == "abs_1"
    assert first.stores[0].buffer not in ("abs_1", "relu")


def test_a_view_of_memory_that_a_lowering_made_is_copied(monkeypatch):
    def turned(low, x):
        made = low.pointwise(lambda i: x.at(i[::-1]), x.sizes[::-1], x.dtype)
        return made.viewed(x.sizes, lambda i: i[::-1])

    monkeypatch.setitem(core.LOWERINGS, "aten.abs", turned)
    made = agree(lambda x: x.exp().abs(), X)
    assert not made.views
    assert made.program.outputs == ("abs_1",)


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda x: torch.view_as_real(torch.complex(x, x) * 2), "dtype"),
        (lambda x: x.to(torch.float8_e4m3fn).float(), "dtype"),
        (lambda x: torch.fft.rfft(x).real, "algorithm"),
        (lambda x: x.sort()[0], "algorithm"),
        (lambda x: torch.linalg.inv(x[:3, :3] + torch.eye(3)), "algorithm"),
        (lambda x: x.nonzero() + 1, "data-dependent"),
    ],
)
def test_what_kernels_do_not_do_stays_a_call(function, code):
    module = trace(function, X, dynamic=code == "data-dependent")
    made = lower(module, strict=True)
    assert code in codes(made).values()
    compare(run(module, made, [X]), function(X))


def test_views_of_written_inputs_that_are_no_index_maps_keep_kernels_out():
    """The write must not overtake a read through memory that nobody knows to be shared."""

    def function(x):
        seen = torch.as_strided(x, (2, 2), (1, 2))
        result = seen + 1
        x.copy_(x * 0)
        return result

    module = trace(function, X)
    view = next(node for node in module.graph.nodes if node.target is aten.as_strided.default)
    made = lower(module, strict=True)
    assert codes(made)["aten.as_strided.default"] == "view"
    assert codes(made)["aten.add.Tensor"] == "view"
    assert made.program.buffers[view.name].kind == "made"
    own = fresh([X])
    compare(run(module, made, own), function(X.clone()))
    compare(own[0], X * 0)


def test_sizes_are_known_as_indices():
    made = agree(lambda x: x.reshape(x.shape[0] * x.shape[1]) + x.shape[0], X, dynamic=True)
    assert all(item.reason == "" for item in externs(made))
    assert made.views


def test_symbolic_floats_are_arithmetic_of_sizes():
    agree(lambda x: x * (x.shape[1] ** 0.5) + 1 / x.shape[0], X, dynamic=True)


def test_numbers_read_from_data_keep_calls_in_order():
    def function(x):
        n = x.sum().long().item()
        torch._check(n >= 0)
        torch._check(n <= 4)
        return torch.ones(n) + 1

    x = torch.tensor([1.0, 2.0])
    module = trace(function, x, dynamic=True)
    made = lower(module, strict=True)
    item = next(call for call in externs(made) if call.node.target is aten._local_scalar_dense.default)
    token = item.writes[-1]
    assert item.writes == (item.name, token)
    ones = next(d for d in made.program.items if isinstance(d, Definition) and "ones" in d.name)
    assert effects(ones).reads == {token}
    compare(run(module, made, [x]), function(x))


def test_several_results_not_all_tensors():
    def function(x, w):
        return aten.convolution_backward(x, x, w, None, [1], [0], [1], False, [0], 1, [True, True, False])[:2]

    x, w = torch.randn(1, 1, 4), torch.randn(1, 1, 1)
    made = agree(lambda x, w: function(x, w)[1] * 2, x, w, extern={"aten.convolution_backward.default"})
    assert sum(node.target is operator.getitem for node in (i.node for i in externs(made))) == 0


@one_row_in(2)
@pytest.mark.parametrize("function", [
    lambda x: torch.resolve_neg(x.conj().imag), lambda x: x.conj().imag * 2, lambda x: x.conj().imag.sum(0),
    lambda x: torch.relu(x.conj().imag @ x.real), lambda x: x.zero_(), lambda x: x.mul_(2j) + 1,
    lambda x: x.real.copy_(x.imag) + 1,
])  # fmt: skip
def test_complex_numbers_seen_through_views_and_written_to(function):
    torch._dynamo.reset()
    given = torch.randn(3, 3, dtype=torch.complex64)
    mine = given.clone()
    with regraft.coverage() as found:
        ours = torch.compile(function, backend="regraft")(mine)
    assert not found.faults
    torch.testing.assert_close(ours, function(given))
    torch.testing.assert_close(mine, given)


def test_an_input_whose_signs_are_turned_where_it_is_read():
    x = torch.randn(5, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    torch.testing.assert_close(torch.compile(lambda x: x * 2 + 1, backend="regraft")(x), x * 2 + 1)


@pytest.mark.parametrize("function", [
    lambda x, y: torch.ops.aten._prelu_kernel_backward(x.t(), y.t(), y.new_full((1, 1), 0.2)),
    lambda x, y: torch.ops.aten.log_sigmoid_forward(x.t()),
    lambda x, y: torch.ops.aten.native_dropout(x.t(), 0.0, False),
    lambda x, y: torch._foreach_add([x.t(), y], [y.t(), x]),
    lambda x, y: torch.ops.aten.native_layer_norm(x.t(), [3], None, None, 1e-5),
    lambda x, y: torch.max(x.t()[None], 0),
    lambda x, y: torch.cummax(x.t(), 0),
], ids=["prelu", "log_sigmoid", "dropout", "foreach", "layer_norm", "max", "cummax"])  # fmt: skip
def test_each_of_several_results_lies_as_it_was_told(function):
    """Calls that read one of several results go by its strides in metadata."""
    gm = trace(function, X, X)
    made = lower(gm)
    told = {n.name: n.meta["val"] for n in gm.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)}
    found = {name: b for name, b in made.program.buffers.items() if name in told and b.kind == "made"}
    assert found
    for name, buffer in found.items():
        assert tuple(buffer.strides) == told[name].stride(), name


@pytest.mark.parametrize(
    "act", [torch.nn.PReLU(), torch.nn.LogSigmoid(), torch.nn.ReLU()], ids=lambda m: type(m).__name__
)
def test_a_call_reads_a_gradient_of_turned_images(act):
    layer = torch.nn.Conv1d(4, 6, 3)
    x = torch.randn(1, 4, 9, requires_grad=True)

    def gradients(function):
        return torch.autograd.grad(function(x).sin().sum(), [x, *layer.parameters()])

    def step(x):
        return act(layer(x).transpose(1, 2))

    torch.compiler.reset()
    torch.testing.assert_close(gradients(torch.compile(step, backend="regraft")), gradients(step))

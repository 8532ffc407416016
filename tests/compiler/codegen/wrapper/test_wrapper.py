"""Generated wrappers: their text, when they free memory, and that they compute what the graph computes."""

from __future__ import annotations

import copy
import gc
import linecache
import operator
import traceback
import weakref

import pytest
import torch
from support.thorough import one_row_in
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import regraft
from regraft.compiler.autograd.differentiate import differentiate
from regraft.compiler.codegen.wrapper.emit import module_path
from regraft.compiler.codegen.wrapper.wrapper import generate

aten = torch.ops.aten


def traced(function, *inputs, symbolic=False):
    return make_fx(function, tracing_mode="symbolic" if symbolic else "fake")(*inputs)


def compiled(function, **kwargs):
    """`function` compiled with wrappers, and the wrappers by kind of graph."""
    wrappers = {}

    def compile_graph(graph_module, inputs, kind):
        wrappers[kind] = generate(graph_module, name=f"graph_0.{kind}")
        return wrappers[kind].call

    def backend(graph_module, inputs):
        return differentiate(graph_module, inputs, compile_graph)

    torch.compiler.reset()
    return torch.compile(function, backend=backend, fullgraph=True, **kwargs), wrappers


def assert_same(actual, expected):
    """Equal to the bit, strides too."""
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        if not isinstance(e, torch.Tensor):
            assert a == e
            continue
        assert (a.dtype, a.shape, a.stride(), a.device) == (e.dtype, e.shape, e.stride(), e.device)
        assert torch.equal(a, e) or torch.equal(a.nan_to_num(7.0), e.nan_to_num(7.0))


def node(graph, target, *args, like=None, trace="", rule=None, **kwargs):
    made = graph.call_function(target, args, kwargs)
    if like is not None:
        made.meta["val"] = like
    if trace:
        file, line, code = trace
        made.meta["stack_trace"] = f'  File "/home/u/{file}", line {line}, in forward\n    {code}\n'
        made.meta["nn_module_stack"] = {"1": ("L['self'].encoder.0", torch.nn.Module)}
    if rule:
        made.meta["regraft_rule"] = rule
    return made


def small_graph():
    graph = fx.Graph()
    s0, x, w, unused = (graph.placeholder(name) for name in ("n", "x_1", "w_1", "unused"))
    s0.meta["val"] = 3
    for n in (x, w, unused):
        n.meta["val"] = torch.empty(3, 3)
    sym = node(graph, operator.mul, s0, -1, like=-3)
    mm = node(graph, aten.mm.default, x, w, like=torch.empty(3, 3), trace=("model.py", 7, "y = x @ w"), rule="linear")
    relu = node(graph, aten.relu.default, mm, like=torch.empty(3, 3), trace=("model.py", 8, "y = y.relu()"))
    top = node(graph, aten.max.dim, relu, 0, like=(torch.empty(3), torch.empty(3, dtype=torch.int64)))
    item = node(graph, operator.getitem, top, 1, like=torch.empty(3, dtype=torch.int64))
    node(graph, aten.copy_.default, x, relu, like=torch.empty(3, 3))
    graph.output((item, None, sym))
    return fx.GraphModule(torch.nn.Module(), graph)


SMALL = '''"""graph_0.inference, results written over dead operands: 1."""

import torch
from regraft.rewrites.compat import bare_calls

aten = bare_calls(
    "aten", "copy_.default", "max.dim", "mm.default", "relu_.default",
)


def call(args):
    (n, x_1, w_1, unused) = args
    args.clear()
    del unused

    # no source line
    mul = n * (-1)

    # encoder.0  model.py:7  y = x @ w  [rule linear]
    mm_default = aten.mm.default(x_1, w_1)
    del w_1

    # encoder.0  model.py:8  y = y.relu()
    relu_default = aten.relu_.default(mm_default)  # over mm_default
    del mm_default

    # no source line
    getitem = aten.max.dim(relu_default, 0)[1]
    aten.copy_.default(x_1, relu_default)
    del x_1, relu_default
    return (getitem, None, mul)
'''


class TestText:
    def test_golden(self):
        assert generate(small_graph(), name="graph_0.inference").source == SMALL

    def test_is_deterministic(self):
        assert generate(small_graph(), name="g").source == generate(small_graph(), name="g").source

    def test_runs_on_its_own(self):
        wrapper = generate(small_graph(), name="g")
        namespace = {"objects": wrapper.parts.objects}
        exec(wrapper.source, namespace)
        x, w = torch.randn(3, 3), torch.randn(3, 3)
        expected = (x @ w).relu()
        args = [3, x, w, torch.empty(3, 3)]
        item, none, sym = namespace["call"](args)
        assert torch.equal(item, expected.max(0)[1])
        assert none is None and sym == -3 and args == []
        assert torch.equal(x, expected)

    def test_boxed_and_stats(self):
        wrapper = generate(small_graph(), name="g")
        assert wrapper.call._boxed_call is True
        assert (wrapper.stats.nodes, wrapper.stats.reused) == (6, 1)
        assert (wrapper.stats.peak_before, wrapper.stats.peak_after) == (72, 60)

    def test_wrong_number_of_inputs(self):
        with pytest.raises(ValueError, match="unpack"):
            generate(small_graph(), name="g").call([1])

    def test_many_inputs_stay_in_the_margin(self):
        graph = fx.Graph()
        inputs = [graph.placeholder(f"parameter_{i}") for i in range(60)]
        graph.output(tuple(inputs))
        wrapper = generate(fx.GraphModule(torch.nn.Module(), graph), name="g")
        assert max(map(len, wrapper.source.splitlines())) <= 120
        assert wrapper.call(list(range(60))) == tuple(range(60))

    def test_names_that_python_or_the_module_need(self):
        graph = fx.Graph()
        names = ["args", "torch", "aten", "operator", "objects", "call", "cpu"]
        inputs = [graph.placeholder(name) for name in names]
        total = inputs[0]
        for other in inputs[1:]:
            total = graph.call_function(aten.add.Tensor, (total, other))
        kwargs = {"device": torch.device("cpu"), "dtype": torch.float64}
        to = graph.call_function(aten._to_copy.default, (total,), kwargs)
        neg = graph.call_function(operator.neg, (to,))
        graph.output([neg])
        wrapper = generate(fx.GraphModule(torch.nn.Module(), graph), name="g")
        assert wrapper.call([torch.ones(2) for _ in names])[0].tolist() == [-7.0, -7.0]

    def test_literals(self):
        graph = fx.Graph()
        x = graph.placeholder("x")
        values = {
            "a": [1, -2, (x,), ()], "b": float("inf"), "c": -float("inf"), "d": 1e-5, "e": 1 + 2j, "f": torch.bfloat16,
            "g": torch.strided, "h": torch.channels_last, "i": "it's", "j": slice(None, x, 2), "k": {"z": x}, "l": None,
            "m": (2,), "n": ..., "o": torch.device("cpu"), "p": True,
        }  # fmt: skip
        out = graph.call_function(dict, (), values)
        nan = graph.call_function(str, (float("nan"),))
        graph.output((out, nan))
        wrapper = generate(fx.GraphModule(torch.nn.Module(), graph), name="g")
        got, nan = wrapper.call([5])
        assert nan == "nan"
        assert got == {**values, "a": [1, -2, (5,), ()], "j": slice(None, 5, 2), "k": {"z": 5}}

    @pytest.mark.parametrize(("stack", "path"), [
        ({}, ""),
        ({"1": ("L['self']", None)}, ""),
        ({"1": ("L['self'].encoder", None), "2": ("L['self'].encoder.layer.3", None)}, "encoder.layer.3"),
        ({"1": ("L['fn'].__self__.norm", None)}, "__self__.norm"),
        ({"1": ("encoder.layer.3", None)}, "encoder.layer.3"),
    ])  # fmt: skip
    def test_module_path(self, stack, path):
        n = fx.Graph().placeholder("x")
        n.meta["nn_module_stack"] = stack
        assert module_path(n) == path


class TestTargets:
    def test_functions_without_a_public_path_come_from_the_table(self):
        def double(x):
            return x * 2

        graph = fx.Graph()
        x = graph.placeholder("x")
        graph.output((graph.call_function(double, (x,)), graph.call_function(torch.sym_max, (1, 2))))
        wrapper = generate(fx.GraphModule(torch.nn.Module(), graph), name="g")
        assert wrapper.parts.objects == {"double_1": double}
        assert 'double_1 = objects["double_1"]' in wrapper.source
        assert "double = double_1(x)" in wrapper.source
        assert "torch.sym_max(1, 2)" in wrapper.source
        assert wrapper.call([3]) == (6, 2)

    def test_constants_and_submodules(self):
        root = torch.nn.Module()
        root.sub = torch.nn.Module()
        root.sub.weight = torch.tensor([1.0, 2.0])
        root.act = torch.nn.ReLU()
        graph = fx.Graph()
        x = graph.placeholder("x")
        weight = graph.get_attr("sub.weight")
        product = graph.call_function(aten.mul.Tensor, (x, weight))
        act = graph.call_module("act", (product,))
        graph.output((graph.call_method("sum", (act, 0), {"keepdim": True}), weight))
        wrapper = generate(fx.GraphModule(root, graph), name="g")
        total, weight = wrapper.call([torch.tensor([3.0, -1.0])])
        assert total.tolist() == [3.0] and weight is root.sub.weight
        assert set(wrapper.parts.objects) == {"sub_weight", "act_1"}

    def test_higher_order_operators(self):
        def function(x):
            return torch.cond(x.sum() > 0, lambda v: v.sin() + 1, lambda v: v.cos(), (x,))

        run, wrappers = compiled(function)
        with torch.no_grad():
            for x in (torch.ones(3), -torch.ones(3)):
                assert torch.equal(run(x), function(x))
        assert "cond = torch.ops.higher_order.cond" in wrappers["inference"].source

    def test_custom_operators(self):
        @torch.library.custom_op("regraft_test::scale", mutates_args=())
        def scale(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        scale.register_fake(torch.empty_like)
        wrapper = generate(traced(lambda x: scale(x.exp()).relu(), torch.randn(3)), name="g")
        assert "regraft_test.scale.default(" in wrapper.source
        x = torch.randn(3)
        assert torch.equal(wrapper.call([x.clone()]), (x.exp() * 3).relu())

    def test_symbolic_sizes(self):
        def function(x):
            return x.view(x.shape[0] * 2, -1) + x.shape[0], x.shape[0] // 2 - 1

        run, wrappers = compiled(function, dynamic=True)
        with torch.no_grad():
            for rows in (4, 6):
                x = torch.randn(rows, 8)
                assert_same(run(x), function(x))
        assert len(wrappers) == 1
        assert "(s77, " in wrappers["inference"].source
        assert "s77 * 2" in wrappers["inference"].source
        assert "del s77" not in wrappers["inference"].source

    def test_a_symbol_that_nothing_computes_is_refused(self):
        gm = traced(lambda x: x.view(-1), torch.randn(4, 5), symbolic=True)
        size = next(n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder").shape[0]
        view = next(n for n in gm.graph.nodes if n.target is aten.view.default)
        view.args = (view.args[0], [size * 5])
        with pytest.raises(NotImplementedError, match="no node of the graph computes it"):
            generate(gm, name="g")


class Meter(TorchDispatchMode):
    """The most bytes of tensors made inside that were alive at once, and the ops that ran."""

    def __init__(self):
        super().__init__()
        self.peak = 0
        self.ops = []
        self._storages = weakref.WeakValueDictionary()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.ops.append(str(func))
        given = {t.untyped_storage()._cdata for t in args if isinstance(t, torch.Tensor)}
        for t in torch.utils._pytree.tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata not in given:
                storage = t.untyped_storage()
                self._storages[storage._cdata] = storage
        self.peak = max(self.peak, sum(s.nbytes() for s in self._storages.values()))
        return out


def attention(x, w):
    q, k, v = (x @ w).chunk(3, -1)
    scores = (q @ k.transpose(-1, -2)) * 0.5 + 1
    return (scores.softmax(-1) @ v).tanh().mul(2).exp()


class TestMemory:
    def test_inputs_are_freed_after_their_last_use(self):
        alive = []
        x = torch.randn(4)
        ref = weakref.ref(x)
        graph = fx.Graph()
        a = graph.placeholder("a")
        b = graph.call_function(aten.exp.default, (a,))
        c = graph.call_function(lambda t: alive.append(ref() is not None) or t + 1, (b,))
        graph.output((c,))
        args = [x]
        del x
        generate(fx.GraphModule(torch.nn.Module(), graph), name="g").call(args)
        assert alive == [False]

    @pytest.mark.usefixtures("few_objects")
    def test_peak_is_not_above_the_interpreter(self):
        x, w = torch.randn(64, 32), torch.randn(32, 96)
        gm = traced(attention, x, w)
        peaks = {}
        wrapper = generate(gm, name="g")
        for name, run in (("wrapper", wrapper.call), ("eager", fx.Interpreter(gm).boxed_run)):
            gc.collect()
            with Meter() as meter:
                run([x, w])
            peaks[name] = meter.peak
        assert 0 < peaks["wrapper"] <= peaks["eager"]
        assert wrapper.stats.reused == 5
        assert wrapper.stats.peak_after <= wrapper.stats.peak_before

    @pytest.mark.usefixtures("few_objects")
    def test_peak_of_training_is_not_above_aot_eager(self):
        model = torch.nn.Sequential(*[m for _ in range(3) for m in (torch.nn.Linear(32, 32), torch.nn.GELU())])
        seen = {}

        def backend(graph_module, inputs):
            def wrap(gm, _inputs, kind):
                return generate(gm, name=kind).call

            seen["eager"] = torch._dynamo.lookup_backend("aot_eager")(copy.deepcopy(graph_module), inputs)
            seen["wrapper"] = differentiate(graph_module, inputs, wrap)
            return lambda *args: seen.setdefault("args", args) and graph_module(*args)

        torch.compile(model, backend=backend)(torch.randn(64, 32))
        peaks = {}
        for name in ("wrapper", "eager"):
            gc.collect()
            with Meter() as meter:
                seen[name](*seen["args"])[0].sum().backward()
            peaks[name] = meter.peak
        assert 0 < peaks["wrapper"] <= peaks["eager"]

    def test_ops_run_in_the_graphs_order(self):
        inputs = [torch.randn(8, 4), torch.randn(4, 12)]
        gm = traced(attention, *inputs)
        with Meter() as meter:
            generate(gm, name="g").call(inputs)
        expected = [str(n.target) for n in gm.graph.nodes if "aten." in str(n.target)]
        assert [op.replace("_.", ".") for op in meter.ops] == expected


class TestErrors:
    def test_errors_name_the_generated_line_and_the_users(self):
        def function(table, index):
            return torch.nn.functional.embedding(index, table).exp()

        run, _ = compiled(function)
        table = torch.randn(4, 2)
        with torch.no_grad():
            run(table, torch.tensor([1]))
            with pytest.raises(IndexError) as error:
                run(table, torch.tensor([9]))
        assert any("test_wrapper.py" in note and "embedding(index, table)" in note for note in error.value.__notes__)
        assert "aten.embedding.default(" in "".join(traceback.format_exception(error.value))

    @pytest.mark.usefixtures("few_objects")
    def test_lines_leave_the_cache_with_the_wrapper(self):
        wrapper = generate(small_graph(), name="unique_name")
        assert [f for f in linecache.cache if "unique_name" in f]
        del wrapper
        gc.collect()
        assert not [f for f in linecache.cache if "unique_name" in f]


@pytest.mark.parametrize(("count", "together"), [(12, True), (3, False)])
def test_single_numbers_that_only_kernels_read_share_an_allocation(count, together):
    def function(a, *tensors):
        sums = [t.square().sum() for t in tensors]
        product = (a * sum(sums)) @ a
        return [t / s + product[0, 0] for t, s in zip(tensors, sums, strict=True)]

    given = [torch.randn(4, 4), *(torch.randn(70 + k) for k in range(count))]
    torch.compiler.reset()
    with regraft.coverage() as cov, torch.no_grad():
        found = torch.compile(function, backend="regraft", options={"debug": True})(*given)
    torch.testing.assert_close(found, function(*given), rtol=1e-5, atol=1e-4)
    (record,) = cov.graphs
    source = record.details["source:inference"]
    assert ("_and_others.data_ptr()" in source) == together and ".unbind()" not in source


@torch.library.custom_op("regraft_test::lists", mutates_args=())
def lists(x: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor], int]:
    return [x * 1, x * 2], [x * 3], 2


@lists.register_fake
def _(x):
    return [x.clone(), x.clone()], [x.clone()], 2


@one_row_in(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("read", [
    lambda a, b, n: (a[0] + 1, a[1]),
    lambda a, b, n: (a[1], b[0] * n),
    lambda a, b, n: (b[0], b[0] + 1),
    lambda a, b, n: (a, b),
], ids=["of one", "of both", "twice", "whole"])  # fmt: skip
def test_results_that_are_lists(read, dynamic):
    def function(x):
        return read(*torch.ops.regraft_test.lists(x + 1))

    torch.compiler.reset()
    run = torch.compile(function, backend="regraft", dynamic=dynamic)
    for x in (torch.randn(4), torch.randn(6)):
        torch.testing.assert_close(run(x), function(x))


def test_results_written_over_numbers_of_a_shared_allocation_keep_their_sizes():
    def function(a, *tensors):
        sums = [t.square().sum() for t in tensors]
        product = (a * sum(sums)) @ a
        return [s.sqrt() + product[0, 0] for s in sums]

    given = [torch.randn(4, 4), *(torch.randn(70 + k) for k in range(12))]
    torch.compiler.reset()
    with torch.no_grad():
        found = torch.compile(function, backend="regraft")(*given)
    assert [t.shape for t in found] == [()] * 12
    torch.testing.assert_close(found, function(*given))

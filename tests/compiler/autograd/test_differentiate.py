"""Derivatives through AOTAutograd and wrappers: values, gradients, random streams and provenance are eager's."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from support.thorough import one_row_in, takes_turns
from support.wrapping import Doubled, attend, unwrapped
from torch import fx, nn
from torch.utils._pytree import tree_leaves

import regraft
from regraft.compiler.autograd.differentiate import differentiate
from regraft.compiler.codegen.wrapper.wrapper import generate

aten = torch.ops.aten
VIEWS = {"t", "view", "_unsafe_view", "transpose", "permute", "expand", "detach", "unsqueeze", "slice", "select"}


class Recorder:
    """A backend that compiles every graph to a wrapper and keeps the graphs and wrappers by kind."""

    def __init__(self, mark=lambda graph_module: None, **kwargs):
        self.kinds, self.graphs, self.wrappers = [], {}, {}
        self._mark, self._kwargs = mark, kwargs
        torch.compiler.reset()

    def __call__(self, graph_module, inputs):
        self._mark(graph_module)
        return differentiate(graph_module, inputs, self._compile, **self._kwargs)

    def _compile(self, graph_module, inputs, kind):
        self.kinds.append(kind)
        self.graphs[kind] = graph_module
        self.wrappers[kind] = generate(graph_module, name=f"graph_0.{kind}")
        return self.wrappers[kind].call


class MLP(nn.Module):
    def __init__(self, p=0.2):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)
        self.dropout = nn.Dropout(p)

    def forward(self, x):
        return self.second(self.dropout(F.gelu(self.norm(self.first(x)))))


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x, mask=None):
        q, k, v = (t.view(*x.shape[:2], 2, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / 2
        scores = scores if mask is None else scores.masked_fill(~mask, -1e9)
        probs = F.dropout(scores.softmax(-1), 0.1, self.training)
        return x + self.out((probs @ v).transpose(1, 2).reshape(x.shape))


def train_step(run, model, inputs):
    """Output, gradients of parameters and inputs, and buffers after one step."""
    torch.manual_seed(1)
    inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    out = run(*inputs)
    out.square().mean().backward()
    return [out, *(p.grad for p in model.parameters()), *(x.grad for x in inputs), *model.buffers()]


def assert_equal(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        assert (a is None) == (e is None)
        if isinstance(e, torch.Tensor):
            assert a.dtype == e.dtype and a.stride() == e.stride()
            assert torch.equal(a, e), (a - e).abs().max()
        else:
            assert a == e


X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
MASK = torch.ones(2, 1, 1, 5, dtype=torch.bool)
MASK[0, ..., 3:] = False
MODELS = [(MLP, [X]), (Conv, [IMAGE]), (Attention, [TOKENS]), (Attention, [TOKENS, MASK])]


@one_row_in(2)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("make", "inputs"), MODELS)
def test_training_equals_eager_to_the_bit(make, inputs, dynamic):
    torch.manual_seed(0)
    model = make()
    twin = copy.deepcopy(model)
    recorder = Recorder()
    compiled = torch.compile(model, backend=recorder, fullgraph=True, dynamic=dynamic)
    for _ in range(2):
        assert_equal(train_step(compiled, model, inputs), train_step(twin, twin, inputs))
    assert recorder.kinds == ["forward", "backward"]


@takes_turns("mode")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("make", "inputs"), MODELS)
def test_inference_equals_eager_to_the_bit(make, inputs, mode):
    torch.manual_seed(0)
    model = make().eval()
    recorder = Recorder()
    compiled = torch.compile(model, backend=recorder, fullgraph=True)
    with mode():
        assert_equal([compiled(*inputs)], [model(*inputs)])
    assert recorder.kinds == ["inference"]


def test_the_random_stream_goes_on_where_eagers_would():
    model = MLP(0.5)
    compiled = torch.compile(model, backend=Recorder(), fullgraph=True)
    streams = []
    for run in (model, compiled):
        torch.manual_seed(3)
        streams.append([run(X), torch.rand(3), run(X), torch.rand(3)])
    assert_equal(streams[1], streams[0])


def test_one_graph_serves_many_sizes():
    model = Attention().eval()
    recorder = Recorder()
    compiled = torch.compile(model, backend=recorder, fullgraph=True, dynamic=True)
    for batch, length in [(2, 5), (3, 7), (4, 6)]:
        x = torch.randn(batch, length, 8)
        assert_equal(train_step(compiled, model, [x])[:1], [model(x)])
    assert recorder.kinds == ["forward", "backward"]


def mutate(x, y):
    x.add_(1)
    y.mul_(x)
    return x * y


def alias(x, y):
    return x.view(-1), y, (x + y).t(), x[0]


def no_grad_part(x, y):
    with torch.no_grad():
        scale = x.abs().max() + 1
    return x / scale, (y * 2).detach() + y


def mutate_intermediate(x, y):
    z = x.exp()
    w = z.view(-1)
    w.add_(y.view(-1))
    return z, w[0]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [mutate, alias, no_grad_part, mutate_intermediate])
def test_effects(function, grad):
    def run(callee):
        x = torch.arange(6.0).view(2, 3) / 7
        y = (torch.arange(6.0).view(2, 3) / 5).requires_grad_(grad)
        leaf = y
        y = y.clone() if grad else y
        out = callee(x, y)
        out = out if isinstance(out, tuple) else (out,)
        if grad:
            sum(o.sum() for o in out).backward()
        bases = [o._base is not None and any(o._base is b or o._base is b._base for b in (x, y)) for o in out]
        return [*out, x, y, leaf.grad, *bases]

    compiled = torch.compile(function, backend=Recorder(), fullgraph=True)
    assert_equal(run(compiled), run(function))


def test_writes_to_inputs_are_nodes_at_the_end_of_the_graph():
    recorder = Recorder()
    model = Conv()
    torch.compile(model, backend=recorder, fullgraph=True)(IMAGE)
    nodes = list(recorder.graphs["forward"].graph.nodes)
    writes = [i for i, n in enumerate(nodes) if n.target is aten.copy_.default]
    assert writes == list(range(len(nodes) - 1 - len(writes), len(nodes) - 1))
    assert len(writes) == 3
    assert recorder.wrappers["forward"].source.count("aten.copy_.default(primals_") == 3


@one_row_in(2)
@pytest.mark.parametrize(("make", "inputs"), MODELS)
def test_nothing_that_costs_time_is_computed_twice(make, inputs):
    recorder = Recorder()
    torch.compile(make(), backend=recorder, fullgraph=True)(*[x.clone() for x in inputs]).sum().backward()
    calls = {kind: [n for n in gm.graph.nodes if n.op == "call_function"] for kind, gm in recorder.graphs.items()}
    backward = {n.name for n in calls["backward"]}
    twice = [n for n in calls["forward"] if n.name in backward]
    assert {n.target.__name__.split(".")[0] for n in twice} <= VIEWS | {"getitem"}


def test_recomputing_keeps_less_and_changes_no_gradient():
    def function(x):
        return (x.sin().cos().exp().tanh() * 2).sum()

    kept, grads = [], []
    for recompute in (False, True):
        recorder = Recorder(recompute=recompute)
        x = torch.linspace(0, 1, 12).view(3, 4).requires_grad_()
        torch.compile(function, backend=recorder, fullgraph=True)(x).backward()
        kept.append(len(recorder.graphs["forward"].graph.output_node().args[0]))
        grads.append(x.grad)
    assert kept[1] < kept[0]
    assert torch.equal(*grads)


def test_checkpointed_parts_are_recomputed():
    def function(x, w):
        return torch.utils.checkpoint.checkpoint(lambda a: (a @ w).sin().exp(), x, use_reentrant=False).sum()

    recorder = Recorder()
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    torch.compile(function, backend=recorder, fullgraph=True)(x, w).backward()
    ops = Counter(n.target for n in recorder.graphs["backward"].graph.nodes)
    assert ops[aten.sin.default] == 1 and ops[aten.mm.default] == 2
    expected = torch.autograd.grad(function(x, w), x)[0]
    assert torch.allclose(x.grad, expected)


def test_source_lines_reach_the_final_graphs():
    recorder = Recorder()
    torch.compile(MLP(), backend=recorder, fullgraph=True)(X).sum().backward()
    for kind in ("forward", "backward"):
        calls = [n for n in recorder.graphs[kind].graph.nodes if n.op == "call_function"]
        missing = [n for n in calls if "test_differentiate.py" not in (n.meta.get("stack_trace") or "")]
        assert not missing
        assert "norm  test_differentiate.py" in recorder.wrappers[kind].source
    assert "backward of norm  test_differentiate.py" in recorder.wrappers["backward"].source


def test_rule_names_reach_the_final_graphs():
    def mark(graph_module):
        for n in graph_module.graph.nodes:
            if n.target is F.gelu:
                n.meta["regraft_rule"] = "gelu"

    recorder = Recorder(mark)
    torch.compile(MLP(), backend=recorder, fullgraph=True)(X).sum().backward()
    for kind, target in (("forward", aten.gelu.default), ("backward", aten.gelu_backward.default)):
        marked = [n.target for n in recorder.graphs[kind].graph.nodes if n.meta.get("regraft_rule") == "gelu"]
        assert target in marked
        assert aten.native_layer_norm.default not in marked
        assert "[rule gelu]" in recorder.wrappers[kind].source


def test_passes_over_the_joint_graph_see_rule_names():
    def mark(graph_module):
        for n in graph_module.graph.find_nodes(op="call_function", target=F.gelu):
            n.meta["regraft_rule"] = "gelu"

    seen = {}

    def prepare(graph, kind):
        seen[kind] = {n.target for n in graph.graph.nodes if n.meta.get("regraft_rule") == "gelu"}

    torch.compile(MLP(), backend=Recorder(mark, prepare=prepare), fullgraph=True)(X).sum().backward()
    assert seen == {"joint": {aten.gelu.default, aten.gelu_backward.default}}


def test_autocast():
    model = MLP(0.0)
    recorder = Recorder()
    compiled = torch.compile(model, backend=recorder, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = compiled(X), model(X)
    assert_equal([out], [expected])
    grads = [torch.autograd.grad(o.float().sum(), list(model.parameters())) for o in (out, expected)]
    for a, e in zip(*grads, strict=True):
        assert torch.allclose(a, e, atol=1e-2)


@pytest.mark.parametrize("wrap", [torch.clone, Doubled])
def test_a_backward_can_be_run_again_whatever_the_sizes(wrap):
    def run(program):
        given = [wrap(torch.randn(4, size, 6, generator=torch.Generator().manual_seed(size))) for size in (3, 5, 7)]
        for x in given:
            x.requires_grad_()
            loss = program(x, x.sin(), x).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
        return [unwrapped(x.grad) for x in given]

    torch._dynamo.reset()
    torch.testing.assert_close(run(torch.compile(attend, backend="regraft")), run(attend), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("budget", [1.0, 0.5, 0.0])
def test_a_memory_budget_trades_memory_for_time(budget):
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.GELU()))).requires_grad_()
    x = torch.randn(64, 16)
    recorder = Recorder(recompute=True, memory_budget=budget)
    theirs = torch.autograd.grad(model(x).sum(), [*model.parameters()])
    ours = torch.autograd.grad(torch.compile(model, backend=recorder)(x).sum(), [*model.parameters()])
    torch.testing.assert_close(ours, theirs)
    results = recorder.graphs["forward"].graph.output_node().args[0][1:]
    kept = sum(n.meta["val"].nbytes for n in results if n.op != "placeholder")
    most = 7 * 64 * 16 * 4  # what products give and read
    assert kept == {1.0: most, 0.0: 0}.get(budget, kept)
    assert budget != 0.5 or 0 < kept <= most / 2


@one_row_in(2)
@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 2).unfold(1, 2, 1), lambda x: (x + 2).unfold(0, 3, 2).sin(),
        lambda x: ((x * 2).as_strided((3, 3), (2, 1)), x + 1), lambda x: (x * 3).expand(2, *x.shape),
        lambda x: (x.sin().unfold(0, 2, 1).unfold(1, 2, 1), x.cos().t()),
    ],
)  # fmt: skip
def test_gradients_of_results_whose_elements_share_memory(function, dynamic):
    def gradient(run):
        x = torch.linspace(-1, 1, 20).reshape(4, 5).requires_grad_()
        results = [r for r in tree_leaves(run(x)) if r.requires_grad]
        torch.autograd.backward(results, [torch.arange(float(r.numel())).reshape(r.shape) for r in results])
        return x.grad

    torch.compiler.reset()
    compiled = torch.compile(function, backend="regraft", dynamic=dynamic)
    torch.testing.assert_close(gradient(compiled), gradient(function))


def _counted(n, x, w):
    n += 1
    return x * w * n.sum()


WRITES = {
    "count": _counted,
    "reset": lambda n, x, w: ((n + 1).sigmoid(), n.zero_())[0] * x * w,
    "largest": lambda n, x, w: (lambda top: (n.add_(top.values), x * w * n.sigmoid() * top.values)[1])(n.max(0)),
    "view": lambda n, x, w: (n.view(2, 2)[1].exp(), n[2:].mul_(3))[0].sum() * x * w,
    "part": lambda n, x, w: (lambda half: (n.mul_(2), half[1] * x.view(2, 2) * w.view(2, 2))[1])((n + 1).split(2)),
    "mean": lambda n, x, w: x * w / (n.mul_(0.9).add_((x * w).detach(), alpha=0.1).abs() + 1),
}


class Counted(nn.Module):
    """A program with a buffer that each call writes."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.register_buffer("state", torch.linspace(0.5, 2, 4))
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, x):
        return self.function(self.state, x, self.weight)


@takes_turns("dynamic")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_the_backward_computes_nothing_anew_from_what_the_program_has_written(name, dynamic):
    torch.compiler.reset()
    eager, own = Counted(WRITES[name]), Counted(WRITES[name])
    compiled = torch.compile(own, backend="regraft", dynamic=dynamic)
    for step in range(2):
        x = torch.linspace(0, step + 1, 4)
        for model, run in ((eager, eager), (own, compiled)):
            model.weight.grad = None
            run(x).sum().backward()
        torch.testing.assert_close(own.weight.grad, eager.weight.grad)
        torch.testing.assert_close(own.state, eager.state)


NO_LINES = {  # copies of inputs in code without a line of the user's
    "group norm": lambda: nn.GroupNorm(3, 6),
    "instance norm": lambda: nn.InstanceNorm1d(6, affine=True),
    "in order": lambda: fx.symbolic_trace(lambda x: x.contiguous().cos() * x),
    "copied": lambda: fx.symbolic_trace(lambda x: x.clone().cumsum(-1).sin()),
}


@one_row_in(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", NO_LINES)
def test_backwards_of_transposed_inputs_read_them_as_they_lie(name, dynamic):
    """What is kept is the input, and no copy with other strides, which a backward of symbolic sizes would not know."""
    torch.compiler.reset()
    program = NO_LINES[name]()
    compiled = torch.compile(program, backend="regraft", dynamic=dynamic, options={"strict": True})
    given = torch.linspace(-2, 2, 4 * 6 * 5).sin().reshape(5, 6, 4).transpose(0, 2)
    weight = torch.linspace(0.5, 1.5, given.numel()).reshape(given.shape)
    gradients = []
    for run in (program, compiled):
        x = given.clone().requires_grad_()
        (run(x) * weight).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_distances_are_a_product_and_what_is_around_it(training):
    """More than 25 rows: eager has one operator of several kernels, of which only the product is a library's."""
    x, y = torch.randn(40, 8, requires_grad=training), torch.randn(30, 8)
    function = lambda x, y: torch.cdist(x * 2, y).exp().mean()  # noqa: E731
    with regraft.coverage() as report:
        got, want = torch.compile(function, backend="regraft")(x, y), function(x, y)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        if training:
            gradient, expected = (torch.autograd.grad(one, x)[0] for one in (got, want))
            torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5)
    kept = {call.operator for graph in report.graphs for code in graph.code for call in code.kept}
    measured = {"aten.mm.default", "aten.linear.default", "mkldnn._linear_pointwise.default"}  # whichever is faster
    assert kept and kept <= measured

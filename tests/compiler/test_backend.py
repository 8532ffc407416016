"""The backend as users call it: by name, as a callable, with modes, options and rules."""

import gc
import logging
import weakref

import pytest
import torch
from support.thorough import one_row_in, takes_turns, thorough
from support.versions import OLD_TORCH
from torch import fx, nn

import regraft
from regraft import RuleSet, Sample, T
from regraft.compiler import backend as backend_module
from regraft.compiler.backend import Compilation
from regraft.compiler.runtime.cudagraphs import replay
from regraft.compiler.runtime.cudagraphs.graphs import drop_captures


class Attention(nn.Module):
    """Self-attention as a textbook writes it."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        return torch.softmax(q @ k.mT / 8**0.5, -1) @ v


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch.compiler.reset()


def attention(rows=16):
    torch.manual_seed(0)
    return Attention(), torch.randn(2, rows, 32)


@pytest.mark.parametrize(
    "keywords", [{}, {"fullgraph": True}, thorough({"dynamic": True}), {"dynamic": False}], ids=str
)
def test_by_name(keywords):
    model, x = attention()
    with regraft.coverage() as cov:
        compiled = torch.compile(model, backend="regraft", options={"profit": "always"}, **keywords)
        torch.testing.assert_close(compiled(x), model(x))
    assert cov.count("attention") == 1 and not cov.fallbacks


def test_dynamic_sizes_are_compiled_once():
    model, x = attention()
    with regraft.coverage() as cov:
        compiled = torch.compile(model, backend="regraft", options={"profit": "always"}, dynamic=True)
        for rows in (16, 17, 40):
            _, x = attention(rows)
            torch.testing.assert_close(compiled(x), model(x))
    assert len(cov.graphs) == 1


def test_marked_dims_and_recompiles():
    model, x = attention()
    torch._dynamo.mark_dynamic(x, 1)
    with regraft.coverage() as cov:
        compiled = torch.compile(model, backend="regraft", options={"profit": "always"})
        compiled(x)
        _, y = attention(9)
        torch.testing.assert_close(compiled(y), model(y))
    assert len(cov.graphs) == 1 and cov.matches["sdpa"] == 1


def test_gradients_are_eagers():
    model, x = attention()
    model(x).square().sum().backward()
    expected = model.qkv.weight.grad.clone()
    model.zero_grad()
    with regraft.coverage() as cov:
        torch.compile(model, backend="regraft", options={"profit": "always"})(x).square().sum().backward()
    torch.testing.assert_close(model.qkv.weight.grad, expected)
    assert [g.kind for g in cov.graphs] == ["training"] and cov.count("sdpa") == 1


def test_graph_breaks():
    model, x = attention()

    def program(x):
        y = model(x)
        torch._dynamo.graph_break()
        return y.relu() + model(x).sum()

    with torch.no_grad(), regraft.coverage() as cov:
        out = torch.compile(program, backend="regraft", options={"profit": "always"})(x)
        torch.testing.assert_close(out, program(x))
    assert cov.count("attention") == 2


def test_as_a_callable_on_any_graph():
    class Two(nn.Module):
        def forward(self, x):
            return {"relu": torch.relu(x), "sum": x.sum()}

    module, x = fx.symbolic_trace(Two()), torch.randn(3)
    out = regraft.backend(module, [x], options={"profit": "never"})(x)
    torch.testing.assert_close(out, module(x))


def test_profit_never_counts_only():
    model, x = attention()
    with torch.no_grad(), regraft.coverage() as cov:
        out = torch.compile(model, backend="regraft", options={"profit": "never"})(x)
        torch.testing.assert_close(out, model(x))
    assert cov.count("attention") == 0
    assert [m.rule for m in cov.declined].count("sdpa") == 1


@pytest.mark.parametrize(
    "options",
    [{"mode": "reduce-overhead"}, {"mode": "max-autotune"}, {"template": "cudagraphs"}],
)
def test_cuda_graphs_need_a_cuda_device(options):
    model, x = attention()
    with torch.no_grad(), regraft.coverage() as cov:
        torch.compile(model, backend="regraft", options=options)(x)
    assert [(f.stage, f.code) for f in cov.fallbacks] == [("cudagraphs", "not-on-cuda")]


@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs"])
def test_without_cuda_graphs_nothing_is_said_of_them(mode):
    model, x = attention()
    with torch.no_grad(), regraft.coverage() as cov:
        torch.compile(model, backend="regraft", mode=mode)(x)
    assert cov.fallbacks == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profits": "always"}, r"unknown option 'profits' \(did you mean 'profit'\?\); valid options: mode, profit"),
        ({"profit": "sometimes"}, "valid: measured, always, never"),
        ({"mode": "fast"}, "unknown mode 'fast'; valid: default, reduce-overhead"),
        ({"rules": "sdpaa"}, "no rule named 'sdpaa' is declared"),
        ({"rules": 3}, "takes rules, rule sets and names, not int"),
    ],
    ids=str,
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(Exception, match=message):
        torch.compile(lambda x: x + 1, backend="regraft", options=options)(torch.ones(2))


def test_rules_are_scoped_to_one_compilation():
    @regraft.register_pattern(
        "scoped_relu_exp", replacement=lambda x: torch.exp(x), samples=[Sample(x=T("N"))], profitable=True
    )
    def scoped(x):
        return torch.relu(torch.exp(x))

    def program(x):
        return torch.relu(torch.exp(x))

    x = torch.randn(5)
    counts = []
    for rules in (None, (scoped,), ("default", scoped), RuleSet([scoped])):
        torch.compiler.reset()
        with regraft.coverage() as cov:
            torch.compile(program, backend="regraft", options={"rules": rules})(x)
        counts.append(cov.matches["scoped_relu_exp"])
    assert counts == [0, 1, 1, 1]


def test_live_comparison_reports_the_error_of_each_rule():
    model, x = attention()
    with torch.no_grad(), regraft.coverage() as cov:
        torch.compile(model, backend="regraft", options={"profit": "always", "verify": "live"})(x)
    (errors,) = (g.errors["sdpa"] for g in cov.graphs)
    assert len(errors) == 1 and errors[0] < 1e-5


def test_generated_wrapper_is_kept_and_says_where_code_comes_from():
    model, x = attention()
    with torch.no_grad(), regraft.coverage() as cov:
        torch.compile(model, backend="regraft", options={"profit": "always"})(x)
    source = cov.graphs[0].details["source:inference"]
    assert "[rule sdpa]" in source and "test_backend.py" in source


def test_a_program_that_our_faults_break_runs_as_it_was_written(monkeypatch):
    model, x = attention()
    real, seen = backend_module.differentiate, []

    def failing_once(graph_module, example_inputs, compile_graph, **kwargs):
        seen.append(graph_module)
        if len(seen) == 1:
            raise RuntimeError("planted")
        return real(graph_module, example_inputs, compile_graph, **kwargs)

    monkeypatch.setattr(backend_module, "differentiate", failing_once)
    with torch.no_grad(), regraft.coverage() as cov:
        out = torch.compile(model, backend="regraft", options={"profit": "always", "rules": "sdpa"})(x)
    torch.testing.assert_close(out, model(x))
    assert [f.code for f in cov.faults] == ["differentiate-failed"] and cov.count("sdpa") == 0
    seen.clear()
    with torch.no_grad(), pytest.raises(Exception, match="planted"):
        torch.compile(model, backend="regraft", options={"profit": "always", "strict": True})(x + 1)


@pytest.mark.parametrize("strict", [False, True])
def test_what_fails_as_it_was_written_is_no_fault_of_ours(strict, monkeypatch, caplog):
    def failing(*args, **kwargs):
        raise RuntimeError("the program itself is wrong")

    monkeypatch.setattr(backend_module, "differentiate", failing)
    with regraft.coverage() as cov, caplog.at_level(logging.WARNING, "regraft"):
        result = torch.compile(torch.sin, backend="regraft", options={"strict": strict})(torch.ones(3))
    assert torch.equal(result, torch.ones(3).sin()) and not caplog.records
    assert [f.code for f in cov.fallbacks] == ["not-differentiated"] and not cov.faults


class PaddedByABuffer(nn.Module):
    """Attention to rows that are padded as audio codecs do: by a number that lies in a tensor."""

    def __init__(self, mode):
        super().__init__()
        self.attention, self.mode = Attention(), mode
        self.register_buffer("padding", torch.tensor(2))

    def forward(self, x):
        attended = self.attention(x)
        return torch.nn.functional.pad(attended.flatten(1, 2), (self.padding, 0), mode=self.mode).relu()


@one_row_in(2)
@takes_turns("keywords")
@pytest.mark.parametrize("mode", ["constant", "reflect", "circular"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("keywords", [{}, {"fullgraph": True}], ids=str)
def test_numbers_may_be_values_of_tensors(mode, training, keywords):
    (_, x), model = attention(), PaddedByABuffer(mode)
    with torch.set_grad_enabled(training), regraft.coverage() as cov:
        compiled = torch.compile(model, backend="regraft", options={"profit": "always"}, **keywords)
        for width in (2, 0, 1, 5):
            model.padding.fill_(width)
            torch.testing.assert_close(compiled(x), model(x))
    assert not cov.faults and (cov.matches["sdpa"] or (OLD_TORCH and mode == "reflect"))
    assert mode == "circular" or OLD_TORCH or not cov.fallbacks  # copies to parts of circular padding need known widths


def test_what_our_stages_raise_is_a_fault_of_ours(monkeypatch):
    def failing(*args, **kwargs):
        raise RuntimeError("no wrapper")

    monkeypatch.setattr(Compilation, "_compiled", failing)
    with regraft.coverage() as cov:
        result = torch.compile(torch.sin, backend="regraft")(torch.ones(3))
    assert torch.equal(result, torch.ones(3).sin())
    assert [f.code for f in cov.faults] == ["differentiate-failed"]


def test_a_program_on_cuda_is_captured_as_its_parts_allow(monkeypatch, tmp_path):
    """Which graphs are captured, and which inputs stay where they are: as if the inputs were on a GPU."""
    asked = []
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))

    class Graphs:
        def __init__(self, limit, note):
            self.limit = limit

        def inference(self, call, static):
            asked.append(("inference", static, self.limit))
            return call

    monkeypatch.setattr(backend_module, "CudaGraphs", Graphs)
    monkeypatch.setattr(replay, "skip_reason", lambda graph, static, rng: None)
    monkeypatch.setattr(
        Compilation, "_cuda_graphs", lambda self: Graphs(self.options.cudagraph_limit, self._not_captured)
    )
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    for _ in range(2):  # the second time it is recalled
        torch.compiler.reset()
        with torch.no_grad(), regraft.coverage() as cov:
            torch.compile(model, backend="regraft", options={"cudagraph_limit": 3, "triton.cudagraphs_launches": 1})(x)
    assert asked == [("inference", frozenset({0, 1}), 3)] * 2
    assert "capture" not in cov.graphs[0].seconds


def test_what_is_left_out_by_name():
    """A rule, an operator's kernel, or all of a kind; an unknown name is refused with the nearest."""
    model, x = attention()
    options = {"profit": "always", "freezing": False}
    for without in ("sdpa", ("rule", "aten.add.Tensor"), ["fusion", "memory"]):
        torch.compiler.reset()
        with regraft.coverage() as cov:
            compiled = torch.compile(model, backend="regraft", options={**options, "without": without})
            torch.testing.assert_close(compiled(x), model(x))
        assert cov.matches["sdpa"] == (1 if "fusion" in without else 0)
    torch.compiler.reset()
    with pytest.raises(Exception, match="did you mean 'sdpa'"):
        torch.compile(model, backend="regraft", options={"without": "sdpaa"})(x)


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("training", [False, True])
def test_a_model_dies_when_the_program_forgets_it(training, tmp_path, monkeypatch):
    """Nothing that a compilation leaves holds parameters: neither what compiles the backward, nor a record."""
    monkeypatch.setenv("REGRAFT_CACHE_DIR", str(tmp_path))

    def run():
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
        with torch.set_grad_enabled(training):
            y = torch.compile(model, backend="regraft")(torch.randn(4, 8))
            if training:
                y.sum().backward()
        return [weakref.ref(p) for p in model.parameters()]

    refs = run()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


@pytest.mark.parametrize("training", [thorough(False), True])
def test_a_long_chain_whose_values_are_read_twice(training):
    """Whatever walks a value as a tree takes twice as long for each step, and would not return from sixty."""

    def roots(x):
        y = torch.ones_like(x)
        for _ in range(60):
            y = 0.5 * (y + (x + 1) / y)
        return y

    torch.compiler.reset()
    x = torch.rand(5).requires_grad_(training)
    ours = torch.compile(roots, backend="regraft")(x)
    torch.testing.assert_close(ours, roots(x))
    if training:
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (ours, roots(x))))


def test_a_reset_of_dynamo_is_told_to_captures():
    assert regraft.backend.reset is drop_captures

"""Graphs called from C++: their errors, what they hold and when they let go of it, and where Python calls instead."""

from __future__ import annotations

import json
import textwrap
import threading
import traceback
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from support.fresh import run_fresh
from support.two_wrappers import CPP, assert_equal, check, run

import regraft
from regraft.compiler.codegen.cpp_wrapper import load
from regraft.compiler.codegen.cpp_wrapper.errors import NotInCppError

seen: list[list[bool]] = []
watched: list[weakref.ref] = []


@torch.library.custom_op("regraft_tests::cpp_wrapper_looks", mutates_args=())
def looks(x: torch.Tensor) -> torch.Tensor:
    """Which of the watched tensors are alive; raises of what is negative."""
    seen.append([watch() is not None for watch in watched])
    if x.min() < 0:
        raise KeyError("negative")
    return x * 2


@looks.register_fake
def _(x):
    return torch.empty_like(x)


def compiled(function, **options):
    torch.compiler.reset()
    return torch.compile(function, backend="regraft", options=CPP | options)


def reasons(cov):
    return [f.code for g in cov.graphs for f in g.fallbacks if f.stage == "wrapper"]


def test_an_index_out_of_range_is_eagers_error_with_the_users_line():
    call = compiled(lambda table, rows: table[rows].sin() * 2)
    table = torch.randn(4, 3)
    call(table, torch.tensor([0, 3]))
    with pytest.raises(IndexError, match="index 4 is out of bounds for dimension with size 4") as caught:
        call(table, torch.tensor([0, 4]))
    notes = "".join(traceback.format_exception(caught.value))
    assert "compiled by regraft from test_load.py" in notes or "test_load.py:" in notes
    with pytest.raises(RuntimeError):  # what catches eager's error of `gather`
        call(table, torch.tensor([9, 4]))


def test_errors_of_calls_are_the_operators_own():
    call = compiled(lambda x, y: torch.linalg.cholesky(x) @ looks(y))
    x, y = torch.eye(3), torch.ones(3, 3)
    call(x, y)
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        call(-x, y)
    with pytest.raises(KeyError, match="negative") as caught:
        call(x, -y)
    assert any("test_load.py" in note for note in caught.value.__notes__)


def test_what_an_error_leaves_is_freed():
    call = compiled(lambda x, y: looks((x @ y).exp()) + looks(x - 1))
    x, y = torch.ones(3, 3), torch.ones(3, 3)
    call(x + 1, y)
    for _ in range(3):
        given = x * 0
        watch = weakref.ref(given.untyped_storage())
        with pytest.raises(KeyError):
            call(given, y)
        del given
        assert watch() is None


def boxed(function, *inputs):
    """The function in boxed convention that was compiled for a graph of these inputs."""
    from regraft.compiler import graph_code

    made = []
    with pytest.MonkeyPatch.context() as patch:
        real = graph_code.called_from_cpp
        patch.setattr(graph_code, "called_from_cpp", lambda *args: made.append(real(*args)) or made[-1])
        with torch.no_grad():
            compiled(function)(*inputs)
    return made[-1].call


def test_the_list_of_inputs_is_emptied_and_dead_inputs_are_freed_within_the_call():
    call = boxed(lambda x, y: looks(looks(x.sin()) + y), torch.ones(3), torch.ones(3))
    given = [torch.ones(3), torch.ones(3)]
    watched[:] = [weakref.ref(t.untyped_storage()) for t in given]
    seen.clear()
    assert len(call(given)) == 1 and given == []
    assert seen == [[False, True], [False, False]]
    watched.clear()
    with pytest.raises(TypeError, match="one list of 2 inputs"):
        call([torch.ones(3)])
    with pytest.raises(TypeError, match="not a tensor"):
        call([torch.ones(3), "x"])


def test_views_among_results_count_writes_together():
    def function(x):
        y = x.sin()
        return y, y[1:], y.t()

    with torch.no_grad():
        y, part, turned = compiled(function)(torch.randn(3, 4))
        versions = [t._version for t in (y, part, turned)]
        y.add_(1)
        assert [t._version for t in (y, part, turned)] == [v + 1 for v in versions]
        assert torch.equal(y[1:], part) and torch.equal(y.t(), turned)


@pytest.mark.parametrize("train", [False, True])
def test_a_profiler_shows_each_call(train):
    call = compiled(lambda x, w: torch.softmax((x @ w).tanh(), -1))
    x, w = (torch.randn(8, 8, requires_grad=train) for _ in range(2))
    before = call(x, w)
    with torch.profiler.profile() as profile:
        again = call(x, w)
    assert torch.equal(again, before) and torch.equal(call(x, w), before)
    assert any("[test_load.py:" in event.key for event in profile.key_averages())


def test_threads_call_at_once():
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 8), torch.nn.LayerNorm(8))
    call, inputs = compiled(model), [torch.randn(4, 8) for _ in range(4)]
    expected, wrong = [model(x).detach() for x in inputs], []
    call(inputs[0])

    def many(x, told):
        for _ in range(100):
            if not torch.allclose(call(x), told, rtol=1e-4, atol=1e-5):
                wrong.append(x)

    threads = [threading.Thread(target=many, args=pair) for pair in zip(inputs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


SCRIPT = """
    import json, sys, torch, regraft
    from regraft.compiler.codegen.cpp_wrapper import load

    made, real = [], load.load_cpp
    from regraft.compiler.codegen.wrapper import wrapper
    wrapper.load_cpp = lambda *args: made.append(1) or real(*args)
    from regraft.compiler import backend
    stages, capture = [], backend.capture
    backend.capture = lambda *args: stages.append(1) or capture(*args)
    torch.manual_seed(0)
    train = sys.argv[1] == "train"
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    x = torch.randn(3, 8)
    with torch.set_grad_enabled(train), regraft.coverage() as cov:
        out = torch.compile(model, backend="regraft", options={"cpp.wrapper": True, "strict": True})(x)
        if train:
            out.sum().backward()
    values = [out.sum().item()] + ([model[0].weight.grad.sum().item()] if train else [])
    told = [f.code for g in cov.graphs for f in g.fallbacks]
    print(json.dumps([values, len(made), bool(stages), told]))
"""


@pytest.mark.parametrize("kind", ["inference", "train"])
def test_a_new_process_calls_what_was_compiled_before(kind, tmp_path):
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(SCRIPT))
    own_cache = {"REGRAFT_CACHE_DIR": str(tmp_path / "cache")}
    done = [
        run_fresh([[script, kind]], cwd=tmp_path, environment=own_cache, code_of_all_runs=True)[0] for _ in range(2)
    ]
    assert all(one.code == 0 for one in done), done[-1].errors
    (cold, loads, stages, told), warm = (json.loads(one.output.splitlines()[-1]) for one in done)
    assert stages and not told and loads == 1 + (kind == "train")
    assert warm == [cold, loads, False, []]


def test_without_a_compiler_python_calls_and_the_record_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with regraft.coverage() as cov:
        call = compiled(lambda x: x.sin() @ x, strict=False)
        x = torch.randn(3, 3)
        torch.testing.assert_close(call(x), x.sin() @ x)
    assert reasons(cov) == ["no-compiler"]


def test_without_headers_python_calls_and_the_record_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(load.export, "library_paths", lambda: (str(tmp_path), str(tmp_path)))
    load.runtime.cache_clear()
    with regraft.coverage() as cov:
        call = compiled(lambda x: x.sin() @ x)
        x = torch.randn(3, 3)
        torch.testing.assert_close(call(x), x.sin() @ x)
    load.runtime.cache_clear()
    assert reasons(cov) == ["python-headers"]
    assert "the headers of torch are not installed" in str(cov.graphs[0].fallbacks)


def test_a_fault_of_the_compiler_is_contained(monkeypatch):
    def fails(*_args):
        raise ValueError("planted")

    monkeypatch.setattr("regraft.compiler.graph_code.called_from_cpp", fails)
    x = torch.randn(3, 3)
    with regraft.coverage() as cov:
        torch.testing.assert_close(compiled(lambda x: x.sin() @ x, strict=False)(x), x.sin() @ x)
    (fallback,) = [f for g in cov.graphs for f in g.fallbacks]
    assert fallback.stage == "wrapper" and fallback.fault
    with pytest.raises(Exception, match="planted"):
        compiled(lambda x: x.sin() @ x)(x)


def test_what_cannot_be_loaded_any_more_is_called_from_python(monkeypatch):
    def program(x):
        return F.softmax(x, -1) @ x

    x = torch.randn(3, 3)
    with torch.no_grad():
        told = run(compiled(program), [x])
        monkeypatch.setattr("regraft.compiler.codegen.wrapper.wrapper.load_cpp", lambda *_: 1 / 0)
        assert_equal(run(compiled(program, strict=False), [x]), told)


def test_operators_of_python_are_called_through_the_dispatcher():
    cov = check(lambda x, w: (looks(x.abs()) @ w, torch.nonzero(x)), (torch.randn(4, 8), torch.randn(8, 3)))
    assert any("regraft_tests::cpp_wrapper_looks" in text for text in texts(cov))


def test_what_has_no_words_in_cpp_python_does():
    def function(x):
        return torch.complex(x, x) * (1 + 2j), torch.empty(2, device="meta").shape[0] * x

    cov = check(function, (torch.randn(4),))
    assert texts(cov)


def test_complex_numbers():
    def function(x):
        turned = x * 1j, torch.full((2,), -0.0 + 1e30j), torch.where(x > 0, x * (0.5 - 2j), float("inf") + 1j)
        return [*turned, torch.complex(x, x) * (1 + 2j), 3j - x, torch.ops.aten.add.Tensor(x, x, alpha=2)]

    check(function, (torch.randn(4),))


def texts(cov):
    return [text for g in cov.graphs for name, text in g.details.items() if name.startswith("wrapper:")]


def test_the_reason_names_what_it_is_about():
    graph = torch.fx.Graph()
    node = graph.call_function(torch.ops.aten.mm.default, ())
    reason = NotInCppError("device", "is on cuda:0", node).reason
    assert reason.code == "python-device" and reason.nodes == (node,)
    assert reason.message == "the graph is called from Python: aten.mm.default is on cuda:0"


@pytest.fixture
def every_warning():
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def test_warnings_of_operators_are_pythons(every_warning, monkeypatch):
    call = compiled(lambda x, y: looks(torch.searchsorted(x, y) + y.sum()))
    x, y = torch.arange(12.0).view(4, 3).t(), torch.ones(3, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_equal([call(x, y)], [(torch.searchsorted(x.contiguous(), y) + y.sum()) * 2])
        caught.clear()
        call(x, y)
        with pytest.raises(KeyError):
            call(x, -10 * y)
    assert [w.category for w in caught if "non-contiguous" in str(w.message)] == [UserWarning] * 2
    unraisable = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="non-contiguous"):
            call(x, y)
        with pytest.raises(KeyError):  # the warning after the error
            call(x, -10 * y)
    assert [u.exc_type for u in unraisable] == [UserWarning]

"""Generated kernels in a graph: what runs is what eager computes, memory is reused, faults fall back to calls."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import regraft
from regraft.compiler.backend import backend
from regraft.compiler.codegen import generate as codegen
from regraft.compiler.codegen.cpp import CompileFailed, CompilerMissing
from regraft.compiler.codegen.generate import NotGeneratedError, generate_kernels
from regraft.compiler.codegen.kernel_call import KernelCall, evaluate, spell
from regraft.compiler.codegen.wrapper.wrapper import generate

from ...support.lowering import trace


@pytest.fixture(autouse=True)
def _compiled_anew(monkeypatch):
    torch.compiler.reset()
    monkeypatch.setenv("REGRAFT_DISABLE_CACHE", "1")


def generated(function, *inputs, dynamic=False):
    """A function's graph with kernels in it, and its wrapper."""
    module = trace(function, *inputs, dynamic=dynamic)
    made = generate_kernels(module, "inference", verify=True)
    module.graph = made.graph
    return module, made, generate(module, name="made")


def run(wrapper, *inputs):
    with torch.no_grad():
        return wrapper.call(list(inputs))


def targets(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def test_a_graph_of_pointwise_calls_is_one_kernel():
    x, y = torch.randn(8, 16), torch.randn(16)
    module, made, wrapper = generated(lambda x, y: ((x + y).relu() * 2,), x, y)
    assert [type(target) for target in targets(module)] == [KernelCall]
    assert (made.code.tensors, made.code.kernels, made.code.kept) == (3, 1, ())
    torch.testing.assert_close(run(wrapper, x, y), ((x + y).relu() * 2,))


def test_the_graph_runs_without_a_wrapper_too():
    x = torch.randn(4, 6)
    module, _, _ = generated(lambda x: (x.exp(), x.sum(0)), x)
    torch.testing.assert_close(fx.Interpreter(module).run(x), (x.exp(), x.sum(0)))


def test_calls_that_stay_are_counted_with_their_reason():
    x = torch.randn(8, 8)
    _, made, wrapper = generated(lambda x: (torch.sort((x @ x).relu(), 0)[0] + 1,), x)
    assert {(call.operator, call.count, call.code) for call in made.code.kept} == {
        ("aten.mm.default", 1, "library"),
        ("aten.sort.default", 1, "algorithm"),
    }
    torch.testing.assert_close(run(wrapper, x), (torch.sort((x @ x).relu(), 0)[0] + 1,))


def test_views_are_made_anew_where_calls_and_results_need_them():
    x = torch.randn(4, 6)
    _, made, wrapper = generated(lambda x: (x.exp().t(), x.exp().view(3, 8) @ x.view(8, 3)), x)
    out, product = run(wrapper, x)
    torch.testing.assert_close((out, product), (x.exp().t(), x.exp().view(3, 8) @ x.view(8, 3)))
    assert out.stride() == x.t().stride() and made.code.kernels == 1


def test_a_dead_product_is_written_over():
    x = torch.randn(16, 16)
    _, _, wrapper = generated(lambda x: ((x @ x).exp(),), x)
    assert "# over it" in wrapper.source and wrapper.stats.reused == 1
    torch.testing.assert_close(run(wrapper, x), ((x @ x).exp(),))


def test_inputs_and_results_are_never_written_over():
    x = torch.randn(16, 16)
    before = x.clone()
    _, _, wrapper = generated(lambda x: (x.exp(), (x @ x), (x @ x).exp()), x)
    out = run(wrapper, x)
    assert torch.equal(x, before)
    torch.testing.assert_close(out, (x.exp(), x @ x, (x @ x).exp()))


def test_writes_to_inputs_happen_in_the_program_order():
    def program(x, y):
        z = x * 2
        x.copy_(y + 1)
        return (z + x,)

    x, y = torch.randn(5, 3), torch.randn(5, 3)
    mine, eager = x.clone(), x.clone()
    _, _, wrapper = generated(program, x, y)
    torch.testing.assert_close(run(wrapper, mine, y), program(eager, y))
    torch.testing.assert_close(mine, eager)


def test_a_write_to_an_input_that_is_a_result_too_happens_once():
    """As a static cache counts its tokens: counted twice, all that is decoded after would be wrong."""

    def program(count, x):
        same = torch.ops.aten.to.dtype_layout(count, dtype=count.dtype, layout=torch.strided)
        places = x + same
        return same.add_(3), places

    count, x = torch.tensor(0), torch.arange(3)
    compiled = torch.compile(program, backend=backend)
    with torch.no_grad():
        for step in (0, 3):
            after, places = compiled(count, x)
            assert torch.equal(places, x + step)
            assert int(count) == int(after) == step + 3


@pytest.mark.parametrize("rows", [0, 1, 7, 33])
def test_sizes_may_be_symbolic(rows):
    def program(x, w):
        return (F.layer_norm(x, (8,), w).reshape(-1), x.sum(0), torch.cat([x, x * 2]))

    w = torch.randn(8)
    module, made, wrapper = generated(lambda x, w: program(x, w), torch.randn(5, 8), w, dynamic=True)
    x = torch.randn(rows, 8)
    sizes = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    assert not any(isinstance(size, torch.SymInt) for size in sizes)  # traced without Dynamo: read off the tensors
    torch.testing.assert_close(run(wrapper, x, w), program(x, w))
    assert made.code.kernels >= 1


def test_out_of_range_indices_raise_as_in_eager():
    x, index = torch.randn(4), torch.tensor([0, 7])
    compiled = torch.compile(lambda x, i: x[i] * 2, backend="regraft")
    torch.testing.assert_close(compiled(x, index.clamp(max=3)), x[index.clamp(max=3)] * 2)
    with pytest.raises(IndexError, match=r"index 7 is out of bounds for dimension .*with size 4"):
        compiled(x, index)


@pytest.mark.parametrize("error", [CompileFailed(Path("x.cpp"), "planted"), RuntimeError("planted")])
def test_a_fault_leaves_the_calls(monkeypatch, error):
    def failing(kernels):
        raise error

    monkeypatch.setattr(codegen.cpp, "build", failing)
    x = torch.randn(3)
    with regraft.coverage() as cov:
        torch.testing.assert_close(torch.compile(lambda x: x.exp() + 1, backend="regraft")(x), x.exp() + 1)
    assert [fallback.code for fallback in cov.faults] == ["kernels-failed"]
    with pytest.raises(Exception, match="planted"):
        torch.compile(lambda x: x.exp() + 1, backend="regraft", options={"strict": True})(x)


def test_no_compiler_is_said_once(monkeypatch, caplog):
    def missing(kernels):
        raise CompilerMissing("no C++ compiler: none of g++, clang++, c++ is on the path")

    monkeypatch.setattr(codegen.cpp, "build", missing)
    codegen.warn_once.cache_clear()
    x = torch.randn(3)
    with regraft.coverage() as cov:
        for shift in (1, 2):
            torch.compiler.reset()
            torch.compile(lambda x, s=shift: x.exp() + s, backend="regraft")(x)
    assert [fallback.code for fallback in cov.fallbacks] == ["no-compiler"] * 2
    assert len([record for record in caplog.records if "no C++ compiler" in record.message]) == 1


def test_other_devices_are_left_alone():
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = torch.empty(2, device="meta")
    graph.output((node,))
    with pytest.raises(NotGeneratedError, match="CPUs and CUDA devices"):
        generate_kernels(fx.GraphModule({}, graph), "inference")


def test_every_stage_prints():
    x = torch.randn(8, 16)
    _, made, _ = generated(lambda x: (x.softmax(-1),), x)
    texts = made.texts()
    assert "softmax" in texts["program"] and "fused" in texts["fusion"] and "kernel k0" in texts["kernels"]


def test_training_step_agrees():
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    mine, x, y = copy.deepcopy(model), torch.randn(10, 16), torch.randint(0, 4, (10,))
    F.cross_entropy(model(x), y).backward()
    with regraft.coverage() as cov:
        compiled = torch.compile(mine, backend="regraft")
        F.cross_entropy(compiled(x), y).backward()
    for ours, theirs in zip(mine.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert {code.kind for graph in cov.graphs for code in graph.code} == {"forward", "backward"}


def test_sizes_are_spelled_as_python():
    from regraft.compiler.ir.index.index import Size, least, quotient

    s = Size("s0", 0, None).index()
    number = s * 4 + quotient(s, 3) + least(s, 7) - 2
    assert eval(spell(number, {"s0": "n"}), {"n": 10, "min": min}) == 40 + 3 + 7 - 2 == evaluate(number, {"s0": 10})
    assert spell(5, {}) == "5"


def test_a_dead_product_of_another_shape_is_written_over():
    x = torch.randn(16, 16)
    _, _, wrapper = generated(lambda x: ((x @ x).view(4, 64).exp() @ x.view(64, 4),), x)
    assert "as_strided" in wrapper.source and wrapper.stats.reused == 1
    torch.testing.assert_close(run(wrapper, x), ((x @ x).view(4, 64).exp() @ x.view(64, 4),))


def test_no_result_is_a_view_of_something_else():
    x = torch.randn(16, 16)
    _, _, wrapper = generated(lambda x: ((x @ x).view(4, 64).exp(),), x)
    (out,) = run(wrapper, x)
    assert out._base is None and "as_strided" not in wrapper.source


def test_ties_of_sums_after_a_norm_in_evaluation_do_not_all_round_down():
    """By statistics as they are at first all factors are a little below 1: sums of halves would lie just below ties."""
    x, residual = (torch.randn(2, 8, 64, 64, generator=torch.Generator().manual_seed(n)).relu() for n in (1, 2))
    inputs = [x, residual, torch.ones(8), torch.zeros(8)]

    def block(x, residual, one, zero):
        norm = torch.ops.aten._native_batch_norm_legit_no_training(x, one, zero, zero, one, 0.1, 1e-5)[0]
        return (norm + residual,)

    halves = [t.bfloat16() for t in inputs]
    _, made, wrapper = generated(block, *halves)
    assert made.code.kernels <= 2
    ((ours,), (eager,)), (exact,) = (run(wrapper, *halves), block(*halves)), block(*(t.double() for t in halves))
    drift, theirs = (((y.double() - exact).mean() / exact.mean()).abs() for y in (ours, eager))
    assert drift < 1.5 * theirs + 2e-5

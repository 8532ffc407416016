"""Products on GPUs through the pass: what is asked, who decides, what the graph becomes. No GPU is needed."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.template_oracle import Fastest, run_pass, with_fake_hopper
from support.triton_gemm import on_gpu
from torch._subclasses import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.nn import functional as F

from regraft.compiler.codegen.generate import generate_kernels
from regraft.compiler.codegen.triton import TritonFailed
from regraft.compiler.codegen.wrapper.wrapper import generate
from regraft.compiler.templates import TritonTemplateKernel
from regraft.compiler.templates.common import compiled_candidates, triton_call
from regraft.compiler.templates.common.compiled_candidates import CompiledCandidates
from regraft.compiler.templates.common.task import task_of
from regraft.compiler.templates.common.template_pass import TemplatePass
from regraft.compiler.templates.gemm import triton_fuse as gemm_triton_fuse
from regraft.compiler.templates.gemm.triton_fuse import ProductTemplate
from regraft.rewrites.profit import Always, Never
from regraft.rewrites.record import GraphRecord

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return with_fake_hopper(monkeypatch, tmp_path_factory.getbasetemp() / "products")


def empty(*sizes: int) -> torch.Tensor:
    return torch.empty(sizes, dtype=BF16)


def fuse(
    function: Callable[..., Any], *inputs: torch.Tensor, oracle: Any = None, thorough: bool = False
) -> tuple[torch.fx.GraphModule, GraphRecord]:
    module, record = on_gpu(function, *inputs), GraphRecord("test")
    run_pass(ProductTemplate, module, oracle or Always(), record, thorough=thorough)
    module.graph.lint()
    module.recompile()
    return module, record


def kernels(module: torch.fx.GraphModule) -> list[TritonTemplateKernel]:
    return [node.target for node in module.graph.nodes if isinstance(node.target, TritonTemplateKernel)]


def gelu(b: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(torch.addmm(b, x, w).view(8, -1, w.shape[1]))


BERT = empty(3072), empty(8192, 768), empty(768, 3072)
NO_GAIN = empty(3072), empty(8192, 16384), empty(16384, 3072)


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(TritonTemplateKernel, "build", lambda self: None)
    yield


@pytest.mark.usefixtures("nothing_compiled")
def test_the_fastest_tile_is_taken() -> None:
    oracle = Fastest(original=1.0, tma=0.5)
    module, record = fuse(gelu, *BERT, oracle=oracle)
    (kernel,) = kernels(module)
    assert kernel.name.startswith("gemm_addmm_gelu_")
    assert kernel.name.endswith("_tma")
    assert [node.name for node in module.graph.nodes if node.op == "call_function"] == [kernel.name]
    assert record.applied[0].candidate in kernel.name
    assert record.applied[0].evidence is not None
    assert record.applied[0].evidence.times["original"] == 1.0


@pytest.mark.usefixtures("nothing_compiled")
def test_it_is_never_slower_than_the_library() -> None:
    module, record = fuse(gelu, *BERT, oracle=Fastest(original=0.5))
    assert kernels(module) == []
    assert [match.candidate for match in record.declined] == [""]


@pytest.mark.usefixtures("nothing_compiled")
def test_questions_name_all_that_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Fastest()
    fuse(gelu, *BERT, oracle=first)
    assert [*first.questions[0].candidates] == ["128x128x64_8w4s_tma"]  # by default: compiling takes seconds
    monkeypatch.setattr(gemm_triton_fuse, "_TILES", 4)
    oracle = Fastest()
    fuse(gelu, *BERT, oracle=oracle)
    (question,) = oracle.questions
    assert len(question.candidates) == 4
    assert any(name.endswith("tma") for name in question.candidates)
    assert not all(name.endswith("tma") for name in question.candidates)
    again = Fastest()
    fuse(gelu, *BERT, oracle=again)
    assert again.questions[0].key == question.key


@pytest.mark.usefixtures("nothing_compiled")
def test_equal_products_ask_the_same() -> None:
    def layers(b: torch.Tensor, x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(torch.addmm(b, x, w))
        return F.gelu(torch.addmm(b, torch.mm(hidden, v), w))

    oracle = Fastest(original=1.0, x=0.5)
    module, _ = fuse(layers, *BERT, empty(3072, 768), oracle=oracle)
    assert len({question.key for question in oracle.questions}) == 1
    first, second = kernels(module)
    assert first is second


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize(
    ("function", "inputs", "why"),
    [
        (gelu, NO_GAIN, "would save"),
        (gelu, (empty(64), empty(32, 64), empty(64, 64)), "less work than a launch"),
    ],
)
def test_what_cannot_pay_is_not_asked(function: Any, inputs: Any, why: str) -> None:
    oracle = Fastest()
    _, record = fuse(function, *inputs, oracle=oracle)
    assert oracle.questions == []
    assert record.declined[0].evidence is not None
    assert why in record.declined[0].evidence.note


@pytest.mark.usefixtures("nothing_compiled")
def test_what_the_library_does_as_well_is_not_spoken_of() -> None:
    oracle = Fastest()
    _, record = fuse(lambda b, x, w: torch.addmm(b, x, w), *BERT, oracle=oracle)
    assert oracle.questions == record.declined == record.near_misses == []


@pytest.mark.usefixtures("nothing_compiled")
def test_rows_that_are_not_aligned_are_asked_about() -> None:
    oracle = Fastest()
    fuse(lambda x, w: torch.mm(x, w.t()), empty(4096, 768), empty(50257, 768), oracle=oracle)
    assert len(oracle.questions) == 1


@pytest.mark.usefixtures("nothing_compiled")
def test_in_training_only_those_are_asked_about() -> None:
    oracle, record = Fastest(), GraphRecord("test")
    run_pass(ProductTemplate, on_gpu(gelu, *BERT), oracle, record, thorough=False, training=True)
    assert oracle.questions == record.declined == []
    vocabulary = on_gpu(lambda x, w: torch.mm(x, w.t()), empty(4096, 768), empty(50257, 768))
    run_pass(ProductTemplate, vocabulary, oracle, record, thorough=False, training=True)
    assert len(oracle.questions) == 1


@pytest.mark.usefixtures("nothing_compiled")
def test_thorough_asks_about_everything_and_looks_around_the_best() -> None:
    oracle = Fastest(**{"original": 1.0, "128x128x64_8w2s": 0.3, "128x128x64_8w3s": 0.4, "x": 0.6})
    module, _ = fuse(lambda b, x, w: torch.addmm(b, x, w), *BERT, oracle=oracle, thorough=True)
    assert len(oracle.questions) >= 2
    assert len(oracle.questions[0].candidates) > 6
    assert "128x128x64_8w2s" in kernels(module)[0].name


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("function", [gelu, lambda b, x, w: torch.addmm(b, x, w)])
@pytest.mark.parametrize("inputs", [BERT, NO_GAIN, (empty(64), empty(32, 64), empty(64, 64))])
def test_generated_kernels_are_taken_where_they_are_asked_for(function: Any, inputs: Any) -> None:
    """Whatever an estimate says; the library's call is not measured."""
    oracle, record = Fastest(original=0.1, x=0.5), GraphRecord("test")
    for kernels_option, expected in (("library", 0), ("measured", 0), ("generated", 1)):
        module = on_gpu(function, *inputs)
        task = task_of(module.graph, oracle, record)
        task = task and task.of(kernels_option)
        assert (0 if task is None else TemplatePass(ProductTemplate(task)).run_all()) == expected
    assert len(oracle.questions[-1].candidates) > 1 and "not measured" in oracle.questions[-1].excluded


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("tma", ["always", "never"])
def test_tiles_by_the_unit_that_copies(tma: str) -> None:
    oracle = Fastest()
    for thorough in (False, True):
        run_pass(ProductTemplate, on_gpu(gelu, *BERT), oracle, GraphRecord("test"), thorough=thorough, tma=tma)
    kinds = {name.endswith("_tma") or "_tma_" in name for q in oracle.questions for name in q.candidates}
    assert kinds == {tma == "always"}


@pytest.mark.usefixtures("nothing_compiled")
def test_time_for_questions_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_triton_fuse, "_SECONDS", 0.0)

    def two(b: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.gelu(torch.addmm(b, x, w)), F.silu(torch.addmm(b, x, w))

    oracle = Fastest(original=1.0, x=0.5)
    module, record = fuse(two, *BERT, oracle=oracle)
    assert kernels(module) == []
    assert oracle.questions == []
    assert {match.evidence.note for match in record.declined if match.evidence} == {
        "the time for measurements of this graph is spent"
    }


def test_what_does_not_compile_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: TritonTemplateKernel) -> None:
        raise TritonFailed("ptxas says no")

    monkeypatch.setattr(TritonTemplateKernel, "build", fail)
    module, record = fuse(gelu, *BERT)
    assert kernels(module) == []
    assert [miss.code for miss in record.near_misses] == ["no-machine-code"]


@pytest.mark.usefixtures("nothing_compiled")
def test_never_applies_nothing() -> None:
    module, record = fuse(gelu, *BERT, oracle=Never())
    assert kernels(module) == []
    assert len(record.declined) == 1


def test_other_devices_and_dtypes_are_left_alone() -> None:
    module, record = fuse(lambda x, w: F.gelu(x @ w), torch.empty(64, 64), torch.empty(64, 64))
    assert kernels(module) == []
    assert [miss.code for miss in record.near_misses] == ["dtype"]


@pytest.mark.parametrize("other", [torch.float16, torch.float32])
def test_a_bias_of_another_dtype_is_left_to_eagers_error(other: torch.dtype) -> None:
    for function in (lambda b, x, w: torch.addmm(b, x, w), lambda b, x, w: F.gelu(F.linear(x, w.t(), b))):
        bias, *matrices = BERT
        module, record = fuse(function, bias.to(other), *matrices)
        assert kernels(module) == []
        assert "dtype" in [miss.code for miss in record.near_misses]


@pytest.mark.parametrize("factor", ["alpha", "beta"])
def test_what_is_multiplied_by_nothing_is_left_to_the_library(factor: str) -> None:
    """Eager does not read it: NaN there does not matter."""
    module, record = fuse(lambda b, x, w: F.gelu(torch.addmm(b, x, w, **{factor: 0})), *BERT)
    assert kernels(module) == []
    assert "factor" in [miss.code for miss in record.near_misses]


@pytest.mark.usefixtures("nothing_compiled")
def test_loops_that_must_load_the_result_are_counted() -> None:
    def read(b: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.gelu(torch.addmm(b, x, w))
        return y, y.sum(0)

    oracle = Fastest()
    fuse(read, *BERT, oracle=oracle)
    (question,) = oracle.questions
    assert {type(program).__name__ for program in question.candidates.values()} == {"_Reread"}
    program = next(iter(question.candidates.values()))
    called: list[Any] = []
    program.kernel = lambda *tensors: called.append(tensors) or (torch.ones(3), torch.ones(3))  # type: ignore[attr-defined]
    assert len(program(torch.ones(2))) == 2
    assert len(called) == 1


# -- graphs -----------------------------------------------------------------------------------------------------------


def test_kept_products_are_a_second_result(driver: Any) -> None:
    def forward(b: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.addmm(b, x, w)
        return F.gelu(y.view(2, 64, 128)), y

    module, _ = fuse(forward, empty(128), empty(128, 256), empty(256, 128))
    (kernel,) = kernels(module)
    assert [layout.sizes for layout in kernel.outputs] == [(2, 64, 128), (128, 128)]
    module.graph = generate_kernels(module, "forward", verify=True).graph
    source = generate(module, name="made").source
    assert f"getitem, getitem_1 = {kernel.name}(" in source


def test_operands_of_the_epilogue_may_come_after_the_product() -> None:
    def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(x @ gate) * (x @ up)

    module, _ = fuse(gated, empty(128, 64), empty(64, 256), empty(64, 256))
    first, second = (node for node in module.graph.nodes if isinstance(node.target, TritonTemplateKernel))
    assert first in second.args
    assert second.target.name.startswith("gemm_mm_silu_mul")


def test_a_kept_product_that_is_read_before_the_epilogue_has_its_operands() -> None:
    def early(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x @ w
        other = torch.mm(y, v)
        return F.silu(y) * other, y

    module, _ = fuse(early, empty(128, 64), empty(64, 64), empty(64, 64))
    assert [len(kernel.outputs) for kernel in kernels(module)] == [1, 1]


def test_reads_do_not_move_over_writes() -> None:
    graph = torch.fx.Graph()
    x, w, r = (graph.placeholder(name) for name in "xwr")
    y = graph.call_function(torch.ops.aten.mm.default, (x, w))
    graph.call_function(torch.ops.aten.copy_.default, (r, x))
    graph.output(graph.call_function(torch.ops.aten.add.Tensor, (y, r)))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    with FakeTensorMode() as mode:
        FakeTensorProp(module, mode).propagate(*(torch.empty(64, 64, dtype=BF16, device="cuda") for _ in range(3)))
    record = GraphRecord("test")
    assert run_pass(ProductTemplate, module, Always(), record, thorough=False) == 0
    assert record.declined[0].evidence is not None
    assert "written to in between" in record.declined[0].evidence.note


def test_code_counts_templates_and_pickles() -> None:
    module, _ = fuse(gelu, empty(128), empty(128, 256), empty(256, 128))
    made = generate_kernels(module, "inference", verify=True)
    assert made.code.templates == {"gemm": 1}
    assert made.code.kept == ()
    (kernel,) = kernels(module)
    again = pickle.loads(pickle.dumps(kernel))
    assert again.source == kernel.source
    assert again.units == kernel.units


# -- launches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("descriptors", [False, True])
def test_launches_have_what_kernels_need(driver: Any, descriptors: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_call, "_empty", lambda device: _on_cpu)
    monkeypatch.setattr(gemm_triton_fuse, "_TILES", 4)
    oracle = Fastest(original=1.0, tma=0.2 if descriptors else 2.0, x=0.5)
    module, _ = fuse(gelu, empty(512), empty(1024, 256), empty(256, 512), oracle=oracle)
    (kernel,) = kernels(module)
    tensors = [torch.empty(layout.sizes, dtype=layout.dtype) for layout in kernel.inputs]
    driver.reset(len(tensors) + 2)
    out = kernel(*tensors)
    (launch,) = driver.launches()
    assert launch.name.decode().startswith("gemm_addmm_gelu")
    assert launch.programs == kernel.source.launches[0].programs
    addresses = [x.data_ptr() for x in (*tensors, out)]
    assert list(launch.values[: len(addresses)]) == addresses
    assert bool(launch.values[len(addresses)]) == descriptors


def test_tensors_that_are_not_aligned_have_a_kernel_of_their_own(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_call, "_empty", lambda device: _on_cpu)
    monkeypatch.setattr(gemm_triton_fuse, "_TILES", 4)
    module, _ = fuse(gelu, empty(512), empty(1024, 256), empty(256, 512), oracle=Fastest(original=1.0, tma=0.2))
    (kernel,) = kernels(module)
    driver.reset(len(kernel.inputs) + 1)
    tensors = [torch.empty(torch.Size(x.sizes).numel() + 1, dtype=x.dtype)[1:].view(x.sizes) for x in kernel.inputs]
    kernel(*tensors)
    (launch,) = driver.launches()
    assert "tma" not in launch.name.decode()


def _on_cpu(sizes: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(sizes, strides, dtype=dtype)


@pytest.mark.usefixtures("nothing_compiled")
def test_of_two_products_that_meet_the_first_has_the_epilogue() -> None:
    def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(x @ gate) * (x @ up)

    inputs = empty(4096, 1024), empty(1024, 2816), empty(1024, 2816)
    oracle = Fastest(original=1.0, x=0.5)
    module, record = fuse(gated, *inputs, oracle=oracle)
    assert len(oracle.questions) == len(kernels(module)) == len(record.applied) == 1
    assert record.declined == []
    oracle = Fastest(original=0.1)
    fuse(gated, *inputs, oracle=oracle)
    assert len(oracle.questions) == 2


# -- many products ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_compiled")
def test_of_many_products_the_most_rewarding_are_asked_about() -> None:
    def many(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(F.gelu(torch.mm(x, w)) for w in weights)

    oracle = Fastest()
    _, record = fuse(many, empty(8192, 768), *(empty(768, 1024 + 64 * n) for n in range(12)), oracle=oracle)
    assert len(oracle.questions) == 4
    notes = [match.evidence.note for match in record.declined if match.evidence and match.evidence.note]
    assert (
        notes
        == ["estimate: others of this graph promise more, or all of its kind too little for the time to compile it"] * 8
    )
    declined = [match.nodes[0] for match in record.declined if match.evidence.note]
    assert declined == ["mm", *(f"mm_{n}" for n in range(1, 8))]  # the smaller ones


def test_kernels_are_waited_for_when_something_is_measured_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(
        compiled_candidates, "compile_units", lambda units: waited.extend(unit.function for unit in units)
    )
    monkeypatch.setattr(gemm_triton_fuse.ProductBaseline, "build", lambda self: waited.append("baseline"))
    oracle = Fastest()
    fuse(gelu, *BERT, oracle=oracle)
    assert waited == []
    (question,) = oracle.questions
    assert question.prepare is not None
    question.prepare()
    assert sorted(waited) == sorted(["baseline", *(kernel.name for kernel in question.candidates.values())])


def begun(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *inputs: torch.Tensor, taken: Any = ()) -> Any:
    """What was begun to be compiled for a graph, and what is asked about then."""
    names: list[str] = []
    monkeypatch.setattr(compiled_candidates, "begin_units", lambda units: names.extend(unit.function for unit in units))
    monkeypatch.setattr(gemm_triton_fuse.ProductBaseline, "begin", lambda self: None)
    module, oracle = on_gpu(function, *inputs), Fastest(original=0.1)
    task = task_of(module.graph, oracle, GraphRecord("test"))
    assert task is not None
    products = TemplatePass(ProductTemplate(task))
    products.begin(taken)
    before = list(names)
    products.run_all()
    return before, [kernel.name for question in oracle.questions for kernel in question.candidates.values()]


def test_what_will_be_asked_about_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    before, asked = begun(monkeypatch, gelu, *BERT)
    assert before == asked != []


def test_of_a_pair_both_are_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is asked about where the first declines."""

    def gated(x: torch.Tensor, up: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return F.silu(x @ gate) * (x @ up)

    before, asked = begun(monkeypatch, gated, empty(4096, 1024), empty(1024, 2816), empty(1024, 2816))
    assert len(asked) == 2 and set(before) == set(asked)


def test_what_others_may_replace_is_asked_about_where_they_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    module = on_gpu(gelu, *BERT)
    names = {node.name for node in module.graph.nodes if "mm" in node.name}

    class Taken:
        def __contains__(self, node: torch.fx.Node) -> bool:
            return node.name in names

        def __len__(self) -> int:
            return 1

    before, asked = begun(monkeypatch, gelu, *BERT, taken=Taken())
    assert before == [] and len(asked) == 1


def test_what_waits_for_kernels_does_something_else_while_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()

    class Nodes:
        def build(self) -> None:
            told.append("build")

    monkeypatch.setattr(compiled_candidates, "begin_units", lambda units: told.append("begin"))
    monkeypatch.setattr(compiled_candidates, "compile_units", lambda units: told.append("wait"))
    for busy in (True, False):
        monkeypatch.setattr(compiled_candidates, "are_under_way", lambda units, busy=busy: busy)
        CompiledCandidates(Nodes(), [], lambda: told.append("more")).prepare()  # type: ignore[arg-type]
    assert told == ["begin", "build", "more", "wait", "begin", "build", "wait"]

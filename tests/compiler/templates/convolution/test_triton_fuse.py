"""Convolutions on GPUs through the pass: what is asked, who decides, what the graph becomes. No GPU is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.template_oracle import Fastest, run_pass, with_fake_hopper
from support.triton_convolution import on_gpu
from torch.nn import functional as F

from regraft.compiler.codegen.generate import generate_kernels
from regraft.compiler.codegen.triton import TritonFailed
from regraft.compiler.templates import TritonTemplateKernel
from regraft.compiler.templates.common import triton_call
from regraft.compiler.templates.convolution.triton_fuse import RULE, ConvolutionTemplate
from regraft.compiler.templates.gemm.triton_fuse import ProductTemplate
from regraft.rewrites.profit import Always, Never
from regraft.rewrites.record import GraphRecord

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return with_fake_hopper(monkeypatch, tmp_path_factory.getbasetemp() / "convolutions")


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    if "driver" not in request.function.__code__.co_varnames[: request.function.__code__.co_argcount]:
        monkeypatch.setattr(TritonTemplateKernel, "build", lambda self: None)
    yield


def empty(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    last = len(sizes) == 4 and sizes[1] > 1
    return torch.empty(sizes, dtype=dtype, memory_format=torch.channels_last if last else torch.contiguous_format)


def fuse(
    function: Callable[..., Any], *inputs: torch.Tensor, oracle: Any = None, **options: Any
) -> tuple[torch.fx.GraphModule, GraphRecord]:
    module, record = on_gpu(function, *inputs), GraphRecord("test")
    run_pass(ConvolutionTemplate, module, oracle or Always(), record, **{"thorough": False, **options})
    module.graph.lint()
    module.recompile()
    return module, record


def kernels(module: torch.fx.GraphModule) -> list[TritonTemplateKernel]:
    return [node.target for node in module.graph.nodes if isinstance(node.target, TritonTemplateKernel)]


def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = torch.relu(F.conv2d(x, w, padding=1) + b.view(-1, 1, 1))
    return F.conv2d(y, v)


def deep(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    for _ in range(5):
        x = torch.relu(F.conv2d(x, w, padding=1) + b.view(-1, 1, 1))
    return x


EARLY = empty(256, 64, 56, 56), empty(64, 64, 3, 3), empty(64), empty(256, 64, 1, 1)
LATE = empty(64, 512, 7, 7), empty(512, 512, 3, 3), empty(512), empty(256, 512, 1, 1)


def single(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w, padding=3, groups=96)


CONVNEXT = empty(64, 96, 56, 56), empty(96, 1, 7, 7)


def test_the_fastest_tile_is_taken() -> None:
    oracle = Fastest(original=1.0, tma=0.5)
    module, record = fuse(block, *EARLY, oracle=oracle)
    (kernel,) = kernels(module)
    assert kernel.name.startswith("convolution_add_relu_")
    assert kernel.template == "convolution"
    assert [match.rule for match in record.applied] == [RULE]
    assert record.applied[0].evidence is not None
    assert record.applied[0].evidence.times["original"] == 1.0
    left = module.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    assert [node.name for node in left] == ["convolution_1"]


def test_it_is_never_slower_than_the_library() -> None:
    module, record = fuse(block, *EARLY, oracle=Fastest(original=0.5))
    assert kernels(module) == []
    assert [match.candidate for match in record.declined] == [""]


def test_late_layers_are_not_asked_about() -> None:
    oracle = Fastest()
    _, record = fuse(block, *LATE, oracle=oracle)
    assert oracle.questions == []
    assert record.declined[0].evidence is not None
    assert "would save" in record.declined[0].evidence.note


def test_groups_are_asked_about_first() -> None:
    """A library computes one group after the other, so that they cost most, though they have the fewest elements."""
    oracle = Fastest()

    def network(x: torch.Tensor, g: torch.Tensor, y: torch.Tensor, *wide: torch.Tensor) -> Any:
        for w in wide:
            y = torch.relu(F.conv2d(y, w, padding=1) + 1)
        return F.conv2d(x, g, groups=24), y

    group, images = empty(384, 16, 1, 1), empty(256, 64, 56, 56)
    wide = [empty(64 + 8 * (k + 1), 64 + 8 * k, 3, 3) for k in range(8)]
    fuse(network, empty(32, 384, 14, 14), group, images, *wide, oracle=oracle)
    assert len(oracle.questions) == 6
    assert group.shape in [question.inputs[1].shape for question in oracle.questions]


def test_what_saves_little_in_all_layers_together_is_not_worth_compiling_for() -> None:
    oracle = Fastest()
    fewer = EARLY[0][:64]
    _, record = fuse(block, fewer, *EARLY[1:], oracle=oracle)
    assert oracle.questions == []
    assert record.declined[0].evidence is not None
    assert "too little" in record.declined[0].evidence.note
    fuse(deep, fewer, *EARLY[1:3], oracle=oracle)
    assert len({question.key for question in oracle.questions}) == 1


def test_what_the_library_does_as_well_is_not_spoken_of() -> None:
    oracle = Fastest()
    _, record = fuse(lambda x, w: F.conv2d(x, w, padding=1), *EARLY[:2], oracle=oracle)
    assert oracle.questions == record.declined == record.near_misses == []


def test_thorough_asks_about_everything() -> None:
    oracle = Fastest()
    fuse(block, *LATE, oracle=oracle, thorough=True)
    assert len({question.key for question in oracle.questions}) == 2
    assert all(len(question.candidates) > 6 for question in oracle.questions)


def test_single_precision_is_asked_about_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.compiler.templates.convolution.match.convolutions_allow_tf32", lambda: True)
    inputs = [x.float() for x in EARLY]
    oracle = Fastest()
    fuse(block, *inputs, oracle=oracle)
    assert oracle.questions == []
    fuse(block, *inputs, oracle=oracle, thorough=True)
    assert len(oracle.questions) == 2


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_groups_are_asked_about_without_an_epilogue(training: bool) -> None:
    """Libraries compute one group after the other: a wide window over a line is no exception."""
    oracle = Fastest(original=1.0, x=0.5)
    x, w = empty(8, 768, 1, 100), empty(768, 48, 1, 128)
    module, _ = fuse(lambda x, w: F.conv2d(x, w, padding=(0, 64), groups=16), x, w, oracle=oracle, training=training)
    (kernel,) = kernels(module)
    assert kernel.template == "convolution"


def test_training_asks_about_single_channels_only() -> None:
    oracle = Fastest()
    fuse(block, *EARLY, oracle=oracle, training=True)
    assert oracle.questions == []
    fuse(single, *CONVNEXT, oracle=oracle, training=True)
    assert len(oracle.questions) == 1


def test_single_channels_are_asked_about_without_an_epilogue() -> None:
    oracle = Fastest(original=1.0, x=0.5)
    module, _ = fuse(single, *CONVNEXT, oracle=oracle)
    (kernel,) = kernels(module)
    assert kernel.template == "depthwise"


def test_loops_that_read_a_convolution_either_way_are_not_counted() -> None:
    oracle = Fastest()
    fuse(lambda x, w: single(x, w).sum(1), *CONVNEXT, oracle=oracle)
    (question,) = oracle.questions
    assert all(isinstance(program, TritonTemplateKernel) for program in question.candidates.values())


def test_never_applies_nothing() -> None:
    module, record = fuse(block, *EARLY, oracle=Never())
    assert kernels(module) == []
    assert len(record.declined) == 2


def test_what_does_not_compile_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: TritonTemplateKernel) -> None:
        raise TritonFailed("ptxas says no")

    monkeypatch.setattr(TritonTemplateKernel, "build", fail)
    module, record = fuse(block, *EARLY)
    assert kernels(module) == []
    assert {(miss.rule, miss.code) for miss in record.near_misses} == {(RULE, "no-machine-code")}


def test_products_are_the_other_pass() -> None:
    module = on_gpu(block, *EARLY)
    assert run_pass(ProductTemplate, module, Always(), GraphRecord("test"), thorough=False) == 0
    module, record = fuse(lambda x, w: torch.relu(x @ w), empty(64, 64), empty(64, 64))
    assert kernels(module) == []
    assert record.near_misses == []


# -- graphs -----------------------------------------------------------------------------------------------------------


def test_weights_of_single_channels_are_laid_out_once_for_all() -> None:
    def twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return single(single(x, w), w)

    module, _ = fuse(twice, *CONVNEXT)
    first, second = kernels(module)
    assert first is second
    clones = module.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert len(clones) == 1
    calls = [node for node in module.graph.nodes if node.target is first]
    assert {node.args[1].meta["val"].stride() for node in calls} == {first.inputs[1].strides}
    made = generate_kernels(module, "inference", verify=True)
    assert made.code.templates == {"depthwise": 2}
    assert made.code.kept == ()


def test_kept_convolutions_are_a_second_result(driver: Any) -> None:
    def forward(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.conv2d(x, w, padding=1)
        return F.conv2d(F.silu(y), v), y

    module, _ = fuse(forward, empty(2, 32, 8, 8), empty(32, 32, 3, 3), empty(16, 32, 1, 1))
    first = kernels(module)[0]
    assert [layout.sizes for layout in first.outputs] == [(2, 32, 8, 8)] * 2
    made = generate_kernels(module, "forward", verify=True)
    assert made.code.templates == {"convolution": 2}


@pytest.mark.parametrize("inputs", [EARLY[:2], CONVNEXT], ids=["convolution", "depthwise"])
def test_launches_have_what_kernels_need(driver: Any, inputs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = (empty(2, *x.shape[1:]) if n == 0 else x for n, x in enumerate(inputs))
    groups = x.shape[1] // w.shape[1]
    module, _ = fuse(lambda x, w: F.conv2d(x, w, padding=1, groups=groups).relu(), x, w)
    (kernel,) = kernels(module)
    monkeypatch.setattr(triton_call, "_empty", lambda device: _on_cpu)
    tensors = [torch.empty_strided(layout.sizes, layout.strides, dtype=layout.dtype) for layout in kernel.inputs]
    driver.reset(len(tensors) + 2)
    out = kernel(*tensors)
    (launch,) = driver.launches()
    assert launch.programs == kernel.source.launches[0].programs
    addresses = [x.data_ptr() for x in (*tensors, out)]
    assert list(launch.values[: len(addresses)]) == addresses


def _on_cpu(sizes: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(sizes, strides, dtype=dtype)

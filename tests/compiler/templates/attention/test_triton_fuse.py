"""Attention on GPUs through the pass: what is asked, who decides, what the graph becomes. No GPU is needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.template_oracle import Fastest, run_pass, with_fake_hopper
from support.triton_attention import found_on_gpu, on_gpu, run_on_gpu

from regraft.compiler.templates import TritonTemplateKernel
from regraft.compiler.templates.attention import footprint
from regraft.compiler.templates.attention import triton_fuse as attention_triton_fuse
from regraft.compiler.templates.attention.fuse import fuse_attention
from regraft.compiler.templates.attention.triton_fuse import AttentionTemplate
from regraft.compiler.templates.common import compiled_candidates
from regraft.compiler.templates.common.baseline import Baseline
from regraft.compiler.templates.common.task import task_of
from regraft.compiler.templates.common.template_pass import TemplatePass
from regraft.rewrites.profit import Always, Never
from regraft.rewrites.record import GraphRecord

aten = torch.ops.aten
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    fake = with_fake_hopper(monkeypatch, tmp_path_factory.getbasetemp() / "attentions")
    monkeypatch.setattr(TritonTemplateKernel, "build", lambda self: None)
    return fake


def random(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(dtype)


def qkv(b: int = 2, h: int = 3, m: int = 20, n: int = 40, d: int = 16, dtype: torch.dtype = BF16) -> list[torch.Tensor]:
    return [random(b, h, m, d, dtype=dtype), random(b, h, n, d, dtype=dtype), random(b, h, n, d, dtype=dtype)]


def fuse(
    function: Callable[..., Any], inputs: list[torch.Tensor], oracle: Any = None, thorough: bool = False
) -> tuple[torch.fx.GraphModule, GraphRecord]:
    module, record = on_gpu(function, *inputs), GraphRecord("test")
    assert fuse_attention(module, Always(), record) == 0
    run_pass(AttentionTemplate, module, oracle or Always(), record, thorough=thorough)
    module.graph.lint()
    module.recompile()
    return module, record


def kernels(module: torch.fx.GraphModule) -> list[TritonTemplateKernel]:
    return [node.target for node in module.graph.nodes if isinstance(node.target, TritonTemplateKernel)]


def operators(module: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]


def attend(f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        scores = f(torch.matmul(q, k.transpose(-1, -2)) * 0.25, *more)
        return torch.matmul(torch.softmax(scores, -1, dtype=F32).to(q.dtype), v)

    return attention


def cudnn(q: Any, k: Any, v: Any, bias: Any, causal: bool = False) -> torch.Tensor:
    return aten._scaled_dot_product_cudnn_attention(q, k, v, bias, False, 0.0, causal, False, scale=0.25)[0]


def efficient(q: Any, k: Any, v: Any, bias: Any) -> torch.Tensor:
    return aten._scaled_dot_product_efficient_attention(q, k, v, bias, False, 0.0, False, scale=0.25)[0]


def agrees(function: Callable[..., Any], inputs: list[torch.Tensor], expected: torch.Tensor, tol: float = 2e-2) -> None:
    ours = run_on_gpu(function, inputs).reshape(expected.shape)
    torch.testing.assert_close(ours.double(), expected.double(), rtol=tol, atol=tol, equal_nan=True)


def exactly(q: Any, k: Any, v: Any, bias: Any) -> torch.Tensor:
    q, k, v = q.double(), k.double(), v.double()
    return torch.softmax(q @ k.transpose(-1, -2) * 0.25 + bias, -1) @ v


def capped(s: torch.Tensor) -> torch.Tensor:
    return torch.tanh(s / 50.0) * 50.0


def with_mask(s: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return s + mask


# -- what is found ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_softcap_becomes_a_kernel(dtype: torch.dtype) -> None:
    module, record = fuse(attend(capped), qkv(dtype=dtype))
    (kernel,) = kernels(module)
    assert set(operators(module)) <= {"aten._unsafe_view.default"}
    assert kernel.template == "attention"
    assert kernel.flops == 2 * 2 * 3 * 20 * 40 * (16 + 16)
    assert [match.family for match in record.applied] == ["attention"]


def test_library_calls_with_a_bias_become_kernels() -> None:
    for call in (lambda q, k, v, bias: cudnn(q, k, v, bias), efficient):
        module, record = fuse(call, [*qkv(), random(2, 3, 20, 40)])
        assert len(kernels(module)) == 1
        assert operators(module) == []
        assert [match.family for match in record.applied] == ["attention"]


def test_plain_and_causal_calls_are_asked_about_only_where_time_does_not_matter() -> None:
    for call in (lambda *x: cudnn(*x, None), lambda *x: efficient(*x, None), lambda *x: cudnn(*x, None, True)):
        oracle = Fastest(w=0.5)
        assert kernels(fuse(call, qkv(), oracle)[0]) == []
        assert oracle.questions == []
        assert len(kernels(fuse(call, qkv(), oracle, thorough=True)[0])) == 1


def test_calls_with_a_mask_made_of_positions_are_asked_about() -> None:
    def local(q: Any, k: Any, v: Any) -> torch.Tensor:
        i, j = torch.arange(20, device=q.device).unsqueeze(1), torch.arange(40, device=q.device)
        return cudnn(q, k, v, torch.where((j <= i) & (j > i - 8), 0.0, -math.inf).to(q.dtype).view(1, 1, 20, 40))

    module, _ = fuse(local, qkv(), Fastest(w=0.5))
    (kernel,) = kernels(module)
    assert operators(module) == []
    assert "whole = " in kernel.source.text  # hidden keys are left out
    i, j = torch.arange(20).unsqueeze(1), torch.arange(40)
    agrees(local, qkv(), exactly(*qkv(), torch.where((j <= i) & (j > i - 8), 0.0, -math.inf)))


def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """One query a head over a cache, four heads to a key, as models write it."""

    def repeated(x: torch.Tensor) -> torch.Tensor:
        b, h, n, d = x.shape
        return x.unsqueeze(2).expand(b, h, 4, n, d).clone(memory_format=torch.contiguous_format).view(b, 4 * h, n, d)

    seen = torch.arange(k.shape[2], device=k.device) <= position
    mask = torch.where(seen, 0.0, torch.finfo(BF16).min).to(BF16)
    scores = torch.matmul(q, repeated(k).transpose(2, 3)) * 0.25 + mask
    return torch.matmul(torch.softmax(scores, -1, dtype=F32).to(BF16), repeated(v))


def test_few_queries_go_through_a_cache_in_parts() -> None:
    cache = [random(1, 3, 600, 16), random(1, 3, 600, 16)]
    module, record = fuse(decode, [random(1, 12, 1, 16), *cache, torch.tensor(7)])
    (kernel,) = kernels(module)
    assert len(kernel.source.launches) == 2
    assert len(kernel.workspaces) == 2
    assert not {"aten.clone.default", "aten.expand.default"} & {*operators(module)}  # no head is copied
    assert "place" in kernel.source.text  # what is not filled is not read
    assert [match.candidate for match in record.applied] == ["16x64_4w3s_10"]


def test_few_queries_are_measured_in_several_ways() -> None:
    cache = [random(1, 3, 600, 16), random(1, 3, 600, 16)]
    oracle = Fastest(**{"4w2s_5": 0.5})
    module, _ = fuse(decode, [random(1, 12, 1, 16), *cache, torch.tensor(7)], oracle)
    (question,) = oracle.questions
    assert len(question.candidates) == 3
    assert len(kernels(module)) == 1


def test_calls_whose_heads_share_keys() -> None:
    inputs = [random(1, 12, 2, 16), random(1, 3, 600, 16), random(1, 3, 600, 16)]
    bias = torch.zeros(1, 1, 2, 600, dtype=BF16)

    def call(q: Any, k: Any, v: Any, bias: Any) -> torch.Tensor:
        return cudnn(q, k, v, bias)

    module, _ = fuse(call, [*inputs, bias])
    assert len(kernels(module)) == 1
    q, *repeated = inputs[0], *(x.repeat_interleave(4, 1) for x in inputs[1:])
    agrees(call, [*inputs, bias], exactly(q, *repeated, bias))
    module, record = fuse(call, [inputs[0][:, :11], *inputs[1:], bias])
    assert kernels(module) == []
    assert [miss.code for miss in record.near_misses] == ["score-arguments"]


def test_calls_with_few_queries_are_asked_about() -> None:
    inputs = [random(1, 12, 1, 16), random(1, 12, 600, 16), random(1, 12, 600, 16)]
    oracle = Fastest(w=0.5)
    assert len(kernels(fuse(lambda *x: cudnn(*x, None), inputs, oracle)[0])) == 1


def test_calls_of_training_graphs_stay() -> None:
    def both(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, scale=0.25)[:2]

    module, record = fuse(both, [*qkv(), random(2, 3, 20, 40)])
    assert kernels(module) == []
    assert [miss.code for miss in record.near_misses] == ["logsumexp-used"]


def test_graphs_on_cpus_are_left_to_the_other_pass() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    module = make_fx(attend(capped), tracing_mode="fake")(*qkv())
    assert run_pass(AttentionTemplate, module, Always(), GraphRecord("test"), thorough=False) == 0


def test_a_mask_that_others_read_too_is_measured_as_what_the_kernel_makes_of_its_inputs() -> None:
    def shared(q: Any, k: Any, v: Any, bias: Any, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
        both = bias + mask
        return cudnn(q, k, v, both), both.exp()

    oracle = Fastest(w=0.5)
    module, _ = fuse(shared, [*qkv(), random(1, 3, 20, 40), random(2, 1, 1, 40)], oracle)
    assert len(kernels(module)) == 1
    (question,) = oracle.questions
    values = [random(*x.shape) for x in question.inputs]
    assert question.arrange is not None
    question.arrange(values)
    bias, mask = (next(x for x in values[:-1] if x.shape[0] == n and x.shape[-1] == 40 and x.dim() == 4
                       and x.shape[2] == m) for n, m in ((1, 20), (2, 1)))  # fmt: skip
    assert torch.equal(values[-1], bias + mask)


# -- what is computed in the kernel -----------------------------------------------------------------------------------


def bias_and_mask(q: Any, k: Any, v: Any, bias: Any, mask: Any) -> torch.Tensor:
    return cudnn(q, k, v, (bias + mask).contiguous())


def test_a_bias_and_a_mask_are_added_in_the_kernel() -> None:
    inputs = [*qkv(8), random(1, 3, 20, 40), random(8, 1, 1, 40)]
    found = found_on_gpu(bias_and_mask, inputs)
    assert {tuple(node.meta["val"].shape) for node in found.inputs[3:]} == {(1, 3, 20, 40), (8, 1, 1, 40)}
    agrees(bias_and_mask, inputs, exactly(*inputs[:3], inputs[3] + inputs[4]))


def test_masks_of_positions_and_truth_values_are_made_in_the_kernel() -> None:
    def masked(q: Any, k: Any, v: Any, keep: Any) -> torch.Tensor:
        i, j = torch.arange(20, device=q.device).unsqueeze(1), torch.arange(40, device=q.device)
        seen = (j <= i) & keep.view(-1, 1, 1, 40)
        mask = torch.where(seen, 0.0, torch.finfo(q.dtype).min).to(q.dtype)
        return attend(lambda s: capped(s) + mask)(q, k, v)

    keep = torch.rand(8, 40, generator=torch.Generator().manual_seed(1)) < 0.8
    inputs = [*qkv(8), keep]
    found = found_on_gpu(masked, inputs)
    assert [node.meta["val"].dtype for node in found.inputs[3:]] == [torch.bool]
    agrees(masked, inputs, masked(*inputs))


def test_padded_masks_are_read_as_they_were() -> None:
    def aligned(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
        padded = torch.nn.functional.pad(mask, (0, 15)).narrow(-1, 0, 33)
        return efficient(q, k, v, padded.expand(8, 3, 20, 33))

    inputs = [*qkv(8, n=33), random(8, 1, 1, 33)]
    found = found_on_gpu(aligned, inputs)
    agrees(aligned, inputs, exactly(*inputs[:3], inputs[3]))
    assert tuple(found.inputs[3].meta["val"].shape)[-1] in (33, 48)


def test_lowest_numbers_of_float16_that_add_up_are_infinite_as_in_eager() -> None:
    def twice(q: Any, k: Any, v: Any, a: Any, b: Any) -> torch.Tensor:
        return attend(lambda s: s + (a + b))(q, k, v)

    low = torch.finfo(F16).min
    a, b = torch.zeros(1, 3, 20, 40, dtype=F16), torch.zeros(8, 1, 1, 40, dtype=F16)
    a[:, :, 4], b[3] = low, low
    inputs = [*qkv(8, dtype=F16), a, b]
    assert twice(*inputs)[3, :, 4].isnan().all()
    ours = run_on_gpu(twice, inputs).reshape(8, 3, 20, 16)
    assert ours[3, :, 4].isnan().all()
    assert not ours[3, :, 5:].isnan().any()


def test_a_small_mask_is_read_as_it_is() -> None:
    def masked(q: Any, k: Any, v: Any, keep: Any) -> torch.Tensor:
        return attend(with_mask)(q, k, v, (1.0 - keep.view(-1, 1, 1, 40).to(q.dtype)) * -1e4)

    found = found_on_gpu(masked, [*qkv(), torch.ones(2, 40, dtype=torch.int64)])
    assert found.inputs[3].meta["val"].dtype == BF16


# -- who decides ------------------------------------------------------------------------------------------------------


def test_the_fastest_tile_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_triton_fuse, "_TILES", 4)
    oracle = Fastest(**{"128x128_8w": 0.3, "128x64": 0.5})
    module, record = fuse(attend(capped), qkv(16, 12, 512, 512, 64), oracle)
    assert record.applied[0].candidate.startswith("128x128_8w")
    assert len(kernels(module)) == 1
    assert 3 <= len(oracle.questions[0].candidates) <= 5


def test_it_is_never_slower_than_what_was_there() -> None:
    module, record = fuse(attend(capped), qkv(), Fastest(original=0.5))
    assert kernels(module) == []
    assert [match.candidate for match in record.declined] == [""]
    assert kernels(fuse(attend(capped), qkv(), Never())[0]) == []


def test_equal_attentions_are_asked_about_once() -> None:
    def layers(q: Any, k: Any, v: Any, bias: Any, mask: Any) -> torch.Tensor:
        both = (bias + mask).contiguous()
        for _ in range(3):
            q = cudnn(q, k, v, both).contiguous()
        return q

    oracle = Fastest(w=0.5)
    inputs = [*qkv(8, n=20), random(1, 3, 20, 20), random(8, 1, 1, 20)]
    module, record = fuse(layers, inputs, oracle)
    assert len(kernels(module)) == len(record.applied) == 3
    assert operators(module) == []
    # The mask is made once for all layers: the library's call is measured without that. The last one has to make it.
    assert [len(question.inputs) for question in oracle.questions] == [6]


def test_what_is_measured_against_makes_its_own_mask() -> None:
    oracle = Fastest(original=0.5)
    fuse(bias_and_mask, [*qkv(8), random(1, 3, 20, 40), random(8, 1, 1, 40)], oracle)
    assert [len(question.inputs) for question in oracle.questions] == [5]
    nodes = oracle.questions[0].original._nodes  # type: ignore[attr-defined]
    assert "aten.add.Tensor" in [str(node.target) for node in nodes]


def test_what_will_be_asked_about_is_begun_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def layers(q: Any, k: Any, v: Any) -> tuple[torch.Tensor, ...]:
        once = attend(capped)(q, k, v)
        return attend(capped)(once.contiguous(), k, v), attend(capped)(q * 2, k, v)

    begun: list[str] = []
    monkeypatch.setattr(compiled_candidates, "begin_units", lambda units: begun.extend(unit.function for unit in units))
    monkeypatch.setattr(Baseline, "begin", lambda self: begun.append("baseline"))
    module = on_gpu(layers, *qkv(n=20))
    nodes, oracle = set(module.graph.nodes), Fastest(original=0.5)
    task = task_of(module.graph, oracle, GraphRecord("test"))
    assert task is not None
    attentions = TemplatePass(AttentionTemplate(task))
    taken = attentions.begin()
    assert not oracle.questions and taken and taken <= nodes
    attentions.run_all()
    asked = [[kernel.name for kernel in question.candidates.values()] for question in oracle.questions]
    assert begun == [name for names in asked for name in (*names, "baseline")]


def test_a_score_without_a_formula_is_a_near_miss() -> None:
    module, record = fuse(attend(lambda s: s + s.cumsum(-1)), qkv())
    assert kernels(module) == []
    assert len(record.near_misses) == 1


def test_infinite_fills_in_tensors() -> None:
    def filled(q: Any, k: Any, v: Any, keep: Any, fill: Any) -> torch.Tensor:
        return attend(lambda s: torch.where(keep, s, fill))(q, k, v)

    keep = torch.arange(40) % 3 > 0
    inputs = [*qkv(), keep, torch.tensor(-math.inf, dtype=BF16)]
    agrees(filled, inputs, filled(*inputs))


def test_scores_that_take_much_memory_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "LARGEST_SCORES", 1 << 20)
    oracle = Fastest(w=0.5)
    fuse(attend(capped), qkv(2, 4, 256, 256), oracle)
    fuse(attend(capped), qkv(2, 4, 64, 64), oracle)
    assert [bool(question.excluded) for question in oracle.questions] == [True, False]

"""Attentions of training graphs through the pass: what is matched, what the graph computes then. No GPU is needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.template_oracle import Fastest, with_fake_hopper
from support.thorough import one_row_in, takes_turns
from support.training_attention import eager, fused, interpreted, joint_of, kernels, run

from regraft.compiler.autotune.inputs import made_up
from regraft.compiler.codegen.triton import TritonFailed
from regraft.compiler.templates import TritonTemplateKernel
from regraft.compiler.templates.attention.training import fuse as training
from regraft.compiler.templates.attention.training.forward import JointForward
from regraft.compiler.templates.common.formula import packet
from regraft.rewrites.splice import subgraph

aten = torch.ops.aten
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    fake = with_fake_hopper(monkeypatch, tmp_path_factory.getbasetemp() / "attentions")
    monkeypatch.setattr(TritonTemplateKernel, "build", lambda self: None)
    return fake


def random(*sizes: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(dtype)


def qkv(b: int = 2, h: int = 3, m: int = 20, n: int = 40, d: int = 16, dtype: torch.dtype = F32) -> list[torch.Tensor]:
    return [random(b, h, m, d, dtype=dtype), random(b, h, n, d, dtype=dtype), random(b, h, n, d + 16, dtype=dtype)]


def attend(f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        scores = f(torch.matmul(q, k.transpose(-1, -2)) * 0.25, *more)
        return torch.matmul(torch.softmax(scores, -1), v)

    return attention


def agrees(function: Callable[..., Any], inputs: list[torch.Tensor], count: int = 1, tol: float = 1e-4) -> Any:
    """The graph after the pass has kernels for `count` attentions, and computes what autograd does."""
    joint = joint_of(function, *inputs)
    module, record = fused(joint)
    assert len(record.applied) == count, record.near_misses
    assert len(kernels(module)) == 3 * count
    tangents = [random(*x.shape, dtype=x.dtype) for x in tangents_of(joint)]
    ours, theirs = run(module, inputs, tangents), eager(function, inputs, tangents)
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if b is not None:
            torch.testing.assert_close(a.double(), b, rtol=tol, atol=tol, msg=lambda m, n=number: f"result {n}: {m}")
    return module, record


def tangents_of(joint: torch.fx.GraphModule) -> list[torch.Tensor]:
    nodes = joint.graph.find_nodes(op="placeholder")
    return [node.meta["val"] for node in nodes if "tangents" in str(node.target)]


def operators(module: torch.fx.GraphModule) -> list[str]:
    return [packet(node) for node in module.graph.nodes if packet(node)]


def capped(s: torch.Tensor) -> torch.Tensor:
    return torch.tanh(s / 2.0) * 2.0


def causal(s: torch.Tensor) -> torch.Tensor:
    rows, keys = s.shape[-2:]
    keep = torch.arange(keys, device=s.device) <= torch.arange(rows, device=s.device)[:, None]
    return torch.where(keep, s, float("-inf"))


# -- spelled out ------------------------------------------------------------------------------------------------------


def test_softcap() -> None:
    module, record = agrees(attend(capped), qkv())
    assert set(operators(module)) <= {"aten.view", "aten.transpose", "aten.mul", "aten.expand", "aten._unsafe_view"}
    assert [match.family for match in record.applied] == ["attention"]


def test_plain_causal_and_softcap_together() -> None:
    agrees(attend(lambda s: s), qkv())
    agrees(attend(lambda s: causal(capped(s))), qkv(m=40))


@one_row_in(2)
@pytest.mark.parametrize("sizes", [(2, 3, 20, 40), (3, 20, 40), (1, 1, 1, 40), (20, 40)])
def test_biases_get_their_gradients_by_the_graph(sizes: tuple[int, ...]) -> None:
    module, _ = agrees(attend(lambda s, bias: s + bias), [*qkv(), random(*sizes)])
    assert len(kernels(module)[1].outputs) == 3


def test_a_bias_before_the_scale_and_the_mask() -> None:
    agrees(attend(lambda s, bias: causal((s + bias) * 0.5)), [*qkv(m=40), random(3, 40, 40)])


@pytest.mark.parametrize("fill", [torch.finfo(F32).min, -math.inf], ids=["lowest", "infinite"])
def test_a_mask_that_the_kernels_compute(fill: float) -> None:
    """Of positions and of flags for keys, which are less to read: the gradient is selected by the whole mask."""

    def padded(s: torch.Tensor, kept: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        before = torch.arange(s.shape[-1]) <= torch.arange(s.shape[-2])[:, None] + 20
        return (s * 0.25 + bias).masked_fill(~(before & kept[:, None, None]), fill)

    kept = torch.rand(2, 40) > 0.3
    kept[:, 0] = True
    agrees(attend(padded), [*qkv(), kept, random(1, 1, 40).repeat(3, 1, 1)])


def test_a_bias_within_the_softcap_would_need_the_scores() -> None:
    _, record = fused(joint_of(attend(lambda s, bias: capped(s + bias)), *qkv(), random(3, 20, 40)))
    assert [miss.code for miss in record.near_misses] == ["scores-escape"]


def with_bias(alpha: float, beta: float, f: Callable[..., Any] = lambda s: s) -> Callable[..., torch.Tensor]:
    """Attention whose scores are made in one call with a bias, broadcast as `baddbmm` does."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        batch, heads, rows, _ = q.shape
        flat = [x.reshape(batch * heads, *x.shape[2:]) for x in (q, k, v)]
        scores = torch.baddbmm(bias, flat[0], flat[1].transpose(1, 2), beta=beta, alpha=alpha)
        weights = torch.softmax(f(scores.view(batch, heads, rows, -1)), -1)
        return torch.bmm(weights.view(batch * heads, rows, -1), flat[2]).view(batch, heads, rows, -1)

    return attention


@one_row_in(2)
@takes_turns("sizes")
@pytest.mark.parametrize(("alpha", "beta"), [(0.25, 1.0), (1.0, 1.0), (0.25, -0.5), (0.25, 0.0)])
@pytest.mark.parametrize("sizes", [(6, 1, 40), (6, 20, 40), (40,)])
def test_products_with_a_bias_in_one_call(alpha: float, beta: float, sizes: tuple[int, ...]) -> None:
    module, _ = agrees(with_bias(alpha, beta), [*qkv(), random(*sizes)])
    assert "aten.baddbmm" not in operators(module) and "aten.bmm" not in operators(module)


def test_products_with_a_bias_and_what_follows() -> None:
    agrees(with_bias(0.25, 1.0, lambda s: causal(s)), [*qkv(m=40), random(6, 1, 40)])
    agrees(lambda *x: with_bias(0.25, 0.0, lambda s: causal(capped(s)))(*x, x[0].new_zeros(1)), qkv(m=40))


def test_a_row_of_biases_is_read_as_it_is() -> None:
    """Like one slope for each head times positions: nothing of the size of the scores is made."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        slopes = torch.pow(0.5, torch.arange(1, 4, device=q.device))
        row = (slopes[:, None] * torch.arange(40, device=q.device)).repeat(2, 1)[:, None, :].to(q.dtype)
        mask = torch.where(keep, 0.0, torch.finfo(torch.float32).min)
        return with_bias(0.25, 1.0, lambda s: s + mask)(q, k, v, row)

    keep = torch.arange(40)[None, :] < torch.tensor([40, 30])[:, None]
    module, _ = agrees(attention, [*qkv(), keep[:, None, None, :]])
    forward = kernels(module)[0]
    assert max(layout_elements(x) for x in forward.inputs) <= 2 * 3 * 40 * 32  # v


def layout_elements(layout: Any) -> int:
    return math.prod(n for n, step in zip(layout.sizes, layout.strides, strict=True) if step)


def test_scores_and_biases_of_two_precisions() -> None:
    """Under autocast: a product with a bias in 16 bits, a mask and the softmax in single precision."""

    def attention(q: Any, k: Any, v: Any, bias: Any) -> torch.Tensor:
        scores = torch.baddbmm(bias, q, k.transpose(1, 2), beta=1.0, alpha=0.25)
        weights = torch.softmax(scores + torch.where(bias > 2.0, torch.finfo(torch.float32).min, 0.0), -1)
        return torch.bmm(weights.to(v.dtype), v)

    inputs = [random(6, 20, 16, dtype=BF16), random(6, 40, 16, dtype=BF16), random(6, 40, 32, dtype=BF16)]
    agrees(attention, [*inputs, random(6, 1, 40, dtype=BF16)], tol=5e-2)


def test_a_gradient_whose_factor_is_another_one_stays() -> None:
    joint = joint_of(with_bias(0.25, 1.0), *qkv(), random(6, 1, 40))
    changed = [node for node in joint.graph.nodes if packet(node) == "aten.mul" and node.args[1] == 0.25]
    assert len(changed) == 2
    changed[0].args = (changed[0].args[0], 0.5)
    _, record = fused(joint)
    assert [miss.code for miss in record.near_misses] == ["products-gradient"]


def test_heads_that_are_brought_together() -> None:
    def attention(x: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.view(2, y.shape[1], 3, 16).transpose(1, 2) for y in (x, k, v))
        return attend(capped)(q, k, v).transpose(1, 2).reshape(2, 20, 48)

    module, _ = agrees(attention, [random(2, 20, 48), random(2, 40, 48), random(2, 40, 48)])
    assert "aten.clone" not in operators(module)  # the kernels write where heads are together


def test_gradients_in_single_precision_are_written_so() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(capped)(q.bfloat16(), k.bfloat16(), v.bfloat16()).float()

    inputs = qkv()
    module, record = fused(joint_of(attention, *inputs))
    assert len(record.applied) == 1
    assert {x.dtype for kernel in kernels(module)[1:] for x in kernel.outputs} == {F32}
    tangents = [random(2, 3, 20, 32)]
    for ours, theirs in zip(run(module, inputs, tangents), eager(attend(capped), inputs, tangents), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=5e-2, atol=5e-2)


def test_repeated_heads_are_added_up() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (y[:, :, None].expand(2, 2, 3, 40, 16).reshape(2, 6, 40, 16) for y in (k, v))
        return attend(capped)(q, k, v)

    agrees(attention, [random(2, 6, 20, 16), random(2, 2, 40, 16), random(2, 2, 40, 16)])


def test_several_attentions_one_after_the_other() -> None:
    def layers(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        biased = attend(lambda s: s + bias)
        return biased(biased(q, k, k), k, q)

    agrees(layers, [random(2, 3, 40, 16), random(2, 3, 40, 16), random(3, 40, 40)], count=2)


@one_row_in(2)
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_gradients_that_nobody_wants(wanted: tuple[int, ...]) -> None:
    def attention(*inputs: torch.Tensor) -> torch.Tensor:
        return attend(capped)(*(x if n in wanted else x.detach() for n, x in enumerate(inputs)))

    inputs = qkv()
    joint = joint_of(attention, *inputs)
    module, record = fused(joint)
    if wanted == (2,):  # nothing goes through the softmax
        assert [miss.code for miss in record.near_misses] == ["no-backward"]
        return
    assert len(record.applied) == 1, record.near_misses
    tangents = [random(2, 3, 20, 32)]
    for ours, theirs in zip(run(module, inputs, tangents), eager(attention, inputs, tangents), strict=True):
        if ours is not None:
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


# -- sinks ------------------------------------------------------------------------------------------------------------


def sunk(q: Any, k: Any, v: Any, sinks: Any, *bias: Any) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) * 0.25
    scores = causal(scores + bias[0] if bias else scores)
    column = sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)
    return torch.matmul(torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1], v)


def test_sinks_get_their_gradients() -> None:
    module, _ = agrees(sunk, [*qkv(m=40), random(3)])
    assert len(kernels(module)[1].outputs) == 3  # row sums, that of q, that of the sink


def test_sinks_and_biases_get_their_gradients() -> None:
    module, _ = agrees(sunk, [*qkv(m=40), random(3), random(3, 40, 40)])
    assert len(kernels(module)[1].outputs) == 4


def test_sinks_without_a_gradient() -> None:
    module, _ = agrees(lambda q, k, v: sunk(q, k, v, torch.ones(3)), qkv(m=40))
    assert len(kernels(module)[1].outputs) == 2


# -- dropout ----------------------------------------------------------------------------------------------------------


def test_dropout_is_drawn_in_the_kernels_as_the_graph_would() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * 0.25 + bias, -1)
        return torch.matmul(aten.native_dropout(weights, 0.4, True)[0], v)

    inputs = [*qkv(), random(3, 20, 40)]
    joint = joint_of(attention, *inputs)
    module, record = fused(joint)
    assert len(record.applied) == 1, record.near_misses
    assert "regraft.bernoulli" not in operators(module)
    seeded(joint, module)
    tangents = [random(2, 3, 20, 32)]
    for ours, theirs in zip(run(module, inputs, tangents), run(joint, inputs, tangents), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def seeded(*modules: torch.fx.GraphModule) -> None:
    """Have graphs draw the same numbers."""
    for module in modules:
        for node in module.graph.nodes:
            if packet(node) == "regraft.seeds":
                node.target, node.args = torch.full, ([node.args[0]], 12345)
        module.recompile()


# -- pairs of library calls -------------------------------------------------------------------------------------------


def efficient(q: Any, k: Any, v: Any, bias: Any = None, p: float = 0.0, causal: bool = False) -> torch.Tensor:
    return aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, p, causal, scale=0.25)[0]


def cudnn(q: Any, k: Any, v: Any, bias: Any = None, p: float = 0.0, causal: bool = False) -> torch.Tensor:
    return aten._scaled_dot_product_cudnn_attention(q, k, v, bias, True, p, causal, False, scale=0.25)[0]


def flash(q: Any, k: Any, v: Any, _: Any = None, p: float = 0.0, causal: bool = False) -> torch.Tensor:
    return aten._scaled_dot_product_flash_attention(q, k, v, p, causal, False, scale=0.25)[0]


def matches(call: Any, like: Any, inputs: list[torch.Tensor], tol: float = 1e-4) -> torch.fx.GraphModule:
    """A pair of calls becomes kernels, which compute what `like` does."""
    joint = joint_of(call, *inputs)
    module, record = fused(joint)
    assert [match.family for match in record.applied] == ["attention"], record.near_misses
    assert not [name for name in operators(module) if "scaled_dot_product" in name]
    tangents = [random(*x.shape, dtype=x.dtype) for x in tangents_of(joint)]
    for ours, theirs in zip(run(module, inputs, tangents), eager(like, inputs, tangents), strict=True):
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours.double(), theirs, rtol=tol, atol=tol)
    return module


def spelled(bias: bool = False, hidden: bool = False) -> Any:
    return attend(lambda s, *more: (causal if hidden else lambda x: x)(s + more[0] if bias else s))


def test_a_pair_with_the_gradient_of_its_bias() -> None:
    module = matches(efficient, spelled(bias=True), [*qkv(), random(2, 3, 20, 40)])
    assert len(kernels(module)) == 3


def test_a_pair_whose_bias_is_made_of_a_table() -> None:
    def table(q: Any, k: Any, v: Any, table: Any, places: Any, attention: Any = efficient) -> torch.Tensor:
        bias = torch.nn.functional.embedding(places, table).permute(2, 0, 1)[None]
        return attention(q, k, v, bias.expand(2, 3, 20, 40))

    inputs = [*qkv(), random(32, 3), torch.arange(20)[:, None].sub(torch.arange(40)).abs() % 32]
    matches(table, lambda *x: table(*x, attention=spelled(bias=True)), inputs)


def test_causal_pairs_with_a_bias_write_zeros_where_keys_are_left_out() -> None:
    matches(lambda *x: efficient(*x, causal=True), spelled(bias=True, hidden=True), [*qkv(m=40), random(2, 3, 40, 40)])


@pytest.mark.parametrize("call", [efficient, cudnn, flash])
def test_plain_pairs(call: Any) -> None:
    matches(lambda q, k, v: call(q, k, v, None), spelled(), [random(2, 3, n, 16) for n in (20, 40, 40)])


def test_masks_stay_for_the_pairs_that_follow() -> None:
    def twice(q: Any, k: Any, v: Any) -> torch.Tensor:
        return efficient(efficient(q, k, v, None, 0.3), k, v, None, 0.3)

    module, record = fused(joint_of(twice, *(random(2, 3, n, 16) for n in (20, 40, 40))))
    assert len(record.applied) == 2 and len(kernels(module)) == 6, record.near_misses


@pytest.mark.parametrize("call", [efficient, cudnn, flash])
def test_pairs_that_drop_weights_draw_them_from_a_seed(call: Any) -> None:
    inputs = [random(2, 3, n, 16) for n in (20, 40, 40)]
    joint = joint_of(lambda q, k, v: call(q, k, v, None, 0.3), *inputs)
    module, record = fused(joint)
    assert len(record.applied) == 1, record.near_misses
    assert operators(module).count("regraft.seeds") == 1 and "regraft.bernoulli" not in operators(module)
    seeded(module)
    keep = torch.ops.regraft.bernoulli([2, 3, 20, 40], 0.7, torch.tensor(12345), True)

    def like(q: Any, k: Any, v: Any) -> torch.Tensor:
        return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * 0.25, -1) * keep / 0.7, v)

    tangents = [random(2, 3, 20, 16)]
    for ours, theirs in zip(run(module, inputs, tangents), eager(like, inputs, tangents), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


def test_pairs_that_drop_weights_stay_where_eagers_numbers_are_promised() -> None:
    joint = joint_of(lambda q, k, v: efficient(q, k, v, None, 0.3), *qkv(), seeded=False)
    module, record = fused(joint, seeds=False)
    assert not kernels(module) and [miss.code for miss in record.near_misses] == ["dtype"]
    assert "regraft.seeds" not in operators(module)


# -- who decides ------------------------------------------------------------------------------------------------------


def masked(s: torch.Tensor, keep: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.where(keep, s, -1e9) + bias


def biased_in_turns(s: torch.Tensor, keep: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A bias in single precision, whose gradient is rounded to half precision and back on the way to it."""
    mask = torch.zeros(2, 1, 20, 40) * keep
    return (s.to(BF16) + bias).to(BF16) + mask


@pytest.mark.parametrize("scores, tol", [(masked, 1e-4), (biased_in_turns, 5e-2)])
def test_what_is_asked_is_answered_alike_by_both(monkeypatch: pytest.MonkeyPatch, scores: Any, tol: float) -> None:
    """The original and the kernels are programs of the same inputs, with the same results."""
    oracle = Remembering(w=0.5)
    inputs = [*qkv(), random(2, 1, 20, 40) > 0, random(3, 20, 40)]
    module, record = fused(joint_of(attend(scores), *inputs), oracle)
    (question,) = oracle.questions
    assert len(record.applied) == 1 and len(kernels(module)) == 3
    given = on_cpu(question)
    (program,) = question.candidates.values()
    monkeypatch.setattr(TritonTemplateKernel, "__call__", interpreted)
    ours, theirs = program(*given), run(oracle.originals[0], given, [])
    assert len(ours) == len(theirs) == 5
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tol, atol=tol)


def on_cpu(question: Any) -> list[torch.Tensor]:
    """Values of a question's inputs."""
    values = [
        made_up(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)) if x.dtype != torch.bool else
        torch.rand(x.shape) < 0.5
        for x in question.inputs
    ]  # fmt: skip
    if question.arrange is not None:
        question.arrange(values)
    return values


class Remembering(Fastest):
    """Knows the originals of questions, as they are before kernels are in them."""

    def __init__(self, **seconds: float) -> None:
        super().__init__(**seconds)
        self.originals: list[Any] = []

    def decide(self, question: Any) -> Any:
        baseline = question.original
        self.originals.append(subgraph(baseline._nodes, baseline._inputs, baseline._outputs))
        return super().decide(question)


def test_equal_ones_are_asked_about_once_a_mask_that_all_read_counts_as_made() -> None:
    def layers(x: Any, w: Any, keep: Any) -> torch.Tensor:
        mask = torch.where(keep, 0.0, -1e9) * (keep.sum() + 1)
        for n in range(3):
            q, k, v = ((x @ w[n, m]).view(2, 40, 3, 16).transpose(1, 2) for m in range(3))
            x = attend(lambda s: s + mask)(q, k, v).transpose(1, 2).reshape(2, 40, 48) @ w[n, 3]
        return x

    oracle = Fastest(w=0.5)
    inputs = [random(2, 40, 48), random(3, 4, 48, 48), random(2, 1, 40, 40) > 0]
    module, _ = fused(joint_of(layers, *inputs), oracle)
    assert len(kernels(module)) == 9 and len(oracle.questions) == 1
    assert "aten.where.self" not in oracle.questions[0].key


def test_the_original_compiles_beside_the_kernels() -> None:
    oracle = Fastest(w=2.0)
    module, record = fused(joint_of(attend(capped), *qkv()), oracle)
    assert not kernels(module) and [match.candidate for match in record.declined] == [""]
    assert oracle.questions[0].key.startswith("training ")
    built = oracle.questions[0].original.build()
    assert any("softmax" in node.name for node in built.graph.nodes)


def test_plain_calls_are_asked_about_only_where_time_does_not_matter() -> None:
    for thorough, count in ((False, 0), (True, 1)):
        oracle = Fastest(w=0.5)
        inputs = [random(2, 3, n, 16) for n in (20, 40, 40)]
        fused(joint_of(lambda *x: efficient(*x, causal=True), *inputs), oracle, thorough=thorough)
        assert len(oracle.questions) == count


def test_graphs_without_anything_to_ask_about_are_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(
        training, "JointForward", lambda *args, **kwargs: looked.append(args) or JointForward(*args, **kwargs)
    )
    inputs = [random(2, 3, n, 16) for n in (20, 40, 40)]
    fused(joint_of(lambda *x: efficient(*x, causal=True), *inputs), Fastest())
    assert not looked
    fused(joint_of(efficient, *inputs, random(2, 3, 20, 40)), Fastest())
    fused(joint_of(attend(capped), *qkv()), Fastest())
    assert len(looked) == 2


def test_what_does_not_compile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(self: TritonTemplateKernel) -> None:
        raise TritonFailed("no registers")

    monkeypatch.setattr(TritonTemplateKernel, "build", build)
    module, record = fused(joint_of(attend(capped), *qkv()))
    assert not kernels(module) and [miss.code for miss in record.near_misses] == ["no-machine-code"]


# -- what stays -------------------------------------------------------------------------------------------------------


def misses(function: Any, inputs: list[torch.Tensor]) -> list[str]:
    """Why nothing was replaced; the graph is as it was."""
    joint = joint_of(function, *inputs)
    before = [str(node.target) for node in joint.graph.nodes]
    module, record = fused(joint)
    assert [str(node.target) for node in module.graph.nodes] == before and not record.applied
    return [miss.code for miss in record.near_misses]


def test_weights_that_are_given_back_stay() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        weights = torch.softmax(torch.matmul(q, k.transpose(-1, -2)), -1)
        return torch.matmul(weights, v), weights

    assert misses(attention, qkv()) == ["probabilities-escape"]


def test_weights_with_another_gradient_stay() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        weights = Tripled.apply(torch.softmax(torch.matmul(q, k.transpose(-1, -2)), -1))
        return torch.matmul(weights, v)

    assert misses(attention, qkv()) == ["weights-gradient"]


def test_scores_with_another_gradient_stay() -> None:
    assert misses(attend(lambda s: Tripled.apply(s)), qkv()) == ["products-gradient"]
    assert misses(attend(lambda s: Tripled.apply(torch.tanh(s))), qkv()) == ["products-gradient"]


class Tripled(torch.autograd.Function):
    """The same value, whose gradient is three times as large."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 3.0


def test_results_with_another_gradient_are_none_of_the_kernels_business() -> None:
    inputs = qkv()
    joint = joint_of(lambda q, k, v: Tripled.apply(attend(capped)(q, k, v)), *inputs)
    module, record = fused(joint)
    assert len(record.applied) == 1
    tangents = [random(2, 3, 20, 32)]
    for ours, theirs in zip(run(module, inputs, tangents), run(joint, inputs, tangents), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_scores_that_have_no_derivative_here_stay() -> None:
    assert misses(attend(lambda s: torch.erf(s)), qkv()) == ["no-derivative"]


def test_a_softmax_over_queries_stays() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)), -2), v)

    assert misses(attention, qkv()) == ["softmax-dim"]


def test_calls_whose_backward_is_another_one_stay() -> None:
    joint = joint_of(efficient, *qkv(), random(2, 3, 20, 40))
    for node in joint.graph.nodes:
        if packet(node).endswith("attention_backward"):
            node.kwargs = {"scale": 0.5}
    module, record = fused(joint)
    assert not kernels(module) and [miss.code for miss in record.near_misses] == ["other-backward"]


def test_graphs_without_a_backward_are_left_to_the_other_pass() -> None:
    with torch.no_grad():
        joint = joint_of(attend(capped), *qkv())
    for node in joint.graph.nodes:
        node.meta.pop("partitioner_tag", None)
        if node.op == "placeholder":
            node.target = str(node.target).replace("tangents", "primals")
    module, record = fused(joint)
    assert not kernels(module) and not record.near_misses

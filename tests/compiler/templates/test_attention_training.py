"""Attentions of training graphs through the pass: what is matched, what the graph computes then. No GPU is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from support.template_oracle import with_fake_hopper
from support.training_attention import eager, fused, joint_of, kernels, run

from regraft.compiler.templates import TritonTemplateKernel
from regraft.compiler.templates.region import packet

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


@pytest.mark.parametrize("sizes", [(2, 3, 20, 40), (3, 20, 40), (1, 1, 1, 40), (20, 40)])
def test_biases_get_their_gradients_by_the_graph(sizes: tuple[int, ...]) -> None:
    module, _ = agrees(attend(lambda s, bias: s + bias), [*qkv(), random(*sizes)])
    assert len(kernels(module)[1].outputs) == 3


def test_a_bias_before_the_scale_and_the_mask() -> None:
    agrees(attend(lambda s, bias: causal((s + bias) * 0.5)), [*qkv(m=40), random(3, 40, 40)])


def test_a_bias_within_the_softcap_would_need_the_scores() -> None:
    _, record = fused(joint_of(attend(lambda s, bias: capped(s + bias)), *qkv(), random(3, 20, 40)))
    assert [miss.code for miss in record.near_misses] == ["scores-escape"]


def test_heads_that_are_brought_together() -> None:
    def attention(x: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.view(2, y.shape[1], 3, 16).transpose(1, 2) for y in (x, k, v))
        return attend(capped)(q, k, v).transpose(1, 2).reshape(2, 20, 48)

    agrees(attention, [random(2, 20, 48), random(2, 40, 48), random(2, 40, 48)])


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
    assert [match.family for match in record.applied] == ["attention-kernel"], record.near_misses
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


@pytest.mark.parametrize("call", [efficient, cudnn, flash])
def test_pairs_that_drop_weights_draw_them_from_a_seed(call: Any) -> None:
    inputs = [random(2, 3, n, 16) for n in (20, 40, 40)]
    joint = joint_of(lambda q, k, v: call(q, k, v, None, 0.3), *inputs)
    module, record = fused(joint)
    assert len(record.applied) == 1, record.near_misses
    assert operators(module).count("regraft.seeds") == 1 and "regraft.bernoulli" not in operators(module)
    seeded(module)
    keep = torch.ops.regraft.bernoulli([2, 3, 20, 40], 0.7, torch.tensor(12345), False)

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

"""`flex_attention` spelled out: bit for bit what eager gives, in eager's strides, and nothing of it is lost."""

from __future__ import annotations

import functools
import importlib

import pytest
import torch
import torch.nn.attention.flex_attention as flex_module
from support.capturing import CaptureBackend, same_as_eager
from support.thorough import one_row_in, thorough
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    flex_attention,
    or_masks,
)

import regraft

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

B, H, S, D = 2, 4, 48, 8
CPU = functools.partial(create_block_mask, B=B, H=H, Q_LEN=S, KV_LEN=S, device="cpu", BLOCK_SIZE=16)


def made(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed + sum(sizes)))


SLOPES, TABLE, BIAS, ROWS, CAP = made(H).abs(), made(H, 2 * S), made(H, S, S), made(H, S), torch.tensor(3.0)
DOCUMENT = torch.arange(S) // 11
PREFIX = torch.tensor([5, 30])

SCORES = {
    "alibi": lambda s, b, h, i, j: s + SLOPES[h] * (j - i),
    "relative": lambda s, b, h, i, j: s + (i - j),
    "table": lambda s, b, h, i, j: s + TABLE[h, i - j + S],
    "bias": lambda s, b, h, i, j: s + BIAS[h, i, j],
    "rows": lambda s, b, h, i, j: s + ROWS[h][j],
    "cap": lambda s, b, h, i, j: torch.tanh(s / 20) * 20 + SLOPES[h] * CAP,
    "hides": lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")),
    "choice": lambda s, b, h, i, j: torch.where((i % 2 == 0) & (j % 3 != 0), s.abs().sqrt() + s.sin(), s.clamp(-2, 2)),
}
MASKS = {
    "causal": lambda b, h, i, j: i >= j,
    "window": lambda b, h, i, j: (i - j).abs() <= 7,
    "document": lambda b, h, i, j: DOCUMENT[i] == DOCUMENT[j],
    "prefix": lambda b, h, i, j: (j < PREFIX[b]) | (i >= j),
    "empty rows": lambda b, h, i, j: (i >= j) & (i > 10),
    "heads": lambda b, h, i, j: (h % 2 == 0) | (i >= j),
}


def operands(dtype: torch.dtype = torch.float32, heads: int = H, keys: int = S) -> tuple[torch.Tensor, ...]:
    return tuple(made(B, n, s, D, seed=k).to(dtype) for k, (n, s) in enumerate([(H, S), (heads, keys), (heads, keys)]))


def spelled(program, *args, **how) -> CaptureBackend:
    backend = same_as_eager(program, *args, **how)
    assert backend.codes == []
    assert "flex_attention" not in backend.calls()
    assert not any("vmap" in name for name in backend.calls())
    return backend


# Of those that index nothing, or as others do, longer runs have more.
@one_row_in(2)
@pytest.mark.parametrize("name", [thorough(n) if n in ("relative", "bias", "cap") else n for n in SCORES])
def test_score_functions(name):
    mask = CPU(MASKS["empty rows"])
    spelled(lambda q, k, v: flex_attention(q, k, v, score_mod=SCORES[name], block_mask=mask), *operands())


def test_mask_functions():
    functions = [*MASKS.values(), and_masks(MASKS["causal"], or_masks(MASKS["window"], MASKS["document"]))]
    masks = [CPU(function) for function in functions]
    spelled(lambda q, k, v: [flex_attention(q, k, v, block_mask=mask) for mask in masks], *operands())


def test_no_function_needs_no_choice_of_scores():
    backend = spelled(lambda q, k, v: flex_attention(q, k, v, scale=0.3), *operands())
    assert not any(name.startswith("aten.where") for name in backend.calls())


@pytest.mark.parametrize("dtype", [torch.bfloat16, thorough(torch.float16), torch.float64])
def test_dtypes(dtype):
    mask = CPU(MASKS["causal"])
    spelled(lambda q, k, v: flex_attention(q, k, v, SCORES["cap"], mask), *operands(dtype))


def test_fewer_heads_of_keys_and_other_lengths_and_widths():
    mask = create_block_mask(MASKS["window"], B, H, S, 33, device="cpu")
    q, k, v = operands(heads=2, keys=33)
    spelled(lambda q, k, v: flex_attention(q, k, v[..., :5], block_mask=mask, enable_gqa=True), q, k, v)
    one = create_block_mask(MASKS["causal"], B, 1, S, S, device="cpu")
    spelled(lambda q, k, v: flex_attention(q, k[:1], v[:1], block_mask=one), *operands())


def test_results_lie_as_the_queries_do():
    def program(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return flex_attention(q, k, v), flex_attention(q.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1), k, v)

    spelled(program, *(x.transpose(1, 2).contiguous() for x in operands()))


def test_statistics():
    mask = CPU(MASKS["empty rows"])
    spelled(lambda q, k, v: flex_attention(q, k, v, block_mask=mask, return_aux=AuxRequest(lse=True)), *operands())


def test_masks_made_on_the_way_cost_nothing():
    def program(q, k, v):
        mask = create_block_mask(lambda b, h, i, j: i - j < 9, B, H, S, S, device="cpu")
        return flex_attention(q, k, v, block_mask=mask)

    backend = spelled(program, *operands())
    assert not any(name.startswith(("aten.sum", "aten.argsort", "aten.index_put")) for name in backend.calls())


def test_masks_that_are_used_otherwise_too_stay():
    def program(q, k, v):
        mask = create_block_mask(lambda b, h, i, j: i - j < 9, B, H, S, S, device="cpu")
        return flex_attention(q, k, v, block_mask=mask), mask.kv_num_blocks * 2

    same_as_eager(program, *operands())


def test_sizes_that_change():
    def program(q, k, v):
        return flex_attention(q, k, v, SCORES["alibi"])

    backend = CaptureBackend()
    compiled = torch.compile(program, backend=backend, dynamic=True)
    for length in (48, 37):
        q, k, v = (x[:, :, :length] for x in operands())
        with torch.no_grad():
            torch.testing.assert_close(compiled(q, k, v), program(q, k, v))
    assert backend.codes == []
    assert not any("flex_attention" in str(captured.graph_module.graph) for captured in backend.captured)


def test_autocast_casts_what_is_multiplied():
    mask = CPU(MASKS["causal"])
    around = functools.partial(torch.autocast, "cpu", torch.bfloat16)

    def program(q, k, v):
        return flex_attention(q, k, v, SCORES["alibi"], mask) * 2

    backend = CaptureBackend()
    with torch.no_grad(), around():
        got = torch.compile(program, backend=backend)(*operands())
    with torch.no_grad():
        want = program(*(x.bfloat16() for x in operands()))
    assert "flex_attention" not in backend.calls()
    assert torch.equal(got, want)


def test_gradients_of_what_is_captured():
    """As eager's, in whose own derivative rows that are hidden have none."""
    mask, bias = CPU(MASKS["empty rows"]), made(H, S, S).requires_grad_()
    table = made(H, 2 * S).requires_grad_()

    def program(q, k, v, bias, table):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s * table[h, i - j + S] + bias[h, i, j], mask)

    backend = CaptureBackend()
    torch.compile(program, backend=backend)(*operands(), bias, table).square().sum().backward()
    got = bias.grad.clone(), table.grad.clone()
    bias.grad = table.grad = None
    wide = [x.detach().double().requires_grad_() for x in (bias, table)]
    program(*(x.double() for x in operands()), *wide).square().sum().backward()
    assert "flex_attention" not in backend.calls()
    for found, exact in zip(got, wide, strict=True):
        torch.testing.assert_close(found.double(), exact.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [D, S])
def test_scores_are_not_kept_for_the_backward(width, monkeypatch):
    """Of what has an element for each row and key, a forward keeps nothing, whatever the functions read again."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda *_: None)  # as on GPUs: torch refuses gradients on CPUs
    mask, kept = CPU(MASKS["document"]), list[torch.Tensor]()

    def program(q, k, v):
        out, aux = flex_attention(q, k, v, SCORES["cap"], mask, return_aux=AuxRequest(lse=True))
        return out.sin() * aux.lse.unsqueeze(-1)

    q, k, v = (x.repeat(1, 1, 1, width // D) for x in operands())
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    torch._dynamo.reset()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        got = torch.compile(program, backend="regraft")(*inputs)
    grids = [x for x in kept if x.numel() == B * H * S * S]
    assert len(kept) > 3
    assert len(grids) <= (4 if width == S else 0)  # queries, keys, values and the result
    exact = [x.detach().double().requires_grad_() for x in inputs]
    program(*exact).sum().backward()
    got.sum().backward()
    for x, other in zip(inputs, exact, strict=True):
        torch.testing.assert_close(x.grad.double(), other.grad, rtol=1e-4, atol=1e-4)


def test_calls_that_stay_say_why(monkeypatch):
    def program(q, k, v):
        return flex_attention(q, k, v, SCORES["alibi"])

    def failing(*_):
        raise ValueError("no\nsuch thing")

    monkeypatch.setattr(importlib.import_module("regraft.compiler.capture.retrace"), "spelled_out", failing)
    torch._dynamo.reset()
    with regraft.coverage() as found, torch.no_grad():
        got = torch.compile(program, backend="regraft")(*operands())
    torch.testing.assert_close(got, program(*operands()))
    (fallback,) = found.fallbacks
    assert (fallback.stage, fallback.code) == ("capture", "attention-not-spelled-out")
    assert "ValueError: no" in fallback.message
    assert fallback.site is not None


def test_blocks_that_are_all_a_mask_says():
    """Without a function of positions, the tables of blocks are the mask: keys of others are hidden."""
    count, order = torch.tensor([1, 0, 3]).int().view(1, 1, 3), torch.tensor([[2, 0, 1], [0, 1, 2], [1, 0, 2]]).int()
    mask = BlockMask.from_kv_blocks(count, order.view(1, 1, 3, 3), BLOCK_SIZE=16)
    backend = CaptureBackend()
    got = torch.compile(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), backend=backend)(*operands())
    kept = mask.to_dense()[0, 0].bool().repeat_interleave(16, 0).repeat_interleave(16, 1)
    want = torch.nn.functional.scaled_dot_product_attention(*operands(), attn_mask=kept)
    torch.testing.assert_close(got, want)
    assert not got[:, :, 16:32].any()


@one_row_in(2)
@pytest.mark.parametrize(
    ("name", "dynamic"), [("cap", False), ("hides", False), ("cap", True), thorough("hides", True)]
)
def test_what_a_rule_puts_in_is_computed_anew_in_the_backward(name, dynamic, monkeypatch):
    """Rules make an attention that no kernel takes two products and a softmax, whose scores are not kept."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda *_: None)  # torch refuses gradients on CPUs only
    score = {"cap": lambda s, b, h, i, j: torch.tanh(s / 20) * 20}.get(name, SCORES[name])
    torch._dynamo.reset()
    with regraft.coverage() as cov:
        compiled = torch.compile(
            lambda q, k, v: flex_attention(q, k, v, score), backend="regraft", dynamic=dynamic,
            options={"profit": "always"},
        )  # fmt: skip
        inputs = [x.requires_grad_() for x in operands()]
        result = compiled(*inputs)
    assert cov.matches["sdpa"] == 1
    assert not [x for x in result.grad_fn.saved_tensors if x.shape[-2:] == (S, S)]
    result.square().sum().backward()
    expected = [x.detach().clone().requires_grad_() for x in inputs]
    flex_attention(*expected, score).square().sum().backward()
    for one, other in zip(inputs, expected, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-4)

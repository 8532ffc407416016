"""Near misses of the attention rules: each is refused, and for the reason that it declares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.attentions import S, T, additive, attend, keeps, normal, qkv
from support.rewriting import rewritten, trained

from regraft.compiler.tools.check import refusals
from regraft.patterns import attention_cuda
from regraft.patterns.attention import sdpa, sdpa_with_weights
from regraft.patterns.attention_cuda import CUDA_KERNELS

NEAR_MISSES = [(rule, sample) for rule in (sdpa, sdpa_with_weights) for sample in rule.samples if sample.refused]


@pytest.mark.parametrize(("rule", "sample"), NEAR_MISSES, ids=lambda x: getattr(x, "refused", "") or x.name)
def test_refused(rule: Any, sample: Any) -> None:
    assert sample.refused in refusals(rule, sample)


SCORES_OF_NO_PRODUCT = {
    "squared distances": lambda q, k: -(torch.cdist(q, k) ** 2),
    "angles": lambda q, k: torch.cosine_similarity(q[..., None, :], k[..., None, :, :], -1) * 10,
}


@pytest.mark.parametrize("name", SCORES_OF_NO_PRODUCT)
def test_scores_that_are_no_product(name: str) -> None:
    """The reason names what stands in the place of the product, not the number beside it."""
    scores = SCORES_OF_NO_PRODUCT[name]
    found = rewritten(lambda q, k, v: attend(scores(q, k), v), qkv())
    (miss,) = (miss for miss in found.record.near_misses if miss.family == "attention")
    assert miss.expected.endswith("matmul") and miss.found.split(":")[0] in ("pow", "cosine_similarity")


def weights(q, k):
    return (q @ k.mT).softmax(-1)


def copied_in_parts(q, k, v):
    scores = torch.zeros(*q.shape[:-1], T)
    scores[..., :4], scores[..., 4:] = q @ k[..., :4, :].mT, q @ k[..., 4:, :].mT
    return (scores.softmax(-1) ** 3) @ v


CHANGED_WEIGHTS = {
    "pow changes": copied_in_parts,
    "where": lambda q, k, v: torch.where((w := weights(q, k)) > 0.1, w, 0.0) @ v,
    "pow": lambda q, k, v: (weights(q, k) ** 2) @ v,
    "cumsum": lambda q, k, v: weights(q, k).cumsum(-1) @ v,
    "add": lambda q, k, v: ((w := weights(q, k) + 1e-6) / w.sum(-2, keepdim=True)) @ v,
    "softmax": lambda q, k, v: torch.sigmoid(q @ k.mT) @ v,
    "exponents": lambda q, k, v: (q @ k.mT - 3).exp() @ v,
}


@pytest.mark.parametrize("name", CHANGED_WEIGHTS)
def test_weights_that_are_no_softmax(name: str) -> None:
    """What happens to the weights is told, although no operator but the last product matches."""
    found = rewritten(CHANGED_WEIGHTS[name], qkv())
    (miss,) = (miss for miss in found.record.near_misses if miss.family == "attention")
    assert miss.code == "weights-differ" and name in f"{miss.expected} {miss.message}"
    assert not found.count() and rewritten(CHANGED_WEIGHTS[name], qkv(), rules=[]).record.near_misses == []


def test_nobody_wants_the_weights() -> None:
    found = rewritten(lambda q, k, v: attend(q @ k.mT, v), qkv(), rules=[sdpa_with_weights], near_miss_depth=0)
    assert "weights-unused" in found.codes
    assert found.count() == 0


def softcap(q, k, v):
    return attend(torch.tanh(q @ k.mT) * 5.0, v)


def multiplied(q, k, v, b):
    return attend(q @ k.mT * b + (b - 1) * 1e4, v)


def sink(q, k, v, s):
    return torch.softmax(torch.cat([q @ k.mT, s.expand(*q.shape[:-1], 1)], -1), -1)[..., :-1] @ v


def dropped(q, k, v):
    return torch.dropout(torch.softmax(q @ k.mT, -1), 0.1, True) @ v


def biased(q, k, v, m):
    return attend(q @ k.mT + m, v)


EMPTY = tuple(x[:, :, :0] for x in qkv())
FLASH = {
    "no softcap": (softcap, qkv()),
    "entry by entry": (multiplied, (*qkv(), torch.ones(S, T).tril())),
    "sums that pass no gradient": (sink, trained((*qkv(), normal(1)), 4)),
    "no dropout": (dropped, qkv()),
    "the mask needs gradients": (biased, trained((*qkv(), additive(keeps(S, T), -9.0)), 4)),
    "NaN of a single key": (lambda q, k, v: attend(q @ k.mT, v), [x[:, :, :1] for x in qkv()]),
    "a size may be zero": (lambda q, k, v: attend(q @ k.mT, v), EMPTY),
    "not on a CPU": (lambda q, k, v: attend(q @ k.mT, v), [x.to("meta") for x in qkv()]),
}


@pytest.mark.parametrize("why", FLASH)
def test_flash_refuses(why: str) -> None:
    """Each condition of the CPU kernel, where it is the only candidate."""
    function, inputs = FLASH[why]
    alone = replace(sdpa, candidates=sdpa.candidates[:1])
    found = rewritten(function, inputs, rules=[alone])
    assert found.count() == 0
    (miss,) = [m for m in found.record.near_misses if m.code == "kernel-unavailable"]
    assert miss.message.startswith("flash: ") and why in miss.message


@pytest.mark.xfail(strict=True, reason="torch's CPU kernel makes numbers of what inf in key makes NaN")
def test_inf_in_key_is_nan_in_half_precision() -> None:
    def plain(q, k, v):
        return attend(q @ k.mT, v)

    q, k, v = (normal(1, 1, 16, 8).to(torch.bfloat16) for _ in range(3))
    k[0, 0, 3, 3] = torch.inf
    found = rewritten(plain, (q, k, v), rules=[replace(sdpa, candidates=sdpa.candidates[:1])])
    assert found.count() == 1
    assert torch.equal(found.run(q, k, v).isnan(), plain(q, k, v).isnan())


@pytest.mark.parametrize("kernel", [c for c in CUDA_KERNELS if c.name != "flash"], ids=lambda c: c.name)
@pytest.mark.parametrize(("mask", "taken"), [("slopes", False), ("flags", True), ("own dtype", True), ("given", False)])
def test_a_gpu_rounds_no_mask(kernel: Any, mask: str, taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels on GPUs read masks in the 16 bits of query, in which a slope's steps at a distance of 500 are lost."""
    monkeypatch.setattr(attention_cuda, "device_of", lambda match: "cuda")
    q, k, v = (normal(2, 3, n, 16, dtype=torch.bfloat16) for n in (8, 600, 600))
    masks = {
        "slopes": lambda m: -0.7 * torch.arange(600.0, dtype=torch.float32),
        "flags": lambda m: torch.where(m > 0, 0.0, torch.finfo(torch.float32).min),
        "own dtype": lambda m: m.bfloat16().float(),
        "given": lambda m: m,
    }
    math = next(c for c in sdpa.candidates if c.name == "math")  # in place of what needs a GPU
    rules = [replace(sdpa, candidates=(replace(math, name=kernel.name, applies=kernel.applies),))]
    function = lambda q, k, v, m: torch.softmax(q @ k.mT + masks[mask](m), -1).to(v.dtype) @ v  # noqa: E731
    found = rewritten(function, (q, k, v, normal(8, 600)), rules=rules)
    assert found.count("sdpa") == taken
    assert taken or "kernel-unavailable" in found.codes


@pytest.mark.parametrize(
    ("device", "capability", "version", "wide"),
    [
        ("cuda", (9, 0), 91900, True),
        ("cuda", (9, 0), 90400, False),
        ("cuda", (9, 0), None, False),
        ("cuda", (8, 0), 91900, False),
        ("cpu", (9, 0), 91900, False),
    ],
)
def test_heads_that_cudnn_takes(
    device: str, capability: tuple[int, int], version: int | None, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: version)
    assert attention_cuda._takes_wide_heads.__wrapped__(torch.device(device)) == wide

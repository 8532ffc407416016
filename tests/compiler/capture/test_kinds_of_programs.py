"""Whatever the kind of a program, its attention is found, and it computes what eager does.

A table: kind -> how many attentions are replaced before kernels are generated, by which rule.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.thorough import thorough
from support.wrapping import Doubled, attend, unwrapped
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as map_over
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import regraft

Q, K, V = (torch.randn(2, 2, 6, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3))


class Named(torch.Tensor):
    """A plain tensor by another name."""


@torch.compiler.allow_in_graph
def unseen(x):
    return x.sin()


@torch.compiler.nested_compile_region
def region(q, k, v):
    return attend(q, k, v)


def inside_inference_mode(q, k, v):
    with torch.inference_mode():
        return attend(q, k, v)


def with_library(*backends: SDPBackend) -> Callable[..., torch.Tensor]:
    def program(q, k, v):
        with sdpa_kernel(list(backends)):
            return F.scaled_dot_product_attention(q, k, v)

    return program


def with_kernels(*backends: SDPBackend) -> Callable[..., torch.Tensor]:
    def program(q, k, v):
        with sdpa_kernel(list(backends)):
            return attend(q, k, v)

    return program


def selectively(q, k, v):
    policy = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    return checkpoint(attend, q, k, v, use_reentrant=False, context_fn=policy)


def beside_a_scan(q, k, v):
    states = associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (q, k), 2, combine_mode="generic")[1]
    return attend(q, states, v)


def under_a_mapped_mask(q, k, v):
    """As transformers makes masks of functions of positions."""
    ends = torch.tensor([4, 6])
    places, rows = torch.arange(q.shape[-2]), torch.arange(q.shape[0])
    keep = torch.vmap(
        torch.vmap(torch.vmap(lambda b, i, j: (j <= i) & (j < ends[b]), (None, None, 0)), (None, 0, None)),
        (0, None, None),
    )(rows, places, places)
    return (q @ k.mT).masked_fill(~keep[:, None], -1e9).softmax(-1) @ v


def under_joined_mapped_masks(q, k, v):
    """As transformers joins functions of positions: calls of methods with names as `__and__`."""
    ends = torch.tensor([4, 6])

    def joined(b, i, j):
        near = (i - j >= 0).__and__(i - j < 3).__or__((i - j).__lt__(0).__and__(j - i < 2))
        return i.new_ones((), dtype=torch.bool) & near & (j < ends[b])

    rows, places = torch.arange(q.shape[0]), torch.arange(q.shape[-2])
    keep = torch.vmap(torch.vmap(torch.vmap(joined, (None, None, 0)), (None, 0, None)), (0, None, None))(
        rows, places, places
    )
    return (q @ k.mT).masked_fill(~keep[:, None], -1e9).softmax(-1) @ v


def either(q, k, v):
    return torch.cond(q.sum() > 0, attend, lambda q, k, v: (q - k).contiguous() + v, (q, k, v))


def loop(q, k, v):
    return while_loop(lambda i, q: i < 3, lambda i, q: (i + 1, attend(q, k, v)), (torch.tensor(0), q))[1]


def running(q, k, v):
    return scan(lambda carry, x: (attend(carry, x, x), carry.sin()), q[0], k, dim=0)


def beside_a_derivative(q, k, v):
    return attend(q, k, v) + torch.func.grad(lambda x: x.sin().sum())(q)


def every_third(hide: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Attention under a mask that depends on nothing, in a program that is rewritten after AOTAutograd traced it."""

    def program(q, k, v):
        places = torch.arange(q.shape[-2])
        scores = unseen(q) @ k.mT
        return hide(scores, (places[:, None] + places) % 3 > 0).softmax(-1) @ v

    return program


@dataclass(frozen=True)
class Kind:
    """A program, how many attentions rules replace in it, and the class of its inputs."""

    program: Callable[..., Any]
    replaced: int = 1
    training: bool = False
    of: Callable[[torch.Tensor], torch.Tensor] = torch.clone
    reason: str = ""


KINDS = {
    "vmap": Kind(lambda q, k, v: torch.vmap(attend, in_dims=(1, 0, None))(q, k, v[0])),
    "vmap of vmap": Kind(lambda q, k, v: torch.vmap(torch.vmap(attend))(q, k, v)),
    "vmap of vmap, trained": Kind(lambda q, k, v: torch.vmap(torch.vmap(attend))(q, k, v), training=True),
    "beside a scan, trained": Kind(beside_a_scan, training=True),
    "under a mask made by vmap, trained": Kind(under_a_mapped_mask, training=True),
    "under joined masks made by vmap": Kind(under_joined_mapped_masks),
    "under a map that writes": Kind(lambda q, k, v: attend(torch.vmap(lambda x: x.sin().add_(1.0))(q), k, v)),
    "under a map that draws": Kind(
        lambda q, k, v: attend(q, k, v) + 0 * torch.vmap(torch.rand_like, randomness="different")(q).sum()
    ),
    "beside grad": Kind(beside_a_derivative),
    "beside grad, trained": Kind(beside_a_derivative, training=True),
    "beside a derivative of each row, trained": Kind(
        lambda q, k, v: attend(torch.vmap(torch.func.grad(lambda x: x.exp().sum()))(q), k, v), training=True
    ),
    "under a kept map": Kind(lambda q, k, v: attend(torch.vmap(unseen)(q), k, v), reason="functorch-transform"),
    "opaque call": Kind(lambda q, k, v: attend(unseen(q), k, v), reason="opaque-call"),
    "opaque call, known bias": Kind(
        every_third(lambda s, keep: s + torch.where(keep, 0.0, -1e9)), reason="opaque-call"
    ),
    "opaque call, known mask": Kind(every_third(lambda s, keep: s.masked_fill(~keep, -math.inf)), reason="opaque-call"),
    "opaque call, both": Kind(
        every_third(lambda s, keep: (s + keep * 0.5).masked_fill(~keep, -math.inf)), reason="opaque-call"
    ),
    "opaque call, causal": Kind(
        every_third(lambda s, keep: s + torch.full_like(s[0, 0], -1e9).triu(1)), reason="opaque-call"
    ),
    "wrapper": Kind(attend, of=Doubled, replaced=2, reason="tensor-subclass"),
    "wrapper made inside": Kind(lambda q, k, v: attend(*map(Doubled, (q, k, v))).second, reason="opaque-call"),
    "plain subclass": Kind(attend, of=lambda x: x.clone().as_subclass(Named)),
    "plain subclass, trained": Kind(attend, of=lambda x: x.clone().as_subclass(Named), training=True),
    "inference mode": Kind(inside_inference_mode),
    "checkpoint": Kind(lambda *x: checkpoint(attend, *x, use_reentrant=False), training=True),
    "checkpoint without gradients": Kind(lambda *x: checkpoint(attend, *x, use_reentrant=False)),
    "selective checkpoint": Kind(selectively, training=True),
    "selective checkpoint without gradients": Kind(selectively),
    "cond": Kind(either),
    "while_loop": Kind(loop),
    "scan": Kind(running),
    "map": Kind(lambda q, k, v: map_over(lambda x: attend(x, x, x), q)),
    "region": Kind(lambda q, k, v: region(region(q, k, v), k, v)),
    "flash allowed": Kind(with_kernels(SDPBackend.FLASH_ATTENTION)),
    "only math": Kind(with_library(SDPBackend.MATH), replaced=0),
    "only math, trained": Kind(with_library(SDPBackend.MATH), replaced=0, training=True),
}  # fmt: skip
# Kinds of which another row has more: gradients, both of two masks, symbolic sizes (in the next test).
REPEATED = {
    "under joined masks made by vmap", "beside grad", "opaque call, known bias", "opaque call, known mask",
    "plain subclass", "checkpoint without gradients", "selective checkpoint without gradients", "only math",
}  # fmt: skip


@pytest.mark.parametrize("name", [thorough(name) if name in REPEATED else name for name in KINDS])
def test_attention_is_found_in_every_kind_of_program(name):
    kind = KINDS[name]
    expected = observed(kind, kind.program)
    torch._dynamo.reset()
    with regraft.coverage() as cov:
        compiled = torch.compile(kind.program, backend="regraft", options={"profit": "always"})
        for _ in range(2):
            for found, wanted in zip(observed(kind, compiled), expected, strict=True):
                assert type(found) is type(wanted) and found.stride() == wanted.stride()
                torch.testing.assert_close(unwrapped(found), unwrapped(wanted), atol=1e-5, rtol=1e-4)
    assert sum(cov.matches[rule] for rule in ("sdpa", "sdpa_with_weights")) == kind.replaced
    assert [f.code for f in cov.fallbacks] == ([kind.reason] if kind.reason else [])


@pytest.mark.parametrize("program", [thorough(beside_a_scan), under_a_mapped_mask])
def test_maps_of_symbolic_sizes(program):
    compiled = torch.compile(program, backend="regraft", options={"profit": "always"}, dynamic=True)
    with regraft.coverage() as cov:
        for rows in (3, 5):
            given = [torch.cat((x, x), -2)[:, :, :rows].clone().requires_grad_() for x in (Q, K, V)]
            torch.testing.assert_close(compiled(*given), program(*given), atol=1e-5, rtol=1e-4)
    assert not cov.fallbacks and cov.matches["sdpa"] == len(cov.graphs)


def observed(kind: Kind, program: Callable[..., Any]) -> list[torch.Tensor]:
    inputs = [kind.of(x).requires_grad_(kind.training) for x in (Q, K, V)]
    results = tree_leaves(program(*inputs))
    if kind.training:
        torch.autograd.backward(results, [torch.ones_like(x) for x in results])
        results += [x.grad for x in inputs]
    return results


def test_only_math_is_not_replaced_by_kernels_that_round_otherwise():
    """The library's kernels are no candidates where the program, or what surrounds it, excludes them."""

    def candidates(program):
        torch._dynamo.reset()
        with regraft.coverage() as cov:
            torch.compile(program, backend="regraft", options={"profit": "always"})(Q, K, V)
        return [m.candidate for m in cov.applied if m.family == "attention"]

    assert "flash" in candidates(attend) and "flash" in candidates(with_kernels(SDPBackend.FLASH_ATTENTION))
    assert "flash" not in candidates(with_kernels(SDPBackend.MATH))
    assert "flash" not in candidates(torch.vmap(with_kernels(SDPBackend.MATH)))
    with sdpa_kernel(SDPBackend.MATH):
        assert "flash" not in candidates(attend)
    assert "flash" in candidates(attend)


def test_a_compiled_program_follows_the_kernels_that_its_caller_allows():
    torch._dynamo.reset()
    with regraft.coverage() as cov:
        compiled = torch.compile(attend, backend="regraft", options={"profit": "always"})
        for backends in ([SDPBackend.FLASH_ATTENTION], [SDPBackend.MATH], [SDPBackend.FLASH_ATTENTION]):
            with sdpa_kernel(backends):
                torch.testing.assert_close(compiled(Q, K, V), attend(Q, K, V))
    found = [[m.candidate for m in graph.applied if m.rule == "sdpa"] for graph in cov.graphs]
    assert found == [["flash"], ["math"]]


def test_what_a_loop_reads_may_lie_otherwise_in_memory():
    """Slices of what a scan runs over, and states of which the first lies otherwise than those that follow."""

    def program(x, y):
        return scan(lambda state, row: ((state @ row).mT.contiguous(), state * row), y, x.mT, dim=0)

    torch._dynamo.reset()
    given = torch.randn(5, 3, 3), torch.randn(3, 3)
    for found, expected in zip(torch.compile(program, backend="regraft")(*given), program(*given), strict=True):
        torch.testing.assert_close(found, expected)


def test_bodies_that_assert_what_data_dependent_sizes_are():
    def program(x):
        kept = x[x > 0]
        return torch.cond(kept.shape[0] > 2, lambda y: (y * 2).sin().sum(), lambda y: y.exp().sum() + 1, (kept,))

    torch.compiler.reset()
    compiled = torch.compile(program, backend="regraft")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), regraft.coverage() as cov:
        for count in (5, 1, 0):
            x = torch.where(torch.arange(5) < count, 1.5, -1.0)
            torch.testing.assert_close(compiled(x), program(x))
    assert not cov.fallbacks

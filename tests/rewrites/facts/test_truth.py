"""What is claimed of a value is true, whatever the program: every fact about every node is held against eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from support.facts import agree, captured, facts
from support.thorough import examples

from regraft.rewrites.facts import Conditional, Positions, Table, Uniform
from regraft.rewrites.facts import pointwise as rules

Tensor = torch.Tensor

NUMBERS = [0, 1, 2, -1, 3, 255, 300, True, False, 0.0, -0.0, 0.5, 1.0, -math.inf, math.inf, math.nan, 1e30, 7.0]
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64,
]  # fmt: skip

SOURCES: list[Callable[[Tensor, Any], Tensor]] = [
    lambda x, n: torch.arange(x.shape[1]),
    lambda x, n: torch.arange(x.shape[1])[:, None],
    lambda x, n: torch.arange(2, x.shape[1] + 2, dtype=torch.int32),
    lambda x, n: torch.arange(0, 3 * x.shape[1], 3),
    lambda x, n: torch.arange(x.shape[1] - 1, -1, -1),
    lambda x, n: torch.ones(x.shape[0], x.shape[1]),
    lambda x, n: torch.zeros(x.shape[0], 1, x.shape[1]),
    lambda x, n: torch.full([x.shape[1], x.shape[1]], n),
    lambda x, n: torch.full([], n),
    lambda x, n: torch.full([3], x.shape[1]),
    lambda x, n: torch.ones(x.shape[1], x.shape[1]).tril(int(min(max(n, -3), 3)) if n == n else 0),
    lambda x, n: torch.full([x.shape[1], x.shape[1]], -math.inf).triu(1),
    lambda x, n: torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(),
    lambda x, n: torch.eye(4),
    lambda x, n: torch.tensor([[1, 1, 1, 1]]),
    lambda x, n: torch.zeros(0, x.shape[1], dtype=torch.bool),
    lambda x, n: x > 0,
    lambda x, n: x,
]
UNARY: list[Callable[[Tensor, Any, int], Tensor]] = [
    lambda a, n, k: -a,
    lambda a, n, k: a + n,
    lambda a, n, k: n - a,
    lambda a, n, k: a * n,
    lambda a, n, k: a == n,
    lambda a, n, k: a < n,
    lambda a, n, k: a >= n,
    lambda a, n, k: a.to(DTYPES[k % len(DTYPES)]),
    lambda a, n, k: a.to(DTYPES[k % len(DTYPES)]),
    lambda a, n, k: a.logical_not(),
    lambda a, n, k: a.abs(),
    lambda a, n, k: a[..., 1:],
    lambda a, n, k: a[..., :-1],
    lambda a, n, k: a[..., k % 4],
    lambda a, n, k: a.transpose(-1, -2),
    lambda a, n, k: a.unsqueeze(k % 2),
    lambda a, n, k: a.flatten(),
    lambda a, n, k: a.flip(-1),
    lambda a, n, k: a.cumsum(-1),
    lambda a, n, k: a.repeat(1 + k % 2, *[1] * (a.dim() - 1)),
    lambda a, n, k: a.unsqueeze(0).repeat(3, *[1] * a.dim()),
    lambda a, n, k: a.sum(-1, keepdim=bool(k % 2)),
    lambda a, n, k: a.all(-1, keepdim=True),
    lambda a, n, k: a.any(),
    lambda a, n, k: a.amax(-1),
    lambda a, n, k: a.clamp(min=n),
    lambda a, n, k: a.diff(dim=-1, prepend=a[..., :1] - 1),
    lambda a, n, k: a[..., torch.arange(a.shape[-1])],
    lambda a, n, k: a[torch.arange(a.shape[0])[:, None], torch.arange(a.shape[1])],
    lambda a, n, k: a.tril(k % 5 - 2),
    lambda a, n, k: a.triu(k % 5 - 2),
    lambda a, n, k: a.sqrt(),
    lambda a, n, k: a.exp(),
    lambda a, n, k: a / n,
    lambda a, n, k: a.bitwise_not(),
    lambda a, n, k: torch.add(a, a, alpha=n),
    lambda a, n, k: torch.zeros_like(a),
]
BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a <= b,
    lambda a, b: a < b,
    lambda a, b: a > b,
    lambda a, b: a == b,
    lambda a, b: a != b,
    torch.logical_and,
    torch.logical_or,
    lambda a, b: a & b,
    lambda a, b: a | b,
    torch.minimum,
    torch.maximum,
    lambda a, b: torch.where(a.bool(), b, 0),
    lambda a, b: torch.where(a.bool(), b, -b),
    lambda a, b: a.masked_fill(b.bool(), 1),
    lambda a, b: torch.cat([a, b], -1),
    lambda a, b: a.expand_as(b),
]

steps = st.tuples(
    st.integers(0, len(SOURCES) + 2 * len(UNARY) + 3 * len(BINARY) - 1),
    st.sampled_from(NUMBERS),
    st.integers(0, 100),
    st.integers(0, 100),
)
programs = st.lists(steps, min_size=2, max_size=14)
phases = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
relaxed = settings(max_examples=examples(25, 60), deadline=None, phases=phases, suppress_health_check=list(HealthCheck))


def step(x: Tensor, pool: list[Tensor], op: int, number: Any, i: int, j: int) -> Tensor:
    """One more tensor; without operands, a source."""
    if op < len(SOURCES) or not pool:
        return SOURCES[op % len(SOURCES)](x, number)
    op -= len(SOURCES)
    recent = pool[::-1]
    a, b = recent[i % min(len(pool), 4)], recent[j % min(len(pool), 4)]
    if op < 2 * len(UNARY):
        return UNARY[op % len(UNARY)](a, number, j)
    return BINARY[op % len(BINARY)](a, b)


def possible(program: list[Any], x: Tensor) -> list[Any]:
    """The steps of a program that eager runs."""
    kept, pool = [], []
    for given_step in program:
        try:
            pool.append(step(x, pool, *given_step))
        except (RuntimeError, IndexError):
            continue
        kept.append(given_step)
    return kept


def run(program: list[Any], x: Tensor) -> list[Tensor]:
    pool: list[Tensor] = []
    for given_step in program:
        pool.append(step(x, pool, *given_step))
    return pool


@given(programs)
@relaxed
def test_static(program: list[Any]) -> None:
    x = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    kept = possible(program, x)
    module = captured(lambda x: run(kept, x), x)
    agree(module, facts(module), [x])


@given(programs, st.sampled_from([(2, 3), (3, 7), (4, 12)]))
@relaxed
def test_symbolic(program: list[Any], sizes: tuple[int, int]) -> None:
    x = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    kept = possible(program, x)
    try:
        module = captured(lambda x: run(kept, x), x, dynamic=True)
    except RuntimeError:  # a step that needs the sizes themselves
        assume(False)
    known = facts(module)
    agree(module, known, [x])
    env = module.graph.find_nodes(op="placeholder")[0].meta["val"].fake_mode.shape_env
    assume(not env.guards)  # tracing has specialized a size: the graph is of these sizes only
    other = torch.randn(*sizes, generator=torch.Generator().manual_seed(1))
    try:
        run(kept, other)
    except (RuntimeError, IndexError):
        assume(False)
    agree(module, known, [other])


@pytest.mark.parametrize("dynamic", [False, True])
def test_it_knows_something(dynamic: bool) -> None:
    """Of the sources nearly everything is known: the tests above are not about nothing."""
    module = captured(lambda x: [source(x, 1) for source in SOURCES[:-2]], torch.randn(2, 5), dynamic=dynamic)
    known = facts(module)
    kinds = [type(known.get(n)) for n in module.graph.output_node().all_input_nodes]
    unknown = int(dynamic)  # arange in int32, which might wrap around
    assert kinds.count(Positions) == 5 and kinds.count(Conditional) == 3 and kinds.count(type(None)) == unknown
    assert {Uniform, Table} <= set(kinds)


def test_it_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that is wrong by one is found out."""
    right = rules._compared
    monkeypatch.setattr(rules, "_compared", lambda name, a, b, node: right({"lt": "le"}.get(name, name), a, b, node))
    x = torch.randn(2, 5)
    module = captured(lambda x: torch.arange(x.shape[1]) < x.shape[1] - 1, x, dynamic=True)
    with pytest.raises(AssertionError, match="claimed"):
        agree(module, facts(module), [x])

"""Normal form keeps values, whatever the program: the mirror, run, gives what the program gives."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.normal import module_of, normalized, traced
from support.programs import STEPS, Operands, run
from support.thorough import examples

programs = st.lists(st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 1 << 10)), min_size=1, max_size=12)
sizes = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=2, max_size=4)
relaxed = settings(max_examples=examples(12, 60), deadline=None, suppress_health_check=list(HealthCheck))


def _prepared(program: list[tuple[int, int]], shape: list[int]) -> tuple[Any, list[torch.Tensor], torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    made = Operands()
    expected = run(program, x, made)

    def function(x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return run(program, x, Operands(list(more)))

    return function, [x, *made.made], expected


@given(programs, sizes)
@relaxed
def test_static(program: list[tuple[int, int]], shape: list[int]) -> None:
    function, inputs, expected = _prepared(program, shape)
    mirror = normalized(traced(function, *inputs))
    torch.testing.assert_close(module_of(mirror)(*inputs), expected, equal_nan=True)


@given(programs, sizes)
@example([(0, 178), (2, 0), (1, 0)], [1, 2, 2])  # one reshape for both of a program would need guards
@relaxed
def test_symbolic(program: list[tuple[int, int]], shape: list[int]) -> None:
    function, inputs, expected = _prepared(program, shape)
    module = traced(function, *inputs, dynamic=True)
    env = next(iter(module.graph.nodes)).meta["val"].fake_mode.shape_env
    guards = len(env.guards)
    mirror = normalized(module)
    assert len(env.guards) == guards, env.guards[guards:]
    torch.testing.assert_close(module_of(mirror)(*inputs), expected, equal_nan=True)

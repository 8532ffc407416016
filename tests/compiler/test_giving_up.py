"""A graph that is given up at any stage, in any direction, does what eager does: values, dtypes, strides, aliases.

A table: kinds of programs x where something raises x the graphs of whose compilation it raises.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.giving_up import DIRECTIONS, IN_EACH, OF_ALL, PLANTED, raising
from support.thorough import one_in, one_row_in, takes_turns
from torch import nn

import regraft
from regraft.compiler import graph_code
from regraft.compiler.backend import Compilation
from regraft.rewrites.reason import Reason


class Images(nn.Module):
    """Norms of three kinds behind convolutions, channels last, and a view that needs contiguous rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1, bias=False)
        self.groups, self.batch, self.rows = nn.GroupNorm(2, 4), nn.BatchNorm2d(4), nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> Any:
        h = self.groups(self.first(x)).relu()
        return self.batch(self.second(h)), self.rows(h).flatten(2).mT, h


class Words(nn.Module):
    """Attention with dropout, and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        mixed = F.dropout((q @ k.mT).softmax(-1), 0.5) @ v
        return mixed + torch.rand_like(mixed), F.dropout(mixed, 0.3).sum(1)


class Views(nn.Module):
    """Writes to a buffer and an input; results that look at inputs, at each other, and at nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.calls = nn.Parameter(torch.ones(4, 4)), nn.Buffer(torch.zeros(4))

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
        self.calls += x.detach().mean(0)
        n[1:].mul_(2)
        h = (x @ self.weight).tanh() * self.calls
        return h, h.t(), x.view(-1), n, n[0], (h * 2).mT


@dataclass(frozen=True)
class Program:
    """A module and its inputs, and how it is called."""

    build: Callable[[], tuple[nn.Module, list[torch.Tensor]]]
    autocast: torch.dtype | None = None
    options: tuple[tuple[str, Any], ...] = ()
    dynamic: bool = False


def images() -> tuple[nn.Module, list[torch.Tensor]]:
    return Images(), [torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)]


PROGRAMS = {
    "images": Program(images),
    "bfloat16": Program(images, torch.bfloat16),
    "words": Program(lambda: (Words(), [torch.randn(2, 5, 8)]), options=(("rng", "eager"),)),
    "views": Program(lambda: (Views(), [torch.randn(3, 4), torch.randn(3, 4)])),
    "sizes": Program(lambda: (Words(), [torch.randn(2, 5, 8)]), options=(("rng", "eager"),), dynamic=True),
}


def observed(program: Program, module: nn.Module, call: Callable[..., Any], inputs: list[torch.Tensor]) -> Any:
    """What a step gives and does: values, and what is told of them."""
    torch.manual_seed(1)
    first = inputs[0].clone(memory_format=torch.preserve_format).requires_grad_()
    given = [first, *(x.clone() for x in inputs[1:])]
    context = nullcontext() if program.autocast is None else torch.autocast("cpu", program.autocast)
    with context:
        results = call(*given)
    held = [x.untyped_storage().data_ptr() for x in (*given, *results)]
    facts = [
        (x.dtype, x.stride(), x.requires_grad, x.grad_fn is None, held.index(x.untyped_storage().data_ptr()))
        for x in results
    ]
    drawn = torch.rand(2) if dict(program.options).get("rng") == "eager" else torch.zeros(2)
    torch.manual_seed(2)
    roots = [(x.float() * torch.randn(x.shape)).sum() for x in results if x.requires_grad]
    gradients = torch.autograd.grad(sum(roots), [first, *module.parameters()])  # type: ignore[arg-type]
    facts += [(x.dtype,) for x in gradients]
    return facts, [x.detach().clone() for x in (*results, *gradients, *given, *module.buffers(), drawn)]


def compiled(program: Program, module: nn.Module, inputs: list[torch.Tensor], **options: Any) -> Any:
    torch.compiler.reset()
    module = deepcopy(module)
    options |= dict(program.options)
    with regraft.coverage() as cov:
        call = torch.compile(module, backend="regraft", dynamic=program.dynamic, options=options)
        return observed(program, module, call, inputs), cov.faults


def check(name: str, place: tuple[Any, str, bool], kinds: tuple[str, ...] | None, monkeypatch: Any) -> None:
    program = PROGRAMS[name]
    torch.manual_seed(0)
    module, inputs = program.build()
    own = deepcopy(module)
    facts, values = observed(program, own, own, inputs)
    with raising(monkeypatch, place, kinds):
        (our_facts, our_values), faults = compiled(program, module, inputs)
        assert faults and all(PLANTED in fault.message for fault in faults)
        assert our_facts == facts
        tolerance = 1e-4 if program.autocast is None else 4e-2
        for ours, theirs in zip(our_values, values, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * (1 + float(theirs.abs().max())))


@takes_turns("name", "direction")
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("stage", IN_EACH)
def test_a_graph_given_up_in_some_direction(stage, name, direction, monkeypatch):
    check(name, IN_EACH[stage], DIRECTIONS[direction], monkeypatch)


@one_row_in(2)
@takes_turns("name")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("stage", OF_ALL)
def test_a_program_given_up(stage, name, monkeypatch):
    check(name, OF_ALL[stage], None, monkeypatch)


STRICT = {
    "passes": "pass lower", "kernels": "generating kernels", "wrapper": "pass generate",
    "operators": "lowering of aten",
}  # fmt: skip


@pytest.mark.parametrize("stage", one_in(len(STRICT), STRICT))
def test_strict_raises_and_says_what_failed(stage, monkeypatch):
    program = PROGRAMS["views"]
    module, inputs = program.build()
    said = pytest.raises(Exception, match=rf"{STRICT[stage]}.* failed: planted")
    with raising(monkeypatch, IN_EACH[stage], ("backward",)), said:
        compiled(program, module, inputs, strict=True)


@torch.library.custom_op("regraft_test::in_columns", mutates_args=())
def in_columns(x: torch.Tensor) -> torch.Tensor:
    """A copy that lies otherwise than its fake says."""
    return x.t().contiguous().t()


@in_columns.register_fake
def _(x):
    return x.new_empty(x.shape)


def branches(x):
    y = torch.cond(x.sum() > 0, lambda x: in_columns(x * 2), lambda x: in_columns(x) + 1, (x,))
    return y.softmax(0), y.view(-1)


@pytest.mark.parametrize("how", ["fails", "is refused"])
def test_what_a_body_of_control_flow_gives_lies_as_told(how, monkeypatch):
    if how == "fails":
        monkeypatch.setattr(graph_code.GraphCode, "_compile_body", None)
    else:
        monkeypatch.setattr(graph_code, "refused_body", lambda graph: Reason("planted", "planted"))
    monkeypatch.setattr(Compilation, "_key", lambda self: None)
    torch.compiler.reset()
    with torch.no_grad(), regraft.coverage() as cov:
        for x in (torch.ones(3, 5), -torch.ones(3, 5)):
            made, flat = torch.compile(branches, backend="regraft")(x)
            y = x * 2 if x.sum() > 0 else x + 1
            torch.testing.assert_close((made, flat), (y.softmax(0), y.view(-1)))
    assert cov.graphs[0].fallbacks

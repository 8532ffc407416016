"""Rewriting plain functions, with and without Dynamo, and holding the results against eager."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import regraft
from regraft.compiler.backend import backend
from regraft.compiler.normal import LOWERED_FORM, NORMAL_FORM
from regraft.patterns import default_rules
from regraft.rewrites.compat import capture_function
from regraft.rewrites.driver import Settings, rewrite
from regraft.rewrites.effects import mark_gradients
from regraft.rewrites.record import GraphRecord

Tensor = torch.Tensor
Function = Callable[..., Any]

_ROUNDINGS = 16  # how many roundings of the result's type are always allowed


@dataclass(frozen=True)
class Rewritten:
    """A function after the rewrites of one stage, and what happened to it."""

    run: Function
    record: GraphRecord
    graph: torch.fx.Graph

    def count(self, name: str = "attention") -> int:
        return sum(name in (m.rule, m.family) for m in self.record.applied)

    @property
    def codes(self) -> set[str]:
        return {miss.code for miss in self.record.near_misses}

    @property
    def tags(self) -> set[str]:
        return {tag for m in self.record.applied for tag in m.tags}

    @property
    def kernels(self) -> list[str]:
        return [m.candidate for m in self.record.applied if m.family == "attention"]

    @property
    def ops(self) -> set[str]:
        return {str(n.target).removeprefix("aten.").split(".")[0] for n in self.graph.nodes if n.op == "call_function"}


def rewritten(
    function: Function,
    inputs: Sequence[Any],
    *,
    dynamic: bool = False,
    stage: str = "forward",
    rules: Iterable[Any] | None = None,
    rng: str = "statistical",
    nan: str = "eager",
    near_miss_depth: int = 2,
) -> Rewritten:
    """`function` captured and rewritten by the driver alone; tensors that require gradients are trained."""
    wants = [isinstance(x, Tensor) and x.requires_grad for x in inputs]
    module, places = capture_function(function, inputs, dynamic=dynamic)
    mark_gradients(module.graph, [wants[i] for i in places])
    record = GraphRecord("test")
    settings = Settings(
        stage=stage,
        normal_form=NORMAL_FORM if stage == "forward" else LOWERED_FORM,
        training=any(wants),
        keep_stream=rng == "eager",
        verify="structure",
        policy=(("nan", nan), ("rng", rng)),
        near_miss_depth=near_miss_depth,
    )
    rewrite(module, default_rules() if rules is None else rules, settings, record)
    return Rewritten(lambda *given: module(*(given[i] for i in places)), record, module.graph)


def compiled(function: Function, *, dynamic: bool | None = False, **options: Any) -> tuple[Function, regraft.Coverage]:
    """`function` under `torch.compile`, every legal match applied; run it inside ``with coverage:``."""
    torch._dynamo.reset()
    options = {"profit": "always", "verify": "structure"} | options
    chosen = functools.partial(backend, options=options)
    return torch.compile(function, backend=chosen, dynamic=dynamic), regraft.coverage()


def trained(inputs: Sequence[Any], first: int = 3) -> list[Any]:
    """The inputs with gradients wanted for the `first` of them."""
    return [x.detach().clone().requires_grad_() if i < first else x for i, x in enumerate(inputs)]


def outcome(function: Function, inputs: Sequence[Any]) -> list[Tensor]:
    """Results, then the gradients of a sum with uneven weights with respect to inputs that want one."""
    leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    torch.manual_seed(0)
    with torch.set_grad_enabled(bool(leaves)):
        out = function(*inputs)
        results = list(out) if isinstance(out, (tuple, list)) else [out]
        if not leaves:
            return results
        loss = sum((r.double() * _weights(r)).sum() for r in results if r.requires_grad)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [r.detach() for r in results] + [
        torch.zeros_like(x) if g is None else g for g, x in zip(gradients, leaves, strict=True)
    ]


def _weights(x: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(x.shape, generator=generator, dtype=torch.float64).to(x.device) + 0.5


def assert_agrees(function: Function, run: Function, inputs: Sequence[Any], *, slack: float = 4.0) -> None:
    """`run` agrees with eager: NaN at the same places, error against float64 no worse than `slack` times eager's.

    Gradients of inputs that require them are compared as well.
    """
    exact = outcome(function, [_doubled(x) for x in inputs])
    eager, ours = outcome(function, inputs), outcome(run, inputs)
    assert len(ours) == len(eager)
    scale = max((float(e.double().nan_to_num(0, 0, 0).norm()) for e in exact), default=0.0)
    for i, (a, b, reference) in enumerate(zip(ours, eager, exact, strict=True)):
        assert a.shape == b.shape and a.dtype == b.dtype, f"output {i}: {a.dtype} {a.shape}, not {b.dtype} {b.shape}"
        assert torch.equal(a.isnan(), b.isnan()), f"output {i}: NaN at other places than in eager"
        assert torch.equal(a[b.isinf()], b[b.isinf()]), f"output {i}: inf at other places than in eager"
        _assert_close(f"output {i}", a, b, reference, slack, scale)


def _assert_close(what: str, ours: Tensor, eager: Tensor, exact: Tensor, slack: float, scale: float) -> None:
    if not eager.is_floating_point():
        assert torch.equal(ours, eager), what
        return
    sound = eager.isfinite() & exact.isfinite()
    a, b, reference = (x.double()[sound] for x in (ours, eager, exact))
    error, own = float((a - reference).norm()), float((b - reference).norm())
    allowed = slack * own + _ROUNDINGS * torch.finfo(eager.dtype).eps * max(float(reference.norm()), 0.1 * scale)
    assert error <= allowed + 1e-30, f"{what}: error {error:.3g}, eager's own {own:.3g}, allowed {allowed:.3g}"


def _doubled(x: Any) -> Any:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    return x.detach().double().requires_grad_(x.requires_grad)

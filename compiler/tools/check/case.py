"""A case: the program of a rule's pattern on operands, captured and rewritten as in the backend."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import fx

from ....patterns.packing import FROZEN
from ....rewrites.compat import capture_function
from ....rewrites.driver import Settings, rewrite
from ....rewrites.effects import mark_gradients
from ....rewrites.graph import nodes_in, op_name
from ....rewrites.pattern import choosing
from ....rewrites.profit import Always
from ....rewrites.record import GraphRecord
from ....rewrites.rule import Rule
from ....rewrites.sample import LEADING, Sample
from ...normal import FORMS
from .drawn import INCOMING, DrawnExample
from .operands import KINKS, SINGULAR, Look, make, tensors

Program = Callable[..., Any]
Gradients = Literal["compared", "finite", "ignored"]


@dataclass(frozen=True)
class Case:
    """A rule, one program of its pattern, and operands.

    Args:
        rule: the rule, whose pattern is the program.
        operands: the operands in the order of the pattern; None for missing ones.
        tags: the alternatives of the pattern in the program.
        frozen: names of operands that are frozen weights.
        dynamic: whether sizes are symbolic.
        fixed: the dims of operands, by name, whose sizes are numbers even so.
        nan: option ``nan``.
        seed: the seed of random draws.
        gradients: ``"compared"``; ``"finite"``, to look for NaN and inf only; or ``"ignored"``.
        incoming: the form of incoming gradients; see `drawn.INCOMING`.
    """

    rule: Rule
    operands: tuple[Any, ...]
    tags: Mapping[str, str] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    dynamic: bool = False
    fixed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    nan: str = "eager"
    seed: int = 0
    gradients: Gradients = "compared"
    incoming: str = INCOMING[0]

    @classmethod
    def of(cls, rule: Rule, sample: Sample, drawn: DrawnExample) -> Case:
        """The case of a sample and its drawn example."""
        specs, sizes = tensors(sample), dict(drawn.sizes)
        operands = [sample.operands.get(v.name) for v in rule.variables]
        for i, variable in enumerate(rule.variables):
            if variable.name in specs:
                look = drawn.looks.get(variable.name, Look())
                operands[i] = make(specs[variable.name], sizes, drawn.dtype, look, operand_seed(drawn.seed, i))
        frozen = tuple(name for name, spec in specs.items() if spec.frozen)
        values = {look.values for look in drawn.looks.values()}
        gradients: Gradients = "ignored" if values & {*SINGULAR} else "finite" if values & {*KINKS} else "compared"
        return cls(
            rule, tuple(operands), sample.tags, frozen, drawn.dynamic, {}, drawn.nan, drawn.seed, gradients,
            drawn.incoming,
        )  # fmt: skip

    def with_sizes_of(self, sample: Sample) -> Case:
        """The case, the sizes that the sample gives as numbers being numbers: ``"4"`` in ``T("B 4 S")``."""
        fixed = {}
        for name, operand in zip((v.name for v in self.rule.variables), self.operands, strict=True):
            dims = sample.operands[name].dims.split() if name in tensors(sample) else []
            more = operand.dim() - len(dims) if dims else 0
            fixed[name] = tuple(d + (more if dims[0] == LEADING else 0) for d, dim in enumerate(dims) if dim.isdigit())
        return replace(self, fixed={name: dims for name, dims in fixed.items() if dims})

    @property
    def training(self) -> bool:
        """Whether gradients flow."""
        return any(isinstance(o, torch.Tensor) and o.requires_grad for o in self.operands)

    def tried(self) -> None:
        """Run the program on the operands; what a GPU refuses to start raises here, not at a later call.

        torch does not look whether `_weight_int8pack_mm` of no rows was started.
        """
        self.program(*self.operands)
        if self.elsewhere:
            torch.zeros(1, device=next(o.device for o in self.operands if isinstance(o, torch.Tensor)))

    @property
    def elsewhere(self) -> bool:
        """Whether it runs on another device than the CPU."""
        return any(isinstance(o, torch.Tensor) and o.device.type not in ("cpu", "meta") for o in self.operands)

    def program(self, *operands: Any) -> Any:
        """The program in eager mode."""
        with choosing(dict(self.tags)):
            return self.rule.pattern(*operands)

    @cached_property
    def _captured(self) -> tuple[fx.GraphModule, list[int]]:
        fixed = {i: self.fixed.get(variable.name, ()) for i, variable in enumerate(self.rule.variables)}
        graph_module, places = capture_function(self.program, list(self.operands), dynamic=self.dynamic, fixed=fixed)
        for place, node in zip(places, graph_module.graph.find_nodes(op="placeholder"), strict=False):
            if self.rule.variables[place].name in self.frozen:
                node.meta[FROZEN] = True
        mark_gradients(graph_module.graph, [self.operands[i].requires_grad for i in places])
        return graph_module, places

    def rewritten(self, rule: Rule | None = None) -> Rewritten:
        """The program, rewritten by a rule, by default the rule of the case."""
        chosen = rule or self.rule
        captured, places = self._captured
        graph_module, renamed = fx.GraphModule(captured, fx.Graph()), dict[fx.Node, fx.Node]()
        graph_module.graph.output(graph_module.graph.graph_copy(captured.graph, renamed))
        for old, new in renamed.items():
            new.meta = dict(old.meta)
        graph_module.recompile()
        record = GraphRecord(chosen.name)
        with torch.set_grad_enabled(self.training):  # replacements may read it, as in a compilation
            rewrite(graph_module, [chosen], self._settings(chosen), record)
        return Rewritten(graph_module, places, record, frozenset(renamed.values()))

    def _settings(self, rule: Rule) -> Settings:
        keeps = rule.numerics.random != "distribution"
        return Settings(
            stage=rule.stage,
            normal_form=FORMS[rule.stage],
            oracle=Always(),
            training=self.training,
            keep_stream=keeps,
            verify="structure",
            # Candidates whose draws differ on purpose need this option; they cannot be compared by value.
            policy=(("nan", self.nan), *((("rng", "eager"),) if keeps else ())),
            near_miss_depth=0,
        )


_COPIES = ("aten.clone", "aten.contiguous", "aten.permute")


@dataclass(frozen=True)
class Rewritten:
    """A rewritten program with the operands of the case, its record, and its nodes before the rewrite."""

    graph_module: fx.GraphModule
    places: list[int]
    record: GraphRecord
    captured: frozenset[fx.Node]

    def __call__(self, *operands: Any) -> Any:
        """Run it."""
        return self.graph_module(*(operands[i] for i in self.places))

    @property
    def applied(self) -> bool:
        """Whether the rule matched, also if it matched a part of the program."""
        return bool(self.record.applied)

    @property
    def whole(self) -> bool:
        """Whether it matched the whole program, which then returns the replacement, not the last call of the pattern.

        If the replacement is an operand, the program returns a copy, because results have memory of their own.
        """
        return self.applied and all(map(self._is_made, nodes_in(self.graph_module.graph.output_node().args)))

    def _is_made(self, node: fx.Node) -> bool:
        """Whether a value is from a rule or an operand, possibly behind copies that keep its strides."""
        while op_name(node) in _COPIES and node not in self.captured and "regraft_rule" not in node.meta:
            node = node.all_input_nodes[0]
        return node.op != "call_function" or "regraft_rule" in node.meta

    @property
    def codes(self) -> frozenset[str]:
        """The codes of the reasons why it did not match the whole program; empty if it did."""
        return frozenset() if self.whole else frozenset(m.code for m in self.record.near_misses)


def operand_seed(seed: int, place: int) -> int:
    """Operands with separate values."""
    return 100 * seed + place


def alone(rule: Rule, candidate: str) -> Rule:
    """A rule with only one of its candidates."""
    return replace(rule, candidates=tuple(c for c in rule.candidates if c.name == candidate))


def refusals(rule: Rule, sample: Sample) -> set[str]:
    """The codes of the reasons of a rule for the operands of a sample; empty if it matches.

    The program is the pattern of the rule, so that a rule can only refuse the operands.
    """
    return set(Case.of(rule, sample, DrawnExample.plain(sample)).rewritten().codes)


@contextmanager
def quiet() -> Iterator[None]:
    """Turn off torch's log of errors: a failing trace is reported as a counterexample, or expected."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)

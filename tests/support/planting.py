"""Random programs with instances of rules planted into them: spelled as declared, respelled, or almost matching.

    planted      the rule's own pattern on values of the program around it, respelled: every instance must match
    almost       one step of the pattern is changed: what still matches must be right
    refused      operands that the rule declares to refuse: the pattern must not be replaced

All results and gradients are held against eager's by the same comparison as the property test of a rule.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

from regraft.compiler.normal import FORMS
from regraft.compiler.tools.check.case import Case
from regraft.compiler.tools.check.compare import compare
from regraft.compiler.tools.check.drawn import INCOMING, DrawnExample
from regraft.compiler.tools.check.operands import LAYOUTS, Look, differentiable, dim_names, make, placed, tensors
from regraft.patterns import default_rules
from regraft.patterns.packing import FROZEN
from regraft.rewrites.compat import capture_function
from regraft.rewrites.driver import Settings, rewrite
from regraft.rewrites.effects import mark_gradients
from regraft.rewrites.graph import nodes_in, op_name
from regraft.rewrites.pattern import choosing
from regraft.rewrites.record import GraphRecord
from regraft.rewrites.rule import Numerics, Rule
from regraft.rewrites.sample import Sample

from .respelling import ALMOST, JUMPS, Almost, Respelled, Steps

Tensor = torch.Tensor
KINDS = ("planted", "almost", "refused")
STAGES = ("forward", "simplify", "lowered")
_NUMERICS = Numerics(slack=4.0, random="stream")
_TRIES = 3  # what is wrong is wrong on other numbers too; a rounding at a jump is not
_COPIES = ("aten.clone", "aten.contiguous", "aten.permute")
_PRELUDES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sin": lambda x, link: x.sin(),
    "shifted": lambda x, link: x + link,
    "relayouted": lambda x, link: (x + link).transpose(0, -1).contiguous().transpose(0, -1) if x.dim() else x + link,
    "copied": lambda x, link: x.clone(),
}
_CHAFF: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "gram": lambda x: x @ x.mT,
    "relu": lambda x: x.relu(),
    "where": lambda x: torch.where(x > 0, x, 0.5),
    "squares": lambda x: x.pow(2).mean(-1, True),
    "lifted": lambda x: x + x.mean(-1, keepdim=True),
    "sigmoid": lambda x: x * torch.sigmoid(x + 1),
    "turned": lambda x: x.mT.contiguous() + 1.0,
}


@dataclass(frozen=True)
class Plant:
    """One instance of a rule: its sample, sizes of named dims, and where its operands are among the program's."""

    rule: Rule
    sample: Sample
    sizes: tuple[tuple[str, int], ...]
    first: int

    @property
    def specs(self) -> dict[str, Any]:
        return tensors(self.sample)


@dataclass(frozen=True)
class Planting:
    """A random program around plants.

    Args:
        seed: all of it comes from this number.
        kind: one of `KINDS`.
        plants: what is planted, in order.
        operands: all inputs of the program.
        dynamic: sizes are symbolic while compiling.
        almost: what is changed, and at which step of the last plant.
    """

    seed: int
    kind: str
    plants: tuple[Plant, ...]
    operands: tuple[Tensor, ...]
    dynamic: bool
    almost: tuple[str, int] | None = None
    nan: str = "eager"
    gradients: str = "compared"
    incoming: str = INCOMING[0]

    @property
    def rule(self) -> Any:
        """By which contract results are compared."""
        named = [SimpleNamespace(name=f"operand {i}") for i in range(len(self.operands))]
        return SimpleNamespace(numerics=_NUMERICS, nan="same", variables=named)

    @property
    def training(self) -> bool:
        return any(x.requires_grad for x in self.operands)

    def program(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """What eager runs: the results of the plants, then everything else."""
        source, results, others = random.Random(self.seed), list[Tensor](), list[Tensor]()
        for plant in self.plants:
            link = _link([*results, *others])
            given = _prelude(plant, operands, link, source)
            results += self._planted(plant, given, others, random.Random(source.random()))
            others += _surroundings([*given.values(), *results, *others], source)
        return (*results, *others)

    def _planted(
        self, plant: Plant, given: dict[str, Any], others: list[Tensor], source: random.Random
    ) -> Sequence[Tensor]:
        if self.almost is not None and "written" in self.almost[0]:  # of inputs it would be seen outside
            given = {name: x.clone() for name, x in given.items()}
        arguments = [given.get(v.name, plant.sample.operands.get(v.name)) for v in plant.rule.variables]
        last = plant is self.plants[-1]
        if self.kind == "planted" and plant.rule.stage == "forward":
            mode: Any = Respelled(source)
        elif self.almost is not None and last:
            mode = Almost(*self.almost, [x for x in given.values() if isinstance(x, Tensor)], others)
        else:
            mode = Steps()
        with choosing(dict(plant.sample.tags)), mode:
            out = plant.rule.pattern(*arguments)
        return list(out) if isinstance(out, (tuple, list)) else [out]

    @cached_property
    def captured(self) -> tuple[fx.GraphModule, list[int]]:
        """Its graph before autograd."""
        module, places = capture_function(self.program, self.operands, dynamic=self.dynamic)
        frozen = {i for p in self.plants for i, spec in enumerate(p.specs.values(), p.first) if spec.frozen}
        for place, node in zip(places, module.graph.find_nodes(op="placeholder"), strict=False):
            if place in frozen:
                node.meta[FROZEN] = True
        mark_gradients(module.graph, [self.operands[i].requires_grad for i in places])
        return module, places

    def __str__(self) -> str:
        rules = ", ".join(f"{p.rule.name} {p.sample}" for p in self.plants)
        facts = [self.kind, *([str(self.almost)] if self.almost else []), "symbolic" if self.dynamic else "static"]
        facts += ["training"] if self.training else []
        text = capture_function(self.program, self.operands, dynamic=self.dynamic)[0].print_readable(False)
        return f"seed {self.seed}: {', '.join(facts)}: {rules}\n{text}"


def _link(values: Sequence[Tensor]) -> Tensor | float:
    """A number that depends on an earlier value, so that programs are one graph and not several side by side."""
    usable = [x for x in values if x.is_floating_point() and not x.requires_grad]
    return usable[-1].mean().sin() * 0.1 if usable else 0.125


def _prelude(plant: Plant, operands: Sequence[Tensor], link: Any, source: random.Random) -> dict[str, Any]:
    """The operands of a plant: inputs, or values computed from them."""
    given = {}
    for place, (name, spec) in enumerate(plant.specs.items(), plant.first):
        x, drawn = operands[place], source.choice(("", "", *_PRELUDES))
        plain = spec.values == "normal" and x.is_floating_point() and not spec.frozen
        given[name] = _PRELUDES[drawn](x, link).to(x.dtype) if drawn and plain else x
    return given


def _surroundings(values: Sequence[Any], source: random.Random) -> list[Tensor]:
    """Other uses of the values so far, much like parts of patterns."""
    usable = [x for x in values if isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 1]
    if not usable:
        return []
    return [_CHAFF[source.choice([*_CHAFF])](source.choice(usable)) for _ in range(source.randint(0, 2))]


# -- drawing


def draw(seed: int, rules: Sequence[Rule] | None = None, device: str = "cpu") -> Planting:
    """The planting of a seed, its rules among these (by default all), its operands on a device."""
    source = random.Random(seed)
    chosen = list(default_rules() if rules is None else rules)
    kind = source.choice(("planted", "planted", "almost", "almost", "refused"))
    dtype = source.choice((torch.float32, torch.float32, torch.bfloat16))
    training, dynamic = source.random() < 0.3, source.random() < 0.3
    if training:
        chosen = [r for r in chosen if r.stage == "forward"] or chosen
    change = source.choice([*ALMOST]) if kind == "almost" else ""
    dtype = torch.float64 if change in JUMPS else dtype
    plants, operands = list[Plant](), list[Tensor]()
    for _ in range(1 if kind == "refused" else source.randint(1, 3)):
        rule = source.choice([r for r in chosen if _usable(r, kind)] or chosen)
        sample = placed(source.choice(_usable(rule, kind) or _usable(rule, "planted")), device)
        sizes = tuple((n, _size(source, sample.sizes[n], kind)) for n in dim_names(sample))
        plants.append(Plant(rule, sample, sizes, len(operands)))
        trained = training and rule.stage == "forward"
        operands += _operands(plants[-1], dtype, trained, source)
    planting = Planting(seed, kind, tuple(plants), tuple(operands), dynamic)
    return _with_change(planting, change, source) if kind == "almost" else planting


def _usable(rule: Rule, kind: str) -> list[Sample]:
    """The samples of a kind that run."""
    fits = [s for s in rule.samples if bool(s.refused) == (kind == "refused")]
    return [s for s in fits if all(t.device == "cpu" for t in tensors(s).values())]


def _size(source: random.Random, own: int, kind: str) -> int:
    return own if kind == "refused" else source.choice((own, own, own, own + 1, 2 * own))


def _operands(plant: Plant, dtype: torch.dtype, training: bool, source: random.Random) -> list[Tensor]:
    made = []
    layouts = [x for x in LAYOUTS if x != "broadcast"]  # rows of equal numbers are normalized to rounding errors
    if any(s.dtype == torch.complex64 for s in plant.specs.values()):
        layouts = ["contiguous"]
    for spec in plant.specs.values():
        layout = source.choice(("contiguous", "contiguous", "contiguous", *layouts))
        values = "masked-row" if spec.values in ("mask", "bool") and source.random() < 0.1 else "plain"
        look = Look(layout, values, training and differentiable(spec) and source.random() < 0.7)
        made.append(make(spec, dict(plant.sizes), dtype, look, source.randrange(1 << 20)))
    return made


def _with_change(planting: Planting, change: str, source: random.Random) -> Planting:
    """The change at one step of the last plant."""
    with torch.no_grad():
        counted = Almost("none", -1, [], [])
        plant = planting.plants[-1]
        # What eager refuses counts up to there: it is judged to be no program.
        with choosing(dict(plant.sample.tags)), counted, contextlib.suppress(RuntimeError):
            specs = dict(zip(plant.specs, planting.operands[plant.first :], strict=False))
            plant.rule.pattern(*(specs.get(v.name, plant.sample.operands.get(v.name)) for v in plant.rule.variables))
    at = change, source.randrange(max(counted.step, 1))
    return Planting(
        planting.seed, planting.kind, planting.plants, planting.operands, planting.dynamic, at
    )  # fmt: skip


# -- judging


@dataclass(frozen=True)
class Verdict:
    """What came of a planting: `how` is ok, invalid (eager itself refuses it), missed, wrong, replaced or raised."""

    how: str
    told: str = ""
    matched: int = 0


def judge(planting: Planting) -> Verdict:
    """Run it: captured, rewritten by every stage with the default rules, and compared."""
    try:
        compare(planting, planting.program)
        module, places = planting.captured
    except Exception as error:  # eager, in float64 too, autograd or the trace refuse it: there is nothing to compile
        return Verdict("invalid", f"{type(error).__name__}: {error}")
    own = {p.rule.name: p.rule for p in planting.plants}
    rules = [own.pop(r.name, r) for r in default_rules()] + list(own.values())
    record = GraphRecord("planting")
    try:
        for stage in STAGES[:1] if planting.training else STAGES:
            rewrite(module, rules, _settings(stage, planting), record)
        module.recompile()
        problem = _disagreement(planting, lambda *given: module(*(given[i] for i in places)))
    except Exception as error:
        return Verdict("raised", f"{type(error).__name__}: {error}")
    matched = len(record.applied) + len(record.declined)
    if problem:
        return Verdict("wrong", problem, matched)
    return _unmatched(planting, module, record) or Verdict("ok", matched=matched)


def _settings(stage: Any, planting: Planting) -> Settings:
    return Settings(
        stage=stage,
        normal_form=FORMS[stage],
        training=planting.training,
        keep_stream=True,
        verify="structure",
        policy=(("nan", "eager"),),
        near_miss_depth=0,
    )


def _disagreement(planting: Planting, rewritten: Callable[..., Any]) -> str:
    """What differs on every one of several inputs; empty where one agrees."""
    told = ""
    for k in range(_TRIES):
        found = compare(_varied(planting, k), rewritten)
        if found is None:
            return ""
        told = told or str(found)
    return told


def _varied(planting: Planting, k: int) -> Planting:
    """The same program on other numbers of the same kinds: floats a little smaller and turned around."""
    if k == 0:
        return planting
    turned = []
    for x in planting.operands:
        plain = x.is_floating_point() and bool(x.isfinite().all())
        turned.append((x.detach() * (1 - k / 8)).requires_grad_(x.requires_grad) if plain else x)
    return Planting(
        planting.seed, planting.kind, planting.plants, tuple(turned), planting.dynamic, planting.almost
    )  # fmt: skip


def _unmatched(planting: Planting, module: fx.GraphModule, record: GraphRecord) -> Verdict | None:
    """A plant that should have matched and did not, or matched and should not have."""
    if planting.kind == "refused":
        (plant,) = planting.plants
        count = 1 if plant.rule.outputs is None else len(plant.rule.outputs)
        results = list(nodes_in(module.graph.output_node().args))[:count]
        replaced = bool(results) and all(_made_by(plant.rule.name, node) for node in results)
        return Verdict("replaced", f"{plant.rule.name} must refuse: {plant.sample.refused}") if replaced else None
    if planting.kind != "planted":
        return None
    for family in dict.fromkeys(p.rule.family for p in planting.plants):
        wanted = [p for p in planting.plants if p.rule.family == family and _matches_alone(p, planting)]
        found = sum(m.family == family for m in [*record.applied, *record.declined])
        if found < len(wanted):
            near = {f"{m.rule}: {m.message}" for m in record.near_misses if m.rule in {p.rule.name for p in wanted}}
            return Verdict("missed", f"{found} of {len(wanted)} of {family}; " + "; ".join(sorted(near)))
    return None


def _made_by(rule: str, node: fx.Node) -> bool:
    while op_name(node) in _COPIES and "regraft_rule" not in node.meta:
        node = node.all_input_nodes[0]
    return node.meta.get("regraft_rule") == rule


def _matches_alone(plant: Plant, planting: Planting) -> bool:
    """Whether the rule matches the plant where nothing is around it: not every candidate takes every dtype and size."""
    names = [*plant.specs]
    given = dict(zip(names, planting.operands[plant.first :], strict=False))
    case = Case.of(plant.rule, plant.sample, DrawnExample(plant.sizes, dynamic=planting.dynamic))
    operands = tuple(given.get(v.name, plant.sample.operands.get(v.name)) for v in plant.rule.variables)
    return Case(plant.rule, operands, case.tags, case.frozen, planting.dynamic).rewritten().whole

"""The driver finds matches of a rule set in a graph, asks whether each is legal and profitable, and applies it.

Among rules, only the driver changes a program. It works on a mirror in normal form, rule by rule, until nothing
changes, and then commits the replacements. If an error occurs, the program is not changed, and the record says why.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import fx

from . import compat
from .backup import Backup
from .binding import MatchFailure
from .effects import wants_gradient
from .facts import example, fact_of
from .faults import Faults
from .functional import is_simplified
from .graph import describe, op_name, val
from .index import RuleIndex
from .legality import CompleteMatch, late_operands, veto
from .live import observe, watch
from .matcher import Matcher
from .mirror import Mirror
from .normal_graph import as_text, normalize, simplified
from .profit import Always, Decision, Never, Oracle, Question
from .reason import Reason, site_of
from .record import Evidence, Fallback, GraphRecord, Match, NearMiss
from .respell import Normalizer, Respelling
from .rule import Candidate, Rule, Stage
from .rule_containment import Place, contained
from .ruleset import RuleSet
from .snapshot import Drawing, keep_start, module_of
from .splice import Original, insert, is_operand, trace
from .switches import allowed
from .symbolic import Undecided, assume
from .tracing import Level
from .verifier import verify_graph, verify_rewrite

# Refusals that do not depend on how the program is written: reported only if the rule is to be explained.
_CIRCUMSTANCES = (
    "device-unsupported", "weight-trained", "pair-reversed", "already-aligned", "weights-unused",
    "batch-statistics", "value-differs", "cast-narrows",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """The settings of a run of the driver.

    Args:
        stage: the stage whose rules run.
        normal_form: the respellings that define the mirror's normal form.
        oracle: decides whether a match is profitable.
        training: whether gradients flow through the graph.
        keep_stream: whether random numbers must be the same as eager's.
        verify: ``"structure"`` checks the graph after every rewrite; ``"live"`` compares both sides at run time.
        policy: options that derived values may read, e.g. ``{"nan": "eager"}``; part of every question's key.
        near_miss_depth: 0 records every near miss of every rule; otherwise only relevant ones are recorded.
        explained: rules whose near misses are recorded in any case.
        faults: handles errors of regraft; by default they are reported, or raised under verification.
        drawn: the name of snapshots of the graph before and after; empty for no snapshots.
        keep_text: whether to keep the graph in normal form as text in the record's details.
    """

    stage: Stage = "forward"
    normal_form: Sequence[Respelling] = ()
    oracle: Oracle = field(default_factory=Always)
    training: bool = False
    keep_stream: bool = True
    verify: Literal["off", "structure", "live"] = "off"
    policy: tuple[tuple[str, str], ...] = ()
    near_miss_depth: int = 2
    explained: frozenset[str] = frozenset()
    faults: Faults | None = None
    drawn: str = ""
    keep_text: bool = False


def rewrite(
    graph_module: fx.GraphModule, rules: RuleSet | Iterable[Rule], settings: Settings, record: GraphRecord
) -> bool:
    """Rewrite `graph_module` in place where `rules` match, and fill `record`; returns whether anything changed."""
    chosen = [r for r in rules if r.stage == settings.stage]
    if not chosen or not allowed("rule", f"rewrite-{settings.stage}"):
        return False
    start, before = time.perf_counter(), record.seconds.get("measure", 0.0)
    faults = settings.faults or Faults(record, strict=settings.verify != "off")

    def one_run(rules: list[Rule], backup: Backup, place: Place) -> bool:
        return _Run(graph_module, rules, settings, record, backup, place).run()

    try:
        with _without_autocast():  # the casts of autocast are nodes of the graph
            return contained(graph_module, chosen, record, faults, f"rewrite-{settings.stage}", one_run)
    finally:
        measured = record.seconds.get("measure", 0.0) - before
        _spend(record, f"rewrite-{settings.stage}", time.perf_counter() - start - measured)


def _spend(record: GraphRecord, stage: str, seconds: float) -> None:
    """Add to the time of a stage; measuring is a stage of its own, so that the rest is matching and splicing."""
    record.seconds[stage] = record.seconds.get(stage, 0.0) + seconds


@contextmanager
def _without_autocast() -> Iterator[None]:
    """Suspend the autocast that the user's program may be compiled under."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


class _Run:
    """One run of the driver over one graph."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        rules: list[Rule],
        settings: Settings,
        record: GraphRecord,
        backup: Backup,
        place: Place,
    ) -> None:
        self.place = place
        self.graph_module = graph_module
        self.settings = settings
        self.record = record
        self.backup = backup
        self._simplify()
        self.mirror = Mirror(graph_module, keep_stream=settings.keep_stream)
        came_from = "capture" if settings.drawn == "program" else "differentiate"
        self.drawing = Drawing(self.mirror, settings.drawn, came_from) if settings.drawn else None
        self.normalizer = Normalizer(self.mirror, settings.normal_form)
        self.rules = rules
        self.explained = settings.explained if settings.near_miss_depth else frozenset(rule.name for rule in rules)
        self.policy = dict(settings.policy)
        self.applied: Counter[str] = Counter()
        self.refused: dict[tuple[str, fx.Node], MatchFailure] = {}
        self.settled: set[tuple[str, fx.Node]] = set()
        self.dead_draws: set[fx.Node] = set()
        self.taken: dict[fx.Node, str] = {}
        self.forestalled: dict[tuple[str, fx.Node], NearMiss] = {}
        self.limit = len(graph_module.graph.nodes) + 10
        self.looping: set[str] = set()

    def _simplify(self) -> None:
        graph = self.graph_module.graph
        if is_simplified(graph):
            return
        self.backup.take()
        simplified(self.graph_module)

    def run(self) -> bool:
        self._normalize()
        if self.settings.keep_text:
            self.record.details[f"normal:{self.settings.stage}"] = as_text(self.mirror.graph)
        for rules in self._turns():
            while self._sweep(rules):
                self._normalize()
        self.place.at("telling what nearly matched")
        self._tell_near_misses()
        if self.drawing is not None:
            keep_start(self.record, self.drawing.before())
        if not self.applied:
            return False
        self.place.at("committing rewrites")
        self.backup.take()
        by_name = {rule.name: rule for rule in self.rules}
        self.mirror.commit(
            self.dead_draws, lambda name: self.place.at(f"committing rule {name}", by_name.get(name or ""))
        )
        self.place.at("committing rewrites")
        if self.drawing is not None:
            stage = f"rewrite-{self.settings.stage}"
            self.record.snapshots.append(self.drawing.after(self.graph_module.graph, stage))
        if self.settings.verify != "off":
            verify_graph(self.graph_module.graph)
        self.graph_module.recompile()
        return True

    def _normalize(self) -> None:
        self.place.at("normal form")
        normalize(self.normalizer)
        if self.normalizer.stopped is not None:
            self.record.fallbacks.append(Fallback.of("normal-form", self.normalizer.stopped))

    def _turns(self) -> list[list[Rule]]:
        """The rules for some dtypes alone, then all: what they match is also matched by rules for any dtype."""
        possible = RuleIndex(self.rules, self.mirror.graph).rules
        return [first, self.rules] if (first := [rule for rule in possible if rule.dtypes]) else [self.rules]

    def _sweep(self, rules: list[Rule]) -> bool:
        """Try each of these rules at every node once; returns whether anything was rewritten."""
        index = RuleIndex(rules, self.mirror.graph, explained=self.explained)
        before = self.applied.total()
        for node in reversed(list(self.mirror.graph.nodes)):
            for rule in index.candidates(node):
                if compat.is_erased(node):
                    break
                if (rule.name, node) not in self.settled and rule.name not in self.looping:
                    self._try(rule, node)
        return self.applied.total() > before

    def _try(self, rule: Rule, node: fx.Node) -> None:
        """Match one rule at one node; the time excludes measuring."""
        self.place.at(f"rule {rule.name}", rule)
        start, before = time.perf_counter(), self.record.seconds.get("measure", 0.0)
        try:
            self._match(rule, node)
        except Undecided as question:
            message = f"it depends on a size that is known when run: {question.cond}"
            self.refused[rule.name, node] = MatchFailure(rule.size, Reason("data-dependent", message), node)
        spent = time.perf_counter() - start - (self.record.seconds.get("measure", 0.0) - before)
        self._spend("rule_seconds", rule.name, spent)

    def _spend(self, detail: str, rule: str, spent: float) -> None:
        seconds = self.record.details.setdefault(detail, {})
        seconds[rule] = seconds.get(rule, 0.0) + spent

    def _match(self, rule: Rule, node: fx.Node) -> None:
        matcher = Matcher(rule)
        for binding in matcher.match(node):
            found = CompleteMatch(rule, binding, tuple(_output_nodes(rule, binding, node)))
            if self._repeats(found):
                return
            reason = veto(found, self.mirror, keep_stream=self.settings.keep_stream)
            if reason is not None:
                matcher.failure = MatchFailure(rule.size, reason, node)
                continue
            self.refused.pop((rule.name, node), None)
            self._settle(found)
            return
        if matcher.failure is not None and node.meta.get("regraft_rule") != rule.name:
            self.refused[rule.name, node] = matcher.failure

    def _repeats(self, found: CompleteMatch) -> bool:
        """Whether a rule matches its own replacement, which it must not rewrite again; cycles of rules are stopped."""
        rule, outer = found.rule.name, found.enclosing
        if outer is not None and rule in outer.ancestors:
            self._stop(rule, f"rule {rule} and {outer.rule} undo each other")
        return outer is not None and (rule == outer.rule or rule in outer.ancestors)

    def _stop(self, rule: str, why: str) -> None:
        self.looping.add(rule)
        reason = Reason("rule-loops", f"{why}: {rule} was stopped after {self.applied[rule]} applications")
        self.record.fallbacks.append(Fallback.of("rewrite", reason))

    def _settle(self, found: CompleteMatch) -> None:
        """Decide on a legal match, and apply or decline it, once."""
        rule, root = found.rule, found.root
        self.settled.add((rule.name, root))
        policy = self.policy | {key: root.meta[key] for key in ("backends",) if key in root.meta}
        derived = {name: derive(found.binding, policy) for name, derive in rule.derived.items()}
        usable, excluded = _usable(found, policy)
        if not usable:
            self.refused[rule.name, root] = MatchFailure(rule.size, _nearest(excluded), root)
            return
        decision = self._decide(found, usable, derived)
        self._draw(found, "declined" if decision.chosen is None else "applied")
        if decision.chosen is None:
            self.record.declined.append(_match(found, "", decision.evidence))
            return
        if not allowed("rule", rule.name, found.nodes):
            self.record.declined.append(_match(found, "", Evidence(note="switched off")))
            return
        entry = _match(found, decision.chosen, decision.evidence)
        candidate = next(c for c in usable if c.name == decision.chosen)
        self._note_forestalled(found)
        start = time.perf_counter()
        self._apply(found, candidate, derived)
        self._spend("replace_seconds", rule.name, time.perf_counter() - start)
        self.record.applied.append(entry)
        self.applied[rule.name] += 1
        if self.applied[rule.name] > self.limit:
            self._stop(rule.name, f"rule {rule.name} applied more often than the graph has nodes")

    def _note_forestalled(self, found: CompleteMatch) -> None:
        """Record near misses of rules to explain before another rule replaces what they match."""
        own = [rule for rule in self.rules if rule.name in self.settings.explained and rule is not found.rule]
        for node in found.nodes if own else ():
            for rule in own:
                others = Matcher(rule).match(node)
                same = (CompleteMatch(rule, b, tuple(_output_nodes(rule, b, node))) for b in others)
                if any(veto(one, self.mirror, keep_stream=self.settings.keep_stream) is None for one in same):
                    message = f"rule {found.rule.name} replaced these operators before its turn"
                    failure = MatchFailure(rule.size, Reason("taken", message), node)
                    self.forestalled[rule.name, node] = _near_miss(rule, node, failure, found.rule.name)

    def _draw(self, found: CompleteMatch, kind: Literal["applied", "declined"]) -> None:
        """Note the position of the next recorded match, before its nodes are removed."""
        if self.drawing is not None:
            self.drawing.note_match(found, kind, len(getattr(self.record, kind)))

    def _decide(self, found: CompleteMatch, usable: list[Candidate], derived: dict[str, Any]) -> Decision:
        operands = found.operands()
        free = [c for c in usable if c.profitable or (found.rule.profitable and len(usable) == 1)]
        if free and not isinstance(self.settings.oracle, (Always, Never)):
            return Decision(free[0].name, Evidence(note="never costs more"))
        inputs = [_example(o) if is_operand(o) else o for o in operands]
        key = f"{found.rule.digest} {found.binding.tag_names()} {sorted(derived.items())} {self.settings.policy}"
        question = Question(
            rule=found.rule.name,
            key=key,
            inputs=inputs,
            original=Original(found.nodes, operands, found.outputs),
            candidates={c.name: partial(_call, c.function, derived) for c in usable},
            training=self.settings.training,
        )
        start = time.perf_counter()
        try:
            return self.settings.oracle.decide(question)
        finally:
            _spend(self.record, "measure", time.perf_counter() - start)

    def _apply(self, found: CompleteMatch, candidate: Candidate, derived: dict[str, Any]) -> None:
        assume(found.binding.assumed)
        operands = found.operands()
        traced = self._traced(found.rule, candidate, derived, operands)
        place = min(found.outputs)
        for node in late_operands(found) or ():
            place.prepend(node)
        editor, application = self.normalizer.editor, found.application()
        outputs = insert(self.mirror, editor, traced, operands, place, application, found.nodes)
        if self.settings.verify == "structure":
            verify_rewrite(found, outputs)
        self.taken.update(dict.fromkeys(found.nodes, found.rule.name))
        for node in found.draws():
            self.dead_draws.update(node.meta.get("draws", ()))
        for new in outputs:
            if new not in operands:
                new.meta["span"] = found.span()
        with self.normalizer.editor.at(place, found.rule.name):
            fitted = [self._observed(found, old, new) for old, new in zip(found.outputs, outputs, strict=True)]
        for old, new in zip(found.outputs, fitted, strict=True):
            self.mirror.rewritten.update(self.mirror.sources(old))
            self.normalizer.substitute(old, new)

    def _traced(self, rule: Rule, candidate: Candidate, derived: dict[str, Any], operands: list[Any]) -> fx.GraphModule:
        """A candidate traced on operands with this metadata: repeated layers are traced once."""
        level: Level = "above autograd" if self.settings.stage == "forward" else "below autograd"
        return self.normalizer.memo.get(
            (rule.name, candidate.name),
            (operands, derived),
            lambda: trace(partial(_call, candidate.function, derived), operands, level),
        )

    def _observed(self, found: CompleteMatch, old: fx.Node, new: fx.Node) -> fx.Node:
        """With live verification, keep the original and compare when the program runs."""
        if self.settings.verify != "live" or found.draws():
            return new
        return observe(self.normalizer.editor, found, old, new, watch(self.record))

    def _tell_near_misses(self) -> None:
        by_name = {rule.name: rule for rule in self.rules}
        told: set[tuple[str, fx.Node]] = set()
        recorded: dict[str, set[fx.Node]] = {}
        for (name, node), failure in self.refused.items():
            family, explained = by_name[name].family, name in self.explained
            if not explained and (family, node) in told:
                continue  # only the first rule of a family is recorded: the others are variants of it
            told.add((family, node))
            taken_by = self.taken.get(node, "")
            if taken_by == name or (compat.is_erased(node) and not (explained and taken_by)):
                continue
            miss = _near_miss(by_name[name], node, failure, taken_by)
            if not explained and (not miss.is_telling or failure.reason.code in _CIRCUMSTANCES):
                continue
            if self.drawing is not None and not compat.is_erased(node):
                self.drawing.note_near_miss(node, len(self.record.near_misses))
            self.record.near_misses.append(miss)
            recorded.setdefault(family, set()).add(node)
        self.record.near_misses.extend(self.forestalled.values())
        self._tell_overlooked(recorded)
        present = {op_name(n) for n in self.mirror.graph.nodes}
        unseen = [r for r in self.rules if not r.required <= present and not self.applied[r.name]]
        told_more = {miss.rule for miss in self.record.near_misses if miss.is_telling}
        told_more |= {name for name, _ in self.forestalled}
        unseen = [r for r in unseen if r.name not in told_more]
        takers = {op_name(node): rule for node, rule in self.taken.items()}
        self.record.near_misses.extend(
            _absent(r, r.required - present, takers) for r in unseen if r.name in self.explained
        )
        told_of = {miss.rule for miss in self.record.near_misses}
        for rule in self.rules:
            silent = rule.name in self.explained and rule.name not in told_of and not self.applied[rule.name]
            if silent and not rule.roots & present:
                self.record.near_misses.append(_absent(rule, rule.roots, takers))

    def _tell_overlooked(self, recorded: Mapping[str, set[fx.Node]]) -> None:
        """Record places where one expects a match of a rule, and where nothing has been told of its family."""
        for rule in self.rules:
            if rule.overlooked is None:
                continue
            family = {r.name for r in self.rules if r.family == rule.family}
            told = {node for name, node in self.settled if name in family} | recorded.get(rule.family, set())
            for node, reason in rule.overlooked(self.mirror.graph):
                if node not in told and "regraft_rule" not in node.meta:
                    self.record.near_misses.append(_near_miss(rule, node, MatchFailure(1, reason, node), ""))


def _example(node: fx.Node) -> Any:
    """The input of a measurement: the operand itself if its value is known, because a candidate may rely on it.

    Otherwise its metadata, which requires gradients if they flow through it.
    """
    value, fact = val(node), fact_of(node)
    if fact is not None and (known := example(fact, value)) is not None:
        return known
    if not (isinstance(value, torch.Tensor) and wants_gradient(node)):
        return value
    return value.detach().requires_grad_()


def _call(function: Callable[..., Any], derived: dict[str, Any], *operands: Any) -> Any:
    return function(*operands, **derived)


def _usable(found: CompleteMatch, policy: Mapping[str, str]) -> tuple[list[Candidate], list[Reason]]:
    usable, excluded = [], []
    for candidate in found.rule.candidates:
        reason = candidate.applies(found.binding, policy)
        if reason is None:
            usable.append(candidate)
        else:
            excluded.append(reason)
    return usable, excluded


def _nearest(excluded: Sequence[Reason]) -> Reason:
    """The reason to report among several: that of the last candidate for the given device."""
    return next((reason for reason in reversed(excluded) if reason.code != "device-unsupported"), excluded[-1])


def _output_nodes(rule: Rule, binding: Any, root: fx.Node) -> list[fx.Node]:
    """The nodes of the pattern's outputs, for the alternatives that the match took."""
    return [root, *(_term_node(t, binding) for t in rule.outputs[1:])]


def _term_node(term: Any, binding: Any) -> fx.Node:
    while id(term) not in binding.nodes:
        label = dict(binding.tags)[term.tag]
        term = dict(term.options)[label]
    return binding.nodes[id(term)]


def _match(found: CompleteMatch, candidate: str, evidence: Evidence) -> Match:
    root = found.root
    nodes = tuple(n.name for n in found.nodes)
    return Match(
        found.rule.name, found.rule.family, found.rule.stage, candidate, found.binding.tag_names(), nodes,
        site_of(root), module_of(root), evidence, root=describe(root),
    )  # fmt: skip


def _near_miss(rule: Rule, node: fx.Node, failure: MatchFailure, taken_by: str) -> NearMiss:
    reason = failure.reason
    return NearMiss(
        rule.name, rule.family, reason.code, reason.message, reason.expected, reason.found, failure.depth, rule.size,
        reason.site or site_of(failure.site), site_of(node), module_of(node), describe(node), taken_by,
        failure.met is None or any(op_name(n) in rule.marks for n in failure.met.values()),
        1.0 if failure.met is None else rule.share(failure.met),
    )  # fmt: skip


def _absent(rule: Rule, absent: frozenset[str], takers: Mapping[str, str]) -> NearMiss:
    """The near miss of a rule that needs operators which the graph does not contain, or no longer.

    Args:
        rule: the rule.
        absent: the operators: all that are needed and absent, or the alternatives that its match may end with.
        takers: by operator, the last rule that replaced one.
    """
    *most, last = sorted(op.removeprefix("aten.") for op in absent)
    missing = f"{', '.join(most)} {'or' if absent == rule.roots else 'and'} {last}" if most else last
    code, message = "operators-missing", f"the graph has no {missing}, without which {rule.name} cannot match"
    if absent <= takers.keys():
        rules = " and ".join(sorted({takers[op] for op in absent}))
        code, message = "operators-replaced", f"{rules} replaced each {missing}, without which {rule.name} cannot match"
    return NearMiss(rule.name, rule.family, code, message, missing, "none", 0, rule.size)

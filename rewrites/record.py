"""The record of one compilation as plain data: the source of coverage tables, JSON files and explanations.

Records contain no graph nodes, so that they can outlive graphs, be compared, and be written to disk.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from .reason import Reason, Site
from .words import counted

ORIGINAL = "original"
"""The name under which the time of the unrewritten code stands."""


@dataclass(frozen=True)
class Evidence:
    """Why a candidate was chosen or a match declined.

    Args:
        times: seconds of each candidate's median run, by candidate name; ``"original"`` is the unrewritten code.
        source: ``"measured"``, ``"cache"`` (measured earlier on this machine), or ``"option"`` (`profit` said so).
        note: a remark, if times are not the only reason.
        errors: relative error of each candidate against the original in the 2-norm, on the inputs they were timed on.
    """

    times: dict[str, float] = field(default_factory=dict)
    source: str = "option"
    note: str = ""
    errors: dict[str, float] = field(default_factory=dict)

    def gain(self, candidate: str) -> float | None:
        """The factor by which `candidate` was faster than the original, or None."""
        original, chosen = self.times.get(ORIGINAL), self.times.get(candidate)
        return original / chosen if original and chosen else None


def _together(earlier: Match, last: Evidence | None, applied: bool) -> Evidence | None:
    """The combined measurements of a rule and of a template; for common candidates, the later ones.

    The rule's candidates were timed against the program as it was then, which may have taken another time: the note
    says which. Why the rule declined is told where the template declined too.
    """
    first = earlier.evidence
    if first is None or last is None:
        return last or first
    times, errors = first.times | last.times, first.errors | last.errors
    why = last.note or ("" if applied else first.note)
    notes = (why, _other_baseline(earlier.rule, first.times, last.times))
    return replace(last, times=times, errors=errors, note="; ".join(filter(None, notes)))


def _other_baseline(rule: str, first: dict[str, float], last: dict[str, float]) -> str:
    """The candidates that were compared with another time of the original; empty if there are none."""
    own = [name for name in first if name not in last]
    if not own or ORIGINAL not in first or ORIGINAL not in last or first[ORIGINAL] == last[ORIGINAL]:
        return ""
    return f"{' and '.join(own)}: timed by {rule} before, where {ORIGINAL} took {1e3 * first[ORIGINAL]:.3g} ms"


@dataclass(frozen=True)
class Match:
    """A legal match, applied or declined.

    Args:
        rule: the rule's name; `family` its family, e.g. ``"attention"``.
        stage: ``"forward"`` or ``"lowered"``.
        candidate: the replacement that was chosen, e.g. ``"flash"``; empty where declined.
        tags: the alternatives and optional parts the match took, e.g. ``("scale", "mask:additive")``.
        nodes: names of the replaced nodes.
        site: the user's source line of the match's root.
        module: qualified name of the module instance it comes from.
        evidence: measurements behind the decision.
        settled_by: the template that later decided on the same computation, and whose decision counts.
        root: the root operator with its dtype and sizes.
    """

    rule: str
    family: str
    stage: str
    candidate: str = ""
    tags: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    site: Site | None = None
    module: str = ""
    evidence: Evidence | None = None
    settled_by: str = ""
    root: str = ""

    @property
    def simplifies(self) -> bool:
        """Whether it only removed nodes that compute nothing: a view to the same shape, or two inverse permutations."""
        return self.stage == "simplify"


TELLING = 2
"""Operators that must have matched where a near miss is told."""

TELLING_SHARE = 0.25
"""The share that must have matched of the operators that every match has below its root."""


@dataclass(frozen=True)
class NearMiss:
    """The deepest partial match of a rule at one root that did not become a match.

    `depth` of `size` is how many of the pattern's operations had matched.

    Args:
        site: the source line of what was found instead.
        root: that of the root operator, which is `operator`, with its dtype and sizes.
        module: qualified name of the module instance that the root comes from.
        taken_by: the rule that replaced the root later.
        marked: whether an operator matched that distinguishes the pattern from other arithmetic (`Rule.marks`).
        share: how much matched of what every match has below its root (`Rule.share`).
    """

    rule: str
    family: str
    code: str
    message: str
    expected: str
    found: str
    depth: int
    size: int
    site: Site | None = None
    root: Site | None = None
    module: str = ""
    operator: str = ""
    taken_by: str = ""
    marked: bool = True
    share: float = 1.0

    @property
    def is_telling(self) -> bool:
        """Whether it is relevant: operators matched below the root, one that distinguishes the pattern among them.

        The root itself tells nothing, because every search begins there. Optional parts do not count.
        """
        return self.marked and self.depth >= TELLING and self.share >= TELLING_SHARE


@dataclass(frozen=True)
class Fallback:
    """A part that runs on a slower but correct path, and why.

    Args:
        stage: where; `code` and `message` why; `site` the user's source line.
        fault: whether it is an error of regraft or of a rule, not a refusal; `traceback`: the path of a file with the
            traceback.
        rule: the rule that failed; empty for other parts.
    """

    stage: str
    code: str
    message: str
    site: Site | None = None
    fault: bool = False
    traceback: str = ""
    rule: str = ""

    @property
    def culprit(self) -> str:
        """The culprit: regraft, or the rule that failed."""
        return f"rule {self.rule}" if self.rule else "regraft"

    @classmethod
    def of(cls, stage: str, reason: Reason) -> Fallback:
        """The fallback of a stage for a reason."""
        return cls(stage, reason.code, reason.message, reason.site)


@dataclass(frozen=True)
class KeptCall:
    """An operator that generated code calls instead of computing it, the number of calls, and the reason."""

    operator: str
    count: int
    code: str
    message: str


@dataclass(frozen=True)
class Code:
    """The code generated for one graph after differentiation.

    Args:
        kind: ``"inference"``, ``"forward"`` or ``"backward"``.
        tensors: computed by kernels; `kernels` how many kernels compute them.
        kept: calls that stay, by operator.
        templates: calls of kernels made from templates (attention, ...), by name.
    """

    kind: str
    tensors: int
    kernels: int
    kept: tuple[KeptCall, ...] = ()
    templates: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SnapshotNode:
    """One node of a snapshot.

    Args:
        name: the node's; `op` its operator, e.g. ``"aten.matmul"``.
        inputs: positions of the nodes that it reads, in the order in which it reads them.
        type: dtype and shape, e.g. ``"f32[1, 128, 768]"``.
        site: position in the snapshot's `sites`, `module` in its `modules`; -1 where unknown.
        rule: the rule that put it in; empty where it was there before.
    """

    name: str
    op: str
    inputs: tuple[int, ...] = ()
    type: str = ""
    site: int = -1
    module: int = -1
    rule: str = ""


@dataclass(frozen=True)
class Region:
    """Nodes of a snapshot that a finding is about: `kind` names the record's list, `index` the entry in it.

    Args:
        kind: ``"applied"``, ``"declined"`` or ``"near_misses"``.
        index: of the match or near miss in that list.
        nodes: their positions; for a match all that it replaced, for a near miss the pattern's root.
    """

    kind: str
    index: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Snapshot:
    """A graph after one stage, and the regions in which the next stage found something.

    Args:
        graph: ``"program"`` before differentiation, then ``"inference"``, ``"forward"`` or ``"backward"``.
        stage: what it came out of: ``"capture"``, ``"rewrite-forward"``, ``"differentiate"``, ``"rewrite-lowered"``,
            ``"templates"`` or ``"kernels"``.
        nodes: in the order of the graph.
        sites: source lines that the nodes come from; `modules` the qualified names of their modules.
        regions: where the next stage found something.
    """

    graph: str
    stage: str
    nodes: tuple[SnapshotNode, ...] = ()
    sites: tuple[Site, ...] = ()
    modules: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """A place that a pass left as it is, or the reason why the pass did not run at all.

    Args:
        code: the code of the reason.
        message: the reason, in a sentence.
        site: the user's source line, if there is one.
    """

    code: str
    message: str
    site: Site | None = None


@dataclass(frozen=True)
class PassRun:
    """One run of a pass over a whole graph.

    Args:
        name: the name of the pass.
        graph: the graph of the program: ``"program"``, ``"joint"``, ``"inference"``, ...
        changes: the number of changes by kind; empty if there were none.
        seconds: the time that the pass took.
        refusals: the places that the pass looked at and left as they are.
        ran: False for a pass that did not run; this is only recorded for passes that `explain` is asked about.
    """

    name: str
    graph: str
    changes: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    refusals: tuple[Refusal, ...] = ()
    ran: bool = True


@dataclass
class GraphRecord:
    """Everything that happened to one graph: filled by the stages, read by coverage.

    Attributes:
        name: of the graph, e.g. ``"graph 0/0"``: Dynamo's number of the frame, and which compilation of it.
        kind: ``"inference"`` or ``"training"``.
        nodes: of the captured graph.
        applied: matches that were applied; `declined`: legal ones that were not.
        near_misses: partial matches.
        fallbacks: parts on a slower but correct path.
        passes: the runs of passes over whole graphs, in order.
        code: what was generated, one entry a graph after differentiation.
        seconds: wall time by stage.
        errors: by rule, the relative errors that live comparisons showed (option ``verify="live"``).
        snapshots: the graph after each stage, kept only while a coverage block is open.
        details: among others seconds by rule: ``"rule_seconds"`` without measuring, and of these
            ``"replace_seconds"`` for putting the chosen candidate in; the rest is matching.
    """

    name: str
    kind: str = "inference"
    nodes: int = 0
    applied: list[Match] = field(default_factory=list)
    declined: list[Match] = field(default_factory=list)
    near_misses: list[NearMiss] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    passes: list[PassRun] = field(default_factory=list)
    code: list[Code] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    errors: dict[str, list[float]] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def settle(self, match: Match, applied: bool, sites: Collection[Site | None], families: Collection[str]) -> None:
        """Add a template's decision on a computation that a rule may have declined: one decision, one record.

            declined  sdpa: original 0.6 ms, flash 9 ms       declined  sdpa, settled by attention-template
            template: original 0.6 ms, generated 0.04 ms  ->  applied   attention-template: original 0.6 ms, flash 9 ms,
                                                                        generated 0.04 ms

        The rule's match stays if both declined, with the measurements of both.

        Args:
            match: of the template.
            applied: whether its kernel took the place of the computation.
            sites: source lines of what it replaces; a rule's match at one of them is about the same computation.
            families: of the rules that may have declined it.
        """
        for i, earlier in enumerate(self.declined):
            is_rule = earlier.rule != match.rule and earlier.family in families
            if not is_rule or earlier.site not in sites or earlier.settled_by:
                continue
            evidence = _together(earlier, match.evidence, applied)
            if not applied:
                self.declined[i] = replace(earlier, evidence=evidence)
                return
            self.declined[i] = replace(earlier, settled_by=match.rule)
            match = replace(match, evidence=evidence, module=earlier.module)
            break
        else:
            self._replaced(match, sites if applied else (), families)
        (self.applied if applied else self.declined).append(match)

    def _replaced(self, match: Match, sites: Collection[Site | None], families: Collection[str]) -> None:
        """Mark the first match that was applied there before: a template has replaced its replacement."""
        for i, earlier in enumerate(self.applied):
            open_rule = earlier.rule != match.rule and earlier.family in families and not earlier.settled_by
            if open_rule and earlier.site in sites:
                self.applied[i] = replace(earlier, settled_by=match.rule)
                return

    def __str__(self) -> str:
        """One line, for logs: ``graph 0/0 (inference): 12 matches applied, 1 declined, 7 kernels, 3 calls``."""
        kernels, calls = sum(c.kernels for c in self.code), sum(k.count for c in self.code for k in c.kept)
        counts = f"{counted(len(self.applied), 'match', 'matches')} applied, {len(self.open_declined)} declined"
        return f"{self.name} ({self.kind}): {counts}, {counted(kernels, 'kernel')}, {counted(calls, 'call')}"

    @property
    def open_declined(self) -> list[Match]:
        """The declined matches whose computation was not decided on again."""
        return [match for match in self.declined if not match.settled_by]

    def changes(self, name: str) -> dict[str, int]:
        """The changes of all runs of a pass, by kind."""
        total: dict[str, int] = {}
        for run in self.passes:
            for kind, count in run.changes.items() if run.name == name else ():
                total[kind] = total.get(kind, 0) + count
        return total

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the seconds of the block to those of a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

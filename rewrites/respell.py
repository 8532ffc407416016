"""Small named rewrites that give one meaning one spelling, run on a mirror to a fixpoint.

A respelling looks at one node and returns the node that should stand in its place, or None. It must keep the value up
to rounding; it never runs on the program itself (see `mirror.py`), so it need not pay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from . import compat
from .editor import Editor
from .graph import op_name, val
from .memo import Memo
from .mirror import Mirror
from .reason import Reason
from .symbolic import Undecided, same_shape

Step = Callable[[fx.Node, Editor], fx.Node | None]

_EDITS_PER_NODE = 40


@dataclass(frozen=True)
class Respelling:
    """A named step of normal form: `step(node, edit)` for nodes whose operator is among `ops`."""

    name: str
    ops: tuple[str, ...]
    step: Step
    doc: str = ""


def respelling(*ops: str) -> Callable[[Step], Respelling]:
    """Declare a respelling of the operators `ops` (``"aten.mul"``, ...); its name is the function's."""

    def declare(step: Step) -> Respelling:
        return Respelling(step.__name__, ops, step, (step.__doc__ or "").strip())

    return declare


class Normalizer:
    """Keeps a mirror in normal form: `run` after it is made, and again after each batch of rewrites.

    Attributes:
        counts: how often each respelling applied.
        stopped: why it gave up early, where respellings undo each other.
        memo: what is known of this mirror's metadata.
    """

    def __init__(self, mirror: Mirror, steps: Iterable[Respelling]) -> None:
        self.mirror = mirror
        self.counts: Counter[str] = Counter()
        self.stopped: Reason | None = None
        self._steps: dict[str, list[Respelling]] = {}
        for step in steps:
            for op in step.ops:
                self._steps.setdefault(op, []).append(step)
        self._todo: dict[fx.Node, None] = dict.fromkeys(n for n in mirror.graph.nodes if op_name(n) in self._steps)
        self.memo = Memo()
        self._touched: list[fx.Node] = []
        self.editor = Editor(mirror.graph, mirror.sizes, self._revisit, self.memo)

    def _revisit(self, node: fx.Node) -> None:
        """A new or changed node, and its users (whose patterns may look at it), are to be looked at again."""
        self._touched.append(node)
        for other in (node, *node.users):
            if op_name(other) in self._steps:
                self._todo.setdefault(other)

    def run(self) -> None:
        """Apply respellings until none applies.

        Respellings look several nodes deep, so everything is looked at once more after the last change. They assume
        nothing of symbolic sizes that the program does not: a respelling that would need a guard does not apply.
        """
        environment = _environment(self.mirror.graph)
        with compat.refusing_guards(environment) if environment is not None else nullcontext():
            self._apply()

    def _apply(self) -> None:
        limit = _EDITS_PER_NODE * (len(self.mirror.graph.nodes) + 10)
        applied = -1
        while self.stopped is None and applied != self.counts.total():
            applied = self.counts.total()  # not edits: a respelling may build something before it sees that it can't
            self._drain(limit)
            if applied != self.counts.total():
                self._sweep()

    def _sweep(self) -> None:
        """Queue every node; what respellings remembered about it (``meta["memo"]``) may have changed."""
        for node in self.mirror.graph.nodes:
            node.meta.pop("memo", None)
            if op_name(node) in self._steps:
                self._todo.setdefault(node)

    def _drain(self, limit: int) -> None:
        while self._todo and self.stopped is None:
            node = next(iter(self._todo))
            del self._todo[node]
            if compat.is_erased(node) or "opaque" in node.meta or "regraft_rule" in node.meta:
                continue  # what a rule made keeps its spelling: the kernel may rest on a layout
            if not node.users:
                self.editor.erase_dead(node)
                continue
            self._visit(node)
            if self.editor.edits > limit:
                name, count = self.counts.most_common(1)[0]
                self.stopped = Reason("respelling-loops", f"{name} applied {count} times and was stopped", (node,))

    def _visit(self, node: fx.Node) -> None:
        self._touched.clear()
        with self.editor.at(node):
            name, new = self._respelled(node)
        for made in self._touched:
            _keep_source(made, node)
        if new is not node:
            self.counts[name] += 1
            self.substitute(node, new)

    def _respelled(self, node: fx.Node) -> tuple[str, fx.Node]:
        """The replacement of `node` by the first step that applies, and its name; `node` where none does.

        Calls that write (`torch.mul(x, x, out=y)`) keep their spelling: the dtype is that of what they write to.
        """
        if isinstance(node.target, compat.OpOverload) and compat.is_mutable(node.target):
            return "", node
        for step in self._steps.get(op_name(node), ()):
            try:
                new = step.step(node, self.editor)
            except Undecided:  # it looks at a size that is known when run, or would need a guard
                continue
            if new is None or new is node or _renames_sizes(node, new):
                continue
            return step.name, new
        return "", node

    def substitute(self, old: fx.Node, new: fx.Node) -> None:
        """Let `new` stand for `old` in the mirror, and erase what is dead."""
        if "span" in old.meta and "span" in new.meta:
            (a, b), (c, d) = old.meta["span"], new.meta["span"]
            new.meta["span"] = (min(a, c), max(b, d))
        self.editor.replace(old, new)
        self.mirror.replaced(old, new)
        self.editor.erase_dead(old)


def _renames_sizes(old: fx.Node, new: fx.Node) -> bool:
    """Whether the sizes of `new` have other names than those of `old`: torch 2.11 names a slice's anew, each time.

    slice(x, 0, 0, 2), x of u0 elements      one call: u1 elements      the same call, made again: u2
    """
    a, b = (x.shape if isinstance(x, torch.Tensor) else () for x in (val(old), val(new)))
    return len(a) == len(b) and any(compat.is_unbacked(size) for size in b) and not same_shape(a, b)


def _environment(graph: fx.Graph) -> Any:
    """The environment of symbolic sizes; None where there are none."""
    modes = (getattr(val(node), "fake_mode", None) for node in graph.nodes)
    return next((mode.shape_env for mode in modes if mode is not None), None)


_MOVED = frozenset(f"aten.{name}" for name in ("matmul", "softmax", "linear", "add", "where", "dropout", "clamp_min"))
_SOURCE = ("stack_trace", "nn_module_stack")


def _keep_source(made: fx.Node, old: fx.Node) -> None:
    """An operator that a respelling moves keeps its own source line, and not that of what it moves past.

    reshape(matmul(a, b)) of line 2, the product of line 1    ->    matmul(reshape(a), b) of line 1
    """
    name = op_name(made)
    if name not in _MOVED or name == op_name(old):
        return
    nodes = [old]
    for _ in range(3):
        nodes = [source for node in nodes for source in node.all_input_nodes]
        origin = next((n for n in nodes if n is not made and op_name(n) == name and "stack_trace" in n.meta), None)
        if origin is not None:
            made.meta |= {key: origin.meta[key] for key in _SOURCE if key in origin.meta}
            return

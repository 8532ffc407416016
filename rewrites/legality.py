"""Conditions of legality that every match must meet, besides the rule's own guards.

kinds of dtypes without sample     refused: the rule was not tested on integers, for example
inner values with other users      refused, or kept for these users (unless they are random)
outputs that need each other       refused: a replacement cannot stand before its own operands; operands that are only
                                   computed later are moved before it
reads moved across a write         refused
random calls moved across others   refused if eager's random numbers are promised
random numbers in another order    refused in this case too: numbers follow the order of memory
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from .binding import Binding
from .effects import moved_read
from .graph import describe, is_tensor, nodes_in, val
from .mirror import Mirror
from .purity import is_pure, is_random
from .reason import Reason
from .rule import Rule
from .sample import kind_of
from .symbolic import hint


@dataclass(frozen=True, eq=False)
class Application:
    """One application of a rule, recorded on the nodes that it inserted.

    Args:
        rule: the rule's name.
        ancestors: the rules whose replacements, one inside of the other, contained all of what this one replaced.
    """

    rule: str
    ancestors: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CompleteMatch:
    """A complete match: the rule, its binding, and the mirror nodes of the pattern's outputs, root first."""

    rule: Rule
    binding: Binding
    outputs: tuple[fx.Node, ...]

    @property
    def root(self) -> fx.Node:
        """The node of the pattern's first output."""
        return self.outputs[0]

    @property
    def nodes(self) -> list[fx.Node]:
        """The matched nodes in the order of the graph."""
        matched = set(self.binding.matched)
        return [n for n in self.root.graph.nodes if n in matched] if len(matched) > 64 else _ordered(matched)

    def operands(self) -> list[object]:
        """The bound operands in the pattern's order, with None for parts that were left out."""
        return [self.binding.operands.get(v.name) for v in self.rule.variables]

    def span(self) -> tuple[int, int]:
        """The first and the last position of the program's code that this match replaces."""
        spans = [n.meta["span"] for n in self.binding.matched if "span" in n.meta]
        return min(a for a, _ in spans), max(b for _, b in spans)

    @property
    def enclosing(self) -> Application | None:
        """The application that inserted all nodes of this match, if there is one."""
        made = {n.meta.get("application") for n in self.binding.matched}
        return made.pop() if len(made) == 1 else None

    def application(self) -> Application:
        """The application to record on the nodes that replace this match."""
        outer = self.enclosing
        return Application(self.rule.name, outer.ancestors | {outer.rule} if outer else frozenset())

    def draws(self) -> list[fx.Node]:
        """The matched calls that use random numbers."""
        return [n for n in self.binding.matched if n.op == "call_function" and is_random(n)]


def _ordered(nodes: set[fx.Node]) -> list[fx.Node]:
    return sorted(nodes)


def veto(found: CompleteMatch, mirror: Mirror, *, keep_stream: bool) -> Reason | None:
    """Why a match must not be applied, or None."""
    return (
        _untried(found)
        or _escapes(found)
        or _entangled(found)
        or _moves_a_read(found, mirror)
        or _moves_a_draw(found, mirror, keep_stream)
    )


def _untried(found: CompleteMatch) -> Reason | None:
    for name, kinds in found.rule.kinds.items():
        node = found.binding.operands.get(name)
        if not isinstance(node, fx.Node) or not is_tensor(node):
            continue
        dtype = val(node).dtype
        if kind_of(dtype) not in kinds:
            told = f"{describe(node)} is {str(dtype).removeprefix('torch.')}, and no sample of {found.rule.name} is"
            right = f"{' or '.join(sorted(kinds))}, or a sample with {name}=T(..., dtype={dtype})"
            return Reason("dtype-untried", told, (node,), right, str(dtype))
    return None


def _escapes(found: CompleteMatch) -> Reason | None:
    if (
        found.rule.escapes == "keep" and not found.draws()
    ):  # the random numbers that are kept and those of the replacement would differ
        return None
    inside = set(found.binding.matched)
    for node in found.binding.matched:
        if node in found.outputs:
            continue
        for user in node.users:
            if user not in inside:
                message = f"{describe(node)} is also used by {describe(user)}, so it must be computed anyway"
                nodes = (node, user)
                return Reason("inner-value-escapes", message, nodes, "no other use of inner values", describe(user))
    return None


def late_operands(found: CompleteMatch) -> list[fx.Node] | None:
    """What operands need that stands after the first output, in order; None if some of it cannot be moved before it.

        weights = softmax(scores);  v = permute(value);  out = matmul(weights, v)      [v]: `sdpa_with_weights` needs it

    Only pure calls of the same region can be moved, past calls without effects, and only if they do not need an output.
    """
    first, inside = min(found.outputs), set(found.binding.matched)
    moved: set[fx.Node] = set()
    todo = [n for n in nodes_in(found.operands()) if not n < first]
    while todo:
        node = todo.pop()
        if node in moved:
            continue
        if node in inside or not is_pure(node) or node.meta.get("region") != first.meta.get("region"):
            return None
        moved.add(node)
        todo.extend(n for n in node.all_input_nodes if not n < first)
    return sorted(moved) if not moved or _without_effects(first, max(moved)) else None


def _without_effects(first: fx.Node, last: fx.Node) -> bool:
    """Whether no call from one node to another writes, asserts, or changes state; random numbers may be drawn."""
    node = first
    while node is not last:
        if not is_pure(node) and not (node.op == "call_function" and is_random(node)):
            return False
        node = node.next
    return True


def _entangled(found: CompleteMatch) -> Reason | None:
    """With several outputs, the replacement stands before the first, so that all operands must exist there."""
    if late_operands(found) is not None:
        return None
    first = min(found.outputs)
    late = next(n for n in nodes_in(found.operands()) if not n < first)
    message = f"{describe(late)} is computed only after the first output, {describe(first)}"
    return Reason("outputs-entangled", message, (late, first), "operands before all outputs", describe(late))


def _moves_a_read(found: CompleteMatch, mirror: Mirror) -> Reason | None:
    first, last = found.span()
    for node in nodes_in(list(found.binding.operands.values())):
        writer = mirror.effects.writer_between(node, first, last) if is_tensor(node) else None
        if writer is not None:
            return moved_read(node, writer)
    return None


def _moves_a_draw(found: CompleteMatch, mirror: Mirror, keep_stream: bool) -> Reason | None:
    draws = found.draws()
    if not draws or not keep_stream:
        return None
    if any(n.meta.get("redrawn") for n in draws) or found.rule.numerics.random == "distribution":
        message = "the replacement would draw other random numbers than eager (option rng='statistical' allows that)"
        return Reason("random-stream-changes", message, tuple(draws))
    own = {mirror.effects.position[real] for n in draws for real in n.meta.get("draws", ())}
    first = min(own, default=min(n.meta["span"][0] for n in draws))
    if mirror.effects.draws_between(first, found.span()[1], own):
        message = "other random numbers are drawn between this match's draw and its end"
        return Reason("random-order-changes", message, tuple(draws))
    return _draws_in_memory_order(draws)


def _draws_in_memory_order(draws: list[fx.Node]) -> Reason | None:
    """Eager's random numbers follow the order of memory, and replacements compute row by row."""
    reals = [real for n in draws for real in n.meta.get("draws", (n,))]
    turned = next((n for n in reals if not _lies_row_by_row(n)), None)
    if turned is None:
        return None
    message = f"{describe(turned)} is drawn in the order of its memory, which the replacement would lay out anew"
    strides = str(tuple(_drawn(turned).stride()))
    return Reason("random-layout-changes", message, (turned,), "a contiguous tensor", f"strides {strides}")


def _lies_row_by_row(node: fx.Node) -> bool:
    expected, value = 1, _drawn(node)
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        rows, step = hint(size), hint(stride)
        if rows is None or step is None:  # sizes depend on data
            return True
        if rows != 1 and step != expected:
            return False
        expected *= rows
    return True


def _drawn(node: fx.Node) -> torch.Tensor:
    value = val(node)
    return value[0] if isinstance(value, (tuple, list)) else value

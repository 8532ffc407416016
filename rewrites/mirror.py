"""A working copy of a graph, in which spelling can be removed without changing what runs.

Normal form moves scales, casts and views about; done to the program itself, that would change the numbers of code
that no rule matches. So it is done to a mirror: a second graph in which every value of the real one has a
representative. Rules match and rewrite there. `commit` then carries over only what a rule made; the rest of the
program stays as it was written.

    real:    scores = matmul(mul(q, 0.125), kT);  ...;  out = matmul(p, v)
    mirror:  mul(matmul(q, kT), 0.125)            ...   sdpa(q, k, v, scale=0.125)      <- a rule fired here
    commit:  out = sdpa(q, k, v, scale=0.125)           the scaled q is dead, and erased
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from . import compat
from .editor import Editor, RewriteError
from .effects import Effects, moved_read
from .graph import is_tensor, val
from .layout import adapt_users, is_kernel, restore_layout, same_layout
from .purity import is_pure, is_random, storages
from .sizes import SizeTable


class Mirror:
    """The mirror of `graph_module`'s graph.

    Attributes:
        graph: the mirror, free to be edited through `editor()`.
        effects: facts about the real graph.
        image: the mirror node that stands for each real node.
        rewritten: the real nodes whose values rules have replaced.
        keep_stream: random numbers must be eager's own.
    """

    def __init__(self, graph_module: fx.GraphModule, *, keep_stream: bool = False) -> None:
        self.owner = graph_module
        self.keep_stream = keep_stream
        self.real = graph_module.graph
        self.effects = Effects(self.real)
        self.graph = fx.Graph(graph_module)
        self.image: dict[fx.Node, fx.Node] = {}
        self.rewritten: set[fx.Node] = set()
        self._images_of: dict[fx.Node, list[fx.Node]] = {}
        for node, position in self.effects.position.items():
            self._reflect(node, position)
        self.sizes = SizeTable(self.graph)

    def _reflect(self, node: fx.Node, position: int) -> None:
        copy = self.graph.node_copy(node, self.image.__getitem__)
        copy.meta = {k: v for k, v in node.meta.items() if k != "regraft_rule"}
        copy.meta["span"] = (position, position)
        if node.op == "call_function" and is_random(node):
            copy.meta["draws"] = (node,)
        writer = self.effects.unstable(node)
        if writer is not None:
            copy.meta["opaque"] = moved_read(node, writer)
        self.image[node] = copy
        self._images_of[copy] = [node]

    def replaced(self, old: fx.Node, new: fx.Node) -> None:
        """Note that the mirror node `new` now stands for everything `old` stood for."""
        sources = self._images_of.pop(old, [])
        for node in sources:
            self.image[node] = new
        kept = self._images_of.setdefault(new, [])
        kept.extend(sources)
        kept.sort(key=self.effects.position.__getitem__)

    def sources(self, node: fx.Node) -> list[fx.Node]:
        """The real nodes that `node` stands for, in order."""
        return self._images_of.get(node, [])

    def commit(
        self, dead_draws: set[fx.Node] | None = None, at: Callable[[str | None], None] = lambda rule: None
    ) -> list[fx.Node]:
        """Carry what rules made over to the real graph; returns the new nodes there.

        Args:
            dead_draws: random calls whose draw now happens inside a rewrite, and that are erased for it.
            at: told the name of the rule whose replacement comes next.
        """
        made = _Commit(self, at).run()
        _erase_dead(self.real, dead_draws or set())
        return made


class _Commit:
    """One pass over the real graph, replacing each value whose image a rule has rewritten."""

    def __init__(self, mirror: Mirror, at: Callable[[str | None], None]) -> None:
        self._mirror, self._at = mirror, at
        self._sizes = SizeTable(mirror.real)
        self._editor = Editor(mirror.real, self._sizes)
        self._settled: dict[fx.Node, fx.Node] = {}
        self._rewritten: dict[fx.Node, bool] = {}
        self._made: list[fx.Node] = []
        self._changed: list[fx.Node] = []
        self._early: set[fx.Node] = set()  # made before the real nodes whose values they are
        self._memory = {s for node in mirror.effects.position for s in storages(node)}
        returned = [storages(node) for node in mirror.real.output_node().all_input_nodes]
        self._returned = Counter(s for memory in returned for s in memory)
        self._shared_views = {node for node in mirror.effects.position if self._is_shared_view(node)}
        self._stands_for: dict[fx.Node, set[int]] = {}  # the memory of the real values that a new one replaces

    def run(self) -> list[fx.Node]:
        for node, _ in sorted(self._mirror.effects.position.items(), key=lambda item: item[1]):
            image = self._mirror.image[node]
            if node.op == "output" or not self._is_replaced(node, image) or node in self._shared_views:
                self._keep(node, image)
                continue
            self._replace(node, image)
        adapt_users(self._mirror.real, self._changed, keep_stream=self._mirror.keep_stream)
        return self._made

    def _keep(self, node: fx.Node, image: fx.Node) -> None:
        """Keep a real node, unless a replacement needed its value earlier and it was computed there."""
        known = self._settled.setdefault(image, node)
        self._sizes.note(node)
        if known in self._early and same_layout(val(node), val(known)):
            node.replace_all_uses_with(known)

    def _is_replaced(self, node: fx.Node, image: fx.Node) -> bool:
        """Whether a rule changed what `node` is.

        An erased image has no user left in the mirror, so the real value is dead or used as it was written.
        """
        return not compat.is_erased(image) and (node in self._mirror.rewritten or self._is_rewritten(image))

    def _is_shared_view(self, node: fx.Node) -> bool:
        """Whether `node` is a view of another value, and their memory is returned twice: who writes to one sees both.

        Such a view stays as it was written, now of what its operand has become:

            y = matmul(p, v);  return y, y[:, None]      ->      y = sdpa(...);  return y, y[:, None]
        """
        own = storages(node)
        if node.op != "call_function" or not any(self._returned[s] > 1 for s in own):
            return False
        return len(own) == 1 and own <= {s for operand in node.all_input_nodes for s in storages(operand)}

    def _is_rewritten(self, image: fx.Node) -> bool:
        """Whether the expression of `image`, down to values the real graph has, holds a node made by a rule."""
        if image not in self._rewritten:
            self._rewritten[image] = (not compat.is_erased(image) and "regraft_rule" in image.meta) or any(
                self._is_rewritten(n) for n in image.all_input_nodes if not self._mirror.sources(n)
            )
        return self._rewritten[image]

    def _replace(self, node: fx.Node, image: fx.Node) -> None:
        self._at(image.meta.get("regraft_rule"))
        with self._editor.at(node, image.meta.get("regraft_rule")):
            known = self._settled.get(image)
            new = self._emit(image) if known is None else self._laid_out(node, known)
            new = self._fit(node, new)
        self._settled[image] = new
        self._stands_for.setdefault(new, set()).update(storages(node))
        if new is node:
            return
        if not same_layout(val(node), val(new)):
            new.meta.setdefault("regraft_layout", val(node))
            self._changed.append(new)
        node.replace_all_uses_with(new)

    def _laid_out(self, node: fx.Node, known: fx.Node) -> fx.Node:
        """What stands for an earlier value, in the layout of `node`: a copy is one value in normal form, and two here.

        y = conv(x);  z = clone(y, contiguous)      ->      y = kernel(x);  z = contiguous(y)
        """
        stood_for = known.meta.get("regraft_layout", val(known))
        if not is_tensor(known) or same_layout(stood_for, val(node)):
            return known
        return restore_layout(self._mirror.real, known, val(node))

    def _fit(self, node: fx.Node, new: fx.Node) -> fx.Node:
        """A copy, where the original had memory of its own, `new` has another value's, and somebody may write to it.

        The other value is one of the real graph, or one for which `new` stands already: y = x @ w;  return y, clone(y).
        """
        own = storages(node)
        others = storages(new) & self._memory - own
        if others and (own & self._returned.keys() or self._mirror.effects.writer_between(new, -1, 1 << 60)):
            return self._editor.call(torch.ops.aten.clone.default, new)
        before = self._stands_for.get(new, set()) - own
        if before & self._returned.keys() and own & self._returned.keys():
            return self._editor.call(torch.ops.aten.clone.default, new)
        return new

    def _emit(self, image: fx.Node) -> fx.Node:
        if image in self._settled:
            return self._settled[image]
        if image.op == "get_attr":
            self._settled[image] = self._editor.attribute(str(image.target), val(image))
            return self._settled[image]
        if image.op != "call_function":
            raise RewriteError(f"{image.name} ({image.op}) has no counterpart before {self._made[-1:]}")
        args, kwargs = self._arguments(image)
        with self._editor.at_current(image):
            new = self._editor.call(image.target, *args, **kwargs)
        self._settled[image] = new
        self._made.append(new)
        if "regraft_rule" not in image.meta and self._mirror.sources(image):
            self._early.add(new)
        return new

    def _arguments(self, image: fx.Node) -> tuple[Any, Any]:
        """The arguments of a call in the real graph; a kernel is given each in the layout that it was traced with.

        Layouts are counted by use, since a value may be given twice:  linear(x, x, b) was traced with three.
        """
        for source in image.all_input_nodes:
            self._emit(source)
        layouts = iter(image.meta.get("traced_inputs", ()) if is_kernel(image) else ())
        copies: list[tuple[fx.Node, fx.Node]] = []

        def given(source: fx.Node) -> fx.Node:
            node, traced = self._settled[source], next(layouts, None)
            if traced is None or not is_tensor(source) or same_layout(val(node), traced):
                return node
            for known, copy in copies:
                if known is node and same_layout(val(copy), traced):
                    return copy
            copies.append((node, restore_layout(self._mirror.real, node, traced)))
            return copies[-1][1]

        return fx.node.map_arg(image.args, given), fx.node.map_arg(dict(image.kwargs), given)


def _erase_dead(graph: fx.Graph, dead_draws: set[fx.Node]) -> None:
    for node in reversed(list(graph.nodes)):
        if not node.users and (is_pure(node) or (node in dead_draws and is_random(node))):
            graph.erase_node(node)

"""Effects of a graph: writes, randomness, modes. These facts veto unsafe matches for every rule.

Graphs captured before autograd are not functional: an in-place op may change a value between the place where a match
read it and the place where a replacement would. `Effects` finds such values once per graph; matchers treat them as
leaves and the driver refuses what would move a read or a random draw across an effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from .graph import nodes_in, op_name
from .purity import is_random, storages, tensors_of, written
from .reason import Reason

_GRAD_MODE = "_set_grad_enabled"
_ENTER = ("_enter_autocast", "_enter_inference_mode")
_EXIT = ("_exit_autocast", "_exit_inference_mode")
# What Dynamo makes of `sdpa_kernel`: the call that allows these kernels and no others.
_ALLOW_BACKENDS = "_sdpa_kernel"


def wants_gradient(node: fx.Node) -> bool:
    """Whether gradients flow through a node: set on inputs by `mark_gradients`, and passed on by what uses them."""
    return bool(node.meta.get("wants_gradient"))


def pass_gradient(node: fx.Node) -> None:
    """Note on a new call whether gradients flow through it, from its inputs."""
    flows = any(wants_gradient(n) for n in node.all_input_nodes) and op_name(node) != "aten.detach"
    values = tensors_of(node)
    node.meta["wants_gradient"] = flows and any(v.is_floating_point() or v.is_complex() for v in values)


def mark_gradients(graph: fx.Graph, inputs: Sequence[bool]) -> None:
    """Note on every node whether gradients flow through it; `inputs` says it of the placeholders, in order.

    A write passes them on to what it writes to, and to all views of that: ``z[0] = x`` to `z`.
    """
    given = iter(inputs)
    writes, views = any(map(written, graph.nodes)), dict[fx.Node, list[fx.Node]]()
    enabled = True
    for node in graph.nodes:
        if node.op == "placeholder":
            node.meta["wants_gradient"] = next(given, False)
        elif node.op == "get_attr":
            node.meta["wants_gradient"] = bool(getattr(_attribute(node), "requires_grad", False))
        elif op_name(node) == _GRAD_MODE:
            enabled = bool(node.args[0])
        elif enabled:
            pass_gradient(node)
            if writes:
                _pass_gradient_by_writes(node, views)
        elif written(node):  # what autograd does not see leaves a tensor the history that it has
            node.meta["wants_gradient"] = any(map(wants_gradient, written(node)))


def _pass_gradient_by_writes(node: fx.Node, views: dict[fx.Node, list[fx.Node]]) -> None:
    """Mark what a call writes gradients to, with its views: `views` has those of each tensor so far, detached ones not.

    Views are added to the list of the tensor that they are views of, which they share.
    """
    if node.op == "call_function" and op_name(node) != "aten.detach" and (memory := storages(node)):
        for source in node.all_input_nodes:
            if memory & storages(source):
                shared = views.setdefault(source, [source])
                views.setdefault(node, shared)
                shared.append(node)
    if any(map(wants_gradient, node.all_input_nodes)):
        for target in written(node):
            for view in views.get(target, [target]):
                view.meta["wants_gradient"] = any(t.is_floating_point() or t.is_complex() for t in tensors_of(view))


def unseen(graph: fx.Graph) -> set[fx.Node]:
    """Calls that autograd does not see: gradients are off, or inference mode is on."""
    found: set[fx.Node] = set()
    enabled, inference = torch.is_grad_enabled(), set[Any]()
    for node in graph.nodes:
        name = op_name(node)
        if name == _GRAD_MODE:
            enabled = bool(node.args[0])
        elif name == "_enter_inference_mode" and all(node.args):
            inference.add(node)
        elif name == "_exit_inference_mode":
            inference.discard(node.args[0])
        elif not enabled or inference:
            found.add(node)
    return found


def _attribute(node: fx.Node) -> Any:
    owner: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        owner = getattr(owner, part, None)
    return owner


class Effects:
    """Effects of one graph, by position in its order. Built once; the graph's original nodes keep their positions."""

    def __init__(self, graph: fx.Graph) -> None:
        self.position = {node: i for i, node in enumerate(graph.nodes)}
        self.random = [i for node, i in self.position.items() if node.op == "call_function" and is_random(node)]
        self._writes: dict[int, list[tuple[int, fx.Node]]] = {}
        self._regions(graph)
        for node, i in self.position.items():
            for target in written(node):
                for storage in storages(target):
                    self._writes.setdefault(storage, []).append((i, node))

    def _regions(self, graph: fx.Graph) -> None:
        """Number the regions of grad mode, inference mode, autocast and streams; different ones are never merged.

        Graphs are rewritten under the grad mode that they start in; theirs is region 0.
        """
        state: tuple[Any, ...] = ((_GRAD_MODE, torch.is_grad_enabled()),)
        backends: str | None = None  # what the program has said last
        open_regions: dict[fx.Node, tuple[Any, ...]] = {}
        numbers: dict[tuple[Any, ...], int] = {state: 0}
        for node in graph.nodes:
            name = op_name(node)
            if name == _GRAD_MODE:
                state = (*(s for s in state if s[0] != _GRAD_MODE), (_GRAD_MODE, node.args[0]))
            elif name in _ENTER:
                open_regions[node] = state
                state = (*state, (name, str(node.args)))
            elif name in _EXIT:
                state = open_regions.get(node.args[0], state) if isinstance(node.args[0], fx.Node) else state
            elif name.startswith("streams."):  # what stands on either side may run at once: never merged
                state = (*(s for s in state if s[0] != "stream"), ("stream", node.name))
            elif name == _ALLOW_BACKENDS:
                backends = allowed_by(node)
                state = (*(s for s in state if s[0] != name), (name, backends))
            if backends is not None:
                node.meta["backends"] = backends
            node.meta["region"] = numbers.setdefault(state, len(numbers))

    def writer_between(self, node: fx.Node, first: int, last: int) -> fx.Node | None:
        """A call that writes to memory of `node` at a position in ``(first, last)``, or None."""
        if not self._writes:
            return None
        for storage in storages(node):
            for position, writer in self._writes.get(storage, ()):
                if first < position < last:
                    return writer
        return None

    def unstable(self, node: fx.Node) -> fx.Node | None:
        """A call after `node` that writes to its memory, or None: such a value must not be looked through."""
        if not self._writes or node not in self.position:
            return None
        return self.writer_between(node, self.position[node], len(self.position))

    def draws_between(self, first: int, last: int, own: set[int]) -> bool:
        """Whether random numbers other than the positions `own` are drawn in ``(first, last)``."""
        return any(first < p < last and p not in own for p in self.random)


def allowed_by(call: fx.Node) -> str:
    """The kernels that `_sdpa_kernel` allows: names of `SDPBackend`, sorted, with commas between."""
    return ",".join(sorted(str(named.args[0]) for named in nodes_in(call.args[0])))


def moved_read(node: fx.Node, writer: fx.Node) -> Reason:
    """The refusal for a read that would cross a write."""
    return Reason(
        "mutated-between",
        f"{node.name} is written in place by {writer.name} before the replacement could read it",
        (writer, node),
        expected="no write between the match and its inputs' last read",
        found=op_name(writer),
    )

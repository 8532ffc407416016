"""The forward of a joint graph, alone, and the attentions in it.

    joint graph:  %out = f(%x); %grad = g(%tangent, %x)      ->      %out = f(%x)      as if nobody asked for gradients

There the backward reads nothing, so that attentions found in inference graphs are found here too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import getitem as _getitem

import torch
from torch import fx

from .....rewrites.compat import argument
from .....rewrites.editor import infer
from .....rewrites.purity import erase_dead
from .....rewrites.reason import Reason
from ....autograd.joint_graph import backward_nodes, mark_recomputed
from ....prims import is_hashed, ops
from ...common.formula import packet
from ..benchmark_inputs import kept_on_the_way
from ..match import SOFTMAXES, FoundAttention, beside_product, match_attention
from ..replacement import is_on
from ..sdpa import SDPA, match_sdpa

_CHECKPOINTED = "ac_graph_id"


class JointForward:
    """The forward of a joint graph.

    Args:
        joint: the graph; where its attentions' calls drop weights, it gets masks that are drawn from seeds, which
            `close` takes away again.
        seeds: whether masks may be drawn from seeds; otherwise such calls stay.
    """

    def __init__(self, joint: fx.Graph, *, seeds: bool) -> None:
        self._joint = joint
        self.backward = backward_nodes(joint)
        self._masks = self._drawn() if seeds else {}
        copies: dict[fx.Node, fx.Node] = {}
        graph = fx.Graph()
        for node in joint.nodes:
            if node.op != "output" and node not in self.backward:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in joint.output_node().all_input_nodes if node in copies))
        graph.eliminate_dead_code()
        self._graph = graph
        self._originals = {copy: node for node, copy in copies.items()}

    def attentions(self) -> Iterator[tuple[fx.Node, FoundAttention | Reason, frozenset[fx.Node]]]:
        """Calls and softmaxes of the joint graph on a GPU, each with its attention, or why it is none; near ones.

        The last are nodes on the way that others read too: see `kept_on_the_way`.
        """
        for copy in list(self._graph.nodes):
            found = self._matched(copy) if is_on(copy, "cuda") else None
            if found is not None:
                kept = kept_on_the_way(found) if isinstance(found, FoundAttention) else ()
                yield self._originals[copy], self._placed(found), frozenset(map(self._original, kept))

    def close(self) -> None:
        """Erase random draws that nobody reads."""
        erase_dead(self._joint, self._masks.values(), lambda node: node.op != "placeholder")

    def _matched(self, node: fx.Node) -> FoundAttention | Reason | None:
        if packet(node) in SDPA:
            return match_sdpa(node, keep=self._masks.get(self._originals[node]))
        if packet(node) not in SOFTMAXES:
            return None
        found = match_attention(node, drops=True)
        return found if isinstance(found, FoundAttention) or beside_product(node) else None

    def _placed(self, found: FoundAttention | Reason) -> FoundAttention | Reason:
        """The attention that was found, in terms of the joint graph."""
        if isinstance(found, Reason):
            return replace(found, nodes=tuple(self._original(node) for node in found.nodes))
        nodes = tuple(map(self._original, found.nodes))
        checkpointed = next((node for node in nodes if _CHECKPOINTED in node.meta), None)
        if checkpointed is not None:
            return Reason(
                "checkpointed",
                f"{checkpointed.name} is in a checkpoint: the program asks to recompute it",
                (checkpointed,),
            )
        inputs = tuple(map(self._original, found.inputs))
        return FoundAttention(found.attention, inputs, nodes, self._original(found.output))

    def _original(self, node: fx.Node) -> fx.Node:
        return self._originals.get(node, node)

    def _drawn(self) -> dict[fx.Node, fx.Node]:
        """For each call that drops weights, a mask of its own of the weights that stay."""
        calls = [
            node
            for node in self._joint.nodes
            if node not in self.backward and packet(node) in SDPA and is_on(node, "cuda") and _drops(node)
        ]
        if not calls:
            return {}
        device = calls[0].args[0].meta["val"].device  # type: ignore[union-attr]
        with self._joint.inserting_before(calls[0]):
            seeds = self._call(ops.seeds.default, len(calls), device)
            split = self._call(ops.split.default, seeds)
        masks = {}
        for number, node in enumerate(calls):
            q, k = (x.meta["val"] for x in node.args[:2])  # type: ignore[union-attr]
            sizes = [*map(int, q.shape[:3]), int(k.shape[2])]
            with self._joint.inserting_before(node):
                seed = self._joint.call_function(_getitem, (split, number))
                seed.meta = {"val": split.meta["val"][number]}
                kept = 1.0 - float(argument(node, "dropout_p"))
                masks[node] = self._call(ops.bernoulli.default, sizes, kept, seed, is_hashed(sizes))
        mark_recomputed(seeds, False)
        return masks

    def _call(self, target: object, *args: object) -> fx.Node:
        node = self._joint.call_function(target, args)  # type: ignore[arg-type]
        node.meta = {"val": infer(node)}
        return node


def _drops(call: fx.Node) -> bool:
    p = argument(call, "dropout_p")
    shapes = [x.meta["val"].shape for x in call.args[:2]]  # type: ignore[union-attr]
    known = all(isinstance(size, int) for shape in shapes for size in shape)
    return isinstance(p, float) and 0.0 < p < 1.0 and known and isinstance(call.meta["val"][0], torch.Tensor)

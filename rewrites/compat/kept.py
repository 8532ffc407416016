"""What AOTAutograd's partition has the backward keep, where the program writes to inputs or to its results."""

from __future__ import annotations

import operator

import torch
from torch import fx


def keep_readings_of_written(graph: fx.Graph) -> None:
    """Have what is computed from an input that the program writes to kept for the backward, never computed again there.

    The write is done by then:

        n += 1; return x * n      backward: grad * (n + 1), n written already
    """
    from torch.utils.checkpoint import CheckpointPolicy

    writes = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    waiting = [write.args[0] for write in writes]
    seen = {*waiting, *writes}
    while waiting:
        for user in waiting.pop().users:
            if user in seen or user.op != "call_function":
                continue
            seen.add(user)
            if looks_into(user):
                waiting.append(user)
            else:
                user.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)  # a checkpoint's is eager's, too


def keep_old_values(forward: fx.Graph, results: int, written: frozenset[fx.Node]) -> None:
    """Have copies kept for the backward of inputs that are written after the forward graph has run.

    AOTAutograd copies such an input first, and writes to it when the graph has run. A cut keeps the input itself, to
    copy it again in the backward, which autograd refuses after the write:

        t.mul_(s)       the gradient of s reads t before the write

    Copies of inputs that are not written are the program's, and may lie otherwise: the backward would not know.
    """
    copies = {}
    for node in forward.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        if "stack_trace" not in node.meta and not node.kwargs and node.args[0] in written:  # no copy of the program's
            copies[node.args[0]] = node
    output = forward.output_node()
    values = list(output.args[0])  # type: ignore[arg-type]
    kept = [copies.get(node, node) if isinstance(node, fx.Node) else node for node in values[results:]]
    if kept != values[results:]:
        output.args = (type(output.args[0])([*values[:results], *kept]),)


def read_by_backward(joint: fx.Graph) -> frozenset[str]:
    """The values that a backward reads before anything is computed again: eager keeps them, too."""
    backward: set[fx.Node] = set()
    for node in joint.nodes:
        tangent = node.op == "placeholder" and "tangents" in str(node.target)
        if tangent or (node.op != "output" and any(given in backward for given in node.all_input_nodes)):
            backward.add(node)
    return frozenset(given.name for node in backward for given in node.all_input_nodes if given not in backward)


def keep_copies_of_results(forward: fx.Graph, results: int, read: frozenset[str]) -> None:
    """Have copies kept of results from which the backward only computes values again that eager keeps.

    The program may write to its results before the backward runs, where eager has kept other values:

        s = q @ k.mT; w = s.softmax(-1); (graph break); s.add_(1)      kept: s, of which the backward makes w again
    """
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    output = forward.output_node()
    values = list(output.args[0])  # type: ignore[arg-type]
    written = {_memory(node) for node in values[:results] if isinstance(node, fx.Node)} - {None}
    for place, node in enumerate(values[results:], results):
        if not isinstance(node, fx.Node) or node.op == "placeholder" or node.name in read:
            continue
        if _memory(node) not in written:
            continue
        value = node.meta["val"]
        copied = torch.empty_like(value)
        if all(statically_known_true(a == b) for a, b in zip(copied.stride(), value.stride(), strict=True)):
            with forward.inserting_before(output):
                values[place] = forward.call_function(torch.ops.aten.clone.default, (node,))
            values[place].meta = {"val": copied, "stack_trace": node.meta.get("stack_trace")}
    output.args = (type(output.args[0])(values),)


def _memory(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    plain = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return value.untyped_storage()._cdata if plain else None


def looks_into(node: fx.Node) -> bool:
    """Whether a call gives views of what it is given."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target is operator.getitem
    return any(result.alias_info is not None for result in node.target._schema.returns)

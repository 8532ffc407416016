"""Inserts a chosen replacement into the mirror.

The replacement is traced on the metadata of the matched operands, so that its nodes have metadata, and is inserted at
the position of the match's first output.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import fx

from . import compat
from .editor import Editor, RewriteError
from .graph import is_tensor, nodes_in, val
from .legality import Application
from .memo import key_of_sizes
from .mirror import Mirror
from .symbolic import hint
from .tracing import Level, record


def is_operand(value: Any) -> bool:
    """Whether an operand is an input (a node), rather than a constant or a part that was left out."""
    return isinstance(value, fx.Node)


def trace(function: Callable[..., Any], operands: Sequence[Any], level: Level = "above autograd") -> fx.GraphModule:
    """The ATen graph of `function` on operands: metadata for nodes, values for constants."""
    places = [i for i, o in enumerate(operands) if is_operand(o)]
    inputs = [val(operands[i]) for i in places]
    modes = [v.fake_mode for v in inputs if hasattr(v, "fake_mode")]
    if not modes:
        raise RewriteError("a replacement needs at least one tensor operand with metadata")
    try:
        with modes[0], compat.quiet_fakes():
            return record(compat.of_places(function, operands, places), _told_apart(inputs), level)
    except AssertionError as error:
        if "convert all Tensors to FakeTensors" not in str(error):
            raise
        raise RewriteError(
            "the replacement reads a tensor that is none of its operands: make it a parameter of the pattern, or "
            f"make the tensor in the replacement, as torch.tensor([1.0]) does ({str(error).rpartition('Found in ')[2]})"
        ) from error


def _told_apart(values: list[Any]) -> list[Any]:
    """The same metadata in distinct objects: tracing distinguishes inputs by identity, and mirrors share metadata."""
    seen: set[int] = set()
    apart = []
    for value in values:
        again = id(value) in seen and isinstance(value, torch.Tensor)
        seen.add(id(value))
        apart.append(value.detach().requires_grad_(value.requires_grad) if again else value)
    return apart


def insert(
    mirror: Mirror,
    editor: Editor,
    traced: fx.GraphModule,
    operands: Sequence[Any],
    place: fx.Node,
    application: Application,
    matched: Sequence[fx.Node] = (),
) -> list[fx.Node]:
    """Insert `traced` before `place`; returns the nodes of its outputs.

    Args:
        mirror: the mirror of the program.
        editor: the editor of the mirror.
        traced: the replacement.
        operands: its inputs.
        place: the match's first output.
        application: the application to record on inserted nodes.
        matched: the nodes that are replaced; see `_recompute_alike`.

    Raises:
        RewriteError: an output is no tensor of the graph.
    """
    given = iter([o for o in operands if is_operand(o)])
    placed: dict[fx.Node, Any] = {}
    rule = application.rule
    with editor.at(place, rule):
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                placed[node] = next(given)
            elif node.op == "get_attr":
                placed[node] = _constant(mirror, traced, node, editor)
            elif node.op == "call_function":
                placed[node] = editor.copy(node, placed.__getitem__)
                placed[node].meta["traced_inputs"] = [val(n) for n in nodes_in([node.args, node.kwargs])]
                placed[node].meta["application"] = application
            elif node.op == "output":
                outputs = [_output(o, placed, rule) for o in _outputs(node)]
                _recompute_alike([placed[n] for n in traced.graph.nodes if n.op == "call_function"], matched, outputs)
                return outputs
    raise RewriteError(f"{rule}: the replacement has no output")


def _recompute_alike(made: Sequence[fx.Node], matched: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> None:
    """Mark values for recomputation in the backward if they replace values that were marked, and are as large.

        %scores = matmul(%q, %k)   computed anew, (2, 8, 4096, 4096)   ->   %made = add(%product, %mask)   computed anew

    Values of the size of results are not marked: results are saved as in the original program.
    """
    marked = {_columns(node): node.meta["recompute"] for node in matched if "recompute" in node.meta}
    if not marked.keys().isdisjoint(map(_columns, outputs)):
        return
    for node in made:
        if _columns(node) in marked:
            node.meta["recompute"] = marked[_columns(node)]


def _columns(node: fx.Node) -> Hashable:
    """A key of the last two sizes of a value: they may be symbolic."""
    return key_of_sizes(val(node).shape[-2:]) if is_tensor(node) else ()


def _outputs(node: fx.Node) -> list[Any]:
    return list(node.args[0]) if isinstance(node.args[0], (list, tuple)) else [node.args[0]]


def _output(value: Any, placed: dict[fx.Node, Any], rule: str) -> fx.Node:
    if not isinstance(value, fx.Node):
        raise RewriteError(f"{rule}: the replacement returns {value!r}, which is no tensor of the graph")
    return placed[value]


def _constant(mirror: Mirror, traced: fx.GraphModule, node: fx.Node, editor: Editor) -> fx.Node:
    """Turn a tensor that was created during tracing into an attribute of the program, with a free name."""
    value = getattr(traced, str(node.target))
    count = 0
    while hasattr(mirror.owner, f"_regraft_constant{count}"):
        count += 1
    setattr(mirror.owner, f"_regraft_constant{count}", value)
    return editor.attribute(f"_regraft_constant{count}", _mode(traced).from_tensor(value, static_shapes=True))


def _mode(traced: fx.GraphModule) -> Any:
    """The fake mode of a replacement's inputs: tracing gives the constants that it meets another one."""
    values = (val(node) for node in traced.graph.find_nodes(op="placeholder"))
    return next(value.fake_mode for value in values if hasattr(value, "fake_mode"))


class Original:
    """The matched code as a callable of its operands (see `subgraph`), compiled at the first call.

    Most decisions are cached, so that it is rarely called.
    """

    def __init__(self, nodes: Sequence[fx.Node], operands: Sequence[Any], outputs: Sequence[fx.Node]) -> None:
        self._graph, self._constants = _matched(nodes, operands, outputs), _constants(nodes)
        self._made: fx.GraphModule | None = None

    def __call__(self, *values: Any) -> Any:
        """The results of the code for `values`, one for each operand."""
        if self._made is None:
            self._made = fx.GraphModule(self._constants, self._graph)
        return self._made(*values)


def subgraph(nodes: Sequence[fx.Node], operands: Sequence[Any], outputs: Sequence[fx.Node]) -> fx.GraphModule:
    """The matched code as a program of its operands (constants among them are ignored).

    Sizes that the pattern leaves open, and that are computed outside of the match, have their example values.

    Raises:
        RewriteError: another value that is computed outside the match is no operand.
    """
    return fx.GraphModule(_constants(nodes), _matched(nodes, operands, outputs))


def _constants(nodes: Sequence[fx.Node]) -> dict[str, Any]:
    """The attributes of the program that are read among these nodes, by name: tensor literals."""
    names = {str(node.target): node for node in nodes if node.op == "get_attr"}
    return {name: getattr(node.graph.owning_module, name) for name, node in names.items()}


def _matched(nodes: Sequence[fx.Node], operands: Sequence[Any], outputs: Sequence[fx.Node]) -> fx.Graph:
    graph = fx.Graph()
    placed: dict[fx.Node, fx.Node] = {}
    for i, operand in enumerate(operands):
        placeholder = graph.placeholder(f"operand_{i}")
        if is_operand(operand):
            placed[operand] = placeholder
    for node in nodes:
        placed[node] = graph.node_copy(node, lambda n: placed[n] if n in placed else _example_size(n))
    graph.output(tuple(placed[o] for o in outputs) if len(outputs) > 1 else placed[outputs[0]])
    return graph


def _example_size(node: fx.Node) -> Any:
    size = hint(val(node))
    if not isinstance(size, (int, float)):
        raise RewriteError(f"{node} is used inside the match, but is neither part of it nor an operand")
    return size

"""Changes of a program around a rule, each in a place drawn at random.

A change gives its name where it was made, and None where the program has no place for it. Values of nodes are those of
one run of the program (`evaluate`).
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.proxy import GraphAppendingTracer

from regraft.rewrites.graph import is_tensor, op_name, val

from .spellings import CANCELLING, NEIGHBOURS, OF_OTHER_RULES, SPELLINGS, Spelling

Change = Callable[[fx.Graph, random.Random], "str | None"]

_UNARY = (torch.neg, torch.tanh, torch.abs, torch.exp, torch.sin, torch.sigmoid, torch.relu, torch.erf)
_MOST_NODES = 60


class _Recorder(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        n.meta["val"] = super().run_node(n)
        return n.meta["val"]


def evaluate(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """Run a program, and note what its nodes hold."""
    module.graph.lint()
    module.recompile()
    with torch.no_grad():
        return _Recorder(module).run(*(x.clone() if isinstance(x, torch.Tensor) else x for x in inputs))


def _calls(graph: fx.Graph) -> list[fx.Node]:
    floats = [n for n in graph.nodes if n.op.startswith("call") and is_tensor(n) and val(n).is_floating_point()]
    return [n for n in floats if n.target is not operator.getitem]


def _read(graph: fx.Graph) -> list[fx.Node]:
    """Tensors that the program reads, inputs among them."""
    given = [n for n in graph.nodes if n.op in ("placeholder", "get_attr") and is_tensor(n)]
    return [n for n in [*given, *_calls(graph)] if val(n).is_floating_point() and n.users]


def _written(graph: fx.Graph, after: fx.Node, function: Spelling, *args: Any, **kwargs: Any) -> fx.Node:
    """The call of a Python function on nodes, traced into the graph behind a node."""
    tracer = GraphAppendingTracer(graph)

    def proxy(value: Any) -> Any:
        return fx.Proxy(value, tracer)

    with graph.inserting_before(after.next):
        result = function(*fx.map_arg(args, proxy), **fx.map_arg(kwargs, proxy))
    return result.node


def as_it_is(_graph: fx.Graph, _draw: random.Random) -> str | None:
    """No change."""
    return "as it is"


def respelled(graph: fx.Graph, draw: random.Random) -> str | None:
    """A call in another spelling, or all calls of an operator."""
    known = [n for n in graph.nodes if n.op == "call_function" and op_name(n).removeprefix("aten.") in SPELLINGS]
    if not known:
        return None
    name = op_name(draw.choice(known))
    options = SPELLINGS[name.removeprefix("aten.")]
    which, everywhere = draw.randrange(len(options)), draw.random() < 0.5
    places = [n for n in known if op_name(n) == name]
    for node in places if everywhere else [draw.choice(places)]:
        new = _written(graph, node, options[which], *node.args, **node.kwargs)
        if new is not node:
            node.replace_all_uses_with(new)
            graph.erase_node(node)
    return f"{name} in spelling {which}"


def cancelled(graph: fx.Graph, draw: random.Random) -> str | None:
    """A value replaced, for one or all of its readers, by calls that give it again."""
    return _behind(graph, draw, CANCELLING, _read(graph))


def between(graph: fx.Graph, draw: random.Random) -> str | None:
    """An operator behind one of its values."""
    if not (calls := _calls(graph)):
        return None
    return _behind(graph, draw, {f.__name__: f for f in _UNARY}, calls)


def _behind(
    graph: fx.Graph, draw: random.Random, functions: dict[str, Spelling], places: Sequence[fx.Node]
) -> str | None:
    if not places:
        return None
    node, name = draw.choice(places), draw.choice(list(functions))
    users = list(node.users)
    last = node if node.op != "placeholder" else _last_input(graph)
    mine = users if draw.random() < 0.7 else [draw.choice(users)]
    new = _written(graph, last, functions[name], node)
    for user in mine:
        user.replace_input_with(node, new)
    return f"{name} behind {op_name(node)}"


def _last_input(graph: fx.Graph) -> fx.Node:
    return [n for n in graph.nodes if n.op in ("placeholder", "get_attr")][-1]


def returned(graph: fx.Graph, draw: random.Random) -> str | None:
    """One of its values returned too, as it is or behind another reader."""
    if not (calls := _calls(graph)):
        return None
    node = draw.choice(calls)
    new, how = node, "returned"
    if draw.random() < 0.5:
        new, how = _written(graph, graph.output_node().prev, lambda x: x.sum(-1), node), "summed"
    _give(graph, [*_results(graph), new])
    return f"{op_name(node)} {how}"


def _results(graph: fx.Graph) -> list[Any]:
    given = graph.output_node().args[0]
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _give(graph: fx.Graph, results: Sequence[Any]) -> None:
    output = graph.output_node()
    output.args = (tuple(results),)


def constant(graph: fx.Graph, draw: random.Random) -> str | None:
    """Another number in one of its calls."""
    places = [
        (n, i) for n in graph.nodes if n.op == "call_function"
        for i, a in enumerate(n.args) if type(a) in (int, float) and n.target is not operator.getitem
    ]  # fmt: skip
    if not places:
        return None
    node, i = draw.choice(places)
    old = node.args[i]
    new = draw.choice([old * 0.5, -old, old * 1.001, 0.0] if isinstance(old, float) else [old + 1, old - 1, -old])
    node.args = (*node.args[:i], new, *node.args[i + 1 :])
    return f"{old} as {new} in {op_name(node)}"


def left_out(graph: fx.Graph, draw: random.Random) -> str | None:
    """A call left out: its readers read one of its operands."""
    places = [
        (n, x) for n in _calls(graph) for x in n.all_input_nodes if is_tensor(x) and val(x).shape == val(n).shape
    ]  # fmt: skip
    if len(places) < 2:
        return None
    node, operand = draw.choice(places)
    node.replace_all_uses_with(operand)
    graph.erase_node(node)
    return f"{op_name(node)} left out"


def other_operator(graph: fx.Graph, draw: random.Random) -> str | None:
    """Another operator in place of one of one operand."""
    places = [n for n in _calls(graph) if len(n.args) == 1 and not n.kwargs and isinstance(n.args[0], fx.Node)]
    places = [n for n in places if val(n.args[0]).shape == val(n).shape]
    if not places:
        return None
    node, name = draw.choice(places), op_name
    told, new = name(node), draw.choice(_UNARY)
    node.op, node.target = "call_function", new
    return f"{new.__name__} for {told}"


def swapped(graph: fx.Graph, draw: random.Random) -> str | None:
    """The operands of a call swapped."""
    places = [n for n in _calls(graph) if len(n.args) >= 2 and all(isinstance(a, fx.Node) for a in n.args[:2])]
    if not places:
        return None
    node = draw.choice(places)
    node.args = (node.args[1], node.args[0], *node.args[2:])
    return f"operands of {op_name(node)} swapped"


def neighbours_before(graph: fx.Graph, draw: random.Random) -> str | None:
    """What its inputs are computed by; more than one of them may be the same value."""
    inputs = [n for n in _read(graph) if n.op == "placeholder"]
    if not inputs:
        return None
    same = [n for n in inputs if val(n).shape == val(inputs[0]).shape]
    if len(same) > 1 and draw.random() < 0.2:
        same[1].replace_all_uses_with(same[0])
        return "one input twice"
    return _behind(graph, draw, NEIGHBOURS, inputs)


def neighbours_after(graph: fx.Graph, draw: random.Random) -> str | None:
    """What is computed of its results."""
    return _of_results(graph, draw, NEIGHBOURS)


def chained(graph: fx.Graph, draw: random.Random) -> str | None:
    """Operators that another rule matches, behind or before it."""
    if draw.random() < 0.6:
        return _of_results(graph, draw, OF_OTHER_RULES)
    return _behind(graph, draw, OF_OTHER_RULES, [n for n in _read(graph) if n.op == "placeholder"])


def _of_results(graph: fx.Graph, draw: random.Random, functions: dict[str, Spelling]) -> str | None:
    results = _results(graph)
    places = [i for i, r in enumerate(results) if is_tensor(r) and val(r).is_floating_point() and val(r).dim()]
    if not places:
        return None
    place, name = draw.choice(places), draw.choice(list(functions))
    results[place] = _written(graph, graph.output_node().prev, functions[name], results[place])
    _give(graph, results)
    return f"{name} of result {place}"


def twice(graph: fx.Graph, draw: random.Random) -> str | None:
    """Two instances, of the same inputs or of one that differs."""
    body = [n for n in graph.nodes if n.op.startswith("call")]
    if not 0 < len(body) <= _MOST_NODES:
        return None
    inputs = [n for n in _read(graph) if n.op == "placeholder"]
    copies: dict[fx.Node, fx.Node] = {}
    at = graph.output_node().prev
    how = "of the same inputs"
    if inputs and draw.random() < 0.7:
        chosen = draw.choice(inputs)
        at = copies[chosen] = _written(graph, at, lambda x: x * 0.5 + 0.25, chosen)
        how = "of another input"
    for node in body:
        with graph.inserting_after(at):
            at = copies[node] = graph.node_copy(node, lambda n: copies.get(n, n))
    _give(graph, [*_results(graph), *(copies.get(r, r) for r in _results(graph) if isinstance(r, fx.Node))])
    return f"twice, {how}"


def in_a_row(graph: fx.Graph, draw: random.Random) -> str | None:
    """Its result goes in again, where an input has the shape."""
    results, body = _results(graph), [n for n in graph.nodes if n.op.startswith("call")]
    inputs = [n for n in graph.nodes if n.op == "placeholder" and is_tensor(n)]
    fitting = [n for n in inputs if is_tensor(results[0]) and val(n).shape == val(results[0]).shape]
    if not fitting or not 0 < len(body) <= _MOST_NODES:
        return None
    at, copies = graph.output_node().prev, {draw.choice(fitting): results[0]}
    for node in body:
        with graph.inserting_after(at):
            at = copies[node] = graph.node_copy(node, lambda n: copies.get(n, n))
    _give(graph, [copies.get(r, r) for r in results])
    return "in a row"


def overwritten(graph: fx.Graph, draw: random.Random) -> str | None:
    """One of its values, or an input, written after it has been read."""
    calls = [n for n in _read(graph) if n.op != "get_attr" and val(n).is_contiguous()]
    if not calls:
        return None
    node = draw.choice(calls)
    after = draw.choice([n for n in node.users if n.op != "output"] or [_last_input(graph)])
    after = after if after.op != "placeholder" else _last_input(graph)
    _written(graph, after, lambda x: x.mul_(0.5), node)
    return f"{op_name(node)} written behind {op_name(after)}"


# Likelier ones more often.
CHANGES: dict[Change, int] = {
    respelled: 6, cancelled: 5, between: 2, returned: 2, constant: 2, left_out: 2, other_operator: 1, swapped: 1,
    neighbours_before: 3, neighbours_after: 3, chained: 3, twice: 2, in_a_row: 1, overwritten: 1, as_it_is: 1,
}  # fmt: skip

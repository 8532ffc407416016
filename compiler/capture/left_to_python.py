"""Finds frames that Dynamo traces wrongly, or with an assumption that eager does not make: Python runs them.

    x[x > 0] + y            y of 3 elements: torch assumes that the mask keeps 3, not 1 that would be broadcast
    x += y; x.t_()          with symbolic sizes, Dynamo's guards about the sizes fail at once

Python runs such a frame as it was written, and functions that it calls are compiled. With ``fullgraph=True``, frames
are compiled all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat.dynamo import assumed_equal, wants_whole_graph
from ...rewrites.symbolic import symbols_of

_RESHAPES = ("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_", "resize_")


def left_to_python(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """Why Python must run the frame of a graph from Dynamo; "" if it need not."""
    mode = compat.fake_mode_of(example_inputs)
    if mode is None or mode.shape_env is None or wants_whole_graph():
        return ""
    given = {symbol for x in example_inputs for symbol in _symbols(x)}
    for equation in assumed_equal(mode.shape_env):
        sides = [side.free_symbols - given for side in equation.args]
        if any(sides) and not all(sides):
            return f"a size of 1 that depends on data is broadcast in eager, where torch assumes {equation}"
    name = _written_and_reshaped(gm.graph)
    return f"the input {name} is written to and then has other sizes, which are symbolic" if name else ""


def _symbols(value: Any) -> Iterator[Any]:
    numbers = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    for number in numbers:
        yield from symbols_of(number)


def _written_and_reshaped(graph: fx.Graph) -> str:
    """An input of symbolic sizes that methods write to and give other sizes."""
    written: set[fx.Node] = set()
    for node in graph.nodes:
        bases = [] if node.op == "placeholder" else list(_inputs_of(node))
        for base in bases:
            if not any(_symbols(base.meta.get("example_value"))):
                continue
            if node.target in _RESHAPES and base in written:
                return base.name
            written.add(base)
    return ""


def _inputs_of(node: Any) -> Iterator[fx.Node]:
    """The inputs that a call in place gives again."""
    if isinstance(node, (list, tuple)):  # torch._foreach_add_([x, y], 1)
        for each in node:
            yield from _inputs_of(each)
    elif isinstance(node, fx.Node) and node.op == "placeholder":
        yield node
    elif isinstance(node, fx.Node):
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        in_place = (name.endswith("_") and not name.endswith("__")) or name in _OPERATORS
        if node.args and in_place:
            yield from _inputs_of(node.args[0])


_OPERATORS = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor")

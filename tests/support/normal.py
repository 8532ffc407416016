"""Normal forms of small functions: as text to compare, and as graphs to run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from regraft.compiler.normal import NORMAL_FORM
from regraft.rewrites.functional import functionalize_temporaries
from regraft.rewrites.graph import op_name
from regraft.rewrites.mirror import Mirror
from regraft.rewrites.respell import Normalizer, Respelling


def traced(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False) -> fx.GraphModule:
    """The ATen graph of `function` before autograd, its sizes symbolic where `dynamic`."""
    mode = "symbolic" if dynamic else "fake"
    module = make_fx(function, pre_dispatch=True, tracing_mode=mode)(*inputs)
    functionalize_temporaries(module.graph)
    return module


def normalized(module: fx.GraphModule, steps: Iterable[Respelling] = NORMAL_FORM) -> Mirror:
    """The mirror of a graph in normal form, which must be a fixpoint."""
    mirror = Mirror(module)
    normalizer = Normalizer(mirror, steps)
    normalizer.run()
    assert normalizer.stopped is None, normalizer.stopped.message
    again = Normalizer(mirror, steps)
    again.run()
    assert not again.counts, again.counts
    mirror.graph.lint()
    return mirror


def module_of(mirror: Mirror) -> fx.GraphModule:
    """A mirror as something that runs."""
    return fx.GraphModule(mirror.owner, mirror.graph)


def text(graph: fx.Graph) -> str:
    """What a graph computes, as one expression over its inputs ``%0``, ``%1``, ...; floats to six digits."""
    names = {n: f"%{i}" for i, n in enumerate(n for n in graph.nodes if n.op == "placeholder")}
    (output,) = graph.output_node().args
    return _term(output, names)


def _term(value: Any, names: dict[fx.Node, str]) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_term(v, names) for v in value) + "]"
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, fx.Node):
        return str(value)
    if value not in names:
        given = [_term(a, names) for a in value.args] + [
            f"{k}={_term(v, names)}" for k, v in value.kwargs.items() if v is not None
        ]
        target = value.target if value.op == "get_attr" else op_name(value).removeprefix("aten.")
        names[value] = f"{target}({', '.join(given)})"
    return names[value]


def form(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False) -> str:
    """The normal form of a function's graph as text."""
    return text(normalized(traced(function, *inputs, dynamic=dynamic)).graph)

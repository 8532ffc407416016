"""Values that a program's inputs had before it wrote to them, for running it again.

    running_mean  written, never read: nothing is kept                 F.batch_norm(x, mean, var, ..., training=True)
    u, v          read and written: copies of before the call          torch.nn.utils.parametrizations.spectral_norm
    cache         as those, but large: its program cannot run again

Which inputs a program writes is seen in its first call. Running it again writes to copies of these.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from ...rewrites.compat.memory import storage_key
from ...rewrites.compat.steps import versions
from ...rewrites.graph import nodes_in
from .overlaps import inputs_written

_COPIED = 1 << 16  # bytes
_NORMS = {functional.batch_norm: "training", functional.instance_norm: "use_input_stats"}


Before = tuple[dict[int, torch.Tensor], list[int]]  # copies by the places of inputs, and versions of those watched


class ValuesBefore:
    """Keeps, call by call, what running a program again needs of the inputs that it writes."""

    def __init__(self, program: fx.GraphModule, inputs: Sequence[Any]) -> None:
        tensors = [k for k, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        written = inputs_written(program, inputs).intersection(tensors)
        placeholders = program.graph.find_nodes(op="placeholder")
        self._unread = {k for k in written if _is_unread(placeholders[k], inputs[k])}
        self._copied = sorted(k for k in written - self._unread if _is_small(inputs[k]))
        self._watched = [k for k in tensors if k not in self._unread]
        self._every = chosen(self._watched)
        self._first = True

    def keep(self, inputs: Sequence[Any]) -> Before:
        """What is kept before a call."""
        copies = {k: inputs[k].detach().clone() for k in self._copied if _is_small(inputs[k])}
        return copies, versions(self._every(inputs))

    def settle(self, before: Before, inputs: Sequence[Any]) -> None:
        """Forget copies of what the call has not written."""
        copies, seen = before
        for k, version in zip(self._watched, seen, strict=True) if copies else ():
            if k in copies and versions([inputs[k]]) == [version]:
                del copies[k]
        if self._first:
            self._first, self._copied = False, sorted(copies)

    def inputs(self, before: Before, inputs: Sequence[Any]) -> Sequence[Any] | None:
        """The inputs of a call again; None where what they were is not known."""
        copies, seen = before
        now = versions(self._every(inputs))
        if any(old != new and k not in copies for k, old, new in zip(self._watched, seen, now, strict=True)):
            return None
        fresh = {k: inputs[k] for k in self._unread} | copies
        keys = [storage_key(x) for x in inputs if isinstance(x, torch.Tensor)] if fresh else []
        if any(keys.count(storage_key(inputs[k])) > 1 for k in fresh):
            return None  # its neighbour in memory would not be written with a copy
        return [fresh[k].detach().clone() if k in fresh else x for k, x in enumerate(inputs)]


def chosen(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """What picks the inputs at these places."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda inputs: tuple(inputs[k] for k in places)


def _is_small(x: torch.Tensor) -> bool:
    return x.layout == torch.strided and not x.requires_grad and x.numel() * x.element_size() <= _COPIED


def _is_unread(node: fx.Node, x: torch.Tensor) -> bool:
    """Whether no result depends on an input: it is only written, or read for what it is to become."""
    return not x.requires_grad and bool(node.users) and all(_only_updates(user, node) for user in node.users)


def _only_updates(user: fx.Node, node: fx.Node) -> bool:
    reads = [place for place, argument in enumerate(user.args) if node in nodes_in(argument)]
    if node in nodes_in(user.kwargs):
        return False
    if user.op == "call_method":
        return str(user.target).endswith("_") and not user.users and reads == [0]
    of_batch = user.args[5] if len(user.args) > 5 else user.kwargs.get(_NORMS.get(user.target, ""))
    return user.target in _NORMS and of_batch is True and set(reads) <= {1, 2}

"""Embedding bags of equal size, written as a lookup and a sum, which generated kernels compute.

    embedding_bag(w, flat, arange(0, n * k, k))[0]   ->   sum(embedding(w, view(flat, [n, k])), 1)

`F.embedding_bag` creates such offsets for an input of two dims. Any other call stays ATen's operator, whose gradient
sorts the indices of each table with about ten kernel launches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import arguments, op_name, val
from ...rewrites.walk import visits_calls

aten = torch.ops.aten

_SUM, _MEAN = 0, 1


@visits_calls(aten.embedding_bag.default, aten.embedding_bag.padding_idx)
def write_bags_as_sums(editor: Editor, node: fx.Node) -> bool:
    """Replace embedding bags of equal size by a sum, in a program as it was captured, before autograd."""
    size = _size(node)
    if size is None:
        return False
    with editor.at(node):
        total = _total(editor, arguments(node), size)
    for result in list(node.users):
        if result.users:  # `_size` has checked that only the first result is used
            editor.replace(result, total)
        editor.erase_dead(result)
    return True


def _size(node: fx.Node) -> int | None:
    """The number of indices in each bag; None if bags differ in size, or if the call asks for more than dense sums."""
    given = arguments(node)
    padding = given.get("padding_idx")
    plain = not given.get("scale_grad_by_freq") and not given.get("sparse") and not given.get("include_last_offset")
    if not plain or given.get("mode", _SUM) not in (_SUM, _MEAN) or (padding is not None and padding >= 0):
        return None
    weights = given.get("per_sample_weights")
    if weights is not None and val(weights).dtype != val(given["weight"]).dtype:  # eager raises an error
        return None
    if any(op_name(user) != "getitem" or (user.users and user.args[1] != 0) for user in node.users):
        return None
    indices = val(given["indices"])
    return _step(given["offsets"], indices.shape[0]) if indices.dim() == 1 else None


def _step(offsets: Any, count: Any) -> int | None:
    """The step of ``arange(0, count, step)``, if it divides `count`."""
    if not isinstance(offsets, fx.Node) or offsets.target is not aten.arange.start_step or type(count) is not int:
        return None
    start, stop, step = (*offsets.args, 1)[:3]
    whole = all(type(x) is int for x in (start, stop, step)) and step > 0 and count > 0 and count % step == 0
    return step if whole and start == 0 and stop == count else None


def _total(editor: Editor, given: dict[str, Any], size: int) -> fx.Node:
    call, weight, indices = editor.call, given["weight"], given["indices"]
    bags, dtype = val(indices).shape[0] // size, val(weight).dtype
    rows = call(aten.embedding.default, weight, call(aten.view.default, indices, [bags, size]))
    weights = given.get("per_sample_weights")
    if weights is not None:
        rows = call(aten.mul.Tensor, rows, call(aten.view.default, weights, [bags, size, 1]))
    fold = aten.mean.dim if given.get("mode", _SUM) == _MEAN else aten.sum.dim_IntList
    return call(fold, rows, [1], dtype=dtype)

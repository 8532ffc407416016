"""Turns products of gathered matrices with one column each into products with one row each.

    bmm(w[ids], x)    x: (n, depth, 1), on a GPU     ->     view(bmm(permute(x), permute(w[ids])))

Mixtures of experts multiply the tokens of a decoding step in this way. Kernels for products with few rows read weights
in place, also weights that an index selects (see `templates.gemm.prologue`), but they support rows only.
"""

from __future__ import annotations

import torch
from torch import fx

from ...rewrites.editor import Editor
from ...rewrites.graph import is_tensor, op_name, val
from ...rewrites.walk import replaces_calls

aten = torch.ops.aten

_TURNED = (0, 2, 1)
_WHOLE = (torch.int32, torch.int64)


@replaces_calls(aten.bmm.default)
def transpose_gathered_products(editor: Editor, node: fx.Node) -> fx.Node | None:
    """Transpose a product of gathered matrices with one column."""
    if not _is_of_columns(node):
        return None
    matrices, columns = node.args
    turned = [editor.call(aten.permute.default, x, list(_TURNED)) for x in (columns, matrices)]
    return editor.call(aten.view.default, editor.call(aten.bmm.default, *turned), list(val(node).shape))


def _is_of_columns(node: fx.Node) -> bool:
    matrices, columns = node.args
    if not isinstance(matrices, fx.Node) or not is_tensor(node) or not is_tensor(columns):
        return False
    known = all(isinstance(size, int) for size in val(node).shape)
    return known and val(node).device.type == "cuda" and val(columns).shape[2] == 1 and gathers_matrices(matrices)


def gathers_matrices(node: fx.Node) -> bool:
    """Whether a node is a stack of matrices that an index selects from a larger stack."""
    if op_name(node) not in ("aten.index", "aten.index_select") or not is_tensor(node) or not is_tensor(node.args[0]):
        return False
    if op_name(node) == "aten.index_select":
        index, along = node.args[2], node.args[1] == 0
    else:
        indices = node.args[1]
        assert isinstance(indices, (list, tuple)), indices
        index, along = indices[0], all(other is None for other in indices[1:])
    if not along or not isinstance(index, fx.Node) or not is_tensor(index):
        return False
    chosen = val(index)
    return val(node.args[0]).dim() == 3 and chosen.dim() == 1 and chosen.dtype in _WHOLE

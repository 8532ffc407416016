"""Whether what a call computes fits the tensors that it writes to.

    x.lt_(y), x of no dims, y of two      the result has other sizes
    x.long().sub_(2j)                     the result has a dtype that cannot be cast to that of the tensor
    diag(x, out=y), y of float64          the operator casts nothing

Eager checks all. Metadata of many operators checks neither, and AOTAutograd writes a part of the result, or casts it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...rewrites import compat
from ...rewrites.compat import tree_leaves, tree_map
from ...rewrites.editor import infer
from ...rewrites.functional import form_without_out, written_outs
from ...rewrites.graph import arguments, op_name, val
from ...rewrites.symbolic import hint

# Operands that are broadcast to the sizes of the tensor that is written.
_BROADCAST = ("other", "exponent", "end", "weight", "tensor1", "tensor2", "min", "max", "mask")
_READ_BEFORE = ("aten.fft_ihfft2", "aten.fft_ihfftn")  # what `out` held is a part of what eager gives
_BROADCAST_BY_CALL = {"aten.heaviside_": ("values",)}


def misfit(node: fx.Node) -> str | None:
    """Why eager refuses to write the result of a call in place; None where it does not."""
    if not isinstance(node.target, compat.OpOverload) or not op_name(node).endswith("_") or not node.args:
        return None
    target = val(node.args[0])
    functional = getattr(torch.ops.aten, op_name(node).removeprefix("aten.").removesuffix("_"), None)
    if functional is None or not isinstance(target, torch.Tensor):
        return None
    names = (*_BROADCAST, *_BROADCAST_BY_CALL.get(op_name(node), ()))
    for name, operand in arguments(node).items():
        other = val(operand)
        if name in names and isinstance(other, torch.Tensor) and not _fits(other.shape, target.shape):
            return f"a result of sizes {list(other.shape)}, the tensor has {list(target.shape)}"
    alike = _is_alike(node, target) and op_name(node) != "aten.addr_"  # the product of vectors has more dims than they
    made = None if alike else _result(node, functional)
    if made is None:
        return None
    if made.dim() > target.dim():
        return f"a result of {made.dim()} dims, the tensor has {target.dim()}"
    return None if torch.can_cast(made.dtype, target.dtype) else f"a result of {made.dtype}, which is no {target.dtype}"


def misfit_of_out(node: fx.Node) -> str | None:
    """Why eager may refuse the tensors that a call is given for its results (`out=`); None where it takes them.

    Operators on elements cast, most of them. Of others it is not known.
    """
    names = written_outs(node)
    if not names:
        return None
    if op_name(node) in _READ_BEFORE:
        return "to what it reads first"
    given: list[Any] = [node.kwargs[name] for name in names]
    dtypes = [val(out).dtype for out in given]
    if dtypes == _result_dtypes(node, names):
        return None
    if torch.Tag.pointwise in node.target.tags and _takes(node):  # type: ignore[union-attr]
        return None
    return f"to tensors of {', '.join(map(str, dtypes))}, which are not its results' dtypes"


def _result_dtypes(node: fx.Node, names: list[str]) -> list[torch.dtype] | None:
    """The dtypes of the results that a call makes itself; None where that is not known."""
    target = form_without_out(node.target)
    if target is None:
        return None
    kwargs = {name: operand for name, operand in node.kwargs.items() if name not in names}
    with node.graph.inserting_before(node):
        made = node.graph.call_function(target, node.args, kwargs)
    try:
        results = infer(made)
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        return None
    finally:
        node.graph.erase_node(made)
    return [result.dtype for result in tree_leaves(results) if isinstance(result, torch.Tensor)]


def _takes(node: fx.Node) -> bool:
    """Whether eager takes the dtypes of a call of an operator on elements: it is asked with one element."""
    args, kwargs = tree_map(lambda x: _example(val(x), "cpu"), (tuple(node.args), dict(node.kwargs)))
    try:
        with compat.plain_eager(), torch.no_grad():
            node.target(*args, **kwargs)  # type: ignore[operator]
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        return False
    return True


def _fits(sizes: Any, into: Any) -> bool:
    """Whether sizes broadcast to others, as far as the example tells."""
    pairs = list(zip(reversed(sizes), reversed(into), strict=False))
    known = [(hint(a), hint(b)) for a, b in pairs]
    return len(sizes) <= len(into) and all(a in (None, 1, b) or b is None for a, b in known)


def _is_alike(node: fx.Node, target: torch.Tensor) -> bool:
    """Whether all operands are tensors of the written one's floating dtype, of no more dims, and real numbers."""
    operands = [val(x) for x in (*tree_leaves(node.args), *tree_leaves(node.kwargs))]
    dtypes = {x.dtype for x in operands if isinstance(x, torch.Tensor)}
    if any(isinstance(x, torch.Tensor) and x.dim() > target.dim() for x in operands):
        return False
    return dtypes == {target.dtype} and target.is_floating_point() and not any(type(x) is complex for x in operands)


def _result(node: fx.Node, functional: Any) -> torch.Tensor | None:
    """What a call gives out of place, with dims of size 1; None if it gives none."""
    args, kwargs = tree_map(lambda x: _example(val(x)), (tuple(node.args), dict(node.kwargs)))
    try:
        with compat.plain_eager():
            made = functional(*args, **kwargs)
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):  # other checks are of that
        return None
    return made if isinstance(made, torch.Tensor) else None


def _example(operand: Any, device: str = "meta") -> Any:
    """A tensor of one element that promotes alike, or a number of an operand's type."""
    if isinstance(operand, torch.Tensor):
        return torch.ones((1,) * operand.dim(), dtype=operand.dtype, device=device)
    if isinstance(operand, (torch.SymBool, torch.SymInt, torch.SymFloat)):
        return {torch.SymBool: True, torch.SymInt: 1, torch.SymFloat: 1.0}[type(operand)]
    return operand

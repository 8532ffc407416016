"""Weights in the blocked layouts of oneDNN, and operands that are known at compile time.

    linear(x, weight)   ->   _linear_pointwise(x, _reorder_linear_weight(weight))       the inner call is folded

A call in the graph packs a weight, and freezing evaluates this call once. Candidates are measured with values that only
depend on weights computed once (`prepared`), so that the times are those of the program after folding.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx

from ..rewrites.compat.tensors import writes_seen
from ..rewrites.graph import describe, is_tensor, op_name
from ..rewrites.purity import is_pure
from ..rewrites.reason import Reason

FROZEN = "frozen"  # mark in the metadata of inputs and constants: values that only depend on them are folded
PACKED = "packed"  # mark in the metadata of a call: its result is a weight in the layout of a generated kernel
_LITTLE = 64 << 10  # bytes up to which a constant may be larger than the weights that it is computed from
_GROWN = 1.25  # largest ratio of the bytes of a constant to those of its weights; 8 bits in 16 take 2
_PLAIN = (torch.Tensor, torch.nn.Parameter)
SPATIAL_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_frozen(node: Any) -> bool:
    """Whether a tensor only depends on frozen weights and constants, so that folding turns it into a constant."""
    cone = _cone(node)
    return cone is not None and not enlarges(node, cone)


def _cone(node: Any) -> list[fx.Node] | None:
    """The nodes that a tensor is computed from, including itself; None if not all of them are frozen."""
    if not is_tensor(node):
        return None
    found, todo = {node: None}, [node]
    while todo:
        current = todo.pop()
        if not is_tensor(current):
            return None
        if current.op in ("placeholder", "get_attr"):
            if FROZEN not in current.meta:
                return None
            continue
        if not is_pure(current) or not current.all_input_nodes:
            return None
        new = [n for n in current.all_input_nodes if n not in found]
        found |= dict.fromkeys(new)
        todo += new
    return list(found)


def enlarges(node: fx.Node, cone: Sequence[fx.Node]) -> bool:
    """Whether a value takes more memory than the weights that it is computed from, such as dequantized weights.

    A product that reads it as a constant would read more memory than necessary. Zeros that pad rows do not count: a
    kernel needs them.

    Args:
        node: the value.
        cone: the value and all nodes that it is computed from.
    """
    behind = sum(_nbytes(n) for n in cone if n.op in ("placeholder", "get_attr"))
    pads = [n for n in cone if op_name(n) == "aten.constant_pad_nd"]
    allowed = behind * math.prod(max(_nbytes(pad) / max(_nbytes(pad.all_input_nodes[0]), 1), 1.0) for pad in pads)
    return not is_little(node) and _nbytes(node) > _GROWN * allowed


def is_little(node: fx.Node) -> bool:
    """Whether a constant is so small that its size does not matter."""
    return _nbytes(node) <= _LITTLE


def _nbytes(node: fx.Node) -> int:
    """Bytes of the distinct elements of a tensor; 0 if a size is symbolic."""
    val = node.meta["val"]
    if val.layout != torch.strided or not all(type(n) is int for n in (*val.shape, *val.stride())):
        return 0
    sizes = (size for size, stride in zip(val.shape, val.stride(), strict=True) if stride)
    return math.prod(sizes) * val.dtype.itemsize


def only_frozen(*weights: fx.Node | None) -> Reason | None:
    """Weights are frozen: preparing them pays only if it happens once."""
    changing = next((w for w in weights if w is not None and not is_frozen(w)), None)
    if changing is None:
        return None
    if _cone(changing) is not None:
        message = f"{describe(changing)} takes more memory than the weights behind it, and is no constant"
        return Reason("weight-enlarged", message, (changing,), "a weight as small as it is kept", describe(changing))
    message = f"{describe(changing)} may change from call to call (option freezing)"
    return Reason("weight-not-frozen", message, (changing,), "a frozen weight", describe(changing))


def only_changing(*weights: fx.Node | None) -> Reason | None:
    """Not all weights are frozen: this candidate computes with them at each call."""
    if any(w is not None and not is_frozen(w) for w in weights):
        return None
    return Reason("weight-frozen", "every weight is frozen: constants are faster")


def packed_linear_weight(weight: torch.Tensor, rows: int | None) -> torch.Tensor:
    """`weight` (N, K) in the layout for products with `rows` rows; None for `rows` if their number varies."""
    declare_results()
    return prepared(torch.ops.mkldnn._reorder_linear_weight, weight, settings=(rows,))


def packed_convolution_weight(
    weight: torch.Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    input_size: Sequence[int] | None,
) -> torch.Tensor:
    """`weight` (out, in / groups, *kernel) in the layout for inputs of this size; None for a size that varies."""
    declare_results()
    settings = (list(padding), list(stride), list(dilation), groups, input_size)
    return prepared(torch.ops.mkldnn._reorder_convolution_weight, weight, settings=settings)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """`x` (batch, channels, *space) in channels-last layout; itself if it has this layout."""
    return x.contiguous(memory_format=SPATIAL_FORMATS[x.dim()])


def lies_channels_last(x: torch.Tensor) -> bool:
    """Whether the strides of `x` (batch, channels, *space) alone tell libraries that it is channels-last.

    Dims of size 1 have strides too: (1, 64, 32, 32) with strides (64, 1, 2048, 64) is contiguous in channels-last, so
    that no conversion happens, but libraries treat it as channels-first. Symbolic strides are trusted.
    """
    if not all(type(number) is int for number in (*x.shape, *x.stride())):
        return True
    least = 0
    for dim in (1, *range(x.dim() - 1, 1, -1), 0):
        stride = x.stride(dim)
        if stride < max(least, 1) or (dim == 0 and stride == x.stride(1)):
            return False
        least = stride * x.shape[dim]
    return True


def dense(bias: torch.Tensor | None) -> torch.Tensor | None:
    """`bias` with contiguous elements, since oneDNN ignores its strides."""
    return bias if bias is None or bias.is_contiguous() else bias.contiguous()


def prepared(function: Callable[..., torch.Tensor], *tensors: torch.Tensor | None, settings: Sequence[Any] = ()) -> Any:
    """`function(*tensors, *settings)` of weights; freezing folds it, so measuring computes it once.

    The last result of each function is kept as long as the first of `tensors` lives.
    """
    if any(t is not None and type(t) not in _PLAIN for t in tensors):  # traced: nodes of the graph
        return function(*tensors, *settings)
    last = _last.setdefault(function, _Last())
    if not last.holds(tensors, tuple(settings)):
        last.keep(tensors, tuple(settings), function(*tensors, *settings))
    return last.result


class _Last:
    """The last result of a function of real tensors, which lives as long as the first tensor."""

    def __init__(self) -> None:
        self.key: tuple[Any, ...] = ()
        self.first: Callable[[], torch.Tensor | None] = lambda: None
        self.result: torch.Tensor | None = None

    def holds(self, tensors: tuple[torch.Tensor | None, ...], settings: tuple[Any, ...]) -> bool:
        return self.result is not None and self.first() is tensors[0] and self.key == _key(tensors, settings)

    def keep(self, tensors: tuple[Any, ...], settings: tuple[Any, ...], result: torch.Tensor) -> None:
        self.key, self.result = _key(tensors, settings), result
        self.first = weakref.ref(tensors[0], self.forget)

    def forget(self, _dead: Any = None) -> None:
        self.result = None


def _key(tensors: tuple[torch.Tensor | None, ...], settings: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*((id(t), writes_seen(t)) if t is not None else None for t in tensors), *settings)


_last: dict[Callable[..., torch.Tensor], _Last] = {}


@cache
def declare_results() -> None:
    """Register the metadata of results of these operators for tracing, which torch does not define."""

    def unchanged(weight: torch.Tensor, *_settings: Any) -> torch.Tensor:
        return torch.empty_like(weight, memory_format=torch.contiguous_format)

    def like_other(_x: torch.Tensor, other: torch.Tensor, *_settings: Any) -> torch.Tensor:
        return torch.empty_like(other, memory_format=SPATIAL_FORMATS[other.dim()])

    for name, result in (
        ("mkldnn::_reorder_linear_weight", unchanged),
        ("mkldnn::_reorder_convolution_weight", unchanged),
        ("mkldnn::_convolution_pointwise.binary", like_other),
    ):
        try:
            torch.library.register_fake(name, result)
        except RuntimeError:  # this version of torch defines it
            continue

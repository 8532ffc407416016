"""The least work of a graph's call: bytes to read and to write, multiplications and additions of its products.

    addmm(bias[4096], x[1024, 1024], w[1024, 4096])   bfloat16   ->   10.0 MiB read, 8.0 MiB written, 8.6 GFLOP

From metadata alone; symbolic sizes count as on the example inputs. Memory that is read twice is counted once, and of
expanded dims one element.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import flop_counter

from ....rewrites import compat
from ....rewrites.graph import nodes_in, packet_name, val
from ....rewrites.reason import Site, site_in
from ....rewrites.symbolic import hint
from ...codegen.kernel_call import KernelCall
from .cost_kernel import kernel_work
from .running import FILE

_GATHERS = {"embedding", "index_select", "gather", "index", "take", "take_along_dim"}
_LINEAR = {"aten.linear", "mkldnn._linear_pointwise", "mkl._mkl_linear"}
_CONVOLUTIONS = {"mkldnn._convolution_pointwise", "mkldnn._convolution_pointwise_"}
_UNSAID_VIEWS = {"aten._unsafe_view", "aten._reshape_alias"}  # views by what they do, not by their schemas
_BACKWARD_PRODUCTS = 2.5  # times the forward's: five products instead of two


@dataclass(frozen=True)
class CallCost:
    """The least work of one call.

    Args:
        read, written: bytes.
        flops: multiplications and additions of matrix products, convolutions and attentions.
        operations: other arithmetic, as far as known: that of generated kernels.
        dtype: what its products are computed in: the first floating-point tensor's, int8 if bytes come first.
    """

    read: int = 0
    written: int = 0
    flops: int = 0
    operations: int = 0
    dtype: str = ""


def cost_of(node: fx.Node) -> CallCost:
    """The cost of a call node."""
    tensors = _tensors([*node.all_input_nodes, node])
    dtype = next((t.dtype for t in tensors if t.dtype.is_floating_point), None)
    name = str(dtype).removeprefix("torch.") if dtype is not None else ""
    if len(tensors) > 1 and all(t.dtype in (torch.int8, torch.uint8) for t in tensors[:2]):
        name = "int8"
    if isinstance(node.target, KernelCall):
        sizes = [_number(val(argument)) for argument in node.args[len(node.target.given) :]]
        work = kernel_work(node.target.kernel, dict(zip(node.target.sizes, sizes, strict=True)))
        return CallCost(work.read, work.written, 0, work.operations, name)
    return CallCost(_read(node), _written(node), _flops(node), 0, name)


def is_free(node: fx.Node) -> bool:
    """Whether a call touches no memory: views, sizes, parts of tuples."""
    target = node.target
    if isinstance(target, KernelCall):
        return False
    if isinstance(target, compat.OpOverload):
        if compat.is_mutable(target):
            return False
        views = bool(compat.aliasing_arguments(target)) or packet_name(target) in _UNSAID_VIEWS
        return views or not _tensors([node])
    return target is operator.getitem or not _tensors([node])


def shapes_of(node: fx.Node) -> str:
    """Dtypes and sizes of tensors in and out: ``"f32[8, 4] f32[4] -> f32[8, 4]"``."""
    given = [t for used in dict.fromkeys(nodes_in([node.args, node.kwargs])) for t in _tensors([used])]
    return f"{' '.join(map(_spelled, given))} -> {' '.join(map(_spelled, _tensors([node])))}".strip()


def _spelled(tensor: torch.Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.").replace("float", "f").replace("int", "i").replace("complex", "c")
    return f"{kind}[{', '.join(map(str, _sizes(tensor)))}]"


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors that nodes stand for."""
    leaves = (leaf for value in values for leaf in compat.tree_leaves(val(value)))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _number(value: Any) -> int:
    return int(hint(value) or 0)


def _sizes(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(_number(size) for size in tensor.shape)


def covered(tensor: torch.Tensor) -> int:
    """Bytes of memory that a tensor's elements lie in, expanded dims counted once."""
    strides = map(hint, tensor.stride()) if tensor.layout == torch.strided else (1 for _ in tensor.shape)
    elements = math.prod(n for n, stride in zip(_sizes(tensor), strides, strict=True) if stride != 0)
    return elements * tensor.dtype.itemsize


def _read(node: fx.Node) -> int:
    """Bytes of the inputs; views of one value count no more than that value."""
    views: defaultdict[fx.Node, dict[fx.Node, int]] = defaultdict(dict)
    for used in node.all_input_nodes:
        views[_base(used)][used] = sum(map(covered, _tensors([used])))
    wholes = {base: sum(map(covered, _tensors([base]))) for base in views}
    total = sum(min(sum(parts.values()), wholes[base] or math.inf) for base, parts in views.items())
    return int(total) - _not_gathered(node)


def _base(node: fx.Node) -> fx.Node:
    """The value that a node is a view of."""
    while isinstance(node.target, compat.OpOverload) and is_free(node) and node.all_input_nodes:
        if not _tensors([node]):
            return node
        node = node.all_input_nodes[0]
    return node


def _not_gathered(node: fx.Node) -> int:
    """Bytes of a table that a gather leaves alone: it reads as much as it writes."""
    if packet_name(node.target).partition(".")[2] not in _GATHERS:
        return 0
    table = sum(map(covered, _tensors(node.args[:1])))
    return max(table - sum(map(covered, _tensors([node]))), 0)


def _written(node: fx.Node) -> int:
    """Bytes of the results, and of the arguments that are written."""
    target = node.target
    if not isinstance(target, compat.OpOverload) or not compat.is_mutable(target):
        return sum(map(covered, _tensors([node])))
    positions = {position for position, _ in compat.aliasing_arguments(target)}
    given = [argument for i, argument in enumerate(node.args) if i in positions]
    return sum(map(covered, _tensors(nodes_in(given))))


# -- products -------------------------------------------------------------------------------------------------------


def _flops(node: fx.Node) -> int:
    own = getattr(node.target, "flops", None)
    if own is not None:
        return int(own)
    if not isinstance(node.target, compat.OpOverload):
        return 0
    try:
        return _library_flops(node)
    except (
        Exception
    ):  # formulas of other versions may want other arguments: a report without a number is better than none
        return 0


def _library_flops(node: fx.Node) -> int:
    name = packet_name(node.target)
    arguments, keywords = fx.map_arg((node.args, node.kwargs), _shape_or_number)
    formula = flop_counter.flop_registry.get(node.target.overloadpacket)  # type: ignore[union-attr]
    if formula is not None:
        results = [_sizes(t) for t in _tensors([node])]
        return int(formula(*arguments, **keywords, out_val=results[0] if len(results) == 1 else tuple(results)))
    special = next((count for names, count in _SPECIAL if names(name)), None)
    return 0 if special is None else int(special(node, arguments))


def _shape_or_number(node: fx.Node) -> Any:
    value = val(node)
    return _sizes(value) if isinstance(value, torch.Tensor) else hint(value)


def _elements(node: fx.Node) -> int:
    return math.prod(_sizes(_tensors([node])[0]))


def _attention_flops(_: fx.Node, arguments: Any) -> int:
    """FLOPs of `softmax(q k^T) v` by shapes of q, k, v: (..., rows, depth), (..., keys, depth), (..., keys, width)."""
    q, k, v = arguments[:3]
    return 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def _attention_backward_flops(node: fx.Node, arguments: Any) -> int:
    return int(_BACKWARD_PRODUCTS * _attention_flops(node, arguments[1:4]))


_SPECIAL: tuple[tuple[Callable[[str], bool], Callable[[fx.Node, Any], int]], ...] = (
    (lambda name: name in _LINEAR, lambda node, given: 2 * _elements(node) * given[0][-1]),
    (lambda name: name in _CONVOLUTIONS, lambda node, given: 2 * _elements(node) * math.prod(given[1][1:])),
    (lambda name: "scaled_dot_product" in name and name.endswith("backward"), _attention_backward_flops),
    (lambda name: "scaled_dot_product" in name, _attention_flops),
)


def sites(traces: Iterable[str]) -> Iterator[Site]:
    """The user's places in stack traces, each once."""
    found = (site_in(trace) for trace in traces)
    yield from dict.fromkeys(site for site in found if site is not None and site.file != FILE)

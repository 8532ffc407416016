"""Conditions of eager on arguments of a call that neither tracing nor kernels would check.

    index_add(x: float32, 0, index, source: float64)     one dtype
    x.index_fill(0, index: int32, 1.0)                   the dtype of an index
    half.masked_fill(mask, -1e9)                         a number that the dtype holds
    x - True, 2 ** -1 of integers                        kinds of numbers
    slice_scatter(x, source, 0, 1, 3)                    the sizes of a source and of where it goes

A call that violates a condition stays a call of ATen, which raises eager's error when the program runs. `hold_sizes`
runs first: symbolic sizes that are equal on the example get a guard, as tracing an addition would add.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from ...rewrites.compat import OpOverload, plain_eager, schema_arguments
from ...rewrites.symbolic import equal_under_guard, hint, known_equal
from .element_numbers import ELEMENTS, beyond_elements, fits, given_by, hold_numbers, named, overload

_LONG = frozenset({torch.int64})
_WHOLE = frozenset({torch.int32, torch.int64})
_HALVES = (torch.bfloat16, torch.float16)
_MASKS = (torch.bool, torch.uint8)


# Operators whose arguments of these names have one dtype.
_ALIKE = named("""
    _log_softmax_backward_data: grad_output output
    _softmax_backward_data: grad_output output
    _prelu_kernel: self weight
    _prelu_kernel_backward: grad_output self weight
    binary_cross_entropy: self target weight
    binary_cross_entropy_backward: grad_output self target weight
    glu_backward: grad_output self
    huber_loss_backward: grad_output self target
    mse_loss_backward: grad_output self target
    smooth_l1_loss_backward: grad_output self target
    log_sigmoid_backward: grad_output self
    nll_loss_forward: self weight
    nll_loss_backward: grad_output self weight
    nll_loss2d_forward: self weight
    nll_loss2d_backward: grad_output self weight
    put: self source
    index_add: self source
    index_copy: self source
    index_reduce: self source
    index_put: self values
""")
# Normalizations: parameters have the input's dtype, or float32 if that has 16 bits, for some operators on CPUs only.
_NORMALIZING = named("""
    native_layer_norm: input weight bias
    native_group_norm: input weight bias
    native_batch_norm: input weight bias running_mean running_var
    _native_batch_norm_legit: input weight bias running_mean running_var
    _native_batch_norm_legit_no_training: input weight bias running_mean running_var
    _native_batch_norm_legit_functional: input weight bias running_mean running_var
    _batch_norm_with_update: input weight bias running_mean running_var
    _batch_norm_with_update_functional: input weight bias running_mean running_var
""")
_ALIKE_ON_GPUS = ("native_layer_norm", "native_group_norm")
# The dtypes that an index may have.
_INDICES = {
    "index_select": ("index", _WHOLE), "index_add": ("index", _WHOLE), "index_reduce": ("index", _WHOLE),
    "index_copy": ("index", _LONG), "index_fill": ("index", _LONG), "put": ("index", _LONG),
    "embedding_dense_backward": ("indices", _WHOLE), "nll_loss_forward": ("target", _LONG | {torch.uint8}),
    "nll_loss2d_forward": ("target", _LONG | {torch.uint8}),
}  # fmt: skip
# Writes to a part of a tensor, with the view that returns the part.
_REGIONS = {
    "select_scatter": torch.ops.aten.select.int,
    "slice_scatter": torch.ops.aten.slice.Tensor,
    "diagonal_scatter": torch.ops.aten.diagonal.default,
}
# Arguments that must broadcast to the sizes of the result.
_INTO = {
    "soft_margin_loss": (("self", ("target",)),),
    "binary_cross_entropy_with_logits": (("target", ("self", "weight")), ("self", ("pos_weight",))),
}
# Tensors that must have the same shape.
_SHAPED_ALIKE = named("""
    _softmax_backward_data: grad_output output
    _log_softmax_backward_data: grad_output output
    adaptive_max_pool2d_backward: grad_output indices
    adaptive_max_pool3d_backward: grad_output indices
    max_pool2d_with_indices_backward: grad_output indices
    max_pool3d_with_indices_backward: grad_output indices
""")
# Gradients of a part of a tensor, with the view that returns the part.
_GRADIENTS_OF_PARTS = {
    "slice_backward": torch.ops.aten.slice.Tensor, "select_backward": torch.ops.aten.select.int,
    "diagonal_backward": torch.ops.aten.diagonal.default, "unfold_backward": torch.ops.aten.unfold.default,
}  # fmt: skip
# Losses whose result has the dtype of the first tensor, whatever both promote to.
_MADE_LIKE_FIRST = ("huber_loss", "soft_margin_loss")
_HELD = "sizes_held"
_POOLED = ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d")
Equal = Callable[[Any, Any], bool]
_FLOATS = (float, torch.SymFloat)
_SUMS = ("add", "sub", "rsub")
_INEXACT_LISTS = ("_foreach_lerp", "_foreach_addcdiv", "_foreach_norm")
_LEAST = {"smooth_l1_loss": ("beta", 0), "huber_loss": ("delta", sys.float_info.min)}


def hold_sizes(module: fx.GraphModule) -> int:
    """Guard sizes that eager requires to be equal, if they are on the example; returns the number of calls.

    Integers that become elements are held to what the dtype holds. It runs before lowering, because a guard may merge
    several symbols.
    """
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    held = sum(map(_hold, [node for node in calls if _packet(node) in _SIZED]))
    return held + sum(map(hold_numbers, [node for node in calls if overload(node) in ELEMENTS]))


def _hold(node: fx.Node) -> bool:
    """Whether a call's sizes agree by a guard; guards on sums and minima tell torch nothing, so the call is marked."""
    packet, given = _packet(node), given_by(node)
    if _SIZED[packet](packet, given) is None or _SIZED[packet](packet, given, equal_under_guard) is not None:
        return False
    node.meta[_HELD] = True
    return True


def disagreement(node: fx.Node) -> str | None:
    """The arguments that eager rejects together; None if it accepts them."""
    target = node.target
    if not isinstance(target, OpOverload):
        return None
    packet, given = _packet(node), given_by(node)
    sizes = _agreed if _HELD in node.meta else _SIZED.get(packet, _agreed)
    for look in (_dtypes, _index, _kinds, _lists, _ranges, sizes, _apart):
        found = look(packet, given)
        if found is not None:
            return found
    return beyond_elements(node, given)


def _packet(node: fx.Node) -> str:
    return overload(node).partition(".")[0]


def _agreed(_packet: str, _given: dict[str, Any]) -> None:
    return None


def _dtypes(packet: str, given: dict[str, Any]) -> str | None:
    if packet == "binary_cross_entropy_with_logits":
        return _of_logits(given)
    if packet in _MADE_LIKE_FIRST:
        x, y = given["self"].dtype, given["target"].dtype
        made = torch.promote_types(x, y)
        return None if torch.can_cast(made, x) else f"eager refuses to make {x} of {made}"
    names = _ALIKE.get(packet) or _NORMALIZING.get(packet)
    if names is None:
        return None
    first, *more = [given[name].dtype for name in names if isinstance(given.get(name), torch.Tensor)]
    widened = packet in _NORMALIZING and first in _HALVES and set(more) == {torch.float32}
    widened = widened and (packet not in _ALIKE_ON_GPUS or given["input"].device.type == "cpu")
    alike = widened or not set(more) - {first}
    return None if alike else f"eager refuses {', '.join(map(str, [first, *more]))} together"


def _of_logits(given: dict[str, Any]) -> str | None:
    """Logits and targets: the result has the dtype of the target, which must hold all operands; bools are rejected."""
    dtypes = {name: value.dtype for name, value in given.items() if isinstance(value, torch.Tensor)}
    if not dtypes["self"].is_floating_point or torch.bool in (dtypes["target"], dtypes.get("pos_weight")):
        return f"eager refuses {', '.join(map(str, dtypes.values()))} together"
    made, result = functools.reduce(torch.promote_types, dtypes.values()), dtypes["target"]
    return None if torch.can_cast(made, result) else f"eager refuses to make {result} of {made}"


def _index(packet: str, given: dict[str, Any]) -> str | None:
    name, taken = _INDICES.get(packet, ("", frozenset()))
    index = given.get(name)
    if not isinstance(index, torch.Tensor) or index.dtype in taken:
        return None if packet != "index_select" or index is None or index.dim() < 2 else "eager refuses such an index"
    return f"eager refuses an index of {index.dtype}"


def _kinds(packet: str, given: dict[str, Any]) -> str | None:
    """Numbers of a kind that an operator rejects beside its tensors."""
    if packet in ("sub", "rsub") and isinstance(given.get("other"), bool):
        return "eager refuses to subtract truth values"
    whole = isinstance(given.get("self"), torch.Tensor) and not _inexact(given["self"])
    exponent = given.get("exponent")
    if packet == "pow" and whole and type(exponent) is int and exponent < 0:
        return "eager refuses negative powers of integers"
    alpha, other = given.get("alpha"), given.get("other")
    exact = (
        whole
        and not isinstance(other, (float, torch.SymFloat))
        and not (isinstance(other, torch.Tensor) and _inexact(other))
    )
    if packet in _SUMS and exact and isinstance(alpha, (float, torch.SymFloat)):
        return f"eager refuses a factor of {alpha} beside {given['self'].dtype}"
    return None


def _lists(packet: str, given: dict[str, Any]) -> str | None:
    """Kinds of numbers in lists of tensors."""
    if not packet.startswith("_foreach_"):
        return None
    lists = [arg for arg in given.values() if isinstance(arg, (list, tuple))]
    values = [x.meta["val"] for arg in lists for x in arg if isinstance(x, fx.Node)]
    if all(_inexact(value) for value in values if isinstance(value, torch.Tensor)):
        return None
    if packet in _INEXACT_LISTS or isinstance(given.get("alpha"), _FLOATS):
        return f"eager refuses {packet} of integers"
    return None


def _ranges(packet: str, given: dict[str, Any]) -> str | None:
    """Numbers that are too small for an operator."""
    if packet == "celu" and type(given["alpha"]) in (int, float) and given["alpha"] != 0:
        dtype = torch.float32 if given["self"].dtype in _HALVES else given["self"].dtype
        return None if fits(1 / given["alpha"], dtype) else f"eager refuses the inverse of {given['alpha']}"
    name, least = _LEAST.get(packet, ("", 0))
    number = given.get(name)
    if number is None or (type(number) in (int, float) and number >= least):
        return None
    return f"eager may refuse a {name} of {number}"


def _slices(_: str, given: dict[str, Any], equal: Equal = known_equal) -> str | None:
    x, source, index = given["self"], given["source"], given["index"]
    wanted = list(x.shape)
    if -len(wanted) <= given["dim"] < len(wanted):
        wanted[given["dim"]] = index.numel()
    return None if _agree(source.shape, wanted, equal) else f"a source of {list(source.shape)}, not {wanted}"


def _rows(_: str, given: dict[str, Any], equal: Equal = known_equal) -> str | None:
    rows, indices = given["grad_output"].shape[:-1], given["indices"].shape
    return None if _agree(rows, indices, equal) else f"rows of {list(rows)} for indices of {list(indices)}"


def _places(_: str, given: dict[str, Any], equal: Equal = known_equal) -> str | None:
    wrong = _misplaced(given["self"].shape, given["indices"], equal)
    if wrong is not None:
        return wrong
    sizes = _indexed(given["self"].shape, given["indices"])
    values = given["values"].shape
    return None if sizes is None or _widens(values, sizes, equal) else f"values of {list(values)} for places of {sizes}"


def _indexed(sizes: Any, indices: Any) -> list[Any] | None:
    """The sizes of indexed elements; None if a mask is among the indices.

    x[:, rows, columns]: the broadcast dims of indices stand in their place, or come first if the indices are not
    adjacent.
    """
    given = {dim: index for dim, index in enumerate(_told(indices)) if isinstance(index, torch.Tensor)}
    if not given or any(index.dtype in _MASKS for index in given.values()):
        return None
    shared: list[Any] = []
    for shape in sorted((index.shape for index in given.values()), key=len, reverse=True):
        shared = shared or list(shape)
        for place in range(-len(shape), 0):
            shared[place] = shape[place] if known_equal(shared[place], 1) else shared[place]
    first = min(given) if max(given) - min(given) == len(given) - 1 else 0
    rest = [size for dim, size in enumerate(sizes) if dim not in given]
    return [*rest[:first], *shared, *rest[first:]]


def _misplaced(sizes: Any, indices: Any, equal: Equal) -> str | None:
    """Whether there are more indices than dims, or masks of other sizes than the dims that they stand for."""
    dim = 0
    for index in _told(indices):
        masked = index.shape if isinstance(index, torch.Tensor) and index.dtype in _MASKS else None
        stop = dim + (1 if masked is None else len(masked))
        if max(stop, len(indices)) > len(sizes):
            return f"indices of {stop} dims into {len(sizes)}"
        if masked is not None and not _agree(masked, sizes[dim:stop], equal):
            return f"a mask of {list(masked)} for {list(sizes[dim:stop])}"
        dim = stop
    return None


def _told(indices: Any) -> list[Any]:
    """Indices by their metadata; None stands for a whole dim."""
    return [index.meta["val"] if isinstance(index, fx.Node) else index for index in indices]


def _agree(sizes: Any, others: Any, equal: Equal) -> bool:
    return len(sizes) == len(others) and all(map(equal, sizes, others))


def _regions(packet: str, given: dict[str, Any], equal: Equal = known_equal) -> str | None:
    view, source = _REGIONS[packet], given["src"]
    names = [name for name, _, _ in schema_arguments(view)][1:]
    places = [given[name] for name in names if name in given]
    sizes = [*given["self"].shape, *source.shape, *places]
    if any(hint(size) is None and size is not None for size in sizes):
        return None  # known at run time only: the view itself would create new symbols
    try:
        with plain_eager():
            region = view(given["self"], *places).shape
    except (RuntimeError, IndexError, ValueError) as error:
        return f"eager refuses the place: {error}"
    agrees = _agree(source.shape, region, equal)
    return None if agrees else f"a source of {list(source.shape)} for a place of {list(region)}"


def _broadcast(packet: str, given: dict[str, Any], equal: Equal = known_equal) -> str | None:
    for into, names in _INTO[packet]:
        others = [given[name].shape for name in names if isinstance(given.get(name), torch.Tensor)]
        if into == "self" and others and packet == "binary_cross_entropy_with_logits":
            others.append(given["target"].shape)  # the factor of the weights
        wide = [sizes for sizes in others if not _widens(sizes, given[into].shape, equal)]
        if wide:
            return f"eager refuses {list(wide[0])} beside {list(given[into].shape)}"
    return None


def _widens(sizes: Any, to: Any, equal: Equal) -> bool:
    """Whether sizes are known to broadcast to others."""
    ends = zip(reversed(sizes), reversed(to), strict=False)
    return len(sizes) <= len(to) and all(known_equal(size, 1) or equal(size, other) for size, other in ends)


def _apart(packet: str, given: dict[str, Any]) -> str | None:
    """Known sizes that differ where eager requires equal ones and metadata does not; symbols are not checked."""
    if packet.startswith(("upsample_", "_upsample_")):
        sizes = given.get("output_size") or ()
        return f"no images of sizes {list(sizes)}" if any(isinstance(n, int) and n <= 0 for n in sizes) else None
    if packet in ("im2col", "col2im"):
        least = {"kernel_size": 1, "dilation": 1, "padding": 0, "stride": 1}
        small = [name for name, n in least.items() if any(isinstance(k, int) and k < n for k in given[name])]
        return f"eager refuses {small[0]} {list(given[small[0]])}" if small else None
    if packet == "_unsafe_masked_index_put_accumulate":
        return _places(packet, given, _may_be_equal)
    if packet in _GRADIENTS_OF_PARTS:
        return _beside_part(packet, given)
    if packet in _POOLED and any(known_equal(size, 0) for size in given["self"].shape[1:]):
        return f"eager may refuse to pool {list(given['self'].shape)}"
    pairs = _pairs(packet, given)
    return next((f"sizes {list(a)} for {list(b)}" for a, b in pairs if not _agree(a, b, _may_be_equal)), None)


def _may_be_equal(a: Any, b: Any) -> bool:
    return a == b if isinstance(a, int) and isinstance(b, int) else True


def _pairs(packet: str, given: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Sizes, and the sizes that they must equal."""
    shapes = {name: value.shape for name, value in given.items() if isinstance(value, torch.Tensor)}
    if packet in _SHAPED_ALIKE:
        first, second = _SHAPED_ALIKE[packet]
        yield shapes[first], shapes[second]
    if packet.startswith(("max_pool", "adaptive_max_pool")) and packet.endswith("backward"):
        rank = 2 if "2d" in packet else 3
        yield shapes["grad_output"][:-rank], shapes["self"][:-rank]
    if packet.startswith("nll_loss"):
        x = list(shapes["self"])
        yield shapes["target"], [*x[:-1][:1], *x[2:]]
        if packet.endswith("backward") and given["reduction"] == 0:
            yield shapes["grad_output"], shapes["target"]
    if packet in ("native_layer_norm_backward", "native_group_norm"):
        wanted = given["normalized_shape"] if "normalized_shape" in given else [given["C"]]
        yield from ((shapes[name], wanted) for name in ("weight", "bias") if name in shapes)


def _beside_part(packet: str, given: dict[str, Any]) -> str | None:
    """Why a gradient, which may be broadcast, does not fit a part of a tensor of these sizes."""
    gradient, sizes, *places = given.values()
    if not all(isinstance(n, int) for n in (*sizes, *places)):
        return None
    try:
        with plain_eager():
            part = _GRADIENTS_OF_PARTS[packet](torch.empty(sizes, device="meta"), *places).shape
    except (RuntimeError, IndexError) as error:
        return f"eager refuses the place: {error}"
    return None if _widens(gradient.shape, part, _may_be_equal) else f"sizes {list(gradient.shape)} for {list(part)}"


_SIZED: dict[str, Callable[..., str | None]] = {
    **dict.fromkeys(("index_add", "index_copy", "index_reduce"), _slices), "index_put": _places,
    "embedding_dense_backward": _rows, **dict.fromkeys(_REGIONS, _regions), **dict.fromkeys(_INTO, _broadcast),
}  # fmt: skip


def _inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
